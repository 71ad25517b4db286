"""A store of version 0.1 is converted in place: its weights, provenance and receipts stay."""

import json

import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers import origin, part

from tangent_jax.components.recipe import Recipe
from tangent_jax.components.store import Store
from tangent_jax.components.version_0_1 import convert
from tangent_jax.core import InputError, trees
from tangent_jax.core.files import digest

RECIPE = {
    "weights": "builtin", "dataset": "digits", "seed": 3, "key": [3, 77], "dtype": "float32", "cache_dtype": None,
    "image_size": None, "output": "tangent",
    "choice": {"method": "taft", "kind": "blocks", "blocks": 1, "reset": False, "new_class_token": True,
               "learning_rate": 0.003},
    "settings": {"loss": "rsl", "epochs": 7, "batch_size": 16, "learning_rate": 0.003, "penalty": 1e-5,
                 "decay_at": [0.5, 0.8], "alpha": 1.0, "kappa": 5.0},
}  # fmt: skip


def written_by_0_1(root, recipe=RECIPE, privacy=None):
    """What version 0.1 left behind: folders of Orbax, and its journal."""
    store = Store(root)
    for s in range(2):
        folder, dw = root / f"components/{s:016x}", part(s)
        folder.mkdir(parents=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "dw", dw)
        shapes = {path: [leaf.shape, str(leaf.dtype)] for path, leaf in trees.leaves(dw).items()}
        (folder / "shapes.json").write_text(json.dumps(shapes))
        fields = json.loads(origin(s).to_json())
        config = {"epsilon" if name == "eps" else name: value for name, value in fields["config"].items()}
        fields |= {"config": config, "recipe": recipe, "privacy": privacy}
        (folder / "provenance.json").write_text(json.dumps(fields))
        (folder / "files.json").write_text("{}")
        entry = {"id": folder.name, "weights": trees.fingerprint(dw), "files": digest(b"{}")}
        store.journal.append({"op": "add", "name": f"shard {s}", **entry})
    return root


def test_a_converted_store_has_the_old_weights_and_recipes(tmp_path):
    written_by_0_1(tmp_path)
    with pytest.raises(InputError, match=r"a store of this version; .* Convert it: python -m experiments"):
        Store(tmp_path).compose()
    store = convert(tmp_path)
    assert [*store] == ["shard 0", "shard 1"]
    for s in range(2):
        assert trees.fingerprint(store[f"shard {s}"]) == trees.fingerprint(part(s))
        found = store.provenance(f"shard {s}")
        assert (found.config, found.examples, found.anchor) == (origin(s).config, origin(s).examples, origin(s).anchor)
        assert found.recipe == Recipe(
            new_class_token=True, learning_rate=0.003, epochs=7, batch_size=16, kappa=5.0, seed=3, order=77,
            output="tangent",
        )  # fmt: skip
    assert store.verify() == []
    assert [*Store(tmp_path)] == ["shard 0", "shard 1"]
    store.add("new", part(9), origin(4))  # components of both versions are summed
    assert np.isfinite(store.compose()["head"]["bias"]).all()
    with pytest.raises(InputError, match=r"convert: expected a store of version 0.1"):
        convert(tmp_path)


def test_private_components_keep_what_they_spent(tmp_path):
    spent = {"epsilon": 3.0, "delta": 1e-5, "neighbouring": "add-or-remove-one", "noise_multiplier": 9.833, "steps": 50}
    spent |= {"sampling_rate": 1.0, "private": True}
    settings = {"epsilon": 3.0, "delta": 1e-5, "steps": 50}
    store = convert(written_by_0_1(tmp_path, {**RECIPE, "settings": settings, "key": []}, spent))
    assert store.provenance("shard 0").recipe == Recipe(
        new_class_token=True, seed=3, output="tangent", learning_rate=0.003
    )
    together = store.spent([*store])
    assert together is not None
    assert abs(together["epsilon"] - 3) < 1e-3


def test_altered_weights_are_not_converted(tmp_path):
    written_by_0_1(tmp_path)
    folder = tmp_path / f"components/{1:016x}"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "dw", part(7), force=True)
    with pytest.raises(InputError, match="unaltered weights of shard 1"):
        convert(tmp_path)
    with pytest.raises(InputError, match=r"one of version 0\.1"):
        Store(tmp_path)["shard 0"]

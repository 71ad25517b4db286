"""Components whose provenance no header holds, as of a million images: every operation as with a short one."""

import json

import pytest
from helpers import origin, part

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io import tensors
from tangent_jax.store.files import read_component
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt


@pytest.fixture(autouse=True)
def no_text_fits_a_header(monkeypatch):
    monkeypatch.setattr(tensors, "LONG", 99)


def filled(root):
    store = Store(root)
    for s in range(3):
        whose = {f"photo {3 * s}.jpg": "Ann", f"photo {3 * s + 1}.jpg": "bob"}
        store.add(f"shard {s}", part(s), origin(s, owners=whose))
    return store


def header(path):
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def test_long_texts_lie_outside_header(tmp_path):
    store = filled(tmp_path / "store")
    entry = header(store.path("shard 1"))
    assert "photo" not in json.dumps(entry)
    assert entry["__metadata__/provenance"]["dtype"] == "U8"
    origins = [store.provenance(f"shard {s}") for s in range(3)]
    assert [(o.data.examples, o.training.seconds) for o in origins] == [
        (origin(s).data.examples, 1.5) for s in range(3)
    ]
    assert origins[1].data.owners == {"photo 3.jpg": "ann", "photo 4.jpg": "bob"}
    assert {*trees.leaves(store["shard 1"].dw)} == {*trees.leaves(part(1))}
    assert verify(store) == []


def test_long_texts_are_merged_and_removed(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    add_all(store, filled(tmp_path / "first"))
    plan = plan_removal(store, examples=["photo 4.jpg"])
    assert plan.components["shard 1"].left == 2
    receipt = remove(store, plan)
    assert verify(store) == verify_receipt(store, receipt.path) == []
    monkeypatch.undo()
    never = filled(tmp_path / "never")
    never.discard(["shard 1"])
    assert trees.fingerprint(store.sum()) == trees.fingerprint(never.sum())


def test_altered_outer_name_is_found(tmp_path):
    store = filled(tmp_path / "store")
    path = store.path("shard 1")
    path.write_bytes(path.read_bytes().replace(b"photo 4.jpg", b"photo 9.jpg"))
    assert verify(store) == [f"{path.relative_to(store.root)}: altered"]
    with pytest.raises(InputError, match=r"the provenance of shard 1 in .* was altered"):
        store.provenance("shard 1")
    with pytest.raises(InputError, match=r"numbers and provenance of .* must belong together"):
        read_component(path)

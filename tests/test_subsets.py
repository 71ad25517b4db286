"""Which leaves train, where the tail begins, and what a reset redraws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import small

from tangent_jax import subsets, trees
from tangent_jax.checks import InputError
from tangent_jax.config import vit_config
from tangent_jax.subsets import IMAGES, make_subset

EXPECTED = {  # (kind, blocks) of depth 3: (split, does this path train?)
    ("blocks", 0): (3, lambda p: p.startswith("head/")),
    ("blocks", 2): (1, lambda p: p.startswith(("block_1/", "block_2/", "norm/", "head/"))),
    ("bitfit", 1): (
        2,
        lambda p: p.startswith("head/") or (p.endswith("/bias") and p.startswith(("block_2/", "norm/"))),
    ),
    ("bitfit", 3): (IMAGES, lambda p: p.startswith("head/") or p.endswith("/bias")),
    ("layernorm", 3): (0, lambda p: p.startswith("head/") or "norm" in p),
    ("layernorm", 1): (2, lambda p: p.startswith(("head/", "norm/", "block_2/norm"))),
    ("head", 1): (3, lambda p: p.startswith("head/")),
    ("everything", 1): (IMAGES, lambda p: True),
}


@pytest.mark.parametrize(("kind", "blocks"), EXPECTED)
def test_a_subset_is_the_leaves_it_names(kind, blocks):
    config, w = small(3)
    split, trains = EXPECTED[kind, blocks]
    subset = make_subset(config, kind, blocks)
    assert subset.split == split
    assert list(subset.paths) == sorted(path for path in trees.leaves(w) if trains(path))
    assert subset.size == trees.size(subset.part(w))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(subset.zeros(w)))


def test_the_last_block_of_vit_large_has_the_published_size():
    assert make_subset(vit_config("L/16", classes=0), blocks=1).size == 12 * 1024**2 + 13 * 1024 + 2 * 1024


def test_a_subset_prints_its_leaves_and_count():
    text = str(make_subset(small(3)[0], blocks=2))
    assert text.startswith("blocks-2: ")
    assert "block_*/norm1/scale  (2 blocks)" in text


def test_a_new_class_token_trains_and_begins_the_tail():
    config, w = small(3)
    config, w = subsets.new_class_token(config, w, 1, jax.random.key(0))
    assert float(jnp.abs(w["new_class_token"]).max()) < 1e-5
    for kind in ("blocks", "bitfit", "layernorm"):
        subset = make_subset(config, kind, 2)
        assert "new_class_token" in subset.paths
        assert subset.split == 1


def test_a_reset_redraws_the_trained_leaves_and_no_other():
    config, w = small(3)
    subset = make_subset(config, blocks=1)
    again = subsets.reset(config, w, subset, jax.random.key(0))
    for path, leaf in trees.leaves(again).items():
        same = np.array_equal(leaf, trees.leaves(w)[path])
        assert same == (path not in subset.paths), path
    assert (again["norm"]["scale"] == 1).all()
    assert trees.fingerprint(subsets.reset(config, w, subset, jax.random.key(0))) == trees.fingerprint(again)


def test_a_new_head_leaves_the_rest():
    config, w = small(2)
    new, w2 = subsets.new_head(config, w, 10, jax.random.key(0))
    assert (new.classes, w2["head"]["kernel"].shape) == (10, (12, 10))
    assert w2["block_0"] is w["block_0"]
    assert float(jnp.abs(w2["head"]["kernel"]).max()) > 0  # a zero head would stop every tangent below it


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c, w: make_subset(c, "most"), "make_subset: expected kind in blocks"),
        (lambda c, w: make_subset(c, blocks=4), r"blocks in 0\.\.3; got 4"),
        (lambda c, w: subsets.new_head(c, w, 1, jax.random.key(0)), "at least two classes; got 1"),
    ],
)
def test_bad_input_is_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call(*small(3))

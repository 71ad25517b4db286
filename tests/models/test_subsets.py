"""The leaves that train, the beginning of the tail, and the leaves that a reset redraws."""

import re
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, small
from run_binary import ROOT

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.models import subsets
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.functions import model_of
from tangent_jax.models.subsets import KINDS, MADE, MATCHES, make_subset
from tangent_jax.models.vit.config import vit_config
from tangent_jax.models.vit.model import VisionTransformer

EXPECTED = {  # (kind, blocks) of depth 3: (stage, does this path train?)
    ("blocks", 0): (4, lambda p: p.startswith("head/")),
    ("blocks", 2): (2, lambda p: p.startswith(("block_1/", "block_2/", "norm/", "pool/", "head/"))),
    ("bitfit", 1): (
        3,
        lambda p: p.startswith("head/") or (p.endswith("/bias") and p.startswith(("block_2/", "norm/", "pool/"))),
    ),
    ("bitfit", 3): (0, lambda p: p.startswith("head/") or p.endswith("/bias")),
    ("layernorm", 3): (1, lambda p: p.startswith("head/") or "norm" in p),
    ("layernorm", 1): (3, lambda p: p.startswith(("head/", "norm/", "pool/norm/", "block_2/norm"))),
    ("head", 1): (4, lambda p: p.startswith("head/")),
    ("everything", 1): (0, lambda p: True),
}
POOLS = {"token": {}, "attention pool": MODERN["attention pool"]}
PAGE = (ROOT / "docs/reference/models.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \|[^|]+\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
TABLE = {kind: tuple(re.findall("`(.+?)`", part) for part in parts) for kind, *parts in ROW.findall(PAGE)}
"""{kind: (patterns of leaves with the last block of 12, patterns of the embedding with all blocks)}, of the page."""


def pretrained(depth):
    return Pretrained(*small(depth), "here")


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("kind", "blocks"), EXPECTED)
def test_a_subset_is_the_leaves_it_names(kind, blocks, pool):
    model, w = small(3, **POOLS[pool])
    stage, trains = EXPECTED[kind, blocks]
    subset = make_subset(model, kind, blocks)
    assert subset.stage == stage
    assert list(subset.paths) == sorted(path for path in trees.leaves(w) if trains(path))
    assert subset.size == sum(leaf.size for leaf in jax.tree.leaves(subset.part(w)))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(subset.zeros(w)))


def test_every_kind_of_weights_has_a_case():
    assert {kind for kind, _ in EXPECTED} == {*KINDS} - {*MADE}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_what_a_subset_trains(kind, pool):
    model, w = small(12, pre_norm=True, **POOLS[pool])
    if kind in MADE:
        model = getattr(Pretrained(model, w, ""), MADE[kind])(2, 12, jax.random.key(0)).model
    last, embedding = TABLE[kind]
    every = [pattern.replace("block_11/", "block_*/") for pattern in last] + embedding
    for blocks, patterns in ((1, last), (12, every)):
        trained = [path for path in model.shapes() if any(fnmatchcase(path, p) for p in ("head/*", *patterns))]
        assert make_subset(model, kind, blocks).paths == tuple(sorted(trained))


def test_vit_large_last_block_has_published_size():
    model = VisionTransformer(vit_config("L/16", classes=0), Preprocessing())
    assert make_subset(model, blocks=1).size == 12 * 1024**2 + 13 * 1024 + 2 * 1024


@pytest.mark.parametrize(
    ("kind", "blocks", "parts"),
    [
        ("blocks", 1, "block_2, head, norm"),
        ("bitfit", 2, "block_1 to block_2, head, norm"),
        ("head", 1, "head"),
    ],
)
def test_subset_prints_in_one_line(kind, blocks, parts):
    subset = make_subset(small(3)[0], kind, blocks)
    assert str(subset) == f"{subset.name} trains {parts}: {subset.size:,} numbers"


@pytest.mark.parametrize("kind", ["bitfit", "layernorm"])
def test_kind_without_leaf_is_refused(kind):
    """It trained the head alone, and said nothing."""
    w = {"scale": jnp.ones(4), "head": {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)}}
    head = lambda w, x: x @ w["head"]["kernel"] + w["head"]["bias"]  # noqa: E731
    model = model_of([lambda w, x: x * w["scale"]], w, jnp.ones((1, 4)), head=head).model
    refused = f"kind must be present below the model's head; got {kind} for leaves such as scale. Choose blocks"
    with pytest.raises(InputError, match=refused):
        make_subset(model, kind, 0)
    assert make_subset(model, "head").paths == ("head/bias", "head/kernel")


def test_deep_kind_names_needed_blocks(monkeypatch):
    monkeypatch.setitem(MATCHES, "kernels", lambda path: "/attention/" in path)
    monkeypatch.setitem(MATCHES, "first", lambda path: path.startswith(("patch_embedding/", "block_0/")))
    for kind, least in (("kernels", 1), ("first", 3)):
        monkeypatch.setattr(subsets, "KINDS", (*KINDS, kind))
        with pytest.raises(InputError, match=f"blocks must be at least {least} to .* kind {kind}; got {least - 1}"):
            make_subset(small(3)[0], kind, least - 1)
        assert make_subset(small(3)[0], kind, least).stage <= 3


def test_new_class_token_begins_tail():
    replaced = pretrained(3).with_class_token(2, jax.random.key(0))
    assert float(jnp.abs(replaced.w["new_class_token"]).max()) < 1e-5
    for kind in ("blocks", "bitfit", "layernorm"):
        subset = make_subset(replaced.model, kind, 2)
        assert "new_class_token" in subset.paths
        assert subset.stage == 2
    assert "new_class_token" not in make_subset(replaced.model, "head").paths


def test_reset_redraws_trained_leaves():
    here = pretrained(3)
    subset = make_subset(here.model, blocks=1)
    again = here.reset(subset, jax.random.key(0)).w
    for path, leaf in trees.leaves(again).items():
        same = np.array_equal(leaf, trees.leaves(here.w)[path])
        assert same == (path not in subset.paths), path
    assert (again["norm"]["scale"] == 1).all()
    assert trees.fingerprint(here.reset(subset, jax.random.key(0)).w) == trees.fingerprint(again)
    assert trees.fingerprint(here.reset(subset, jax.random.key(1)).w) != trees.fingerprint(again)


def test_a_new_head_leaves_the_rest():
    here = pretrained(2)
    new = here.with_head(10, jax.random.key(0))
    assert (new.model.classes, new.w["head"]["kernel"].shape) == (10, (12, 10))
    assert new.w["block_0"] is here.w["block_0"]
    deviation = float(new.w["head"]["kernel"].std())
    assert 0.005 < deviation < 0.02  # N(0, 0.01^2); a zero head would stop every tangent below it
    assert not np.array_equal(here.with_head(10, jax.random.key(1)).w["head"]["kernel"], new.w["head"]["kernel"])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: make_subset(p.model, "most"), "kind must be one of blocks"),
        (lambda p: make_subset(p.model, blocks=4), r"blocks must be a whole number in 0\.\.3; got 4"),
        (lambda p: p.with_head(0, jax.random.key(0)), "classes must be a whole number in 1.*got 0"),
        (
            lambda p: p.reset(make_subset(small(4)[0]), jax.random.key(0)),
            "subset must be of this model's leaves; got block_3/",
        ),
        (
            lambda p: p.with_class_token(4, jax.random.key(0)),
            r"blocks must be a whole number in 1\.\.3; got 4",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call(pretrained(3))

"""Every family, wrapper and subset by one table: its tangent, its clipped sums and its stages are those of autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, WIDE, assert_rel_close, assert_sums_are_vmapped_ones, in_long, normal, small, tree_normal
from models.test_second_model import Perceptron

from tangent_jax.core import trees
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.subsets import KINDS, MADE, make_subset
from tangent_jax.solver.rows import jacobian_rows

VIT = {
    "token": {},
    "avg": {"pool": "avg"},
    "class token replaced": {"class_token_at": 1},
    "clip": {"pre_norm": True, "activation": "quick_gelu", "eps": 1e-5},
    "layer scale, avg": {"layer_scale": True, "pool": "avg", "activation": "gelu_tanh"},
}
POOLS = {pool: {"registers": 1, "pool": pool} for pool in ("plain_avg", "token_register")}
RESNET = {
    "bottleneck": ResNetConfig((1, 2), True, 2, "small", 5, 7),
    "basic": ResNetConfig((2, 1), False, 3, "large", 13, 7, slope=0.1, stem_width=2),
    "one block a stage": ResNetConfig((1, 1), True, 2, "small", 5, 7),
}


def in_default_precision(model):
    """(model, weights of order one, f64 under x64; variances above 0)."""
    w = tree_normal(11, initial_weights(model, jax.random.key(0)), normal(0, ()).dtype)
    flat = trees.leaves(w).items()
    return model, trees.nest({p: jnp.abs(v) + 0.5 if p.endswith("/var") else 0.5 * v for p, v in flat})


def with_new(method, make, size=3, blocks=2):
    """(model, weights) with LoRA or adapters, whose new leaves are no longer those of the anchor."""
    model, w = make()
    made = getattr(Pretrained(model, w, ""), method)(size, blocks, jax.random.key(0))
    new = trees.select(made.w, lambda path: "lora" in path or "adapter" in path)
    return made.model, trees.cast(trees.add(made.w, tree_normal(5, new)), normal(0, ()).dtype)


def with_frozen_head(has_projection):
    """(model, weights) below embeddings of three classes, given to the dense layer's or the final norm's outputs."""
    model, w = small(2)
    if not has_projection:
        model, w = model.with_classes(0), {name: part for name, part in w.items() if name != "head"}
    rows = np.random.default_rng(0).standard_normal((3, 7 if has_projection else 12))
    made = Pretrained(model, w, "").with_frozen_head(FrozenHead(("a", "b", "c"), rows, 3.0))
    return made.model, trees.cast(made.w, normal(0, ()).dtype)


MODELS = {
    **{name: partial(small, 2, **fields) for name, fields in {**VIT, **POOLS}.items()},
    **{name: partial(small, 2, image_size=WIDE, **fields) for name, fields in MODERN.items()},
    **{name: partial(in_default_precision, ResNet(config)) for name, config in RESNET.items()},
    "perceptron": partial(in_default_precision, Perceptron()),
    "frozen head": partial(with_frozen_head, True),
    "frozen head, no projection": partial(with_frozen_head, False),
}
WRAPPED = ("token", "layer scale, avg", "rotary", "attention pool")
MODELS |= {f"LoRA, {name}": partial(with_new, "with_lora", MODELS[name]) for name in WRAPPED}
MODELS |= {f"adapters, {name}": partial(with_new, "with_adapters", MODELS[name]) for name in WRAPPED}
MODELS["LoRA, one block a stage"] = partial(with_new, "with_lora", MODELS["one block a stage"], 2, 1)
MODELS["LoRA, frozen head"] = partial(with_new, "with_lora", MODELS["frozen head"], 2, 2)


def case(name, kind, blocks, method="taft", count=2):
    """(predictor, a step, inputs of its stage) of a model of the table."""
    model, w = MODELS[name]()
    predict = Predictor(w, model, make_subset(model, kind, blocks), method)
    x = normal(3, (count, *model.input_shape(predict.subset.stage)))
    return predict, trees.scale(0.1, tree_normal(40, predict.zeros())), x


OF_VIT = [("blocks", 0), ("blocks", 1), ("blocks", 2), ("bitfit", 1), ("bitfit", 2), ("layernorm", 2), ("head", 1)]
OF_VIT += [("everything", 1)]
QUICK = [("blocks", 1), ("everything", 1)]  # from the features of a block, and from images with every leaf
VARIANTS = [name for name in (*VIT, *MODERN) if name != "token"]
OF_PERCEPTRON = [("blocks", 1), ("blocks", 0), ("bitfit", 1), ("layernorm", 1), ("everything", 0)]
OF_RESNET = [("blocks", 0), ("blocks", 2), ("bitfit", 3)]
OF_RESNET += [("blocks", 1), ("layernorm", 1)]

TANGENTS = [
    *(("token", *subset) for subset in OF_VIT),
    *((name, *subset) for name in VARIANTS for subset in QUICK),
    *(("class token replaced", "blocks", 2), ("avg", "bitfit", 2)),
    *((name, "everything", 0) for name in POOLS),
    *in_long(*((name, *subset) for name in VARIANTS for subset in OF_VIT if subset not in QUICK)),
    *(("bottleneck", "everything", 0), ("bottleneck", "blocks", 1)),
    *(("basic", "everything", 0), ("basic", "layernorm", 1)),
    *in_long(*((name, *subset) for name in ("bottleneck", "basic") for subset in OF_RESNET)),
    *(("perceptron", *subset) for subset in OF_PERCEPTRON),
    *(("frozen head", "blocks", 2), ("frozen head", "everything", 2), ("frozen head, no projection", "blocks", 2)),
    *(
        ("LoRA, frozen head", "lora", 2),
        ("LoRA, one block a stage", "lora", 1),
        ("LoRA, one block a stage", "lora_b", 1),
    ),
    *((f"LoRA, {name}", kind, 2) for name in WRAPPED[:2] for kind in ("lora", "lora_b")),
    *((f"adapters, {name}", "adapter", 2) for name in WRAPPED[:2]),
    *(("LoRA, rotary", "lora", 1), ("LoRA, rotary", "lora_b", 1), ("adapters, rotary", "adapter", 1)),
    *in_long(
        *((f"LoRA, {name}", kind, blocks) for name in WRAPPED for kind in ("lora", "lora_b") for blocks in (1, 2))
    ),
    *in_long(*((f"adapters, {name}", "adapter", n) for name in WRAPPED for n in (1, 2))),
]


def test_every_kind_has_an_autodiff_oracle():
    assert {kind for kind, _ in OF_VIT} == {*KINDS} - {*MADE}


@pytest.mark.parametrize(("name", "kind", "blocks"), TANGENTS)
def test_the_tangent_is_autodiffs(x64, name, kind, blocks):
    predict, dw, x = case(name, kind, blocks)
    model, stage = predict.model, predict.subset.stage
    want = jax.jit(linearize(lambda w, x: model.apply(w, x, stage), predict.w))(dw, x)
    assert_rel_close(jax.jit(lambda dw, x: model.dual(trees.pair(predict.w, dw), x, stage))(dw, x), want)


SUMS = [
    # the other two kinds: tests/privacy/test_clipping.py
    *(("attention pool", kind, n, "taft") for kind, n in dict(OF_VIT).items() if kind not in ("blocks", "everything")),
    *(("bottleneck", "blocks", 1, "taft"), ("basic", "everything", 0, "nlft")),
    *(("frozen head", "blocks", 1, method) for method in ("taft", "nlft")),
    *(("perceptron", *subset, method) for subset in OF_PERCEPTRON for method in ("taft", "nlft")),
    *(("LoRA, token", "lora_b", 2, "taft"), ("adapters, token", "adapter", 2, "nlft")),
    ("LoRA, one block a stage", "lora_b", 1, "taft"),
    *in_long(
        *(("bottleneck", "blocks", 1, "nlft"), ("basic", "everything", 0, "taft"), ("LoRA, token", "lora", 2, "nlft")),
        *(("basic", "blocks", 1, method) for method in ("taft", "nlft")),
        *(("bottleneck", "everything", 0, method) for method in ("taft", "nlft")),
    ),
]


@pytest.mark.parametrize(("name", "kind", "blocks", "method"), SUMS)
def test_norms_are_vmapped_gradients(x64, name, kind, blocks, method):
    predict, dw, x = case(name, kind, blocks, method, count=3)
    assert_sums_are_vmapped_ones(predict, dw, x, jnp.arange(3) * 3 % predict.model.classes)


@pytest.mark.long
def test_owner_norms_are_vmapped_gradients(x64):
    predict, dw, x = case("bottleneck", "everything", 0, count=4)
    assert_sums_are_vmapped_ones(predict, dw, x, jnp.array([0, 3, 6, 3]), jnp.ones((2, 2)))


@pytest.mark.parametrize("name", ["frozen head"])
def test_the_kernel_is_that_of_the_jacobian(x64, name):
    predict, _, x = case(name, "blocks", 1, count=3)
    leaves = jax.tree.leaves(jax.jit(jax.jacrev(predict))(predict.zeros(), x))
    j = np.concatenate([np.asarray(leaf).reshape(3 * predict.model.classes, -1) for leaf in leaves], 1)
    assert_rel_close(jacobian_rows(predict, x).gram(), j @ j.T)


@pytest.mark.parametrize("name", ["token", "avg", "rotary", "bottleneck", "basic", "perceptron", "frozen head"])
def test_stages_chain_to_network(x64, name):
    model, w = MODELS[name]()
    subset = make_subset(model, "blocks", 1)
    pairs, x = trees.pair(w, tree_normal(7, subset.part(w))), normal(3, (2, *model.input_shape(0)))
    apply, dual = jax.jit(model.apply, static_argnums=(2, 3)), jax.jit(model.dual, static_argnums=2)
    total, at = dual(pairs, x, 0), x
    for stage in range(model.stages):
        if stage == subset.stage:
            assert_rel_close(dual(pairs, at, stage), total)
        assert at.shape == (2, *model.input_shape(stage))
        assert_rel_close(at, apply(w, x, 0, stage) if stage else x)
        at = apply(w, at, stage, stage + 1 if stage + 1 < model.stages else None)
    assert_rel_close(at, total.primal)

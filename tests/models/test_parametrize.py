"""LoRA and adapters: nothing at the anchor, their tangents are autodiff's, and all that knows a model knows them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, apply, assert_rel_close, images, in_long, small, tree_normal
from models.test_oracle import MODELS

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.subsets import make_subset
from tangent_jax.models.trunk import Trunk
from tangent_jax.store.recipe import Recipe

VARIANTS = {"token": {}, "layer scale, avg": {"layer_scale": True, "pool": "avg"}, "rotary": MODERN["rotary"]}
VARIANTS["attention pool"] = MODERN["attention pool"]
QUICK, REST = ["token", "layer scale, avg"], in_long("rotary", "attention pool")


def with_new(kind, variant="token", blocks=2, size=3):
    model, w = small(depth=2, **VARIANTS[variant])
    plain = Pretrained(model, w, "here")
    add = plain.with_adapters if kind == "adapter" else plain.with_lora
    made = add(size, blocks, jax.random.key(0))
    return plain, Pretrained(made.model, trees.cast(made.w, w["norm"]["bias"].dtype), "here")


def moved(made, kind):
    """The same, its new leaves no longer those of the anchor."""
    new = trees.select(made.w, lambda path: "lora" in path or "adapter" in path)
    return Pretrained(made.model, trees.add(made.w, tree_normal(5, new)), made.source)


@pytest.mark.parametrize("kind", ["lora", "adapter"])
@pytest.mark.parametrize("variant", QUICK + REST)
def test_at_the_anchor_nothing_changes(x64, kind, variant):
    plain, made = with_new(kind, variant)
    want = apply(plain.model, plain.w, images())
    assert_rel_close(apply(made.model, made.w, images()), want, 1e-14)
    assert np.abs(apply(made.model, moved(made, kind).w, images()) - want).max() > 1e-3


@pytest.mark.parametrize("variant", QUICK + REST)
def test_lora_tangent_is_merged_jvp(x64, variant):
    plain, made = with_new("lora", variant)
    predict = tangent(made, 2, "lora")
    theta = tree_normal(7, predict.zeros())
    flat, w = trees.leaves(theta), trees.leaves(made.w)
    step = {path: leaf for path, leaf in flat.items() if "lora" not in path}
    for path, leaf in flat.items():  # dW = A_0 dB
        if path.endswith("lora_b"):
            step[path.replace("lora_b", "kernel")] = jnp.tensordot(w[path.replace("lora_b", "lora_a")], leaf, 1)
    want = jax.jit(linearize(lambda w, x: plain.model.apply(w, x), plain.w))(trees.nest(step), images())
    x = apply(made.model, made.w, images(), 0, predict.subset.stage)
    assert_rel_close(predict(theta, x), want.total)
    without_a = trees.nest({path: leaf for path, leaf in flat.items() if "lora_a" not in path})
    assert_rel_close(tangent(made, 2, "lora_b")(without_a, x), want.total)


def test_convolutions_have_low_rank_factors_too():
    model, w = MODELS["LoRA, one block a stage"]()
    assert w["layer2"]["block_0"]["conv2"]["lora_b"].shape[0] == 2
    assert "layer2/block_0/conv2/lora_b" in make_subset(model, "lora_b", 1).paths


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_trunk_cache_is_shared(tmp_path, kind):
    plain, made = with_new(kind, blocks=1)
    assert Trunk(made.model, made.w, 2).key() == Trunk(plain.model, plain.w, 2).key()
    predict = tangent(moved(made, kind), 1, kind)
    dw = tree_normal(7, predict.zeros())
    export(tmp_path / "export", predict, dw, {})
    again, step = load_export(tmp_path / "export")
    assert trees.fingerprint(again.w) == trees.fingerprint(predict.w)
    assert trees.fingerprint(step) == trees.fingerprint(dw)


def test_recipe_trains_factors():
    shapes = {}
    for method, kind in (("nlft", "lora"), ("taft", "lora"), ("nlft", "adapter"), ("taft", "adapter")):
        predict = Recipe(method=method, kind=kind, rank=4).predictor(10)
        shapes[method, kind] = {path.rpartition("/")[2] for path in predict.subset.paths}
        assert predict.subset.stage == 6
    assert shapes["nlft", "lora"] == {"lora_a", "lora_b", "kernel", "bias"}
    assert shapes["taft", "lora"] == {"lora_b", "kernel", "bias"}
    assert shapes["taft", "adapter"] == shapes["nlft", "adapter"] == {"kernel", "bias"}


def test_bad_ranks_are_refused_by_name():
    with pytest.raises(InputError, match=r"rank must be a whole number in 1\.\.96; got 97"):
        Recipe(kind="lora", rank=97).predictor(10)
    with pytest.raises(InputError, match=r"width must be a whole number in 1\.\.96; got 97"):
        Recipe(kind="adapter", rank=97).predictor(10)
    with pytest.raises(InputError, match=r"got lora for leaves such as .* Make the model by with_lora"):
        make_subset(small()[0], "lora")
    with pytest.raises(InputError, match="reset must not be given with kind lora; got True"):
        Recipe(kind="lora", reset=True).predictor(10)


KEY = jax.random.key(0)
METHODS = {
    "head": lambda p: p.with_head(3, KEY),
    "token": lambda p: p.with_class_token(1, KEY),
    "other token": lambda p: p.with_class_token(2, KEY),
    "adapters": lambda p: p.with_adapters(2, 2, KEY),
    "wider adapters": lambda p: p.with_adapters(3, 1, KEY),
    "lora": lambda p: p.with_lora(2, 1, KEY),
    "more lora": lambda p: p.with_lora(1, 2, KEY),
    "reset": lambda p: p.reset(make_subset(p.model, blocks=1), KEY),
    "resized": lambda p: p.with_image_size(12),
}
SAME = [{"token", "other token"}, {"adapters", "wider adapters"}, {"lora", "more lora"}]
BELOW_LORA = {"token", "other token", "adapters", "wider adapters", "resized"}


@pytest.mark.parametrize("first", METHODS)
def test_two_changes_compose_or_are_refused(first):
    """With adapters of another width, the old leaves stayed under shapes that said the new one."""
    made = METHODS[first](Pretrained(*small(depth=2), "here"))
    for second, change in METHODS.items():
        if any({first, second} <= same for same in SAME) or ("lora" in first and second in BELOW_LORA):
            refusal = r"^(the model must have|\w+ needs a model) .*; got [^\n]*$"
            with pytest.raises(InputError, match=refusal):
                change(made)
        elif {first, second} != {"resized"}:
            again = change(made)
            assert {path: leaf.shape for path, leaf in trees.leaves(again.w).items()} == again.model.shapes()
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(again.w)), (first, second)
            x = jax.ShapeDtypeStruct((2, *again.model.input_shape(0)), np.float32)
            assert jax.eval_shape(again.model.apply, again.w, x).shape[0] == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda w: {**w, "head": {"bias": w["head"]["bias"]}},
            r"head/kernel of w must have shape \(12, 7\); got none",
        ),
        (lambda w: {**w, "gate": w["class_token"]}, "w must have the model's leaves alone; got gate"),
        (lambda w: {**w, "class_token": w["class_token"][:5]}, r"class_token of w must have shape \(12,\); got \(5,\)"),
    ],
)
def test_foreign_weights_are_refused(change, match):
    model, w = small()
    with pytest.raises(InputError, match=match):
        Pretrained(model, change(w), "here")


def test_first_factor_scales_with_inputs():
    """N(0, 1 / inputs): x A is of order one whatever the width, and so is the step that B takes."""
    model, w = small(depth=1)
    wide = model.replace(width=96, mlp_width=384)
    w = trees.nest({path: np.zeros(shape, np.float32) for path, shape in wide.shapes().items()})
    made = Pretrained(wide, w, "here").with_lora(32, 1, KEY)
    inputs = {"query": 96, "key": 96, "value": 96, "out": 96, "mlp_in": 96, "mlp_out": 384}
    for path, leaf in trees.leaves(made.w).items():
        module, _, name = path.rpartition("/")
        if name == "lora_a":
            expected = inputs[module.rpartition("/")[2]] ** -0.5
            assert abs(float(leaf.std()) / expected - 1) < 0.1, path
        assert name != "lora_b" or not leaf.any()

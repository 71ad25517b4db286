"""One table of tolerances, one comparison, and small models with pairwise-distinct sizes."""

import contextlib
import dataclasses
import functools
import os
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.extend.core import jaxprs_in_params
from scipy import stats

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import compose
from tangent_jax.core import trees
from tangent_jax.core.preprocessing import sides
from tangent_jax.data.sources import Examples
from tangent_jax.models.feature_settings import SUMS, FeatureSettings
from tangent_jax.models.predict import Predictor
from tangent_jax.models.subsets import make_subset
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.solver.leaves import as_tree
from tangent_jax.solver.statistics import moments
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Data, Training, make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify
from tangent_jax.train.losses import CrossEntropy

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2}  # relative norm; STYLE.md
DIFFERENCE = 1e-7  # central difference, step 1e-5, f64


MODERN = {  # what DINOv2 and DINOv3 with registers, and SigLIP, are made of
    "class and mean": {"registers": 2, "layer_scale": True, "gated": True, "activation": "silu", "pool": "token_avg"},
    "rotary": {"positions": "rotary", "registers": 2, "width": 24, "eps": 1e-5},
    "rotary, gated, avg": {"positions": "rotary", "width": 24, "gated": True, "activation": "silu", "pool": "avg"},
    "mean of normalised": {"registers": 1, "pool": "norm_avg"},
    "attention pool": {"class_token": False, "pool": "attention", "activation": "gelu_tanh"},
    "no positions, class token replaced": {"positions": "none", "registers": 1, "class_token_at": 1},
}
WIDE = (8, 12)  # pixels: a grid of 2 x 3 patches


def in_long(*cases):
    """Cases of a parametrisation that `make test-all` alone runs: their code is that of a quick case."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def assert_rel_close(got, want, tolerance=None):
    """Trees of one structure, shapes and dtypes, whose difference is small in relative L2 norm over all leaves."""
    chex.assert_trees_all_equal_shapes_and_dtypes(got, want)
    got, want = jax.tree.leaves_with_path(got), jax.tree.leaves(want)
    squares = np.zeros(2)
    for (path, g), w in zip(got, want, strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        assert np.isfinite(g).all(), path
        squares += np.sum((g - w) ** 2), np.sum(w**2)
    tolerance = tolerance or TOLERANCE[str(jnp.dtype(want[0].dtype))]
    error = np.sqrt(squares[0] / max(squares[1], np.finfo(np.float64).tiny))
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def normal(key, shape, dtype=None):
    """Draws of a numbered key: the same in every dtype, but for rounding (None: f64 under x64, else f32).

    By numpy, as `jax.random` compiles anew for every shape.
    """
    draws = np.random.default_rng(key).standard_normal(shape).astype(np.float32)
    return jnp.asarray(draws.astype(dtype or (np.float64 if jax.config.jax_enable_x64 else np.float32)))


def tree_normal(key, tree, dtype=None):
    """A tree like `tree` of draws that differ leaf by leaf."""
    return trees.nest(
        {
            path: normal(key + 7919 * i, leaf.shape, dtype or leaf.dtype)
            for i, (path, leaf) in enumerate(trees.leaves(tree).items())
        }
    )


def small(depth=2, **changes):
    """A ViT of 5 tokens, 3 heads of 4, MLP 20, 7 classes, with weights of order one (f64 under x64)."""
    config = ViTConfig(width=12, depth=depth, heads=3, mlp_width=20, patch_size=4, image_size=8, classes=7)
    model = VisionTransformer(config.replace(**changes))
    zeros = trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()})
    draws = jax.tree.map(np.asarray, tree_normal(11, zeros, normal(0, ()).dtype))
    return model, jax.tree.map(lambda draw: jnp.asarray(0.5 * draw + (draw.ndim == 1)), draws)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def apply(model, w, x, start=0, stop=None):
    """`model.apply`, compiled."""
    return model.apply(w, x, start, stop)


def images(count=2, size=8, dtype=None):
    return normal(3, (count, *sides(size), 3), dtype)


def pictures(count=60):
    """Images of 4 x 4 pixels in three classes, each of one bright channel."""
    rng, labels = np.random.default_rng(0), np.arange(count, dtype=np.int32) % 3
    bright = 150 * np.eye(3)[labels][:, None, None]  # one channel
    images = np.clip(rng.normal(50 + bright, 30, (count, 4, 4, 3)), 0, 255).astype(np.uint8)
    return Examples(tuple(f"image {i}" for i in range(count)), labels, lambda i: images[i])


def predictor(
    kind="blocks", blocks=1, depth=2, *, method="taft", linearization="closed_form", output="total", **variant
):
    """A predictor of a small ViT, and a step that is not zero."""
    model, w = small(depth, **variant)
    predict = Predictor(w, model, make_subset(model, kind, blocks), method, linearization, output=output)
    return predict, jax.tree.map(lambda leaf: 0.1 * leaf, tree_normal(40, predict.subset.part(w)))


def private_task(*arguments, **options):
    """A predictor, a step, six inputs of its stage and their labels."""
    predict, dw = predictor(*arguments, **options)
    if predict.subset.stage == 0:
        x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)), jnp.uint8)
    else:
        x = jax.jit(predict.model.apply, static_argnums=(2, 3))(predict.w, images(6), 0, predict.subset.stage)
    return predict, dw, x, jnp.array([0, 3, 6, 1, 1, 2])


def assert_sums_are_vmapped_ones(predict, dw, x, y, present=None):
    """The clipped sum and the norms by closed forms are those of gradients under vmap; present: of owners, "o e"."""
    sums, present = [], jnp.ones(len(y)) if present is None else present
    for f in (clipped_sum_closed_form, clipped_sum):
        compiled = jax.jit(functools.partial(f, loss=CrossEntropy(), clip_norm=0.5))
        sums.append(compiled(predict, dw, x, y, present))
    closed, vmapped = sums
    assert_rel_close(closed.norms, vmapped.norms)
    assert_rel_close(closed.value, vmapped.value)


def scale_accepted(z, scale):
    """True where the draws pass for N(0, scale^2): mean and variance within 5 standard errors, Kolmogorov-Smirnov."""
    z = np.asarray(z, np.float64).ravel() / scale
    mean, spread = abs(z.mean()) * z.size**0.5, abs(z.var() - 1) * (z.size / 2) ** 0.5
    return mean < 5 and spread < 5 and stats.kstest(z, "norm").pvalue > 1e-4


@contextlib.contextmanager
def programs_of(function):
    """A list that grows by one for each program that a jitted function is lowered to inside."""
    names, name = [], f"jit({function.__name__})"

    def listen(event, _, fun_name="", **__):
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration" and fun_name == name:
            names.append(fun_name)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        monitoring.unregister_event_duration_listener(listen)


def equations(f, *arguments):
    """Every equation of the program that f traces to, those of inner programs too."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from walk(getattr(inner, "jaxpr", inner))

    return walk(jax.make_jaxpr(f)(*arguments).jaxpr)


def products(f, *arguments):
    """The dtypes that every matrix product that f traces to multiplies: its algorithm's, or its operands'."""
    in_half = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    return [
        {"bfloat16"} if equation.params["precision"] == in_half else {str(v.aval.dtype) for v in equation.invars}
        for equation in equations(f, *arguments)
        if equation.primitive.name == "dot_general"
    ]


def sums_of_examples(f, count, *arguments):
    """The dtypes of all sums over the examples that f traces to: an axis of `count`, a size of no other, goes."""
    dtypes = []
    for equation in equations(f, *arguments):
        is_sum = equation.primitive.name in ("reduce_sum", "dot_general", "conv_general_dilated", "scatter-add")
        if is_sum and any(count in v.aval.shape for v in equation.invars):
            dtypes += [str(v.aval.dtype) for v in equation.outvars if count not in v.aval.shape]
    return dtypes


FEATURES = FeatureSettings(("h",), 1, 1, 8, 0)


def sums(s, k=3):
    """A component of statistics of k features, of the classes a and one of its own; its numbers are not whole.

    It is of nine images, so that with 20 features it has their root, and with three their G.
    """
    rows, targets = np.random.default_rng(s).standard_normal((9, k)), np.arange(9) % 2
    return as_tree(*moments(rows / np.linalg.norm(rows, axis=1, keepdims=True), targets, 2))


def origin_of_sums(s, **changes):
    """The provenance of `sums(s)`."""
    fields = {"method": "statistics", "features": FEATURES, "classes": ("a", f"own {s}"), "subset": SUMS}
    return origin(s, **{**fields, **changes})


def components(trees, factors=None):
    """Components without provenance of these trees, by name, with these factors."""
    return {name: Component(dw, None, (factors or {}).get(name)) for name, dw in trees.items()}


def composed(trees):
    """The mean of named trees."""
    return compose(components(trees))


@functools.cache
def part(s):
    """A component of a store."""
    predict, _ = predictor(depth=1)
    return jax.tree.map(np.asarray, tree_normal(1000 * s, predict.subset.part(predict.w)))


def origin(s, **changes):
    """The provenance of `part(s)`."""
    predict, _ = predictor(depth=1)
    examples = tuple((f"{i:064x}", f"photo {i}.jpg") for i in range(3 * s, 3 * s + 3))
    made = make_provenance(predict, Recipe(seed=s))
    return changed(made, **{"examples": examples, "seconds": 1.5, **changes})


def filled(root, count=3, **changes):
    """A store of `part(0)`, `part(1)`, ..., named shard 0, shard 1, ..."""
    store = Store(root)
    for s in range(count):
        store.add(f"shard {s}", part(s), origin(s, **changes))
    return store


def drop(store, *names):
    """The receipt of a removal of components by name."""
    return remove(store, plan_removal(store, names=names))


def changed(origin, **changes):
    """A provenance with other fields, of whichever part."""
    for part, kind in (("data", Data), ("training", Training)):
        names = {field.name for field in dataclasses.fields(kind)} & {*changes}
        own = {name: changes.pop(name) for name in names}
        origin = dataclasses.replace(origin, **{part: dataclasses.replace(getattr(origin, part), **own)})
    return dataclasses.replace(origin, **changes)


def stopping(call, is_time):
    """The function `call`, which raises KeyboardInterrupt where is_time() is true."""

    def limited(*arguments):
        if is_time():
            raise KeyboardInterrupt
        return call(*arguments)

    return limited


WRITES = ("fsync", "replace", "truncate", "rmdir", "unlink")
"""The calls of the system by which a store writes, and a trace goes."""


class Killed(BaseException):
    """The end of a process: nothing catches it."""


@contextlib.contextmanager
def ending(moment, fault):
    """Raises the fault at the write of this number, counted from 0, and at each later one if it is Killed."""
    left = [moment]

    def limited(call):
        def step(*arguments, **more):
            left[0] -= 1
            if left[0] == -1 or (left[0] < 0 and fault is Killed):
                raise fault
            return call(*arguments, **more)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            patch.setattr(os, name, limited(getattr(os, name)))
        yield left


def content_of_stores(folder):
    """All that two runs must have alike, by store and component: not the journals' order and times, nor file names."""
    table = {}
    for path in sorted(Path(folder).iterdir()):
        store = Store(path)
        assert verify(store) == []
        table[path.name] = {"sum": trees.fingerprint(compose(store))}
        for name in store:
            entry, origin = store.state.components[name], store.provenance(name).with_training(seconds=0.0)
            table[path.name][name] = entry.weights, entry.factors and entry.factors.weights, origin
    return table

"""Checkpoints that others have fine-tuned, as components: they compose, merge, join heads and leave as others do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, images, small, tree_normal

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import compose
from tangent_jax.composition.factors import widen_factors
from tangent_jax.composition.merge import merge
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.heads import widen
from tangent_jax.models.predict import nonlinear, tangent
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.subsets import make_subset
from tangent_jax.solver.problem import make_curvature
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.task_vectors import task_vector
from tangent_jax.train.features import Features

BIRDS, SIGNS = ("gull", "owl", "wren"), ("give way", "stop")


def pretrained():
    """A small ViT without a head of its own."""
    return Pretrained(*small(classes=0), "pretrained")


def network(classes, **options):
    """The pre-trained network with a head of zeros for these classes, whose last block trains."""
    anchor = pretrained().with_head(classes, jax.random.key(0)).with_scaled_head(0.0)
    return nonlinear(anchor, **options)


def expert(predict, seed=1, size=0.1):
    """A checkpoint that differs from the pre-trained weights in the leaves of a predictor."""
    moved = tree_normal(seed, predict.subset.part(predict.w))
    return Pretrained(predict.model, trees.add(predict.w, trees.scale(size, moved)), f"expert {seed}")


def features(predict, seed=0, count=6):
    """Inputs of the predictor's stage, each with an identifier."""
    x = predict.model.apply(predict.w, images(count), 0, predict.subset.stage)
    examples = tuple((f"{seed * count + i:064x}", f"{seed}-{i}") for i in range(count))
    return Features(np.asarray(x), np.arange(count) % predict.model.classes, examples)


@pytest.mark.parametrize("options", [{}, {"blocks": 2}, {"kind": "everything"}])
def test_component_gives_experts_outputs(options):
    predict = network(BIRDS, **options)
    own = expert(predict)
    component = task_vector(own, predict, BIRDS)
    start = predict.subset.stage
    x = predict.model.apply(predict.w, images(), 0, start)
    assert_rel_close(predict(component.dw, x), own.model.apply(own.w, x, start))
    assert component.provenance.classes == BIRDS
    assert component.provenance.subset == predict.subset.paths


def test_factors_are_those_at_the_expert():
    predict = network(BIRDS)
    own = expert(predict)
    data = features(predict)
    component = task_vector(own, predict, BIRDS, data)
    at = make_curvature(tangent(own), data)
    assert trees.fingerprint(component.factors.kernels) == trees.fingerprint(at.kernels)
    assert component.provenance.data.identifiers == {identifier for identifier, _ in data.examples}


def batch_normed():
    """A small ResNet, and an expert whose statistics have moved."""
    model = ResNet(ResNetConfig((1, 1), True, 4, "small", 16, 3))
    w = trees.nest({path: np.ones(shape, np.float32) for path, shape in model.shapes().items()})
    predict = nonlinear(Pretrained(model, w, "resnet"), kind="everything")
    return predict, Pretrained(model, trees.scale(1.1, w), "expert")


def deeper(predict):
    """An expert whose last two blocks were trained."""
    every = dataclasses.replace(predict, subset=make_subset(predict.model, blocks=2))
    return predict, expert(every)


def lightly_trained(predict):
    """An expert whose lower blocks moved by half a percent, more than bfloat16 rounds."""
    moved = {path: 1.005 * leaf for path, leaf in trees.leaves(predict.w).items()}
    return predict, Pretrained(predict.model, trees.nest(moved), "expert")


def with_other_inputs(predict):
    """An expert with other settings of its images."""
    own = expert(predict)
    inputs = dataclasses.replace(own.model.preprocessing, mean=(0.1, 0.2, 0.3))
    return predict, dataclasses.replace(own, model=dataclasses.replace(own.model, preprocessing=inputs))


OTHERS = {
    "classes": (lambda: (network(BIRDS), expert(network(SIGNS))), "classes of the expert must be 3, .*; got 2"),
    "architecture": (
        lambda: (network(BIRDS), batch_normed()[1]),
        "architecture of the expert must be VisionTransformer, as of the pre-trained network; got ResNet",
    ),
    "size": (
        lambda: (network(BIRDS), Pretrained(*small(1, classes=3), "expert")),
        "depth of the expert must be 2, as of the pre-trained network; got 1",
    ),
    "preprocessing": (lambda: with_other_inputs(network(BIRDS)), "preprocessing of the expert must be .*"),
    "more blocks": (
        lambda: deeper(network(BIRDS)),
        "block_0/.* of the expert must be that of the pre-trained network; it differs. .*everything",
    ),
    "light training": (
        lambda: lightly_trained(network(BIRDS)),
        ".* of the expert must be that of the pre-trained network; it differs. .*everything",
    ),
    "batch norms": (batch_normed, "/mean of the expert must be .* it differs. Merge experts whose batch norms"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_networks_are_refused(case):
    make, message = OTHERS[case]
    predict, own = make()
    with pytest.raises(InputError, match=message):
        task_vector(own, predict)


@pytest.mark.parametrize(("size", "says"), [(0.01, False), (3.0, True)])
def test_a_difference_as_large_as_weights_is_said(size, says, capsys):
    predict = network(BIRDS)
    task_vector(expert(predict, size=size), predict)
    assert ("expert 1 differs from the pre-trained weights by as much" in capsys.readouterr().err) == says


def test_experts_of_other_classes_leave_bitwise(tmp_path):
    classes = {"birds": BIRDS, "signs": SIGNS, "more birds": BIRDS}
    parts, store = {}, Store(tmp_path / "store")
    for seed, (name, own) in enumerate(classes.items()):
        predict = network(own)
        parts[name] = task_vector(expert(predict, seed), predict, own, features(predict, seed))
        store.add(name, parts[name].dw, parts[name].provenance, parts[name].factors)
    together = store.compose()
    assert "head" not in together
    assert trees.fingerprint(together) == trees.fingerprint(compose(parts))
    remove(store, plan_removal(store, names=["signs"]), how="drop")
    del parts["signs"]
    for how in ("mean", "ties", "inputs"):
        assert trees.fingerprint(store.compose(how=how)) == trees.fingerprint(merge(parts, how))
    assert store.compose()["head"]["kernel"].shape == (12, 3)  # one set of classes: a soup with its head


@pytest.mark.parametrize("how", ["mean", "inputs"])
def test_heads_are_joined_by_class_name(how):
    names = tuple(sorted(BIRDS + SIGNS))
    whole = network(names)
    parts = {}
    for seed, own in enumerate((BIRDS, SIGNS)):
        predict = network(own)
        component = task_vector(expert(predict, seed), predict, own, features(predict, seed))
        factors = widen_factors(component.factors, names, own)
        parts[own[0]] = Component(widen(whole, names, component.dw, own), None, factors)
        x = features(predict).inputs
        chosen = [names.index(name) for name in own]
        wide = whole(parts[own[0]].dw, x)
        assert_rel_close(wide[:, np.array(chosen)], predict(component.dw, x))
        others = np.setdiff1d(np.arange(len(names)), chosen)
        assert jnp.abs(wide[:, others]).max() == 0
    merged = merge(parts, how, penalty=1e-3)
    assert merged["head"]["kernel"].shape == (12, len(names))
    if how == "mean":
        kernels = [part.dw["head"]["kernel"] for part in parts.values()]
        np.testing.assert_allclose(merged["head"]["kernel"], np.mean(kernels, 0), rtol=1e-5, atol=1e-7)

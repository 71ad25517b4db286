"""The ground of every reported figure: the paper's settings, fresh draws, and data that a choice has not seen."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from photos import photographs
from run_binary import module_of, output_of, run

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import greedy_soup
from tangent_jax.core import trees
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.linearization import linearize
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.losses import RescaledSquare
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.optimizers import adam


def test_the_defaults_are_the_papers():
    """Rescaled square loss, alpha 1, kappa 15; 30 epochs of 32, Adam 1e-3, x0.1 at epochs 15 and 25; 1e-5."""
    recipe = Recipe()
    assert recipe.objective == Objective(RescaledSquare(1.0, 15.0), 1e-5)
    numbers = recipe.learning_rate, recipe.epochs, recipe.batch_size, recipe.blocks
    assert (recipe.solver, *numbers) == ("adam", 1e-3, 30, 32, 1)
    logits, labels = jnp.array([[1.0, 2.0, 4.0]]), jnp.array([1])
    want = (1 + (2 - 15) ** 2 + 16) / 3
    for objective in (make_objective(), recipe.objective):
        assert abs(float(objective.loss(logits, labels)[0]) - want) < 1e-4
    assert abs(float(RescaledSquare()(logits, labels)[0]) - want) < 1e-4
    optimizer = adam(1.0)
    steps = []
    for epoch in range(30):
        update, _ = optimizer.update(jnp.ones(()), optimizer.init(jnp.zeros(())), progress=epoch / 30)
        steps.append(round(-float(update), 3))
    assert steps == [1.0] * 15 + [0.1] * 10 + [0.01] * 5


def test_a_recipe_is_what_it_says():
    logits, labels = jnp.array([[1.0, 2.0]]), jnp.array([0])
    loss = Recipe(loss="rsl:kappa=5:alpha=2").objective.loss(logits, labels)
    assert abs(float(loss[0]) - (2 * 16 + 4) / 2) < 1e-5
    builtin = load("builtin")
    heads, blocks = [], []
    for seed in range(3):
        w = Recipe(seed=seed, reset=True).predictor(10, builtin).w
        assert trees.fingerprint(w) == trees.fingerprint(Recipe(seed=seed, reset=True).predictor(10, builtin).w)
        blocks.append(trees.fingerprint(w["block_5"]))
        heads.append(trees.fingerprint(Recipe(seed=seed).predictor(10, builtin).w["head"]))
    assert len({*heads}) == len({*blocks}) == 3


def test_fresh_leaves_have_scales_and_keys():
    model = VisionTransformer(ViTConfig(64, 2, 2, 96, patch_size=4, image_size=16, classes=50))
    w = trees.leaves(initial_weights(model, jax.random.key(0)))
    assert abs(np.std(w["head/kernel"]) / 0.01 - 1) < 0.1
    cut = 0.02 * 0.8796  # a normal cut at two standard deviations
    for path in (
        "position_embedding",
        "patch_embedding/kernel",
        "block_0/mlp_in/kernel",
        "block_1/attention/out/kernel",
    ):
        assert abs(np.std(w[path]) / cut - 1) < 0.1, path
    assert not np.array_equal(w["block_0/mlp_in/kernel"], w["block_1/mlp_in/kernel"])
    assert not np.array_equal(w["block_0/attention/query/kernel"], w["block_0/attention/key/kernel"])


def test_a_greedy_soup_keeps_what_does_not_harm():
    components = {name: Component({"x": np.array([value])}) for name, value in {"a": 1.0, "b": 3.0, "c": -1.0}.items()}
    assert greedy_soup(components, lambda dw: float(dw["x"][0] > 0)) == ["a", "b", "c"]  # all means count alike


def test_a_frozen_leaf_costs_nothing_by_autodiff():
    model = VisionTransformer(ViTConfig(12, 3, 3, 20, patch_size=4, image_size=8, classes=7))
    w, x = initial_weights(model, jax.random.key(0)), jnp.ones((2, 8, 8, 3))
    f_lin = linearize(lambda w, x: model.apply(w, x), w)

    def flops(dw):
        return jax.jit(lambda dw, x: f_lin(dw, x).total).lower(dw, x).compile().cost_analysis()["flops"]

    plain = jax.jit(model.apply).lower(w, x).compile().cost_analysis()["flops"]
    assert flops({"head": w["head"]}) < 1.1 * plain < 1.7 * plain < flops(w)


# The experiments

SPY = """
import json, sys
import numpy as np
from absl import app
import {module} as module
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import flags
asked = []
{body}
def main(argv):
    module.main(flags.read(module.Config))
    print(json.dumps(asked))
flags.define(module.Config, TABLE)
app.run(main, argv=["x", *sys.argv[1:]])
"""
TABLE1 = """
def run(config, dataset, name, recipe, runs, *, on_test, shards):
    asked.append([name, recipe.learning_rate, on_test])
    return 0.9 if recipe.learning_rate == 1e-4 and not on_test else 0.5, 1.0
module.search.run = run
"""
TABLE3 = """
def train(self, together, on_test):
    asked.extend([(run.learning_rate, run.steps), on_test] for run in together)
    return [0.9 if (run.learning_rate, run.steps) == (0.02, 5) and not on_test else 0.5 for run in together]
module.Cell.train = train
"""


def spied(binary, body, *flags):
    """The list of all that a binary asks to be trained, on test or on held-out images."""
    code = SPY.format(module=module_of(binary), body=body)
    return json.loads(output_of(code, *flags)[0].strip().splitlines()[-1])


@pytest.mark.slow
def test_settings_are_chosen_on_held_out_images(tmp_path):
    """Test images are seen only once the choice is made, and only for what was chosen."""
    asked = spied("paper table1", TABLE1, f"--out={tmp_path}/1", "--blocks=1", "--seed=0,1", "--nosearch_anchor")
    for name in ("FC", "TAFT-1", "NLFT-1"):
        runs = [(rate, on_test) for n, rate, on_test in asked if n == name]
        assert runs == [(1e-3, False), (1e-4, False), (1e-4, True), (1e-4, True)]
    flags = ["--epsilon=8", "--lr=0.006,0.02", "--clip_norm=1", "--subset=head", "--seed=0,1", "--steps=5,50"]
    asked = spied("paper table3", TABLE3, f"--out={tmp_path}/3", *flags)
    first = next(i for i, (_, on_test) in enumerate(asked) if on_test)
    assert {tuple(chosen) for chosen, on_test in asked if on_test} == {(0.02, 5)}
    assert {tuple(tried) for tried, _ in asked[:first]} == {(0.006, 5), (0.006, 50), (0.02, 5), (0.02, 50)}


@pytest.mark.slow
def test_accuracy_is_of_test_images(tmp_path):
    digits, cache = open_dataset("digits"), Cache(tmp_path / "cache")
    public = f"folder:{photographs(tmp_path / 'public')}"
    images, private = open_dataset(public).train, ["--subset=head", "--noise_seed=0", f"--public={public}"]
    for binary, flags in (("finetune", ["--subset=head"]), ("private", private)):
        out = tmp_path / binary
        result = json.loads(run(binary, f"--cache_dir={tmp_path / 'cache'}", "--epochs=2", *flags, f"--out={out}")[0])
        dw, metadata = read_component(out / "dw.safetensors")
        known = tuple(zip(images.identifiers(), images.names, strict=True)) if binary == "private" else ()
        origin = Provenance.from_json(metadata["provenance"])
        assert (origin.data.public, origin.training.whitening) == (known, "images" if known else None)
        assert binary != "private" or result["public"] == {"dataset": public, "examples": len(known)}
        predict = origin.recipe.predictor(10)
        test, train = (extract(predict, part, cache) for part in (digits.test, digits.train))
        assert abs(evaluate(predict, dw, test) - result["accuracy"]) < 1e-6
        assert abs(evaluate(predict, dw, train) - result["accuracy"]) > 1e-3


@pytest.mark.long
def test_ensemble_is_measured_on_unseen(tmp_path):
    body = """
def fit(self, predict, train, **settings):
    asked.append(len(train))
    print(json.dumps(asked))
    sys.exit()
module.tj.Recipe.fit = fit
"""
    data = f"--dataset=folder:{photographs(tmp_path / 'set', count=5)}"
    flags = [data, f"--cache_dir={tmp_path}/cache", f"--out={tmp_path}/out", "--blocks=0", "--penalty=1"]
    (whole,), (held,) = (spied("uncertainty", body, *flags, *more) for more in ([], ["--held_out"]))
    assert held == whole * 4 // 5


@pytest.mark.long
def test_setting_is_searched_on_other_shards(tmp_path):
    body = """
import dataclasses
from types import SimpleNamespace
def fit(self, rows, title):
    asked.append(sorted(map(len, rows.values())))
    return [SimpleNamespace(dw=self.predict.zeros()) for _ in rows]
def main(config):
    runs = module.Runs(module.command.out_folder(config) / "runs.jsonl")
    for concentration in (0.1, 0.1, 5.0):
        module.searched(dataclasses.replace(config, concentration=concentration), "taft", 3, runs)
module.Method.fit, module.main = fit, main
"""
    flags = ["--sharding=dirichlet", "--blocks=0", "--lr=1e-3,3e-3", f"--out={tmp_path}"]
    assert len(spied("compose", body, *flags)) == 2 * 2  # rates, divisions


@pytest.mark.slow
def test_what_is_removed_is_in_no_mean():
    """forget's curve: after k shards leave, no mean, SISA's neither, holds what they answered."""
    body = """
import types
labels = np.zeros(4, int)
# each shard answers wrongly but the last one in every order is right: what is left must decide
def main(config):
    values = np.stack([np.tile([0.0, 1.0], (4, 1))] * 9 + [np.tile([100.0, 0.0], (4, 1))])
    module.outputs_of = lambda method, store: values
    method = types.SimpleNamespace(test=types.SimpleNamespace(targets=labels))
    curve, _ = module.dropping(config, method, list(range(10)), values)
    asked.append(curve)
module.main = main
"""
    (curve,) = spied("removal forget", body, "--repeats=40")
    assert curve["removed"][-1] == 9
    for name in ("taft", "sisa_mean"):
        assert curve[name][0] == 1.0  # all ten: the strong one decides
        assert curve[name][-1] < 0.5  # one of ten is left, seldom the strong one

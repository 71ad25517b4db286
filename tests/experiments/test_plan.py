"""The plan: sizes and FLOPs of the programs that the run then compiles, and nothing computed, drawn or written."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import in_long
from jax.sharding import PartitionSpec
from run_binary import run

import tangent_jax as tj
from tangent_jax.commands.shared import plan
from tangent_jax.core import placement
from tangent_jax.models import protocol
from tangent_jax.train.batches import Chunk
from tangent_jax.train.fit import Training, train_epoch


def test_plan_of_fit_is_its_program(monkeypatch):
    recipe, rng = tj.Recipe(batch_size=16, method="taft"), np.random.default_rng(0)
    predict = recipe.predictor(10)
    shape = (50, *predict.model.input_shape(predict.subset.stage))
    monkeypatch.setattr(protocol, "draw", lambda *_: pytest.fail("weights were drawn"))
    planned = plan.plan_of(recipe, 10, 50)
    assert planned["weights_bytes"] == sum(leaf.nbytes for leaf in jax.tree.leaves(predict.w))
    assert planned["inputs_bytes"] == 4 * np.prod(shape)
    assert planned["training_peak_bytes"] > planned["weights_bytes"] + planned["inputs_bytes"]
    data = tj.Batches(rng.standard_normal(shape, np.float32), rng.integers(0, 10, 50), recipe.key, batch_size=16)
    training = Training(predict, recipe.objective, recipe.optimizer(), (tj.metrics.accuracy,))
    chunk = Chunk(*data.resident(), *data.order(0))
    compiled = train_epoch.lower(training, training.start(predict.zeros()), chunk, None, 0.0).compile()
    assert planned["flops"] == compiled.cost_analysis()["flops"] > 1e6
    assert planned["temporary_bytes"] >= compiled.memory_analysis().temp_size_in_bytes > 0


def test_plan_of_private_lowers_what_runs():
    recipe = tj.Recipe(kind="head")
    predict = recipe.predictor(10)
    batches = tj.Batches(np.zeros((4, *predict.model.input_shape(predict.subset.stage)), np.float32), np.zeros(4, int))
    mechanism = tj.make_mechanism(3.0, 1e-5, 2)
    phase = plan.private_phase(recipe, predict, batches, mechanism, placement.mesh())
    state, norms = phase.programs["private step"].out_info
    assert jax.tree.map(jnp.shape, state.dw) == jax.tree.map(jnp.shape, predict.zeros())
    assert norms.shape == (2,)  # of gradient and step: the gradient itself stays inside the program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("binary", "options", "kind"),
    [
        ("private", ["--subset=head"], "private"),
        *in_long(("finetune", ["--weights=random:S/16", "--batch_size=128"], "fit")),
        *in_long(("finetune", ["--solver=optimum", "--penalty=0.1"], "optimum")),
    ],
)
def test_a_plan_is_one_line_and_leaves_nothing(tmp_path, binary, options, kind):
    cache, out, programs = tmp_path / "cache", tmp_path / "out", tmp_path / "programs"
    own = [f"--cache_dir={cache}", f"--out={out}", f"--compilation_cache={programs}"]
    line, err = run(binary, "--plan", *own, *options)
    planned = json.loads(line)
    assert planned["plan"] == kind
    assert planned["fits"] is (planned["peak_bytes"] < planned["memory_bytes"]) is True
    assert min(planned[name] for name in ("flops", "bytes_accessed", "temporary_bytes", "training_peak_bytes")) > 0
    assert len([*programs.iterdir()]) >= 2
    assert not cache.exists()
    assert not out.exists()
    assert "Traceback" not in err


def test_batch_divides_over_devices():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("examples",))
    shape = jax.ShapeDtypeStruct((3, 8), np.float32)
    assert plan.on_mesh(shape, mesh, 0).sharding.spec == PartitionSpec("examples")
    assert plan.on_mesh(shape, mesh, 1).sharding.spec == PartitionSpec(None, "examples")
    assert plan.on_mesh({"w": shape, "t": 1.0}, mesh)["w"].sharding.spec == PartitionSpec()
    assert plan.on_mesh(1.0, mesh) == 1.0

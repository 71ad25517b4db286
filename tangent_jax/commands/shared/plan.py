"""The plan of a run: the FLOPs and memory of its programs, from shapes alone, before any feature is computed.

    peak of a phase = permanent data: weights, inputs, targets, state
                      + the largest additional memory of a program: temporaries, results that replace no argument

Random weights are not drawn. The peak must fit into the memory of one device. On a CPU inputs count twice, as pages of
the cached features and as the device's copy; Python, the libraries and the compiler are not counted.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core import placement
from tangent_jax.core.checks import refusal
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.programs import Program, private_steps, size_of, solver_pass, train_steps, trunk


class Phase(NamedTuple):
    """The programs of a phase, the first one a step, and other memory.

    `often`: runs of the first program's body in a step or pass; `held`: bytes held in addition to `stays`.
    """

    programs: dict[str, Program]
    stays: Tree
    often: int = 1
    held: int = 0


def show(recipe: tj.Recipe, dataset: Dataset, mechanism: tj.privacy.Mechanism | None = None) -> None:
    """Prints the plan of a run on a data set as the last line of stdout; mechanism: for a private run."""
    print(json.dumps(plan_of(recipe, dataset.classes, len(dataset.train), mechanism)))


def plan_of(
    recipe: tj.Recipe, classes: int | Sequence[str], examples: int, mechanism: tj.privacy.Mechanism | None = None
) -> dict[str, Any]:
    """The plan of a run on this many examples: FLOPs and bytes of a step or pass, and peaks, for one device."""
    mesh = mesh_of(F.topology)
    predict: Any = jax.eval_shape(
        lambda: recipe.predictor(classes, tj.load(recipe.weights, F.architecture, recipe.ignore_config))
    )
    features = features_of(recipe, predict, examples)
    batches = features.batches(recipe.key, batch_size=recipe.batch_size)
    if mechanism is not None:
        kind, phase = "private", private_phase(recipe, predict, batches, mechanism, mesh)
    elif recipe.solver == "optimum":
        kind, phase = "optimum", optimum_phase(recipe, predict, features, mesh)
    else:
        kind, phase = "fit", fit_phase(recipe, predict, batches, mesh)
    lower = figures_of(features_phase(predict, mesh))["training_peak_bytes"] if predict.subset.stage else 0
    training, room = figures_of(phase), room_of(mesh)
    if mesh.devices.flat[0].platform == "cpu":
        training["training_peak_bytes"] += batches.inputs.nbytes
    peak = max(lower, training["training_peak_bytes"])
    return {
        "plan": kind,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "batch_size": batches.batch_size,
        "examples": examples,
        **training,
        "weights_bytes": size_of(predict.w),
        "inputs_bytes": batches.inputs.nbytes,
        "features_peak_bytes": lower,
        "peak_bytes": peak,
        "memory_bytes": room,
        "fits": None if room is None else peak <= room,
    }


def mesh_of(topology: str | None) -> Mesh:
    """The present devices, or those of a TPU topology, along one axis.

    Raises: InputError if JAX knows no such topology, or cannot compile for it.
    """
    if topology is None:
        return placement.mesh()
    try:
        devices = topologies.get_topology_desc(topology, "tpu").devices
    except Exception as error:
        do = "Install libtpu of the version that jax[tpu] names; for GPUs JAX compiles only where one is"
        raise refusal(
            "plan", "a --topology such as v5e:2x2, and libtpu", f"{topology} ({str(error).splitlines()[0]})", do
        ) from error
    return Mesh(np.array(devices), ("examples",))


def room_of(mesh: Mesh) -> int | None:
    """The memory of one device, on a CPU of the machine; None for absent devices or without this information."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return placement.machine_memory()
    return None if F.topology else (device.memory_stats() or {}).get("bytes_limit")


def features_of(recipe: tj.Recipe, predict: tj.Predictor, count: int) -> tj.Features:
    """Features with as many examples as the data set, as zeros that take no memory."""
    stage = predict.subset.stage
    kind = np.dtype(jnp.dtype(recipe.cache_dtype or recipe.dtype)) if stage else np.dtype(np.uint8)
    inputs = np.broadcast_to(np.zeros((), kind), (count, *predict.model.input_shape(stage)))
    return tj.Features(inputs, np.zeros(count, np.int32), ())


def features_phase(predict: tj.Predictor, mesh: Mesh) -> Phase:
    """The trunk on as many images as it processes at once."""
    program = trunk(predict, mesh=mesh)
    return Phase({"trunk": program}, program.arguments)


def fit_phase(recipe: tj.Recipe, predict: tj.Predictor, batches: tj.Batches, mesh: Mesh) -> Phase:
    """The steps of a chunk."""
    settings: Any = {"metrics": (tj.metrics.accuracy,), "mesh": mesh}
    program = train_steps(predict, batches, recipe.objective(), recipe.optimizer(), **settings)
    return Phase({"step": program}, program.arguments)


def private_phase(
    recipe: tj.Recipe, predict: tj.Predictor, batches: tj.Batches, mechanism: tj.privacy.Mechanism, mesh: Mesh
) -> Phase:
    """The clipped sum of a chunk, and the step on the noisy mean."""
    optimizer = tj.privacy.momentum(recipe.learning_rate)
    clipped, step = private_steps(predict, batches, mechanism, recipe.objective(), optimizer, mesh=mesh)
    chunk, (state, total) = clipped.arguments[2], step.arguments[:2]
    programs = {"clipped sum": clipped, "private step": step}
    return Phase(programs, (predict.w, state, chunk, total.value), batches.steps)


def optimum_phase(recipe: tj.Recipe, predict: tj.Predictor, features: tj.Features, mesh: Mesh) -> Phase:
    """The gradient, product and factors of a batch of a pass, and the memory kept between passes."""
    own = solver_pass(predict, features, recipe.objective(), mesh=mesh)
    part, dw = own.curvature.arguments[:2]
    matrices = jax.eval_shape(own.curvature.run, *own.curvature.arguments)
    # the state's four trees, the product and its sum; the factors and their inverses
    stays = predict.w, part.jacobian.inputs, (dw,) * 6, (matrices,) * 2
    programs = {"product": own.product, "gradient": own.gradient, "factors": own.curvature}
    return Phase(programs, stays, own.batches, own.held)


def figures_of(phase: Phase) -> dict[str, Any]:
    """Compiles the programs of a phase; returns FLOPs and bytes of the first, and the peak, for one device."""
    costs, besides, began = [], [], time.perf_counter()
    for title, program in phase.programs.items():
        print(f"compiling the {title}", file=sys.stderr)
        compiled = program.lower().compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        besides.append(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)
        costs.append([phase.often * cost.get(name, 0.0) for name in ("flops", "bytes accessed")])
    return {
        "flops": costs[0][0],
        "bytes_accessed": costs[0][1],
        "temporary_bytes": max(besides),
        "training_peak_bytes": size_of(phase.stays) + phase.held + max(besides),
        "compile_seconds": round(time.perf_counter() - began, 1),
    }

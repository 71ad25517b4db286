"""The plan of a run: the FLOPs and memory of its programs, from shapes alone, before any feature is computed.

    peak of a phase = what stays on a device: weights, inputs, targets, state
                      + the most that a program takes besides: temporaries, results that replace no argument

Random weights are not drawn. The peak must fit into the memory of one device. On a CPU inputs count twice, as pages of
the cached features and as the device's copy; Python, the libraries and the compiler are not counted.
"""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tangent_jax as tj
from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.features.extract import rows_at_once
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.models.trunk import run_trunk
from tangent_jax.privacy.discrete import step_key
from tangent_jax.privacy.train import clip_all, clip_chunk, take_step
from tangent_jax.solver import passes
from tangent_jax.solver.problem import SIGNALS
from tangent_jax.store.training import program
from tangent_jax.train.batches import Chunk
from tangent_jax.train.fit import State, chunk_shapes, make_training, train_epoch
from tangent_jax.train.optimizers import as_data


class Phase(NamedTuple):
    """The lowered programs of a phase by their titles, the first one a step.

    Attributes:
        stays: The bytes on a device beside what a program takes.
        often: Runs of the first program's body in a step or pass.
    """

    programs: dict[str, Any]
    stays: int
    often: int = 1


def show(
    recipe: tj.Recipe, dataset: Dataset, topology: str | None, mechanism: tj.privacy.Mechanism | None = None
) -> None:
    """Prints the plan of a run on a data set as the last line of stdout; mechanism: for a private run."""
    print(json.dumps(plan_of(recipe, dataset.classes, len(dataset.train), topology, mechanism)))


def plan_of(
    recipe: tj.Recipe,
    classes: int | Sequence[str],
    examples: int,
    topology: str | None = None,
    mechanism: tj.privacy.Mechanism | None = None,
) -> dict[str, Any]:
    """The plan of a run on this many examples: FLOPs and bytes of a step or pass, and peaks, for one device."""
    mesh = mesh_of(topology)
    predict: Any = jax.eval_shape(lambda: recipe.predictor(classes))
    features = features_of(recipe, predict, examples)
    if recipe.is_optimum:
        kind = "optimum"
        batches = features.batches(batch_size=passes.pass_batch(predict, predict.zeros(), features.inputs))
        phase = optimum_phase(recipe.objective, predict, batches, mesh)
    else:
        kind = "fit" if mechanism is None else "private"
        batches = recipe.batches(features)
        if mechanism is None:
            phase = fit_phase(recipe, predict, batches, mesh)
        else:
            phase = private_phase(recipe, predict, batches, mechanism, mesh)
    lower = figures_of(trunk_phase(predict, mesh))["training_peak_bytes"] if predict.subset.stage else 0
    training = figures_of(phase)
    device = mesh.devices.flat[0]
    room = None if topology else (device.memory_stats() or {}).get("bytes_limit")
    if device.platform == "cpu":
        room = placement.machine_memory()
        training["training_peak_bytes"] += batches.inputs.nbytes
    peak = max(lower, training["training_peak_bytes"])
    return {
        "plan": kind,
        "device": device.device_kind,
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
    """The present devices, or those of a TPU topology; InputError if JAX cannot compile for it."""
    if topology is None:
        return placement.mesh()
    try:
        devices = topologies.get_topology_desc(topology, "tpu").devices
    except Exception as error:
        raise InputError(
            f"--topology must be one such as v5e:2x2, with the libtpu that jax[tpu] names installed; got {topology} "
            f"({str(error).splitlines()[0]})"
        ) from error
    return Mesh(np.array(devices), ("examples",))


def features_of(recipe: tj.Recipe, predict: tj.Predictor, count: int) -> tj.Features:
    """Features with as many examples as the data set, as zeros that take no memory."""
    stage = predict.subset.stage
    kind = np.dtype(jnp.dtype(recipe.cache_dtype or recipe.dtype)) if stage else np.dtype(np.uint8)
    inputs = np.broadcast_to(np.zeros((), kind), (count, *predict.model.input_shape(stage)))
    return tj.Features(inputs, np.zeros(count, np.int32), ())


def trunk_phase(predict: tj.Predictor, mesh: Mesh) -> Phase:
    """The trunk on as many images as it processes at once."""
    model = predict.model
    images = jax.ShapeDtypeStruct((rows_at_once(), *model.input_shape(0)), jnp.uint8)
    w = jax.eval_shape(partial(trees.cast, dtype=predict.dtype), predict.w)
    w, images = on_mesh(w, mesh), on_mesh(images, mesh, 0)
    lowered = run_trunk.lower(w, images, model=model, stop=predict.subset.stage, dtype=predict.dtype)
    leaves = zip(jax.tree.leaves(predict.w), jax.tree.leaves(w), strict=True)
    beside = [leaf for leaf, cast in leaves if leaf.dtype != cast.dtype]  # both lie on the device
    return Phase({"trunk": lowered}, size_of((w, images, beside)))


def fit_phase(recipe: tj.Recipe, predict: tj.Predictor, batches: tj.Batches, mesh: Mesh) -> Phase:
    """The steps of a chunk of `fit`."""
    training = make_training(predict, recipe.objective, **program(recipe))
    state = jax.eval_shape(lambda: training.start(predict.zeros()))
    arguments = (*on_mesh((training, state), mesh), first_chunk(batches, mesh))
    return Phase({"step": train_epoch.lower(*arguments, None, 0.0)}, size_of(arguments))


def private_phase(
    recipe: tj.Recipe, predict: tj.Predictor, batches: tj.Batches, mechanism: tj.privacy.Mechanism, mesh: Mesh
) -> Phase:
    """The clipped sum of a chunk of micro-batches, and the step on the noisy mean."""
    optimizer = as_data(tj.privacy.momentum(recipe.learning_rate))
    start = jax.eval_shape(lambda: State(predict.zeros(), optimizer.init(predict.zeros())))
    predict, state, loss, mechanism, optimizer = on_mesh((predict, start, recipe.objective, mechanism, optimizer), mesh)
    chunk = first_chunk(batches, mesh)
    clip = predict, state.dw, chunk, chunk.present.shape[0], loss, mechanism
    total, key = on_mesh((jax.eval_shape(clip_all, *clip), jax.eval_shape(lambda: step_key(mechanism, 0, 0))), mesh)
    programs = {
        "clipped sum": clip_chunk.lower(*clip),
        "private step": take_step.lower(state, total, 1.0, key, loss, mechanism, optimizer),
    }
    return Phase(programs, size_of((predict.w, state, chunk, total.value)), batches.steps)


def optimum_phase(objective: tj.Objective, predict: tj.Predictor, batches: tj.Batches, mesh: Mesh) -> Phase:
    """The gradient, product and factors of a batch of a pass, and the memory kept between passes."""
    chunk = chunk_shapes(batches, 1)
    shapes = jax.eval_shape(lambda chunk: (*chunk.at(0), chunk.present[0]), chunk)
    x, y, present = on_mesh(shapes, mesh, 0)
    predict, zero, objective = on_mesh((predict, jax.eval_shape(lambda: predict.zeros()), objective), mesh)
    part = passes.Part(Fresh(predict, x, None), y, present)
    highest = jax.default_matmul_precision("highest")  # as the solver's passes; J keeps that of its trace
    kept: Any = highest(jax.eval_shape)(keep, part.jacobian, zero)
    held = size_of(kept) * batches.steps
    is_kept = held <= passes.room()
    seen = part._replace(jacobian=kept) if is_kept else part
    outputs = on_mesh(jax.ShapeDtypeStruct(kept.outputs.shape, kept.outputs.dtype), mesh)
    curvature = part, zero, outputs, objective, jax.random.key(0), 0
    signals = -(-SIGNALS // len(batches))
    matrices = jax.eval_shape(partial(passes.part_curvature, signals=signals), *curvature)
    scalar: Any = jax.ShapeDtypeStruct((), jnp.float32)
    total = passes.Summed(zero, scalar, scalar)
    programs = {
        "product": highest(passes.add_product.lower)(zero, seen, zero, outputs, objective),
        "gradient": highest(passes.add_gradient.lower)(total, seen, zero, objective),
        "factors": highest(passes.part_curvature.lower)(*curvature, signals=signals),
    }
    # the state's four trees, the product and its sum; the factors and their inverses
    stays = size_of((predict.w, x, [zero] * 6, [matrices] * 2)) + batches.inputs.nbytes + held * is_kept
    return Phase(programs, stays, batches.steps)


def figures_of(phase: Phase) -> dict[str, Any]:
    """Compiles the programs of a phase; returns FLOPs and bytes of the first, and the peak, for one device."""
    costs = []
    besides = []
    began = time.perf_counter()
    for title, lowered in phase.programs.items():
        print(f"compiling the {title}", file=sys.stderr)
        compiled = lowered.compile()
        memory = compiled.memory_analysis()
        besides.append(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)
        costs.append(compiled.cost_analysis())
    return {
        "flops": phase.often * costs[0].get("flops", 0.0),
        "bytes_accessed": phase.often * costs[0].get("bytes accessed", 0.0),
        "temporary_bytes": max(besides),
        "training_peak_bytes": phase.stays + max(besides),
        "compile_seconds": round(time.perf_counter() - began, 1),
    }


def size_of(tree: Tree) -> int:
    """The bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def first_chunk(batches: tj.Batches, mesh: Mesh) -> Chunk:
    """The shapes of the first chunk: all inputs whole on every device, or those of its steps divided."""
    inputs, targets, order, present = chunk_shapes(batches, min(batches.chunk_steps, batches.steps))
    whole = on_mesh((inputs, targets), mesh, 1 if order is None else None)
    return Chunk(*whole, *on_mesh((order, present), mesh, 1))


def on_mesh(tree: Tree, mesh: Mesh, axis: int | None = None) -> Any:
    """The shapes on a mesh, whole on every device, or divided along `axis`, of examples, where it is divisible."""

    def of_leaf(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype"):
            return leaf
        spec = PartitionSpec()
        if axis is not None and leaf.shape[axis] % mesh.size == 0:
            spec = PartitionSpec(*[None] * axis, "examples")
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(of_leaf, tree)

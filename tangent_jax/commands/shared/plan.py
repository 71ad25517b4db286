"""The plan of a run: the FLOPs and memory of its programs, from shapes alone, before any feature is computed.

    peak of a phase = permanent data: weights, inputs, targets, state
                      + the largest additional memory of a program: temporaries, results that replace no argument

Random weights are not drawn. The peak must fit into the memory of one device. On a CPU inputs count twice, as pages of
the cached features and as the device's copy; Python, the libraries and the compiler are not counted.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tangent_jax as tj
from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.features.extract import rows_at_once
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.models.trunk import run_trunk
from tangent_jax.privacy.discrete import step_key
from tangent_jax.privacy.train import clip_all, private_step
from tangent_jax.solver import passes
from tangent_jax.solver.problem import SIGNALS
from tangent_jax.store import Adam, Optimum
from tangent_jax.train.batches import Chunk, as_batches
from tangent_jax.train.fit import State, Training, train_epoch
from tangent_jax.train.optimizers import as_data
from tangent_jax.train.run import norms_of


class Phase(NamedTuple):
    """The programs of a phase, each by a function that lowers it, the first one a step, and other memory.

    Attributes:
        often: Runs of the first program's body in a step or pass.
        held: Bytes held in addition to `stays`.
    """

    programs: dict[str, Callable[[], Any]]
    stays: Tree
    often: int = 1
    held: int = 0


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
    predict: Any = jax.eval_shape(
        lambda: recipe.predictor(classes, tj.load(recipe.anchor.weights, recipe.anchor.architecture))
    )
    features = features_of(recipe, predict, examples)
    match recipe.trainer:
        case Optimum():
            kind = "optimum"
            batches = features.batches(recipe.key)
            phase = optimum_phase(recipe.objective, predict, features, mesh)
        case Adam() as adam:
            kind = "fit" if mechanism is None else "private"
            batches = adam.batches(features, recipe.key)
            if mechanism is None:
                phase = fit_phase(recipe.objective, adam, predict, batches, mesh)
            else:
                phase = private_phase(recipe.objective, adam, predict, batches, mechanism, mesh)
    lower = figures_of(features_phase(predict, mesh))["training_peak_bytes"] if predict.subset.stage else 0
    training = figures_of(phase)
    room = None if topology else room_of(mesh)
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

    Raises:
        InputError: If JAX knows no such topology, or cannot compile for it.
    """
    if topology is None:
        return placement.mesh()
    try:
        devices = topologies.get_topology_desc(topology, "tpu").devices
    except Exception as error:
        raise InputError(
            f"--topology must be one such as v5e:2x2, with libtpu installed; got {topology} "
            f"({str(error).splitlines()[0]}). Install libtpu of the version that jax[tpu] names; for GPUs JAX compiles "
            "only where one is"
        ) from error
    return Mesh(np.array(devices), ("examples",))


def room_of(mesh: Mesh) -> int | None:
    """The memory of one device, on a CPU of the machine; None for absent devices or without this information."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return placement.machine_memory()
    return (device.memory_stats() or {}).get("bytes_limit")


def features_of(recipe: tj.Recipe, predict: tj.Predictor, count: int) -> tj.Features:
    """Features with as many examples as the data set, as zeros that take no memory."""
    stage = predict.subset.stage
    kind = np.dtype(jnp.dtype(recipe.cache_dtype or recipe.trained.dtype)) if stage else np.dtype(np.uint8)
    inputs = np.broadcast_to(np.zeros((), kind), (count, *predict.model.input_shape(stage)))
    return tj.Features(inputs, np.zeros(count, np.int32), ())


def features_phase(predict: tj.Predictor, mesh: Mesh) -> Phase:
    """The trunk on as many images as it processes at once."""
    model = predict.model
    arguments = on_mesh((predict.w, divided((rows_at_once(), *model.input_shape(0)), jnp.uint8, mesh)), mesh)
    options = {"model": model, "stop": predict.subset.stage, "dtype": predict.dtype}
    return Phase({"trunk": partial(run_trunk.lower, *arguments, **options)}, arguments)


def fit_phase(objective: tj.Objective, adam: Adam, predict: tj.Predictor, batches: tj.Batches, mesh: Mesh) -> Phase:
    """The steps of a chunk."""
    training = Training(predict, objective, as_data(adam.optimizer()), (tj.metrics.accuracy,))
    state = jax.eval_shape(lambda: training.start(zeros_of(predict)))
    arguments = on_mesh((training, state, first_chunk(batches, mesh), None, 0.0), mesh)
    return Phase({"step": partial(train_epoch.lower, *arguments)}, arguments)


def private_phase(
    objective: tj.Objective, adam: Adam, predict: tj.Predictor, batches: tj.Batches, mechanism: tj.privacy.Mechanism,
    mesh: Mesh,
) -> Phase:  # fmt: skip
    """The clipped sum of a chunk of micro-batches, and the step on the noisy mean."""
    optimizer = as_data(tj.privacy.momentum(adam.learning_rate))
    state = jax.eval_shape(lambda: State(zeros_of(predict), optimizer.init(zeros_of(predict))))
    chunk = first_chunk(batches, mesh)
    clip = on_mesh((predict, state.dw, chunk, chunk.present.shape[0], objective, mechanism), mesh)
    total = jax.eval_shape(clip_all, *clip)
    key = jax.eval_shape(lambda: step_key(mechanism, 0, 0))
    step = on_mesh((state, total, 1.0, key, objective, mechanism, optimizer), mesh)
    programs = {
        "clipped sum": partial(jax.jit(clip_all).lower, *clip),
        "private step": partial(jax.jit(step_with_norms, donate_argnums=0).lower, *step),
    }
    return Phase(programs, (predict.w, step[0], chunk, step[1].value), batches.steps)


def step_with_norms(state: State, *arguments: Any) -> tuple[State, Array]:
    """The state after a private step, and the norms of private gradient and step, "2"."""
    after, gradient = private_step(state, *arguments)
    return after, norms_of(gradient, state.dw, after.dw)


def optimum_phase(objective: tj.Objective, predict: tj.Predictor, features: tj.Features, mesh: Mesh) -> Phase:
    """The gradient, product and factors of a batch of a pass, and the memory kept between passes."""
    zero = jax.eval_shape(lambda: zeros_of(predict))
    batches = as_batches(features)
    batches = as_batches(features, passes.pass_batch(predict, zero, batches.inputs))
    part = first_part(predict, first_chunk(batches, mesh))
    highest = jax.default_matmul_precision("highest")  # as the solver's passes; J keeps that of its trace
    kept: Any = highest(jax.eval_shape)(keep, part.jacobian, zero)
    held = size_of(kept) * batches.steps
    keeps = held <= passes.room()
    outputs = jax.ShapeDtypeStruct(kept.outputs.shape, kept.outputs.dtype)
    scalar: Any = jax.ShapeDtypeStruct((), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    seen = part._replace(jacobian=kept) if keeps else part
    gradient = on_mesh((passes.Summed(zero, scalar, scalar), seen, zero, objective), mesh)
    product = on_mesh((zero, seen, zero, outputs, objective), mesh)
    curvature = on_mesh((part, zero, outputs, objective, key, 0), mesh)
    signals = -(-SIGNALS // len(batches))
    matrices = jax.eval_shape(partial(passes.part_curvature, signals=signals), *curvature)
    # the state's four trees, the product and its sum; the factors and their inverses
    stays = predict.w, curvature[0].jacobian.inputs, (curvature[1],) * 6, (matrices,) * 2
    programs = {
        "product": partial(highest(passes.add_product.lower), *product),
        "gradient": partial(highest(passes.add_gradient.lower), *gradient),
        "factors": partial(highest(passes.part_curvature.lower), *curvature, signals=signals),
    }
    return Phase(programs, stays, batches.steps, held if keeps else 0)


def figures_of(phase: Phase) -> dict[str, Any]:
    """Compiles the programs of a phase; returns FLOPs and bytes of the first, and the peak, for one device."""
    costs = []
    besides = []
    began = time.perf_counter()
    for title, lower in phase.programs.items():
        print(f"compiling the {title}", file=sys.stderr)
        compiled = lower().compile()
        memory = compiled.memory_analysis()
        cost = compiled.cost_analysis()
        besides.append(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)
        costs.append([phase.often * cost.get(name, 0.0) for name in ("flops", "bytes accessed")])
    return {
        "flops": costs[0][0],
        "bytes_accessed": costs[0][1],
        "temporary_bytes": max(besides),
        "training_peak_bytes": size_of(phase.stays) + phase.held + max(besides),
        "compile_seconds": round(time.perf_counter() - began, 1),
    }


# Shapes as arguments


def size_of(tree: Tree) -> int:
    """The bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def zeros_of(predict: Any) -> Tree:
    """The predictor's zero; its weights may be shapes alone."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), predict.subset.part(predict.w))


def first_chunk(batches: tj.Batches, mesh: Mesh) -> Chunk:
    """The shapes of the first chunk of the examples: of all inputs, or of streamed ones."""
    steps = min(batches.chunk_steps, batches.steps), batches.width
    kinds = (batches.inputs.shape[1:], batches.inputs.dtype), (batches.targets.shape[1:], jnp.int32)
    present = divided(steps, jnp.float32, mesh, 1)
    if not batches.is_resident:
        inputs, targets = (divided((*steps, *shape), kind, mesh, 1) for shape, kind in kinds)
        return Chunk(inputs, targets, None, present)
    inputs, targets = (jax.ShapeDtypeStruct((len(batches), *shape), kind) for shape, kind in kinds)
    return Chunk(inputs, targets, divided(steps, jnp.int32, mesh, 1), present)


def first_part(predict: tj.Predictor, chunk: Chunk) -> passes.Part:
    """The shapes of the first batch of a chunk, in the form of a pass."""
    if chunk.order is None:
        inputs, targets, present = map(first_of, (chunk.inputs, chunk.targets, chunk.present))
        return passes.Part(Fresh(predict, inputs, None), targets, present)
    rows = first_of(chunk.order)
    every = chunk.targets
    targets = jax.ShapeDtypeStruct(rows.shape + every.shape[1:], every.dtype, sharding=rows.sharding)
    return passes.Part(Fresh(predict, chunk.inputs, rows), targets, first_of(chunk.present))


def first_of(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The shape of the first step of "k ..."."""
    sharding: Any = shape.sharding
    spec = PartitionSpec(*sharding.spec[1:])
    return jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype, sharding=NamedSharding(sharding.mesh, spec))


def divided(shape: tuple[int, ...], kind: Any, mesh: Mesh, axis: int = 0) -> jax.ShapeDtypeStruct:
    """A shape with `axis`, of examples, divided over a mesh if it is divisible."""
    divides = shape[axis] % mesh.size == 0
    spec = PartitionSpec(*[None] * axis, "examples") if divides else PartitionSpec()
    return jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))


def on_mesh(tree: Tree, mesh: Mesh) -> Any:
    """The shapes on a mesh, whole on every device unless they are divided."""

    def of_leaf(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or isinstance(getattr(leaf, "sharding", None), NamedSharding):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    return jax.tree.map(of_leaf, tree)

"""The plan of a run: what its programs compute and hold, from shapes alone, before any feature is computed.

    peak of a phase = what stays: weights, inputs, targets, state
                      + the most that one of its programs takes besides: temporaries, results that replace no argument

Random weights are not drawn. The peak is what the memory of one device must hold. On a CPU inputs count twice, as the
pages of the cached features and as the device's copy; Python, the libraries and the compiler come on top.
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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core import Tree, placement, refusal
from tangent_jax.data.sources import Dataset
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.models.filling import run_size, run_trunk
from tangent_jax.privacy.train import _clip_all, _private_step
from tangent_jax.solver import passes
from tangent_jax.solver.problem import SIGNALS
from tangent_jax.train.batches import Batches, Chunk
from tangent_jax.train.fit import State, Training, train_epoch
from tangent_jax.train.optimizers import as_data


class Divided(jax.ShapeDtypeStruct):
    """The shape of a batch, whose `axis` is that of its examples."""

    axis = 0


class DividedSteps(Divided):
    """The shape of several steps' batches."""

    axis = 1


class Phase(NamedTuple):
    """Programs with their arguments and options, the first of them that of a step; and the memory beside them.

    `often`: runs of the first program's body in a step, or in a pass; `held`: bytes that stay besides `stays`.
    """

    programs: dict[str, tuple[Any, tuple, dict]]
    stays: Tree
    often: int = 1
    held: int = 0


def show(recipe: tj.Recipe, dataset: Dataset, mechanism: tj.privacy.Mechanism | None = None) -> None:
    """Prints the plan of a run on a data set as the last line of stdout; mechanism: of a private one."""
    print(json.dumps(plan_of(recipe, dataset.classes, len(dataset.train), mechanism)))


def plan_of(
    recipe: tj.Recipe, classes: int | Sequence[str], examples: int, mechanism: tj.privacy.Mechanism | None = None
) -> dict[str, Any]:
    """The plan of a run on so many examples: FLOPs and bytes of a step or pass, and peaks, of one device."""
    mesh = mesh_of(F.topology)
    predict: Any = jax.eval_shape(lambda: recipe.predictor(classes, tj.load(recipe.weights, F.architecture)))
    batches = batches_of(recipe, predict, examples)
    if mechanism is not None:
        kind, phase = "private", private_phase(recipe, predict, batches, mechanism)
    elif recipe.solver == "optimum":
        kind, phase = "optimum", optimum_phase(recipe, predict, batches)
    else:
        kind, phase = "fit", fit_phase(recipe, predict, batches)
    trunk = figures_of(features_phase(predict), mesh)["training_peak_bytes"] if predict.subset.stage else 0
    training, room = figures_of(phase, mesh), room_of(mesh)
    if mesh.devices.flat[0].platform == "cpu":
        training["training_peak_bytes"] += batches.inputs.nbytes
    peak = max(trunk, training["training_peak_bytes"])
    return {
        "plan": kind,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "batch_size": batches.batch_size,
        "examples": examples,
        **training,
        "weights_bytes": size_of(predict.w),
        "inputs_bytes": batches.inputs.nbytes,
        "features_peak_bytes": trunk,
        "peak_bytes": peak,
        "memory_bytes": room,
        "fits": None if room is None else peak <= room,
    }


def mesh_of(topology: str | None) -> Mesh:
    """The devices that are here, or those of a TPU topology, along one axis.

    Raises: InputError where JAX knows no such topology, or cannot compile for it.
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
    """The bytes that one device holds, on a CPU the machine; None for devices that are not here or do not say."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return placement.machine_memory()
    return None if F.topology else (device.memory_stats() or {}).get("bytes_limit")


def size_of(tree: Tree) -> int:
    """The bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def placed(tree: Tree, mesh: Mesh) -> Tree:
    """The shapes on a mesh: rows of a batch divided over it where they divide, all else whole on every device."""

    def place(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype"):
            return leaf
        divides = isinstance(leaf, Divided) and leaf.shape[leaf.axis] % mesh.size == 0
        spec = PartitionSpec(*[None] * leaf.axis, "examples") if divides else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, tree)


def batches_of(recipe: tj.Recipe, predict: tj.Predictor, count: int) -> Batches:
    """Batches of as many examples as the data set has, zeros that take no memory."""
    stage = predict.subset.stage
    kind = np.dtype(jnp.dtype(recipe.cache_dtype or recipe.dtype)) if stage else np.dtype(np.uint8)
    shape = predict.model.input_shape(stage)
    inputs = np.broadcast_to(np.zeros((), kind), (count, *shape))
    return Batches(inputs, np.zeros(count, np.int32), recipe.key, batch_size=recipe.batch_size)


def chunk_of(batches: Batches) -> Chunk:
    """The chunk that is on the devices at once: of all inputs, or of those that are streamed."""
    shape, kind = batches.inputs.shape[1:], batches.inputs.dtype
    if not batches.is_resident:
        of_batches = batches.chunk_steps, batches.width
        inputs, targets = (DividedSteps((*of_batches, *s), k) for s, k in ((shape, kind), ((), jnp.int32)))
        return Chunk(inputs, targets, None, DividedSteps(of_batches, jnp.float32))
    of_batches = min(batches.chunk_steps, batches.steps), batches.width
    order, present = (DividedSteps(of_batches, k) for k in (jnp.int32, jnp.float32))
    inputs = jax.ShapeDtypeStruct((len(batches), *shape), kind)
    return Chunk(inputs, jax.ShapeDtypeStruct((len(batches),), jnp.int32), order, present)


def features_phase(predict: tj.Predictor) -> Phase:
    """The trunk on as many images as it runs at once."""
    model, w = predict.model, predict.w
    images = Divided((run_size(), *model.input_shape(0)), jnp.uint8)
    options = {"model": model, "stop": predict.subset.stage, "dtype": predict.dtype}
    return Phase({"trunk": (run_trunk, (w, images), options)}, (w, images))


def fit_phase(recipe: tj.Recipe, predict: tj.Predictor, batches: Batches) -> Phase:
    """The steps of a chunk."""
    optimizer = as_data(recipe.optimizer())
    training = Training(predict, recipe.objective(), optimizer, (tj.metrics.accuracy,))
    state = jax.eval_shape(lambda: training.start(zeros_of(predict)))
    chunk = chunk_of(batches)
    return Phase({"step": (train_epoch, (training, state, chunk, None, 0.0), {})}, (predict.w, state, chunk))


def zeros_of(predict: tj.Predictor) -> Tree:
    """dw = 0 of weights that are only shapes."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), predict.subset.part(predict.w))


def private_phase(recipe: tj.Recipe, predict: tj.Predictor, batches: Batches, mechanism: tj.privacy.Mechanism) -> Phase:
    """The clipped sum of a chunk, and the step on the noisy mean."""
    objective, optimizer = recipe.objective(), as_data(tj.privacy.momentum(recipe.learning_rate))
    dw = jax.eval_shape(lambda: zeros_of(predict))
    state = jax.eval_shape(lambda: State(zeros_of(predict), optimizer.init(zeros_of(predict))))
    chunk = chunk_of(batches)
    clip = predict, dw, chunk, chunk.present.shape[0], objective, mechanism
    total = jax.eval_shape(_clip_all, *clip)
    step = state, total, 1.0, jax.eval_shape(lambda: jax.random.key(0)), objective, mechanism, optimizer
    programs = {"clipped sum": (_clip_all, clip, {}), "private step": (_private_step, step, {})}
    return Phase(programs, (predict.w, state, chunk, total.value), batches.steps)


def optimum_phase(recipe: tj.Recipe, predict: tj.Predictor, batches: Batches) -> Phase:
    """The gradient, the product and the factors of a batch of a pass, and what is held from pass to pass."""
    dw, objective = jax.eval_shape(lambda: zeros_of(predict)), recipe.objective()
    count = min(passes.pass_batch(predict, dw, batches.inputs), len(batches))
    chunk = chunk_of(batches)
    inputs, targets = chunk.inputs, chunk.targets
    often = -(-len(batches) // count)
    rows = Divided((count,), jnp.int32)
    if chunk.order is None:  # streamed, batch by batch
        fresh = Fresh(predict, Divided((count, *inputs.shape[2:]), inputs.dtype), None)
    else:
        fresh = Fresh(predict, inputs, rows)
    part = passes.Part(fresh, Divided((count,), jnp.int32), Divided((count,), jnp.float32))
    held_part: Any = jax.eval_shape(keep, fresh, dw)
    held = size_of(held_part) * often
    outputs = jax.ShapeDtypeStruct(held_part.outputs.shape, held_part.outputs.dtype)
    key = jax.eval_shape(lambda: jax.random.key(0))
    curvature = passes.part_curvature, (part, dw, outputs, objective, key, 0), {"signals": -(-SIGNALS // len(batches))}
    matrices = jax.eval_shape(lambda *a: passes.part_curvature(*a, **curvature[2]), *curvature[1])
    keeps = held <= passes.room()
    part = part._replace(jacobian=held_part) if keeps else part
    none: Any = jax.eval_shape(lambda: jnp.zeros(()))
    programs = {
        "product": (passes.add_product, (dw, part, dw, outputs, objective), {}),
        "gradient": (passes.add_gradient, (passes.Summed(dw, none), part, dw, objective), {}),
        "factors": curvature,
    }
    # the state's four trees, the product and its sum; the factors and their inverses
    stays = predict.w, (inputs, targets), (dw,) * 6, (matrices,) * 2
    return Phase(programs, stays, often, held * keeps)


def figures_of(phase: Phase, mesh: Mesh) -> dict[str, Any]:
    """Compiles the programs of a phase; the FLOPs and bytes of its first, and the peak, on one device."""
    costs, besides, began = [], [], time.perf_counter()
    for title, (program, arguments, options) in phase.programs.items():
        print(f"compiling the {title}", file=sys.stderr)
        compiled = program.lower(*placed(arguments, mesh), **options).compile()
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

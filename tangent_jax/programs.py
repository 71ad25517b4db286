"""The programs that runs compile, with the arguments of a call: to lower, analyse or time them.

    trunk                          images to the inputs of the first trained stage
    train_steps, train_steps_many  the steps of `fit`, of `fit_many`
    private_steps, private_step    the clipped sum and the step of `fit_private`; both as one, with any clipped sum
    solver_pass                    gradient, Hessian's product and factors of a batch of `solve`
    serving                        what an export serves

With a mesh the arguments are shapes, placed on its devices as a run places its arrays; without one they are arrays.
They come from the first chunk of steps of `data`, in the order of the examples. Nothing else imports this namespace.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tangent_jax.core.notation import Tree
from tangent_jax.exports.serving import flat, serve
from tangent_jax.features.filling import run_size, run_trunk
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.models.predict import Predictor
from tangent_jax.privacy.discrete import step_key
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import clip_all, default_objective
from tangent_jax.privacy.train import private_step as step_of
from tangent_jax.solver import passes
from tangent_jax.solver.problem import SIGNALS
from tangent_jax.train.batches import Batches, Chunk, Data, as_batches
from tangent_jax.train.evaluate import Metric
from tangent_jax.train.fit import State, Training, train_epoch
from tangent_jax.train.fit_many import repeat, train_epoch_many
from tangent_jax.train.log import norms_of
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.optimizers import Optimizer, adam, as_data, momentum
from tangent_jax.train.targets import Predict

__all__ = [
    "Pass",
    "Program",
    "private_step",
    "private_steps",
    "serving",
    "size_of",
    "solver_pass",
    "train_steps",
    "train_steps_many",
    "trunk",
]


class Program(NamedTuple):
    """A function and the arguments of a call; `donates`: True if a result reuses the memory of the first argument.

    For the steps of a run the first argument is its state, and the first result the state after them.
    """

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    donates: bool = False

    def lower(self) -> Any:
        """The program as JAX lowers it, to be compiled."""
        return jax.jit(self.run, donate_argnums=0 if self.donates else ()).lower(*self.arguments)


class Pass(NamedTuple):
    """The programs of one batch of a pass; `batches`: their number in a pass; `held`: bytes kept between passes."""

    gradient: Program
    product: Program
    curvature: Program
    batches: int
    held: int


def trunk(predict: Predictor, images: Any = None, *, mesh: Mesh | None = None) -> Program:
    """The trunk on images "b y x 3"; None: on as many as it processes at once."""
    model = predict.model
    if images is None:
        shape = (run_size(), *model.input_shape(0))
        images = jnp.zeros(shape, jnp.uint8) if mesh is None else divide(shape, jnp.uint8, mesh)
    options = {"model": model, "stop": predict.subset.stage, "dtype": predict.dtype}
    return Program(partial(inspect.unwrap(run_trunk), **options), place((predict.w, images), mesh))


def train_steps(
    predict: Predict, data: Batches, objective: Objective | None = None, optimizer: Optimizer | None = None, *,
    metrics: tuple[Metric, ...] = (), start: Tree | None = None, mesh: Mesh | None = None,
) -> Program:  # fmt: skip
    """The steps of `fit` on a chunk; arguments as for `fit`. `start`: None for the predictor's zero."""
    training = training_of(predict, objective, optimizer, metrics)
    state = shapes_of(lambda: training.start(zeros_of(predict, start)), mesh)

    def run(state: State, training: Training, chunk: Chunk, progress: Any) -> Any:
        return inspect.unwrap(train_epoch)(training, state, chunk, None, progress)

    return Program(run, place((state, training, chunk_of(data, mesh), 0.0), mesh), donates=True)


def train_steps_many(
    predict: Predict, data: Batches, count: int, objective: Objective | None = None,
    optimizer: Optimizer | None = None,
) -> Program:  # fmt: skip
    """The steps of `fit_many` for `count` models at once, all on the same batches."""
    training, chunk = training_of(predict, objective, optimizer), chunk_of(data)
    order, present = (jnp.repeat(jnp.asarray(a)[:, None], count, 1) for a in (chunk.order, chunk.present))

    def run(states: State, training: Training, data: Any, steps: Any, progress: Any) -> Any:
        return inspect.unwrap(train_epoch_many)(training, states, data, steps, progress)

    states = repeat(training.start(zeros_of(predict)), count)
    arguments = states, training, (chunk.inputs, chunk.targets), (order, present, None), 0.0
    return Program(run, arguments, donates=True)


def private_steps(
    predict: Predict, data: Batches, mechanism: Mechanism, objective: Objective | None = None,
    optimizer: Optimizer | None = None, *, mesh: Mesh,
) -> tuple[Program, Program]:  # fmt: skip
    """`fit_private`'s clipped sum of a chunk of micro-batches, and the step on it; arguments as there."""
    objective, optimizer = private_settings(objective, optimizer)
    state = shapes_of(lambda: State(zeros_of(predict), optimizer.init(zeros_of(predict))), mesh)
    chunk = chunk_of(data, mesh)
    clip = predict, state.dw, chunk, chunk.present.shape[0], objective, mechanism
    total = jax.eval_shape(clip_all, *clip)
    of_step = state, total, 1.0, jax.eval_shape(lambda: step_key(mechanism, 0, 0)), objective, mechanism, optimizer
    clipped = Program(clip_all, place(clip, mesh))
    return clipped, Program(step_with_norms, place(of_step, mesh), donates=True)


def private_step(
    predict: Predict, data: Batches, mechanism: Mechanism, objective: Objective | None = None,
    optimizer: Optimizer | None = None, *, start: Tree | None = None, summed: Callable[..., Any] | None = None,
) -> Program:  # fmt: skip
    """A step of `fit_private` with its clipped sum as one program; the noise comes from a seed.

    Args:   summed: another clipped sum of the batch, (predict, dw, x, y) -> `ClippedSum`; None: the library's.
    """
    objective, optimizer = private_settings(objective, optimizer)
    dw, chunk = zeros_of(predict, start), chunk_of(data)

    def run(state: State, key: Any, predict: Predict, chunk: Chunk) -> tuple[State, Tree]:
        own = (chunk, len(chunk.present), objective, mechanism)
        total = summed(predict, state.dw, *chunk.at(0)) if summed else clip_all(predict, state.dw, *own)
        return step_of(state, total, float(len(data)), key, objective, mechanism, optimizer)

    arguments = State(dw, optimizer.init(dw)), step_key(mechanism, 0, 0), predict, chunk
    return Program(run, arguments, donates=True)


def solver_pass(
    predict: Predictor, data: Batches | Data, objective: Objective | None = None, *, signals: int | None = None,
    mesh: Mesh | None = None,
) -> Pass:  # fmt: skip
    """The programs of a pass of `solve` on a batch, at dw = 0; arguments as for `solve`.

    Args:   data: Features give a batch of as many examples as `solve` takes at once; signals: the number of random
            cotangents per example for the factors, 0 for those of all outputs, None for as many as `solve` takes.
    """
    objective, zero = objective or make_objective(), shapes_of(lambda: zeros_of(predict), mesh)
    batches = as_batches(data)
    if batches is not data:
        batches = as_batches(data, passes.pass_batch(predict, zero, batches.inputs))
    part = part_of(predict, chunk_of(batches, mesh))
    jacobian: Any = jax.eval_shape(keep, part.jacobian, zero)
    held = size_of(jacobian) * batches.steps
    outputs = shapes_of(lambda: jnp.zeros(jacobian.outputs.shape, jacobian.outputs.dtype), mesh)
    total = passes.Summed(zero, shapes_of(lambda: jnp.zeros(()), mesh))
    key = None if signals == 0 else shapes_of(lambda: jax.random.key(0), mesh)
    count = -(-SIGNALS // len(batches)) if signals is None else signals or 1
    curvature = partial(inspect.unwrap(passes.part_curvature), signals=count)
    of_curvature = place((part, zero, outputs, objective, key, 0), mesh)
    if held <= passes.room():
        part = part._replace(jacobian=jacobian if mesh is not None else keep(part.jacobian, zero))
    gradient, product = (inspect.unwrap(f) for f in (passes.add_gradient, passes.add_product))
    return Pass(
        Program(gradient, place((total, part, zero, objective), mesh), donates=True),
        Program(product, place((zero, part, zero, outputs, objective), mesh), donates=True),
        Program(curvature, of_curvature),
        batches.steps,
        held if held <= passes.room() else 0,
    )


def serving(predict: Predictor, dw: Tree, x: Any) -> Program:
    """The program that `tj.export` exports: the outputs for inputs "b ..." of stage 0; weights are an argument."""
    return Program(partial(serve, predict), (flat(predict, dw), x))


def size_of(tree: Tree) -> int:
    """The bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


# Arguments


def training_of(
    predict: Predict, objective: Objective | None, optimizer: Optimizer | None, metrics: tuple[Metric, ...] = ()
) -> Training:
    """The computation of a run with the defaults of `fit`."""
    optimizer = as_data(adam() if optimizer is None else optimizer)
    return Training(predict, objective or make_objective(), optimizer, metrics)


def private_settings(objective: Objective | None, optimizer: Optimizer | None) -> tuple[Objective, Optimizer]:
    """The objective and the optimiser, by default those of `fit_private`."""
    return objective or default_objective(), as_data(momentum() if optimizer is None else optimizer)


def step_with_norms(state: State, *arguments: Any) -> tuple[State, Any]:
    """The state after a private step, and the norms of private gradient and step, "2"."""
    after, gradient = step_of(state, *arguments)
    return after, norms_of(gradient, state.dw, after.dw)


def zeros_of(predict: Any, start: Tree | None = None) -> Tree:
    """`start`, or for None the predictor's zero; weights may be shapes alone."""
    if start is not None:
        return start
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), predict.subset.part(predict.w))


def shapes_of(make: Callable[[], Any], mesh: Mesh | None) -> Any:
    """The arrays of a function, or with a mesh their shapes."""
    return make() if mesh is None else jax.eval_shape(make)


def chunk_of(batches: Batches, mesh: Mesh | None = None) -> Chunk:
    """The first chunk of the examples: of all inputs, or of streamed ones."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, next(batches.chunks(*batches.in_order())))
    steps = min(batches.chunk_steps, batches.steps), batches.width
    kinds = (batches.inputs.shape[1:], batches.inputs.dtype), (batches.targets.shape[1:], jnp.int32)
    present = divide(steps, jnp.float32, mesh, 1)
    if not batches.is_resident:
        inputs, targets = (divide((*steps, *shape), kind, mesh, 1) for shape, kind in kinds)
        return Chunk(inputs, targets, None, present)
    inputs, targets = (jax.ShapeDtypeStruct((len(batches), *shape), kind) for shape, kind in kinds)
    return Chunk(inputs, targets, divide(steps, jnp.int32, mesh, 1), present)


def part_of(predict: Predict, chunk: Chunk) -> passes.Part:
    """The first batch of a chunk, in the form of a pass."""
    if chunk.order is None:
        x, y, present = map(first_of, (chunk.inputs, chunk.targets, chunk.present))
        return passes.Part(Fresh(predict, x, None), y, present)
    rows, y = first_of(chunk.order), chunk.targets
    is_shape = isinstance(rows, jax.ShapeDtypeStruct)
    y = jax.ShapeDtypeStruct(rows.shape + y.shape[1:], y.dtype, sharding=rows.sharding) if is_shape else y[rows]
    return passes.Part(Fresh(predict, chunk.inputs, rows), y, first_of(chunk.present))


def first_of(a: Any) -> Any:
    """The first step of an array or a shape "k ..."."""
    if not isinstance(a, jax.ShapeDtypeStruct):
        return a[0]
    sharding: Any = a.sharding
    return jax.ShapeDtypeStruct(
        a.shape[1:], a.dtype, sharding=NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    )


def divide(shape: tuple[int, ...], kind: Any, mesh: Mesh, axis: int = 0) -> jax.ShapeDtypeStruct:
    """A shape with `axis`, of examples, divided over a mesh if it is divisible."""
    divides = shape[axis] % mesh.size == 0
    spec = PartitionSpec(*[None] * axis, "examples") if divides else PartitionSpec()
    return jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))


def place(tree: Tree, mesh: Mesh | None) -> Any:
    """The shapes on a mesh, whole on every device unless they are divided; unchanged without a mesh."""
    if mesh is None:
        return tree

    def of_leaf(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or isinstance(getattr(leaf, "sharding", None), NamedSharding):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    return jax.tree.map(of_leaf, tree)

"""Outputs of a predictor, and metrics of them.

A metric is a function (outputs "b c", targets "b ...") -> "b", such as `accuracy`; `evaluate` takes its mean.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Num

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.identities import identity, program
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.core.rows import Rows, padded
from tangent_jax.train.batches import OnDevice, as_batches, as_inputs
from tangent_jax.train.objective import alone
from tangent_jax.train.run import check_names, position
from tangent_jax.train.targets import Predict, as_labels, call

Metric = Callable[[Array, Array], Array]


def accuracy(outputs: Num[Array | np.ndarray, "b c"], targets: Any) -> Float[Array, "b"]:
    """1 where the largest of the outputs "b c" is that of the class index in targets "b", else 0, and 0 for NaN.

    >>> accuracy(jnp.array([[0.2, 0.8], [0.9, 0.1]]), jnp.array([1, 1])).tolist()
    [1.0, 0.0]
    """
    kind = jnp.result_type(targets) if hasattr(targets, "dtype") else np.asarray(targets).dtype
    if not jnp.issubdtype(kind, jnp.number) and not jnp.issubdtype(kind, jnp.bool_):
        raise InputError(f"targets must be class indices; got {kind}")
    is_number = ~jnp.isnan(outputs).any(-1)
    return jnp.asarray((outputs.argmax(-1) == targets) & is_number, jnp.float32)


def squared_error(outputs: Num[Array | np.ndarray, "b c"], targets: Any) -> Num[Array, "b"]:
    """The squared distance of the outputs "b c" from targets of their shape, "b".

    >>> tj.metrics.squared_error(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 5.0]])).tolist()
    [9.0]
    """
    if outputs.shape != targets.shape:
        raise InputError(f"targets must have the outputs' shape {outputs.shape}; got {targets.shape}")
    return jnp.sum(jnp.square(outputs - targets), -1)


@promotes
def outputs(predict: Predict, dw: Tree, inputs: Any, batch_size: int = 64) -> Num[np.ndarray, "n ..."]:
    """predict(dw, x) for every input "n ...", "n c", in batches of one shape (the last is padded).

    Args:
        inputs: "n ...", or Features or Batches, as for `evaluate`.

    >>> tj.outputs(demo.predict, demo.dw, demo.test).shape
    (12, 3)
    """
    if hasattr(inputs, "inputs") and hasattr(inputs, "targets"):
        batches = as_batches(inputs)
        inputs = Rows(batches.inputs, batches.rows)
    inputs = as_inputs(inputs)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(dw)):
        raise InputError(
            "dw must be outside jit; got one that is traced."
            " Call predict(dw, x) inside jit; evaluate and outputs run its batches themselves."
        )
    if not len(inputs):
        raise InputError("inputs must have at least one example; got none")
    predict, dw = placement.place((trees.as_pytree(predict), dw))
    return fetch_outputs(predict, dw, placed_batches(inputs, batch_size), len(inputs))


def placed_batches(inputs: Any, batch_size: int = 64) -> Iterator[Num[Array, "b ..."]]:
    """Yields the inputs, "n ...", on the devices, in batches of one shape (the last is padded with zeros)."""
    size = placement.width(min(whole_number("batch_size", batch_size, 1), len(inputs)))
    for start in range(0, len(inputs), size):
        yield placement.divide(padded(inputs[start : start + size], size), 0)


def fetch_outputs(
    predict: Predict, dw: Tree, batches: Iterable[Num[Array, "b ..."]], count: int
) -> Num[np.ndarray, "n ..."]:
    """The outputs for the first `count` rows of batches, on the host; all are computed before the first is fetched."""
    parts = [call(predict, dw, x) for x in batches]
    return np.concatenate([placement.on_host(part) for part in parts])[:count]


@promotes
def compile_outputs(predict: Predict, dw: Tree, inputs: Any, batch_size: int = 64) -> None:
    """Compiles what `outputs` runs; only the shape and dtype of the inputs, "n ...", count. For one device."""
    if placement.mesh().size == 1 and len(inputs):
        x = jax.ShapeDtypeStruct(
            (min(batch_size, len(inputs)), *inputs.shape[1:]), jax.dtypes.canonicalize_dtype(inputs.dtype)
        )
        call.lower(*placement.place((trees.as_pytree(predict), dw)), x).compile()


@promotes
def evaluate(predict: Predict, dw: Tree, data: Any, metric: Metric = accuracy) -> float:
    """The mean of a metric over data: Features or Batches.

    Raises:
        InputError: Outputs that are not finite, and accuracy of outputs that are not "n c", or of targets that are not
            class indices.

    >>> tj.evaluate(demo.predict, demo.dw, demo.test)
    0.917
    """
    batches = as_batches(data)
    return mean_of(metric, outputs(predict, dw, batches), batches.targets[batches.rows])


def mean_of(metric: Metric, values: Num[np.ndarray, "n ..."], targets: Num[np.ndarray, "n ..."]) -> float:
    """The mean of a metric of outputs; InputError as `evaluate`."""
    if metric is accuracy:
        if values.ndim != 2:
            raise InputError(f"outputs must have shape (n, c) for accuracy; got {values.shape}. Pass another metric")
        as_labels(targets, values.shape[-1])
    wrong = int(np.sum(~np.isfinite(values.reshape(len(values), -1)).all(-1)))
    if wrong:
        raise InputError(f"outputs must be finite; got {wrong} rows that are not. Look for inputs that are not finite.")
    if metric is accuracy:  # without a program to compile
        return float(np.mean(values.argmax(-1) == np.asarray(targets)))
    return float(np.mean(np.asarray(alone(metric, jnp.asarray(values), jnp.asarray(targets)), np.float64)))


@dataclasses.dataclass(frozen=True)
class Measure:
    """An `on_step` that measures {name: evaluate(predict, dw, data, metric)} at every `every`-th row and the `last`.

    Its `name` depends on everything that decides its values, so that a resumed run keeps its columns. Inputs that fit
    stay on the devices from one measurement to the next, and see no later writes.

    Raises:
        InputError: Metrics with a name of the run's own, such as `loss`.

    >>> measure = tj.metrics.Measure(demo.predict, demo.test)
    >>> measure({"epoch": 0}, demo.dw)
    {'test_accuracy': 0.917}
    """

    predict: Predict
    data: Any
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=lambda: {"test_accuracy": accuracy})
    every: int = 1
    last: int = 0
    device: OnDevice = dataclasses.field(default_factory=OnDevice, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_names("metrics must have", self.metrics)

    @promotes
    def __call__(self, row: Mapping[str, Any], dw: Tree) -> dict[str, float]:
        at = position(row)
        if at % self.every and at != self.last:
            return {}
        batches = as_batches(self.data)
        inputs = Rows(batches.inputs, batches.rows)
        if inputs.nbytes <= placement.resident_bytes() // 2:  # the rest is for the inputs of training
            predict, x = self.device.copy(
                lambda: (placement.place(trees.as_pytree(self.predict)), [*placed_batches(inputs)])
            )
            values = fetch_outputs(predict, placement.place(dw), x, len(inputs))
        else:
            values = outputs(self.predict, dw, batches)
        return {name: mean_of(metric, values, batches.targets[batches.rows]) for name, metric in self.metrics.items()}

    def name(self, dw: Tree) -> str:
        """The identity of predictor, data and metrics."""
        batches = as_batches(self.data)
        predict = trees.as_pytree(self.predict)
        x, y = batches.inputs[batches.rows[:2]], batches.targets[batches.rows[:2]]
        z = call.eval_shape(predict, dw, x)
        programs = [program(call, predict, dw, x), *(program(m, z, y) for m in self.metrics.values())]
        data = batches.inputs, batches.targets, batches.rows
        return identity(programs, [*self.metrics], jax.tree.leaves(predict), data, self.every, self.last)

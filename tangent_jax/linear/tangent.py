"""The protocol of predictors: a function of tangent weights dw and inputs, its zero, and the rows of its Jacobian J.

    predict(dw, x)                            outputs "b c"
    predict.zeros()                           dw = 0, where training starts
    predict.probe(dw, x).rows(cotangents)     u^T J of each example, leaf by leaf (signals.py)
    predict.has_factors                       True if these rows are inputs times signals, which are not multiplied out

Predictors, feature maps and contributions to private statistics are of it. `as_tangent` makes one of any other function
(dw, x) -> outputs, so that no caller asks what it was given.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
from jax import Array
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.linear.signals import Leaf, Probed


class Differentiated(NamedTuple):
    """J at dw and inputs x, "b ...", of any function, by automatic differentiation."""

    predict: Callable[[Tree, Any], Array]
    dw: Tree
    x: Any

    @property
    def outputs(self) -> Float[Array, "b c"]:
        return self.predict(self.dw, self.x)

    def rows(self, cotangents: Float[Array, "k b c"]) -> dict[str, Leaf]:
        """u^T J of each example, with one backward pass for each of k cotangents u; each leaf's rows are "b k p"."""

        def of_example(x: Array, us: Array) -> Tree:
            _, back = jax.vjp(lambda dw: self.predict(dw, x[None])[0], self.dw)
            return jax.vmap(lambda u: back(u)[0])(us)

        rows = jax.vmap(of_example, (0, 1))(self.x, cotangents)
        k, b = cotangents.shape[:2]
        return {path: Leaf(None, leaf.reshape(b, k, -1), None) for path, leaf in trees.leaves(rows).items()}


RowsOfJ = Probed | Differentiated
"""J of a batch by its rows: in closed form, or by automatic differentiation."""


@runtime_checkable
class Tangent(Protocol):
    """outputs = predict(dw, x), "b c", with J: a pytree, whose arrays compiled programs take as data.

    >>> from tangent_jax.linear.tangent import Tangent, as_tangent
    >>> isinstance(demo.predict, Tangent), as_tangent(lambda dw, x: x @ dw).has_factors
    (True, False)
    """

    @property
    def has_factors(self) -> bool:
        """True if `probe` gives each kernel's rows as inputs times signals, by one pass for all examples.

        Kronecker factors need them; per-example norms and sketches are cheap with them.
        """
        ...

    @property
    def exact(self) -> Self:
        """The same function, computed in f32 or wider."""
        ...

    def zeros(self) -> Tree:
        """dw = 0; None for a plain function, which does not name its leaves."""
        ...

    def probe(self, dw: Tree, x: Any, at_zero: bool = False) -> RowsOfJ:
        """The outputs and the rows of J at dw; at_zero: at dw = 0, without multiplications by dw."""
        ...

    def __call__(self, dw: Tree, x: Any) -> Array: ...


class ByAutodiff:
    """The parts of `Tangent` that a function without a closed form shares with all others."""

    has_factors = False

    @property
    def exact(self) -> Self:
        return self

    def probe(self, dw: Tree, x: Any, at_zero: bool = False) -> RowsOfJ:
        predict: Any = self
        return Differentiated(predict, jax.tree.map(jax.numpy.zeros_like, dw) if at_zero else dw, x)


@partial(jax.tree_util.register_dataclass, data_fields=["function"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Function(ByAutodiff):
    """A plain function (dw, x "b ...") -> outputs "b c"."""

    function: Callable[[Tree, Any], Array]

    def zeros(self) -> None:
        return None

    def __call__(self, dw: Tree, x: Any) -> Array:
        return self.function(dw, x)


def as_tangent(predict: Callable[[Tree, Any], Array]) -> Tangent:
    """The predictor itself, or a plain function as one."""
    return predict if isinstance(predict, Tangent) else Function(trees.as_pytree(predict))


@runtime_checkable
class Looped(Protocol):
    """A predictor with another form for loops, as XLA's GPU compiler moves no computation out of a loop."""

    def for_loop(self) -> Callable[[Tree, Any], Array]:
        """The same outputs and rows of J at dw, bit for bit; what depends on neither dw nor x is computed already."""
        ...


def for_loop(predict: Callable[[Tree, Any], Array]) -> Callable[[Tree, Any], Array]:
    """The form of a predictor, or of any function, for a loop."""
    return predict.for_loop() if isinstance(predict, Looped) else predict


def check_factors(predict: Tangent, remedy: str) -> None:
    """Raises InputError for a predictor whose rows are not inputs times signals."""
    if not predict.has_factors:
        raise InputError(f"predict must have a closed form of its tangent; got one without. {remedy}.")


def check_alone(predict: Tangent, dw: Tree, x: Any) -> None:
    """Raises InputError for a plain function that sums over examples, as its program shows; nothing is computed.

    The lengths of the axes that a program sums over must not depend on the number of examples. Other ways in which
    examples meet, such as a sort, are not seen.
    """
    if not isinstance(predict, Function):
        return
    try:
        first, second = (summed_lengths(predict, dw, x, count) for count in (11, 13))
    except Exception:  # of any library: the function takes another number of examples, and is not checked
        return
    if first != second:
        raise InputError(
            "predict must treat each example alone, as its gradients are formed one example at a time; got a function"
            " that sums over the examples. Use no statistics of the batch: module.eval(), use_running_average=True."
        )


def summed_lengths(predict: Function, dw: Tree, x: Any, count: int) -> set[tuple[int, ...]]:
    """The lengths of all axes that the program of predict(dw, x) sums over, for `count` examples."""

    def of(jaxpr: Any) -> set[tuple[int, ...]]:
        lengths: set[tuple[int, ...]] = set()
        for equation in jaxpr.eqns:
            axes = ()
            if equation.primitive.name.startswith(("reduce_", "arg")):
                axes = equation.params.get("axes", ())
            elif equation.primitive.name == "dot_general":
                axes = equation.params["dimension_numbers"][0][0]
            lengths.add(tuple(equation.invars[0].aval.shape[axis] for axis in axes))
            lengths = lengths.union(*map(of, jaxprs_in_params(equation.params)))
        return lengths

    inputs = jax.ShapeDtypeStruct((count, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
    jaxpr = jax.make_jaxpr(predict)(dw, inputs).jaxpr
    return of(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])

"""The Jacobian J of a predictor at a batch, as a linear operator on dw.

    predict(dw + v, x) = predict(dw, x) + J v + O(|v|^2)        J has a row J_bc for each example b and output c

    mv(v)       J v                   "b c"        forward mode; what a step v changes
    vjp(u)      J^T u                 like dw      reverse mode; the gradient, if u is the slope of a loss
    norms(u)    |sum_c u_bc J_bc|     "b"          per-example gradient norms
    gram()      J J^T                 "b c b c"    the empirical neural tangent kernel
    factors()   J_bc as inputs times signals, leaf by leaf (signals.py)

If the predictor is linear in dw, as `tj.tangent` is, the first line is an equation without remainder. A linearized
model with a closed form gets norms, Gram matrix and factors without forming a row of J; for any other function
automatic differentiation forms them, one example at a time. So they are wrong for a function in which examples meet,
such as by batch norm in training; it is refused where its program shows that (tangent.py). jacobian.py stores J of
the batches of a whole data set, for the solver; gram.py computes the Gram matrix of a whole data set, on the host in
f64.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, array_of_examples
from tangent_jax.core.notation import Tree
from tangent_jax.linear.norms import squared_norms
from tangent_jax.linear.signals import Leaf
from tangent_jax.linear.tangent import Tangent, as_tangent, check_alone


@partial(jax.tree_util.register_dataclass, data_fields=["predict", "dw", "x", "outputs", "forward"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Jacobian:
    """J of `predict` at `dw` and inputs `x`, "b ..."; `outputs`: predict(dw, x), "b c"; made by `tj.jacobian`.

    A pytree, which `jax.jit` takes and returns. Its products share one evaluation of the predictor.

    >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
    >>> J.outputs.shape, J.norms().shape
    ((12, 3), (12, 3))
    """

    predict: Tangent
    dw: Tree
    x: Any
    outputs: Float[Array, "b c"]
    forward: Callable[[Tree], Array]

    def mv(self, v: Tree) -> Float[Array, "*k b c"]:
        """J v, "b c"; for k steps, with k as the first axis of every leaf, "k b c".

        >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
        >>> J.mv(demo.dw).shape
        (12, 3)
        """
        return jax.vmap(self.forward)(v) if self._is_several(v) else self.forward(v)

    def vjp(self, u: Float[Array, "*k b c"]) -> Tree:
        """J^T u, a tree like dw; for k cotangents "k b c", with k as the first axis of every leaf.

        Guarantees:
            <J v, u> = <v, J^T u>, to the precision of products at which J was made (JAX's default, which is TF32 on a
            GPU).

        >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
        >>> jax.tree.map(jnp.shape, J.vjp(jnp.ones((2, 12, 3))))["head"]
        {'bias': (2, 3), 'kernel': (2, 6, 3)}
        """
        transpose = jax.linear_transpose(self.forward, self.dw)
        if self._is_one(u):
            return transpose(u)[0]
        return jax.vmap(lambda one: transpose(one)[0])(u)

    @jax.default_matmul_precision("highest")
    def norms(
        self, u: Float[Array, "*k b c"] | None = None
    ) -> Float[Array, "b"] | Float[Array, "k b"] | Float[Array, "b c"]:
        """|sum_c u_bc J_bc|, "b", L2 over the whole tree; with None, |J_bc| of each output, "b c"; of k u, "k b".

        If u is the slope of each example's loss in the outputs, these are the norms that DP-SGD clips.

        >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
        >>> J.norms().shape, J.norms(jnp.ones((12, 3))).shape
        ((12, 3), (12,))
        """
        count = len(self.outputs)

        def of_cotangent(signals: dict[str, Array]) -> Array:
            rows = {path: dataclasses.replace(leaf, s=signals[path][:, None]) for path, leaf in leaves.items()}
            return jnp.sqrt(jnp.maximum(squared_norms(rows, count)[0], 0))

        is_one = u is not None and self._is_one(u)
        leaves = self.factors() if u is None else self._rows(u[None] if is_one else u)
        norms = jax.vmap(of_cotangent, 1)({path: leaf.s for path, leaf in leaves.items()})
        if u is None:
            return norms.T
        return norms[0] if is_one else norms

    @jax.default_matmul_precision("highest")
    def gram(self, other: "Jacobian | None" = None) -> Float[Array, "b c d e"]:
        """J J'^T, "b c d e", J' of another batch at the same anchor; None for this one.

        >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
        >>> J.gram().shape
        (12, 3, 12, 3)
        """
        mine = self.factors()
        theirs = mine if other is None else other.factors()
        (b, c), (d, e) = self.outputs.shape, (self if other is None else other).outputs.shape
        total = jnp.zeros((b, c, d, e), self.outputs.dtype)
        for path in mine.keys() & theirs.keys():
            total += _products(mine[path], theirs[path])
        return total

    def factors(self) -> dict[str, Leaf]:
        """The rows of J by leaf, inputs x and signals s: J_bc = sum_t x_bt (x) s_bct for a kernel, else J_bc = s_bc.

        x is None, and s "b c p" the row itself, for gains and biases, and for every leaf of a function without a
        closed form. A leaf that reaches no output is left out, if the closed form knows it.

        >>> J = tj.jacobian(demo.predict, demo.dw, demo.test.inputs)
        >>> kernel = J.factors()["head/kernel"]
        >>> kernel.x.shape, kernel.s.shape  # "b t h i" and "b c t h o"
        ((12, 1, 1, 6), (12, 3, 1, 1, 3))
        """
        b, c = self.outputs.shape
        units = jnp.eye(c, dtype=self.outputs.dtype)[:, None]
        return self._rows(jnp.broadcast_to(units, (c, b, c)))

    def as_lineax(self) -> Any:
        """J as a `lineax.AbstractLinearOperator`, from trees like dw to "b c"; its transpose is `vjp`.

        Raises:
            InputError: If lineax is not installed.
        """
        try:
            import lineax
        except ImportError as error:
            raise InputError("as_lineax needs lineax, which is not installed. Install tangent-jax[lineax].") from error
        return lineax.FunctionLinearOperator(self.forward, jax.eval_shape(lambda: self.dw))

    def _rows(self, cotangents: Float[Array, "k b c"]) -> dict[str, Leaf]:
        """u^T J of each example, for k cotangents u: by the closed form, or with one gradient for each.

        Raises:
            InputError: A function in which examples meet, as its program shows.
        """
        check_alone(self.predict, self.dw, self.x)
        return self.predict.probe(self.dw, self.x).rows(cotangents)

    def _is_several(self, v: Tree) -> bool:
        """True if v has k steps, False for one; InputError for a tree that is neither."""
        shapes = {path: jnp.shape(leaf) for path, leaf in trees.leaves(self.dw).items()}
        given = {path: jnp.shape(leaf) for path, leaf in trees.leaves(v).items()}
        if jax.tree.structure(v) == jax.tree.structure(self.dw):
            if given == shapes:
                return False
            ends = {path: shape[1:] for path, shape in given.items()}
            if ends == shapes and len({shape[:1] for shape in given.values()}) == 1:
                return True
        raise InputError(
            "v must have the leaves and shapes of dw, or k as the first axis of every leaf;"
            f" got {_difference(given, shapes)}."
        )

    def _is_one(self, u: Any) -> bool:
        """True for one cotangent "b c", False for k of them; InputError for anything else."""
        b, c = self.outputs.shape
        shape = getattr(u, "shape", ())
        if shape[-2:] != (b, c) or len(shape) > 3:
            given = str(shape) if hasattr(u, "shape") else f"a {type(u).__name__}"
            raise InputError(f"u must have the shape ({b}, {c}) of the outputs, or (k, {b}, {c}); got {given}.")
        return len(shape) == 2


def jacobian(predict: Callable[[Tree, Any], Array], dw: Tree, x: Any) -> Jacobian:
    """The Jacobian of predict(dw, x) in dw, as a linear operator with `mv`, `vjp`, `norms`, `gram` and `factors`.

    Args:
        predict: (dw, x "b ...") -> outputs "b c", such as `tj.tangent`, or any function.
        dw: Where, such as `predict.zeros()`, or the weights of a network.
        x: Inputs "b ...", one array.

    Guarantees:
        The products equal those of `jax.jvp` and `jax.vjp`.

    Raises:
        InputError: Unless x is one array, and the outputs are "b c".

    >>> J = tj.jacobian(demo.predict, demo.predict.zeros(), demo.test.inputs)
    >>> bool(jnp.allclose(J.outputs + J.mv(demo.dw), demo.predict(demo.dw, demo.test.inputs), atol=1e-5))
    True
    """
    predict = as_tangent(predict)
    dw = jax.tree.map(jnp.asarray, dw)
    x = array_of_examples("x", x)
    outputs, forward = jax.linearize(lambda dw: predict(dw, x), dw)
    shape = getattr(outputs, "shape", type(outputs).__name__)
    if len(shape) != 2 or shape[0] != len(x):
        raise InputError(f"predict must return one array of outputs, of shape ({len(x)}, c); got {shape}.")
    return Jacobian(predict, dw, x, outputs, forward)


def _difference(given: dict[str, tuple[int, ...]], shapes: dict[str, tuple[int, ...]]) -> str:
    """The first leaf of v that differs from dw's, in words; shapes: of the leaves of dw, by path."""
    for path, shape in shapes.items():
        if path in given and shape not in (given[path], given[path][1:]):
            return f"the shape {given[path]} at {path or 'v'}, which has {shape} in dw"
        if path not in given and path:
            return f"no leaf {path}"
    for path in given:
        if path not in shapes and path:
            return f"a leaf {path}, which dw lacks"
    return "another kind of tree, or first axes of different lengths"


def _products(a: Leaf, b: Leaf) -> Float[Array, "b c d e"]:
    """One leaf's part of J J'^T."""
    if a.layout is None or b.layout is None:
        return jnp.einsum("bcp,dep->bcde", a.s, b.s)
    tokens, inputs, outputs = a.x.shape[1], a.x.shape[-1], a.s.shape[-1]
    if inputs * outputs < tokens * b.x.shape[1]:  # the rows are smaller than the Gram matrices of the tokens
        rows = [jnp.einsum("bthi,bctho->bchio", leaf.x, leaf.s) for leaf in (a, b)]
        return jnp.einsum("bchio,dehio->bcde", *rows)
    inputs_gram = jnp.einsum("bthi,duhi->btduh", a.x, b.x)
    return jnp.einsum("btduh,bctho,deuho->bcde", inputs_gram, a.s, b.s)

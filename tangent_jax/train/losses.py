"""Losses of outputs "b c" and targets "b ...", one number for each example, convex in the outputs.

Losses are objects with three parts: the value, a root of the Hessian, and, for a square loss, its quadratic:

    loss(f, y) = sum_c p_c / 2 (f_c - t_c)^2 + const          then `quadratic` gives t and p

So your own square loss can use the kernel and the linear system too; other losses get the root from `jax.hessian`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number, one_of
from tangent_jax.train.targets import as_labels

Outputs = Float[Array, "b c"]
Targets = Shaped[Array | np.ndarray, "b ..."]
Root = Float[Array, "k b c"]


@dataclasses.dataclass(frozen=True)
class Loss:
    """The base of losses: subclass it as a frozen dataclass with `__call__`; its fields are hyper-parameters.

    Fields are data to jit if the class is a pytree (`jax.tree_util.register_dataclass`), else constants.

    >>> class Hinge(tj.losses.Loss):
    ...     def __call__(self, outputs, targets):
    ...         return jax.nn.relu(1 - targets * outputs[:, 0])
    >>> Hinge()(jnp.array([[0.5], [2.0]]), jnp.array([1, 1])).tolist()
    [0.5, 0.0]
    """

    def __call__(self, outputs: Outputs, targets: Targets) -> Float[Array, "b"]:
        """The loss of each example, "b", from outputs "b c" and targets "b ..."; examples must be independent."""
        raise NotImplementedError

    def hessian_root(self, outputs: Outputs, targets: Targets, key: Array | None = None, count: int = 1) -> Root:
        """Cotangents u_k, "k b c", with sum_k u_k u_k^T the Hessian of each example's loss in its outputs "c".

        Args:
            key: None for an exact root, k = c; else `count` random vectors, exact in the mean.
        """

        def hessian(z: Array, y: Any) -> Array:
            return jax.hessian(lambda z: self(z[None], y[None])[0])(z)

        values, vectors = jnp.linalg.eigh(jax.vmap(hessian)(outputs, targets))
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None]
        return jnp.einsum("bck,nbk->nbc", root, directions(outputs, key, count))

    def hessian_diagonal(self, outputs: Outputs, targets: Targets) -> Outputs:
        """The diagonal of the Hessian of each example's loss in its outputs, "b c"."""

        def diagonal(pair: tuple[Array, Any]) -> Array:
            return jnp.diagonal(jax.hessian(lambda z: self(z[None], pair[1][None])[0])(pair[0]))

        return jax.lax.map(diagonal, (outputs, jnp.asarray(targets)))  # one Hessian "c c" at a time

    def quadratic(self, targets: Any, classes: int) -> tuple[Float[Array, "n c"], Float[Array, "n c"]] | None:
        """(t, p) of a square loss, "n c" each, for targets "n ..." and outputs of `classes` numbers; else None."""
        return None

    def check(self, targets: Any, classes: int | None) -> None:
        """Raises InputError for targets "n ..." that do not fit this loss; classes: c of an output "c", else None."""


def directions(outputs: Outputs, key: Array | None, count: int) -> Root:
    """The unit vectors "c b c", or `count` vectors "k b c" of random signs over sqrt(k); sum_k v_k v_k^T has mean I."""
    b, c = outputs.shape
    if key is None:
        return jnp.broadcast_to(jnp.eye(c, dtype=outputs.dtype)[:, None], (c, b, c))
    return jax.random.rademacher(key, (count, b, c), outputs.dtype) * count**-0.5


class SquareLoss(Loss):
    """A loss that equals its `quadratic`, without a constant: sum_c p_c / 2 (f_c - t_c)^2.

    >>> class Half(tj.losses.SquareLoss):
    ...     def quadratic(self, targets, classes):
    ...         centers = jax.nn.one_hot(targets, classes)
    ...         return centers, jnp.ones_like(centers)
    >>> Half()(jnp.array([[0.0, 3.0]]), jnp.array([1])).tolist()
    [2.0]
    """

    def __call__(self, outputs: Outputs, targets: Targets) -> Float[Array, "b"]:
        t, p = self.of(outputs, targets)
        return jnp.sum(0.5 * p * jnp.square(outputs - t), -1)

    def hessian_root(self, outputs: Outputs, targets: Targets, key: Array | None = None, count: int = 1) -> Root:
        """The root of the Hessian, which is diagonal and the same for all outputs, "k b c"."""
        return jnp.sqrt(self.of(outputs, targets)[1]) * directions(outputs, key, count)

    def hessian_diagonal(self, outputs: Outputs, targets: Targets) -> Outputs:
        return self.of(outputs, targets)[1]

    def of(self, outputs: Outputs, targets: Targets) -> tuple[Outputs, Outputs]:
        """(t, p) of `quadratic`, "b c" each, in the dtype of the outputs."""
        square = self.quadratic(targets, outputs.shape[-1])
        assert square is not None, type(self)
        t, p = square
        return t.astype(outputs.dtype), p.astype(outputs.dtype)


@partial(jax.tree_util.register_dataclass, data_fields=["alpha", "kappa"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class RescaledSquare(SquareLoss):
    """Rescaled square loss of class indices "b" (Hui and Belkin 2021; Liu et al. 2024).

        (alpha (f_y - kappa)^2 + sum_{c != y} f_c^2) / C

    Attributes:
        alpha: Coefficient of the true class.
        kappa: Its target; the paper's are 1 and 15.

    >>> tj.losses.RescaledSquare()(jnp.array([[14.0, 1.0]]), jnp.array([0])).tolist()  # ((14 - 15)^2 + 1^2) / 2
    [1.0]
    """

    alpha: float | Array = 1.0
    kappa: float | Array = 15.0

    def quadratic(self, targets: Any, classes: int) -> tuple[Float[Array, "n c"], Float[Array, "n c"]]:
        y = jax.nn.one_hot(jnp.asarray(targets), classes, dtype=jnp.result_type(float))
        return self.kappa * y, 2 / classes * (1 + (self.alpha - 1) * y)

    def check(self, targets: Any, classes: int | None) -> None:
        check_labels(targets, classes)


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class MeanSquared(SquareLoss):
    """The mean over c of (f_c - t_c)^2: t the targets, of the outputs' shape, or the one-hot of class indices "b".

    >>> MeanSquared()(jnp.array([[1.0, 3.0]]), jnp.array([[1.0, 1.0]])).tolist()
    [2.0]
    """

    def quadratic(self, targets: Any, classes: int) -> tuple[Float[Array, "n c"], Float[Array, "n c"]]:
        t = jnp.asarray(targets)
        t = jax.nn.one_hot(t, classes, dtype=jnp.result_type(float)) if t.ndim == 1 else t
        return t, jnp.full_like(t, 2 / classes, dtype=jnp.result_type(float))

    def check(self, targets: Any, classes: int | None) -> None:
        if targets.ndim == 1 and jnp.issubdtype(targets.dtype, jnp.integer) and classes != 1:
            check_labels(targets, classes)
            return
        check_scores(classes)
        if targets.shape[1:] != (classes,):
            advice = ". Pass targets[:, None]" if targets.ndim == 1 else ""
            raise InputError(f"targets must have the outputs' shape (n, {classes}); got shape {targets.shape}{advice}")


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log softmax(f)_y, of class indices "b".

    >>> tj.losses.CrossEntropy()(jnp.array([[0.0, 0.0]]), jnp.array([1])).tolist()  # log 2
    [0.693]
    """

    def __call__(self, outputs: Outputs, targets: Targets) -> Float[Array, "b"]:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)

    def hessian_root(self, outputs: Outputs, targets: Targets, key: Array | None = None, count: int = 1) -> Root:
        """The root R of diag(p) - p p^T = R R^T, "k b c":  R = diag(sqrt p) - p sqrt(p)^T."""
        p, v = jax.nn.softmax(outputs), directions(outputs, key, count)
        return jnp.sqrt(p) * v - p * jnp.sum(jnp.sqrt(p) * v, -1, keepdims=True)

    def hessian_diagonal(self, outputs: Outputs, targets: Targets) -> Outputs:
        p = jax.nn.softmax(outputs)
        return p * (1 - p)

    def check(self, targets: Any, classes: int | None) -> None:
        check_labels(targets, classes)


@partial(jax.tree_util.register_dataclass, data_fields=["function"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A user's function (outputs "b c", targets "b ...") -> "b"."""

    function: Any

    def __call__(self, outputs: Float[Array, "b ..."], targets: Targets, *key: Array) -> Shaped[Array, "..."]:
        return self.function(outputs, targets, *key)


def check_labels(targets: Any, classes: int | None) -> None:
    """Raises InputError unless outputs are class scores "b c" and targets their class indices "n"."""
    check_scores(classes)
    as_labels(targets, classes)


def check_scores(classes: int | None) -> None:
    """Raises InputError unless outputs are "b c"; classes: c, None for outputs of another shape."""
    if classes is None:
        raise InputError("outputs must have shape (b, c); got another")


def as_loss(loss: Loss | Callable) -> Loss:
    """The loss as a pytree; a function becomes a FunctionLoss."""
    if not isinstance(loss, Loss):
        return FunctionLoss(trees.as_pytree(loss))
    if jax.tree.leaves(loss) == [loss]:
        jax.tree_util.register_static(type(loss))
    return loss


LOSSES: dict[str, type[Loss]] = {"rsl": RescaledSquare, "ce": CrossEntropy, "mse": MeanSquared}
"""The losses of class indices that objectives, recipes and commands take by name; CONTRIBUTING.md says how to add one.

Each is a frozen dataclass under `@public_class`, whose hyper-parameters are its fields: numbers above 0 with a default,
all of them `data_fields` of the pytree. It has a `check`, and an example in its docstring.
"""


def make_loss(text: str, **given: float) -> Loss:
    """Makes a loss by its name in LOSSES, with the hyper-parameters in the text, as in "rsl:alpha=2:kappa=5", or given.

    Others have their defaults, the paper's.
    """
    name, *settings = text.split(":")
    one_of("loss", name, LOSSES)
    fields = [field.name for field in dataclasses.fields(LOSSES[name])]
    for setting in settings:
        field, _, number = setting.partition("=")
        try:
            given[field] = float(number)
        except ValueError as error:
            raise InputError(f"loss must be of the form {name}:HYPER_PARAMETER=NUMBER; got {text}") from error
    for field, value in given.items():
        if field not in fields:
            raise InputError(f"hyper-parameters of {name} must be of {', '.join(fields) or 'none'}; got {field}")
        finite_number(field, value, 0.0, 1e6)
    return LOSSES[name](**given)


def spell_loss(loss: Loss) -> str:
    """The text of a named loss, which `make_loss` reads: its name, and the hyper-parameters that are not the defaults.

    >>> spell_loss(make_loss("rsl:kappa=5:alpha=2.0")), spell_loss(make_loss("rsl:kappa=15"))
    ('rsl:alpha=2:kappa=5', 'rsl')
    """
    names = [name for name, kind in LOSSES.items() if type(loss) is kind]
    if not names:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}; got {type(loss).__name__}")
    parts = names
    for field in dataclasses.fields(loss):
        value = getattr(loss, field.name)
        if value != field.default:
            parts.append(f"{field.name}={value!r}".removesuffix(".0"))
    return ":".join(parts)

"""Predictors: a model's outputs as a function of its tangent weights.

taft (tangent):    outputs = f_w(x) + J_w f(x) . dw
nlft (non-linear): outputs = f_{w + dw}(x)
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, one_of
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.signals import probe_uses
from tangent_jax.linear.tangent import Differentiated, RowsOfJ
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import Model, is_floating, prepare
from tangent_jax.models.session import FirstSession
from tangent_jax.models.subsets import Kind, Subset, make_subset

METHODS = ("taft", "nlft")
OUTPUTS = ("total", "tangent")
"""The outputs of a tangent model: f_w(x) + J dw, or J dw alone."""
LINEARIZATIONS = ("closed_form", "autodiff")
"""The ways to compute a tangent: by the model's `dual`, or by `jax.jvp`."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["w"],
    meta_fields=["model", "subset", "method", "linearization", "dtype", "output", "session", "class_names"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """outputs = predict(dw, x): a model above its trunk, as a function of its tangent weights.

    A pytree: w is data, so one compiled program serves all anchors of a shape and session; under `jax.jit(predict)` w
    is a constant of the program.

    Attributes:
        method: taft gives f_w(x) + J_w f(x) . dw, or J_w f(x) . dw alone if `output` is tangent; nlft gives f_{w +
            dw}(x).
        linearization: None for closed_form if the model has one, else autodiff. x, "b ...", is the input of the
            subset's stage, as `tj.extract` gives it; uint8 or normalised images for stage 0. Outputs are "b c", in f32
            or wider; `dtype` is the compute dtype.
        session, class_names: The first session of the anchor, and what its file calls the outputs, as in `Pretrained`.

    >>> predict = tj.tangent(demo.model)
    >>> dw = predict.zeros()
    >>> predict(dw, demo.test.inputs).shape, sorted(dw["head"])
    ((12, 3), ['bias', 'kernel'])
    """

    features: ClassVar[None] = None
    """None: a predictor is not a feature map."""

    w: Tree
    model: Model
    subset: Subset
    method: str = "taft"
    linearization: str | None = None
    dtype: Any = None
    output: str = "total"
    session: FirstSession | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.linearization is None:
            object.__setattr__(self, "linearization", "autodiff" if self.model.dual is None else "closed_form")
        one_of("method", self.method, METHODS)
        one_of("linearization", self.linearization, LINEARIZATIONS)
        if self.has_factors and self.model.dual is None:
            kind = type(self.model).__name__
            raise InputError(f"linearization must be autodiff, or None, for a {kind} without `dual`; got closed_form")
        one_of("output", self.output, OUTPUTS)
        if self.output == "tangent" and self.method != "taft":
            raise InputError(f"output must be total for method {self.method}; got tangent")
        if not (self.dtype is None or is_floating(self.dtype)):
            raise InputError(f"dtype must be of floats of 16 bits or more, or None; got {self.dtype!r}")

    @promotes
    def __call__(self, dw: Tree, x: Shaped[Array | np.ndarray, "b ..."]) -> Float[Array, "b c"]:
        self.bind(dw)
        start = self.subset.stage
        if self.method == "nlft":
            moved, x = prepare(self.model, trees.add(self.w, dw), x, self.dtype, start)
            return self.answer(Dual(self.model.apply(moved, x, start), None))
        w, x = prepare(self.model, self.w, x, self.dtype, start)
        if self.has_factors:  # dw stays in f32, so that its gradient is summed in f32
            return self.answer(self.dual(trees.pair(w, dw), x))
        return self.answer(linearize(lambda w, x: self.model.apply(w, x, start), w)(trees.cast(dw, self.dtype), x))

    def bind(self, dw: Tree) -> "Predictor":
        """The predictor itself; InputError for a dw that is not part of its anchor."""
        trees.check_part(self.w, dw)
        return self

    def in_dtype(self, dtype: Any) -> "Predictor":
        """The predictor with another compute dtype, None for that of the weights."""
        return dataclasses.replace(self, dtype=dtype)

    def for_components(self, classes: int) -> "Predictor":
        """The predictor of components of this many named classes, 0 for none; InputError if its outputs are others."""
        if classes not in (0, self.model.classes):
            raise InputError(f"classes must be the names of the {self.model.classes} outputs, or none; got {classes}")
        return self

    @property
    def anchor_model(self) -> Model:
        """The model that w is of."""
        return self.model

    @property
    def has_factors(self) -> bool:
        """True if the tangent is computed by the model's closed form, made of rules."""
        return self.linearization == "closed_form"

    @property
    def exact(self) -> "Predictor":
        """The predictor in the dtype of its weights, if its own is narrower than f32."""
        is_narrow = self.dtype is not None and jnp.finfo(self.dtype).bits < 32
        return self.in_dtype(None) if is_narrow else self

    def for_loop(self) -> "Predictor":
        """The predictor with w in the compute dtype, as each call would cast it; `zeros` and `exact` are others."""
        return self if self.method == "nlft" else dataclasses.replace(self, w=trees.cast(self.w, self.dtype))

    def dual(self, pairs: Tree, x: Float[Array, "b ..."]) -> Dual:
        """The model's value and tangent by its closed form, from the input of the subset's stage."""
        closed_form: Any = self.model.dual
        return closed_form(pairs, x, self.subset.stage)

    @promotes
    def probe(self, dw: Tree, x: Shaped[Array | np.ndarray, "b ..."], at_zero: bool = False) -> RowsOfJ:
        """The outputs and the rows of J at dw, by the inputs and signals of its leaves if there is a closed form.

        The tangent of nlft at dw is that of taft at the anchor w + dw, for a step of 0.
        """
        if not self.has_factors:
            return Differentiated(self, self.zeros() if at_zero else dw, x)
        w = self.w
        if self.method == "nlft" and not at_zero:
            w, at_zero = trees.add(w, dw), True
        w, x = prepare(self.model, w, x, self.dtype, self.subset.stage)
        dw = trees.cast(dw, self.dtype)
        return probe_uses(lambda probes: self.dual(trees.pair(w, probes), x), self.answer, dw, at_zero)

    def answer(self, f: Dual) -> Float[Array, "b c"]:
        """The outputs, in f32 or wider, from the model's value and tangent."""
        outputs: Any = f.total if self.output == "total" else f.tangent
        return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))

    def zeros(self) -> Tree:
        """dw = 0, the start of training."""
        return self.subset.zeros(self.w)


def tangent(pretrained: Pretrained, blocks: int = 1, kind: Kind = "blocks", **options: Any) -> Predictor:
    """The linearized model: the tangent in the last `blocks` blocks, final norm and head, f_w(x) + J_w f(x) . dw.

    Args:
        kind: The trained leaves of those blocks, or a function of paths, as in `make_subset`.
        options: `linearization`, `dtype`, `output`, as in Predictor.

    >>> tj.tangent(demo.model, kind="head").subset.paths
    ('head/bias', 'head/kernel')
    """
    subset = make_subset(pretrained.model, kind, blocks)
    return Predictor(pretrained.w, pretrained.model, subset, "taft", **of_anchor(pretrained), **options)


def nonlinear(pretrained: Pretrained, blocks: int = 1, kind: Kind = "blocks", **options: Any) -> Predictor:
    """Non-linear fine-tuning of the same leaves, f_{w + dw}(x): the baseline of `tangent`.

    Args:
        pretrained, blocks, kind: As in `tangent`.
        options: `dtype`.

    >>> network, x = tj.nonlinear(demo.model), demo.test.inputs
    >>> bool(jnp.allclose(network(network.zeros(), x), demo.predict(demo.predict.zeros(), x)))  # both are f_w at dw = 0
    True
    """
    subset = make_subset(pretrained.model, kind, blocks)
    return Predictor(pretrained.w, pretrained.model, subset, "nlft", **of_anchor(pretrained), **options)


def of_anchor(pretrained: Pretrained) -> dict[str, Any]:
    """What a predictor keeps of its anchor, besides the model and its weights."""
    return {"session": pretrained.session, "class_names": pretrained.class_names}

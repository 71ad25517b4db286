"""Heads by class: each class reads its own column of the head, so a model of few classes is a restricted model of more.

    f(x)_c = w_c . z + b_c        with dw: f_lin(dw, x)_c needs only w_c, dw_c and the body

The last axis of every leaf of a head is the classes. Heads drawn by class names have equal columns for equal names.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import check_order, columns
from tangent_jax.core.notation import Tree
from tangent_jax.models.predict import Predictor


def head_of(tree: Tree, classes: Sequence[str], own: Sequence[str]) -> Tree:
    """The head's leaves for `own` classes, from a head of `classes`."""
    chosen = columns(classes, own)
    return jax.tree.map(lambda leaf: leaf[..., chosen], tree["head"])


def restrict(predict: Predictor, classes: Sequence[str], own: Sequence[str]) -> Predictor:
    """The predictor of some of its classes, in the order of `own`: its outputs are those columns, bit for bit.

    >>> few = tj.models.restrict(demo.predict, ["a", "b", "c"], ["c", "a"])
    >>> few(few.zeros(), demo.test.inputs).shape
    (12, 2)
    """
    check_order(predict.class_names, classes)
    if tuple(classes) == tuple(own):
        return predict
    model = predict.model.with_classes(len(own))
    shapes, subset = model.shapes(), predict.subset
    smaller = dataclasses.replace(subset, size=sum(int(np.prod(shapes[path])) for path in subset.paths))
    w = {**predict.w, "head": head_of(predict.w, classes, own)}
    return dataclasses.replace(predict, w=w, model=model, subset=smaller, class_names=())


def widen(predict: Predictor, classes: Sequence[str], dw: Tree, own: Sequence[str]) -> Tree:
    """The tangent weights of a component of `own` classes, as a component of all `classes`, at the anchor of `predict`.

        dw_c = -w_c        for a class that the component has not seen: its output is 0 (dw_c = 0 for tangent outputs)

    Guarantees:
        The outputs of `own` classes are the component's.

    >>> few = tj.models.restrict(demo.predict, ["a", "b", "c"], ["c", "a"])
    >>> wide = tj.models.widen(demo.predict, ["a", "b", "c"], few.zeros(), ["c", "a"])
    >>> float(jnp.abs(demo.predict(wide, demo.test.inputs)[:, 1]).max())  # the class b
    0.0
    """
    if "head" not in dw or tuple(classes) == tuple(own):
        return dw
    chosen = columns(classes, own)

    def wide(w: Any, leaf: Any) -> np.ndarray:
        if np.shape(leaf)[-1:] != (len(own),):
            raise InputError(f"the head in dw must have {len(own)} classes; got shape {np.shape(leaf)}")
        silent = -np.asarray(w, np.asarray(leaf).dtype) * (predict.output == "total")
        silent[..., chosen] = leaf
        return silent

    anchor = {name: leaf for name, leaf in predict.w["head"].items() if name in dw["head"]}
    return {**dw, "head": jax.tree.map(wide, anchor, dw["head"])}

"""The public boundary: a call that fails for its arguments says which, in one line.

    @public
    def fit(predict: Predict, data: Batches, ...)      fit: expected data of Batches; got int.

Nothing is checked before a call: it costs nothing, and refuses nothing that works. Where a call raises another error
than ours, its arguments are held against the annotations (by beartype); the first that does not fit is named, and the
error is its cause. Where all of them fit, the error is our own fault, and stays what it is.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import jax
import numpy as np

from tangent_jax.core.checks import InputError, refusal, visible

P, R, C = ParamSpec("P"), TypeVar("R"), TypeVar("C", bound=type)
FAULTS = (TypeError, AttributeError, ValueError, KeyError, IndexError, AssertionError, NotImplementedError)
FAULTS += (ZeroDivisionError, OverflowError, RecursionError, OSError)
TREE = "a pytree of arrays"


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors name the argument that is not of its annotated type."""
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except InputError:
            raise
        except FAULTS as error:
            wrong = misfit(function, args, kwargs)
            if wrong is None:
                raise
            raise refusal(name, *wrong) from error

    return guarded


def public_class(kind: C) -> C:
    """The class, whose constructor is `public`."""
    kind.__init__ = public(kind.__init__)
    return kind


def misfit(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """(what was expected, what was given) of the first argument that is not of its type; None where all are.

    A call with too few arguments, or one that is not known, is Python's to explain.
    """
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, NameError):
        return None
    conf = BeartypeConf(is_pep484_tower=True)
    for parameter, value in given.items():
        hint = hints.get(parameter, Any)
        if signature.parameters[parameter].kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        if is_tree(hint):
            if not is_tree_of_arrays(value) and not (value is None and type(None) in get_args(hint)):
                return f"{parameter}, {TREE}", short(value)
            continue
        try:
            fits = is_bearable(value, hint, conf=conf)
        except (BeartypeException, TypeError):
            continue
        if not fits:
            return f"{parameter}, {spelled(hint)}", short(value)
    return None


def is_tree(hint: Any) -> bool:
    """True for the annotation `Tree`, or `Tree | None`."""
    return (get_origin(hint) is Annotated and TREE in get_args(hint)) or any(
        is_tree(part) for part in get_args(hint)[:2]
    )


def is_tree_of_arrays(value: Any) -> bool:
    """True for a pytree with leaves, all of them numbers or arrays of numbers."""
    leaves = jax.tree.leaves(value)
    numbers = (isinstance(leaf, (int, float, complex)) or np.asarray(leaf).dtype.kind in "biufcV" for leaf in leaves)
    return bool(leaves) and not isinstance(value, (str, bytes)) and all(numbers)


def spelled(hint: Any) -> str:
    """An annotation in words."""
    if isinstance(hint, type) and not get_args(hint):
        return f"a value of type {hint.__name__}"
    text = str(hint).replace("typing.", "").replace("collections.abc.", "")
    return f"a value of type {text}"


def short(value: Any) -> str:
    """The type of a value, and a text or number itself."""
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return visible(repr(value))[:60]
    return f"a value of type {type(value).__name__}"

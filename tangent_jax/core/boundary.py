"""The public boundary: a call that fails because of an argument names it, in one line.

    @public
    def fit(predict: Predict, data: Batches, ...)      fit: expected data, a value of type Batches; got 3.

While a public function runs, checks begin their messages with its name (`core/checks.py`).

Nothing is checked before a call, so it costs nothing and refuses nothing that works. If a call raises an error other
than InputError, its arguments are compared with the annotations (by beartype). The message names the first one that
does not fit, with the error as its cause. If all of them fit, the error is a bug of the library, and is raised
unchanged.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np

from tangent_jax.core.checks import SPEAKER, InputError, refusal, visible

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
TREE = "a pytree of arrays"
SHOWN = ((f"typing.Annotated[typing.Any, '{TREE}']", "pytree"), ("typing.", ""), ("collections.abc.", ""))
MOST = 1 << 31  # the range of whole numbers that JAX takes
VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors name it and an argument of a wrong type."""
    name = function.__qualname__.removesuffix(".__init__").removesuffix(".__call__")

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        token = SPEAKER.set(name)
        try:
            return function(*args, **kwargs)
        except InputError:
            raise
        except Exception as error:
            wrong = misfit(function, args, kwargs)
            if wrong is None:
                raise
            raise refusal(name, *wrong) from error
        finally:
            SPEAKER.reset(token)

    return guarded


def public_class(kind: C) -> C:
    """The class, with a `public` constructor if it defines one."""
    if "__init__" in vars(kind):
        kind.__init__ = public(kind.__init__)
    return kind


def misfit(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """(what was expected, what was given) of the first argument of a wrong type; None if all fit.

    Python itself explains a call with missing or unknown arguments.
    """
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, NameError):
        return None
    for parameter, value in given.items():
        hint = hints.get(parameter, Any)
        if signature.parameters[parameter].kind not in VARIADIC and not fits(hint, value):
            words = TREE if is_tree(hint) else type_in_words(hint)
            return f"{parameter}, {words}", short(value)
    return None


def fits(hint: Any, value: Any) -> bool:
    """True if a value has an annotated type; a Tree is a pytree of numbers, with at least one leaf."""
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    if isinstance(value, np.ndarray) and hint is not Any and (value.ndim == 0 or value.dtype.kind not in "biuf"):
        return False
    if is_tree(hint):
        return (value is None and type(None) in get_args(hint)) or is_tree_of_arrays(value)
    try:
        return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
    except (BeartypeException, TypeError):  # an annotation that cannot be checked
        return True


def is_tree(hint: Any) -> bool:
    """True for the annotation `Tree`, or `Tree | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(is_tree(part) for part in get_args(hint))
    return get_origin(hint) is Annotated and TREE in get_args(hint)


def is_tree_of_arrays(value: Any) -> bool:
    """True for a pytree with leaves, all of them numbers or arrays of numbers."""
    if isinstance(value, Iterator):
        return False
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        isinstance(leaf, (float, complex, jax.Array))
        or (isinstance(leaf, int) and abs(leaf) < MOST)
        or getattr(leaf, "dtype", np.dtype(object)).kind in "biufcV"
        for leaf in leaves
    )


def type_in_words(hint: Any) -> str:
    """An annotation in words."""
    name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    for text, shown in SHOWN:
        name = name.replace(text, shown)
    return f"a value of type {name}"


def short(value: Any) -> str:
    """The type of a value, and a text or number itself."""
    if isinstance(value, (str, bytes, int, float, type(None))):
        return visible(repr(value))[:60]
    return f"a value of type {type(value).__name__}"

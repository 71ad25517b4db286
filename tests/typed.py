"""The checker that tests put on each function of the library: beartype, for which an int is a float (PEP 484)."""

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, Union, get_args, get_origin

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from beartype.vale import IsInstance

CHECKERS = ("jaxtyping", "beartype", "typed.py", "<string>")
as_written = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checked at each call. JAX rebuilds pytrees with leaves of any kind: these are let pass."""
    for name, hint in function.__annotations__.items():
        function.__annotations__[name] = Any if hint is Self else unread(hint)  # Self: beartype reads it in classes
    checked = as_written(function)
    if function.__name__ != "__init__":
        return checked

    @functools.wraps(function)
    def initialise(*args: Any, **kwargs: Any) -> None:
        try:
            checked(*args, **kwargs)
        except BeartypeCallHintViolation:
            if not rebuilds():
                raise

    return initialise


def unread(hint: Any) -> Any:
    """The hint, which looks at no item of a mapping: a store reads the one that is looked at from the disk."""
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(unread, get_args(hint)))
    if get_origin(hint) is Mapping:
        return Mapping
    return Annotated[object, IsInstance[hint]] if inspect.isclass(hint) and issubclass(hint, Mapping) else hint


def rebuilds() -> bool:
    """Whether the nearest caller, but for what checks, is a module of JAX."""
    frame = sys._getframe(1)
    while any(name in frame.f_code.co_filename for name in CHECKERS) and frame.f_back is not None:
        frame = frame.f_back
    return "/jax/_src/" in frame.f_code.co_filename

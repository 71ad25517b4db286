"""The checker that tests put on each function of the library: beartype, for which an int is a float (PEP 484)."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation

CHECKERS = ("jaxtyping", "beartype", "typed.py", "<string>")
as_written = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checked at each call. JAX rebuilds pytrees with leaves of any kind: these are let pass."""
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


def rebuilds() -> bool:
    """Whether the nearest caller, but for what checks, is JAX's module of trees."""
    frame = sys._getframe(1)
    while any(name in frame.f_code.co_filename for name in CHECKERS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.endswith("jax/_src/tree_util.py")

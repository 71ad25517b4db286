"""JAX's standard promotion of dtypes and ranks within the library, for programs that set a stricter one."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

F = TypeVar("F", bound=Callable)


def promotes(function: F) -> F:
    """The function under JAX's standard promotion, whatever `jax_numpy_dtype_promotion` and `_rank_promotion` are.

    Optax needs it, too. Functions of the caller's own, such as a loss, run under it where the library calls them.
    """

    @functools.wraps(function)
    def promoting(*arguments: Any, **options: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*arguments, **options)

    return cast(F, promoting)

"""Identities: hashes of everything that decides a result; arrays by their digests, functions by their programs.

The program of a function is its jaxpr: loss, gradient and update at the shapes of the run. Any change that can affect
the result changes the identity: called code, attributes, a backward rule, a constant. Comments, names and file paths do
not. The version of JAX counts; the kind of device does not.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from tangent_jax.core.checks import InputError
from tangent_jax.core.digests import digests
from tangent_jax.core.trees import leaves

CALLBACKS = ("pure_callback", "io_callback", "buffer_callback")
CLOSED: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""The parts of each jaxpr, as long as JAX keeps it."""
Part = Any
"""Bytes, or an array, which counts by its digest."""
UNDECIDING = ("name", "debug_info", "name_and_src_info", "source_info")
"""Parameters of a primitive that hold its location in the source."""


def identity(*values: Any) -> str:
    """BLAKE2b (hex, 256 bits) over the content of all values: arrays, numbers, text, containers, dataclasses of them.

    Guarantees:
        Equal for equal content, in any process; differs when any bit of an array or any setting differs.

    Raises:
        InputError: A value without readable content, such as a function: use `program`.
    """
    return fingerprint(pieces(values))


def program(f: Callable, *arguments: Any) -> str:
    """The fingerprint of the jaxpr that f traces to for arguments of these shapes, with the bytes of its constants.

    Args:
        arguments: Pytrees of arrays; only dtypes and shapes count, not values.

    Guarantees:
        The same in every process of one version of JAX; differs if f computes something else.

    Raises:
        InputError: A callback to the host, whose result no program holds.
    """
    return fingerprint(closed_bytes(jax.make_jaxpr(f)(*arguments)), jax.__version__.encode())


def primitives(f: Callable, *arguments: Any) -> set[str]:
    """The names of all primitives of the program that f traces to."""

    def of(jaxpr: Any) -> set[str]:
        inner = [of(part) for equation in jaxpr.eqns for part in jaxprs_in_params(equation.params)]
        return {equation.primitive.name for equation in jaxpr.eqns}.union(*inner)

    return of(jax.make_jaxpr(f)(*arguments).jaxpr)


def program_reading(f: Callable, w: Any, *arguments: Any) -> tuple[str, dict[str, Any], Sequence[Any]]:
    """Returns (the program of f(w, *arguments), the leaves of w that it reads, by path, the types of its outputs).

    Dead code does not count, nor do leaves that only dead code reads.
    """
    closed = jax.make_jaxpr(f)(w, *arguments)
    live, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    flat = leaves(w)
    read = {path: leaf for (path, leaf), is_used in zip(flat.items(), used, strict=False) if is_used}
    traced = fingerprint(closed_bytes(ClosedJaxpr(live, closed.consts)), jax.__version__.encode())
    return traced, read, closed.out_avals


def fingerprint(parts: Iterable[Part], start: bytes = b"") -> str:
    """BLAKE2b (hex, 256 bits) of `start` and all parts, as one text; arrays by their digests."""
    found = [*parts]
    of_arrays = iter(digests([part for part in found if not isinstance(part, bytes)]))
    state = hashlib.blake2b(start, digest_size=32)
    for part in found:
        state.update(part if isinstance(part, bytes) else next(of_arrays))
    return state.hexdigest()


def pieces(value: Any) -> Iterator[Part]:
    """Yields the bytes of a value's type and content."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, bytes) or isinstance(value, str):
        yield f"{kind.__name__} {value!r};".encode(errors="backslashreplace")
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)) or hasattr(value, "__array__"):
        yield from of_array(value)
    else:
        yield f"{kind.__qualname__}(".encode()
        for part in parts(value):
            yield from pieces(part)
        yield b")"


def parts(value: Any) -> list[Any]:
    """The parts of a container or dataclass."""
    if isinstance(value, (list, tuple)):
        return [*value]
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(identity, value))
    if isinstance(value, os.PathLike):
        return [os.fspath(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, np.dtype):
        return [str(value)]
    raise InputError(
        f"a value must be identified by its content; got a {type(value).__name__}. Give arrays, numbers, text, "
        "containers or dataclasses of them"
    )


def of_array(value: Any) -> Iterator[Part]:
    """Yields the dtype and shape of an array, and the array."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield f"{value.dtype} ".encode()  # the key's generator
        value = jax.random.key_data(value)
    yield f"array {value.dtype} {value.shape};".encode()
    yield value if hasattr(value, "nbytes") else np.asarray(value)


def closed_bytes(closed: Any) -> list[Part]:
    """The bytes of a jaxpr with its constants; kept, as the equal blocks of a network are one object."""
    if closed not in CLOSED:
        arrays = [a if isinstance(a, jax.Array) else np.asarray(a) for a in closed.consts]
        CLOSED[closed] = [*chain(*map(of_array, arrays), of_jaxpr(closed.jaxpr))]
    return CLOSED[closed]


def of_jaxpr(jaxpr: Any) -> Iterator[Part]:
    """Yields the bytes of a jaxpr, its variables numbered as they appear."""
    numbers: dict[Any, int] = {}

    def spelled(variables: Any) -> Iterator[Part]:
        for v in variables:
            if isinstance(v, Literal):
                yield from of_parameter(v.val)
            else:
                yield f"{numbers.setdefault(v, len(numbers))}:{v.aval.str_short()} ".encode()

    yield from spelled([*jaxpr.constvars, *jaxpr.invars])
    for equation in jaxpr.eqns:
        primitive = equation.primitive.name
        if primitive in CALLBACKS:
            raise InputError(f"a program must make no callbacks to the host; got {primitive}. Compute it in JAX")
        yield f"\n{primitive} ".encode()
        yield from spelled(equation.invars)
        for name in sorted(equation.params.keys() - {*UNDECIDING}):
            yield f" {name}=".encode()
            yield from of_parameter(equation.params[name])
        yield from spelled(equation.outvars)
    yield b"\n-> "
    yield from spelled(jaxpr.outvars)


def of_parameter(value: Any) -> Iterator[Part]:
    """Yields the bytes of a primitive's parameter. A rule of derivatives counts only once traced, in the gradient."""
    if isinstance(value, ClosedJaxpr):
        yield from closed_bytes(value)
    elif isinstance(value, Jaxpr):
        yield from of_jaxpr(value)
    elif isinstance(value, (list, tuple)):
        yield b"("
        for part in value:
            yield from of_parameter(part)
        yield b")"
    elif isinstance(value, (set, frozenset)):
        yield from of_parameter(sorted(map(repr, value)))
    elif isinstance(value, Mapping):
        yield from of_parameter(sorted(value.items(), key=lambda item: str(item[0])))
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        yield from of_array(value)
    elif callable(value) and not isinstance(value, type):
        yield b"function"
    else:
        yield re.sub(r" at 0x[0-9a-f]+", "", f"{value!r} ").encode()

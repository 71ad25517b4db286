"""One digest of whatever decides a result: arrays by their bytes, functions by their code and all that they hold.

Two values of one identity give the same result; what cannot be told apart by content is refused, never guessed. A
function's code, defaults, closure and globals count; a function or class of an installed package counts as its name
and the package's version. A user's function that holds an object of unknown content must be passed as a pytree:
`jax.tree_util.Partial(f, w)`.
"""

import dataclasses
import functools
import hashlib
import inspect
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from tangent_jax.core.checks import refusal
from tangent_jax.core.trees import array_bytes

PIECE = 1 << 24  # bytes of an array hashed at a time: a memory map is read piece by piece


def identity(*values: Any) -> str:
    """BLAKE2b (hex, 256 bits) over the content of all values: three times as fast as SHA-256 without its instructions.

    Guarantees: equal for equal content, in any process; differs when any bit of an array, constant or code differs.
    Raises:     InputError for an object whose content cannot be read.
    """
    digest = hashlib.blake2b(digest_size=32)
    for piece in pieces(values, {}):
        digest.update(piece)
    return digest.hexdigest()


def pieces(value: Any, around: dict[int, int]) -> Iterator[bytes | memoryview]:
    """The bytes that tell a value from others; `around`: the depth of the objects that hold it, so that circles end."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes, type(...)):
        yield f"{kind.__name__} {value!r};".encode(errors="backslashreplace")
        return
    if id(value) in around:
        yield f"circle {around[id(value)]};".encode()
        return
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) or hasattr(value, "__array__"):
        yield from of_array(value)
        return
    around[id(value)] = len(around)
    yield f"{kind.__module__}.{kind.__qualname__}(".encode()
    for part in parts(value):
        yield from pieces(part, around)
    del around[id(value)]
    yield b")"


def of_array(value: Any) -> Iterator[bytes | memoryview]:
    """Dtype, shape and bytes, a piece at a time."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    yield f"array {value.dtype} {value.shape};".encode()
    if not value.shape:
        yield np.asarray(value).tobytes()
        return
    rows = max(1, PIECE // max(1, value.nbytes // max(1, len(value))))
    for start in range(0, len(value), rows):
        yield array_bytes(np.asarray(value[start : start + rows]))


def parts(value: Any) -> list[Any]:
    """What an object consists of."""
    if isinstance(value, (list, tuple)):
        return [*value]
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(identity, value))
    if isinstance(value, os.PathLike):
        return [os.fspath(value)]
    if isinstance(value, types.FunctionType):
        return of_function(value)
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, [c for c in value.co_consts if c != value.co_name]]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (types.BuiltinFunctionType, np.ufunc, types.ModuleType)) or is_installed(value):
        return [named(value), *holds(value)]
    if isinstance(value, type):
        return [named(value), *methods(value)]
    if hasattr(value, "__wrapped__"):  # jit and the like
        return [value.__wrapped__]
    if dataclasses.is_dataclass(value):
        return [type(value), *((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))]
    text = str(value) if isinstance(value, (np.dtype, jax.tree_util.PyTreeDef)) else " at 0x"
    if " at 0x" not in text:  # an address in memory tells nothing
        return [text]
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda node: node is not value)
    if leaves != [value]:
        return [*leaves, str(structure) if not leaves else ""]
    do = "Pass functions as jax.tree_util.Partial(f, w), w a pytree of arrays"
    raise refusal("identity", "a value that can be told apart by its content", f"a {type(value).__name__}", do)


def of_function(f: types.FunctionType) -> list[Any]:
    """A function's parts: its name where a package is installed, else its code; and what it holds."""
    if package_version(f.__module__) is not None:
        return [named(f), *holds(f)]
    names = {name for code in codes(f.__code__) for name in code.co_names}
    used = {name: f.__globals__[name] for name in sorted(names & f.__globals__.keys())}
    return [f.__code__, used, *holds(f)]


def methods(kind: type) -> list[Any]:
    """The methods that a user wrote in a class and its bases, unwrapped; what Python generates does not count."""
    written = [vars(base).items() for base in kind.__mro__ if package_version(base.__module__) is None]
    functions = [(name, inspect.unwrap(f)) for items in written for name, f in sorted(items, key=lambda item: item[0])
                 if isinstance(f, types.FunctionType)]  # fmt: skip
    return [(name, f) for name, f in functions if not name.startswith("__") or name == "__call__"]


def holds(f: Any) -> list[Any]:
    """The defaults and the closure of a function."""
    if not isinstance(f, types.FunctionType):
        return []
    cells = [cell.cell_contents for cell in f.__closure__ or () if cell_is_full(cell)]
    return [f.__defaults__, f.__kwdefaults__, cells]


def cell_is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell.cell_contents
    except ValueError:
        return False


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def is_installed(value: Any) -> bool:
    """Whether the value is a callable that an installed package names, such as a jitted function of jax."""
    module = getattr(value, "__module__", None)
    return callable(value) and hasattr(value, "__qualname__") and package_version(module) is not None


def named(value: Any) -> str:
    """The name of what a package defines, and the package's version."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return f"{module} {getattr(value, '__qualname__', '')} {package_version(module)}"


def package_version(module: str | None) -> str | None:
    """The version of the package that a module belongs to; None where it states none: a user's own file."""
    top = sys.modules.get((module or "").partition(".")[0])
    if top is None or module == "__main__":
        return None
    if top.__name__ in sys.stdlib_module_names:
        return sys.version.split()[0]
    return getattr(top, "__version__", None)

"""Placement on devices and processes.

examples          divided over all devices, along the mesh's only axis "examples"
weights, dw       whole on every device; if they exceed a quarter of a device's memory, each leaf is divided along its
                  longest divisible axis
files             written by process 0; a resumed run reads them in process 0, which sends them to the others
random keys       drawn by process 0, known to all

Every computation is one logical program on global arrays, which XLA divides (GSPMD); so noise, for example, is added
once. Another number of devices changes the order of sums over examples, and the last bits of single rows, too, as XLA
compiles other shapes.
"""

import functools
import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree

T = TypeVar("T")
_used: list[int | None] = [None]


def use_devices(count: int | None) -> None:
    """Uses the first `count` devices of every process from now on; None: all, the default.

    Raises:
        InputError: More devices than exist.
    """
    available = jax.local_device_count()
    if count is not None and not 1 <= count <= available:
        raise InputError(
            f"devices must be in 1..{available}, the devices of this machine; got {count}. On a CPU, set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N"
        )
    _used[0] = count


def mesh(local: bool = False) -> Mesh:
    """The devices in use, of all processes or of this one, along one axis."""
    processes = [jax.process_index()] if local else range(jax.process_count())
    return Mesh(np.concatenate([jax.local_devices(process_index=p)[: _used[0]] for p in processes]), ("examples",))


def devices_in_words() -> str:
    """The number of devices in use, and their kinds, such as "2 devices: NVIDIA H200"."""
    used = mesh().devices.flat
    kinds = dict.fromkeys(device.device_kind for device in used)
    return f"{len(used)} device{'s' * (len(used) > 1)}: {', '.join(kinds)}"


def width(count: int) -> int:
    """The smallest number of rows, at least `count`, that is divisible by the devices."""
    return count + -count % mesh().size


def divide(array: Any, axis: int, local: bool = False) -> Shaped[Array, "..."]:
    """The array with `axis` divided over the mesh, or whole on every device if it is not divisible.

    Each process reads only its devices' part of an array on disk, or of `Rows`.
    """
    devices = mesh(local)
    if devices.size == 1:
        return on_device(array)
    spec = PartitionSpec(*[None] * axis, "examples") if array.shape[axis] % devices.size == 0 else PartitionSpec()
    return _put(array, NamedSharding(devices, spec))


def replicate(tree: Tree, local: bool = False) -> Tree:
    """Every array of the tree whole on every device of the mesh; other leaves stay."""
    devices = mesh(local)
    return jax.tree.map(lambda leaf: _on(leaf, devices, PartitionSpec()), tree)


def place(tree: Tree) -> Tree:
    """The tree replicated; if it exceeds a quarter of a device's memory, with each leaf divided."""
    devices, limit = mesh(), memory()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if _is_array(leaf))
    if devices.size == 1 or limit is None or total <= limit // devices.size // 4:
        return replicate(tree)

    def spec(shape: tuple[int, ...]) -> PartitionSpec:
        axes = [axis for axis, size in enumerate(shape) if size % devices.size == 0]
        return PartitionSpec(*[None] * max(axes, key=lambda a: shape[a]), "examples") if axes else PartitionSpec()

    return jax.tree.map(lambda leaf: _on(leaf, devices, spec(np.shape(leaf))), tree)


def automatic(array: Any) -> Any:
    """An array that lies on a mesh of explicit axes (`jax.make_mesh`), on the same devices with axes that XLA divides.

    Indexing and products of arrays with explicit axes must name the sharding of each result, which ours do not.
    """
    named = getattr(array, "sharding", None)
    if isinstance(array, Tracer) or not isinstance(named, NamedSharding):
        return array
    of = named.mesh
    if not isinstance(of, Mesh) or AxisType.Explicit not in of.axis_types:
        return array
    return jax.device_put(array, NamedSharding(Mesh(np.asarray(of.devices), of.axis_names), named.spec))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Array | np.ndarray)


def _on(leaf: Any, devices: Mesh, spec: PartitionSpec) -> Any:
    if not _is_array(leaf):
        return leaf
    return automatic(on_device(leaf)) if devices.size == 1 else _put(leaf, NamedSharding(devices, spec))


def on_device(array: Any) -> Shaped[Array, "..."]:
    """The array on the default device, where a CPU may share the memory of NumPy's.

    From version 0.10.1 on, `jnp.asarray` of an array of NumPy's compiles a program for each shape, which copies it.
    """
    return array if isinstance(array, Array) else jax.device_put(np.asarray(array))


def copied(array: Any) -> Shaped[Array, "..."]:
    """A copy of an array where it lies; unlike `jnp.array` without a program for each shape."""
    array = array.copy() if isinstance(array, np.ndarray) else array  # whose memory is shared despite may_alias
    return jax.device_put(array, may_alias=False)


def _put(array: Any, sharding: NamedSharding) -> Array:
    """The array with a sharding. In a job each process gives its own part, without comparison."""
    is_array = isinstance(array, Array)
    if is_array and (jax.process_count() == 1 or not array.is_fully_addressable):
        return jax.device_put(array, sharding)
    if is_array and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = _put(np.asarray(jax.random.key_data(array)), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    array = np.asarray(array) if is_array else array
    parts: dict[Any, np.ndarray] = {}  # read once, even if several devices hold it

    def read(index: Any) -> np.ndarray:
        at = tuple((s.start, s.stop) for s in index)
        if at not in parts:
            parts[at] = np.asarray(array[index] if index else array)
        return parts[at]

    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: read(index).astype(kind, copy=False))


def on_host(array: Any) -> Shaped[np.ndarray, "..."]:
    """The whole array on the host, even if other processes hold parts of it."""
    if isinstance(array, Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def memory() -> int | None:
    """The bytes of all devices of the mesh together; None if devices do not report them, such as a CPU.

    Every device counts as the smallest one of all processes, so that all processes decide alike.
    """
    least = least_memory()[0]
    return least * mesh().size if least else None


def cores() -> int:
    """The cores of this process's affinity, as Slurm, taskset and cpusets set it; on macOS those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """The bytes of this machine's memory; in a job, of the smallest machine's."""
    return least_memory()[1]


@functools.cache
def least_memory() -> tuple[int, int]:
    """The smallest bytes of a device (0 if unreported) and of a machine. All processes call this."""
    device = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    megabytes = np.array([device, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]) >> 20
    least = gather(megabytes.astype(np.int32)).min(0)
    return int(least[0]) << 20, int(least[1]) << 20


def resident_bytes() -> int:
    """The largest inputs that every device holds: a third of its memory; for CPUs a share of the machine's."""
    return (memory() or machine_memory()) // mesh().size // 3


def agree(value: Tree) -> Tree:
    """Returns process 0's arrays in every process, such as a draw from entropy, which differs between them."""
    if jax.process_count() == 1:
        return value
    return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(value))


def gather(value: Any) -> Shaped[np.ndarray, "p ..."]:
    """The arrays of all processes, of one shape."""
    return np.asarray(multihost_utils.process_allgather(np.asarray(value))).reshape(-1, *np.shape(value))


def call_in_all(function: Callable[[], T]) -> T:
    """Calls function() in every process; an exception in one is raised in all, so that none waits for another.

    Raises:
        Exception: That of function(). The other processes raise the same kind with its message, or RuntimeError for
            kinds other than InputError, OSError and KeyboardInterrupt.
    """
    if jax.process_count() == 1:
        return function()
    error = None
    value = None
    try:
        value = function()
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
    kinds = [InputError, OSError, KeyboardInterrupt, RuntimeError]
    code = 0 if error is None else next((i for i, k in enumerate(kinds, 1) if isinstance(error, k)), len(kinds))
    codes = gather(np.array(code))
    if not codes.any():
        return value  # pyright: ignore[reportReturnType]
    first = int(np.flatnonzero(codes)[0])
    message = str(error) if 0 < code < len(kinds) else f"{type(error).__name__}: {error}"
    text = gather(np.frombuffer(message.encode()[:500].ljust(500), np.uint8))[first].tobytes()
    raise error or kinds[codes[first] - 1](f"{text.decode(errors='replace').strip()} (in process {first})")


def check_alike(arrays: Callable[[], Iterable[np.ndarray]]) -> None:
    """Raises InputError, in all processes of a job, if their arrays differ: they would train different things.

    Args:
        arrays: A function that returns them; it is not called in a single process.
    """
    if jax.process_count() > 1:
        crc = 0
        for a in arrays():
            crc = zlib.crc32(repr((a.shape, a.dtype)).encode() + a.tobytes(), crc)
        checksums = gather(np.array(crc, np.uint32)).tolist()
        if len({*checksums}) > 1:
            raise InputError(
                "all processes of a job must have the same examples, order and settings; some have others. Start them "
                "alike, on the same data"
            )

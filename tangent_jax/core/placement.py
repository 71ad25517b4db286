"""Placement on devices and processes.

examples          over all local devices along the mesh's one axis, "examples", where they divide; the sums follow
tangent weights   whole on every device
files             written by process 0
random keys       drawn by process 0, known to all
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tangent_jax.core.notation import Tree


def mesh() -> Mesh:
    """All local devices, along one axis."""
    return Mesh(np.array(jax.local_devices()), ("examples",))


def over_examples(array: Any, axis: int) -> Array:
    """The array with `axis` divided over the mesh; whole on every device where the devices do not divide it."""
    devices = mesh()
    if devices.size == 1:
        return jnp.asarray(array)
    spec = PartitionSpec(*[None] * axis, "examples") if array.shape[axis] % devices.size == 0 else PartitionSpec()
    return jax.device_put(array, NamedSharding(devices, spec))


def replicated(tree: Tree) -> Tree:
    """Every leaf whole on every device of the mesh."""
    tree = jax.tree.map(jnp.asarray, tree)
    return tree if mesh().size == 1 else jax.device_put(tree, NamedSharding(mesh(), PartitionSpec()))


def memory() -> int | None:
    """The bytes of all devices of the mesh together; None for devices that do not report them, such as a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["bytes_limit"] * len(jax.local_devices()) if "bytes_limit" in stats else None


def is_writer() -> bool:
    """True in the one process that writes files."""
    return jax.process_index() == 0


def agreed(value: np.ndarray) -> np.ndarray:
    """Returns process 0's value in every process: a draw from entropy differs between them."""
    if jax.process_count() == 1:
        return value
    return np.asarray(multihost_utils.broadcast_one_to_all(value))

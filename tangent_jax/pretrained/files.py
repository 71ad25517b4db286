"""Weights files, for all families of models: the tensors, the JSON files beside them, and checks."""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.digests import note
from tangent_jax.core.placement import cores, on_device
from tangent_jax.io.records import convert
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import Model


class Tensors(NamedTuple):
    """The content of a file: tensors by name, its metadata, and the JSON files beside it by name.

    Attributes:
        architecture: The name that the caller gave, or None.
        left_out: Names of tensors on which no output depends.
        written: The shapes under the names that the file has, where they were spelled in another way since.
    """

    tensors: dict[str, np.ndarray]
    metadata: Mapping[str, str]
    beside: Mapping[str, dict[str, Any]]
    path: str
    architecture: str | None = None
    left_out: frozenset[str] = frozenset()
    written: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor by name."""
        return {name: tuple(value.shape) for name, value in self.tensors.items()}

    def config(self, kind: type) -> Any:
        """The fields of `kind` in the config.json beside the file."""
        known = {field.name for field in dataclasses.fields(kind)}
        fields = {name: value for name, value in self.beside.get("config", {}).items() if name in known}
        return convert(kind, fields, f"config.json beside {self.path}")


def assemble(
    model: Model, flat: Mapping[str, Any], path: str, optional: tuple[str, ...] = (), reshaped: tuple[str, ...] = ()
) -> Pretrained:
    """The model and its tree, with every tensor checked for presence, shape and finiteness.

    Args:
        optional: Path endings that are zero if the file lacks them.
        reshaped: Parts of paths whose tensors may have other axes of the same size.
    """
    shapes = model.shapes()
    for name in flat:
        if name not in shapes:
            raise InputError(
                f"{path} must hold tensors of this architecture alone; it has no {name}, {flat[name].shape} in the file"
            )

    def checked(name: str, shape: tuple[int, ...]) -> jax.Array:
        given = flat.get(name, np.zeros(shape, np.float32) if optional and name.endswith(optional) else None)
        if given is None:
            raise InputError(f"{path} must hold the tensor of {name}, {shape}; it does not")
        value = np.array(given, np.float32)  # a copy, whose memory a leaf on a CPU shares
        reshapes = any(part in name for part in reshaped)
        if not (value.shape == shape or (reshapes and value.size == np.prod(shape))):
            raise InputError(f"{name} in {path} must have shape {shape}; got {value.shape}")
        if not np.isfinite(value).all():
            raise InputError(f"{name} in {path} must be finite; got NaN or infinity. Fetch the file again")
        leaf = on_device(value.reshape(shape))
        note(leaf, value)
        return leaf

    with ThreadPoolExecutor(cores()) as pool:
        w = dict(zip(shapes, pool.map(checked, shapes, shapes.values()), strict=True))
    return Pretrained(model, trees.nest(w), path)

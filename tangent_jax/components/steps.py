"""The one format of a trained step that leaves training: a safetensors file, its provenance in its metadata.

    header     8 bytes of length, then JSON: {leaf: {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}
    tensors    leaves by path, little-endian

Written by safetensors, so anyone can read it; read by memory map, so that a sum of many steps copies none of them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from tangent_jax.core import Tree, refusal, trees
from tangent_jax.core.files import write_whole

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


def encode_step(dw: Tree, metadata: Mapping[str, str]) -> bytes:
    """The file of a step as bytes."""
    tensors = {path: np.ascontiguousarray(leaf) for path, leaf in trees.leaves(dw).items()}
    return save(tensors, dict(metadata))


def write_step(path: Path, dw: Tree, metadata: Mapping[str, str]) -> None:
    """The step on disk, whole or not at all."""
    write_whole(path, encode_step(dw, metadata))


def read_step(path: Path) -> tuple[Tree, dict[str, str]]:
    """(dw, metadata); the leaves are read-only memory maps.

    Raises: InputError for a file that is missing, cut short or no step.
    """
    try:
        header, start = read_header(path)
        metadata, data = header.pop("__metadata__", {}), np.asarray(np.memmap(path, np.uint8, "r", start))
        flat = {
            name: data[slice(*entry["data_offsets"])].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refusal("read_step", "a whole step", f"{path} ({str(error).splitlines()[0]})", "Run verify") from error
    return trees.nest(flat), metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a step, without its numbers."""
    try:
        return read_header(path)[0].get("__metadata__", {})
    except (OSError, ValueError) as error:
        raise refusal("read_step", "a whole step", f"{path} ({error})", "Run verify") from error


def read_header(path: Path) -> tuple[dict, int]:
    """The file's header and where its tensors begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > 100_000_000:  # safetensors' own bound
            raise ValueError("its header is too long")
        return json.loads(file.read(length)), 8 + length

"""Tensors in a safetensors file, read by memory map, so that summing many files copies none.

    header     8 bytes of length, then JSON: {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}
    tensors    little-endian, one after another

The safetensors package writes it. This reader adds memory maps and bfloat16; it checks the header against the file's
size before it allocates anything.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from tangent_jax.core.checks import refusal, require
from tangent_jax.core.records import convert, parse_json

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
COUNTERS = ("num_batches_tracked", "position_ids")  # torch's counters: whole numbers that no network reads
MOST_HEADER = 100_000_000  # bytes: safetensors' own limit


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The tensors and the metadata as the bytes of a safetensors file.

    Raises: InputError for metadata beyond the limit of a header, such as a million image names.
    """
    nbytes = len(json.dumps(dict(metadata))) + 200 * len(tensors)  # a lower bound of the header's size
    do = "Train on fewer images: a component names each of its own"
    require(nbytes <= MOST_HEADER, "encode", f"a header of at most {MOST_HEADER:,} bytes", f"{nbytes:,}", do)
    return save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, dict(metadata))


def read_header(function: str, path: Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Returns (entries by name, metadata, offset of the tensors), every entry checked against the file's size.

    Raises: InputError naming the file, and the tensor that is of another dtype or lies outside it.
    """
    require(path.is_file() or not path.exists(), function, "a safetensors file", f"{path}, a folder, pipe or device")
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        whole = size >= 8 and length <= min(size - 8, MOST_HEADER)
        require(whole, function, "a whole safetensors file", f"{path} of {size} bytes", "Fetch or make it again")
        header = parse_json(function, file.read(length), f"the header of {path}")
    metadata = convert(dict[str, str], header.pop("__metadata__", {}), function, f"the metadata of {path}")
    entries = {name: convert(Entry, entry, function, f"{name} of {path}") for name, entry in header.items()}
    for name, entry in entries.items():
        kinds = {**DTYPES, "I64": np.int64} if name.endswith(COUNTERS) else DTYPES
        require(
            entry.dtype in kinds,
            function,
            f"{name} in {', '.join(DTYPES)}",
            f"{entry.dtype} in {path}",
            "Convert it first",
        )
        begin, end = entry.data_offsets
        nbytes = math.prod(entry.shape) * np.dtype(kinds[entry.dtype]).itemsize
        within = min(entry.shape, default=0) >= 0 and max(entry.shape, default=0) <= size
        good = within and begin >= 0 and begin + nbytes == end <= size - 8 - length
        got = f"{path} of {size} bytes, with {name} of {nbytes} bytes at {begin} to {end}"
        require(good, function, "a whole safetensors file", got, "Fetch or make it again")
    last = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    got = f"{path} of {size} bytes, not {8 + length + last}"
    require(size == 8 + length + last, function, "a whole safetensors file", got, "Fetch or make it again")
    return entries, metadata, 8 + length


def read_tensors(function: str, path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns (tensors by name, metadata); the tensors are read-only memory maps; torch's counters are left out.

    Raises: InputError for a file that is missing, cut short, or holds other numbers than floats.
    """
    try:
        entries, metadata, start = read_header(function, path)
        has_data = path.stat().st_size > start
        data = np.asarray(np.memmap(path, np.uint8, "r", start)) if has_data else np.empty(0, np.uint8)
    except OSError as error:
        raise refusal(function, "a safetensors file", f"{path} ({error.strerror or error})") from error
    return {
        name: data[slice(*entry.data_offsets)].view(DTYPES[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
        if not name.endswith(COUNTERS)
    }, metadata

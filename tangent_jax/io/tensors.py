"""Tensors in a safetensors file, read by memory map, so that summing many files copies none.

    header     8 bytes of length, then JSON: {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}
    tensors    little-endian, one after another

A text of the metadata that is longer than LONG is a tensor of bytes: the provenance of a component that names many
images, since a header ends at 100 MB.

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
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.records import as_text, convert, parse_json

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
WHOLE_NUMBERS = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16}
WHOLE_NUMBERS |= {"U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64}
COUNTERS = ("num_batches_tracked", "position_ids")  # torch's counters: whole numbers that no network reads
MOST_HEADER = 100_000_000  # bytes: safetensors' own limit
LONG = 1 << 20  # characters of a text in the header
MOST_TEXT = 4 << 30  # bytes of a text: the memory that a file from another party may take
TEXT = "__metadata__/"  # begins the name of a tensor that holds a text


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The tensors and the metadata as the bytes of a safetensors file.

    Raises: InputError for a text beyond MOST_TEXT, or other metadata beyond the limit of a header.
    """
    short = {name: text for name, text in metadata.items() if len(text) <= LONG}
    texts = {TEXT + name: np.frombuffer(metadata[name].encode(), np.uint8) for name in metadata.keys() - short.keys()}
    nbytes = len(json.dumps(short)) + 200 * len(tensors)  # a lower bound of the header's size
    require(nbytes <= MOST_HEADER, "encode", f"a header of at most {MOST_HEADER:,} bytes", f"{nbytes:,}")
    most = max((len(text) for text in texts.values()), default=0)
    do = "Train on fewer images: a component names each of its own"
    require(most <= MOST_TEXT, "encode", f"texts of at most {MOST_TEXT:,} bytes", f"{most:,}", do)
    return save({name: np.ascontiguousarray(value) for name, value in tensors.items()} | texts, short)


def read_header(function: str, path: Path, whole_numbers: bool = False) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Returns (entries by name, metadata, offset of the tensors), every entry checked against the file's size.

    Long texts are in the metadata, and not among the entries. `whole_numbers`: other tensors may hold them, too.

    Raises: InputError naming the file, and the tensor that is of another dtype or lies outside it.
    """
    require(path.is_file() or not path.exists(), function, "a safetensors file", f"{path}, a folder, pipe or device")
    if path.is_file():
        check_no_pointer(path)
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        whole = size >= 8 and length <= min(size - 8, MOST_HEADER)
        require(whole, function, "a whole safetensors file", f"{path} of {size} bytes", "Fetch or make it again")
        header = parse_json(function, file.read(length), f"the header of {path}")
    metadata = convert(dict[str, str], header.pop("__metadata__", {}), function, f"the metadata of {path}")
    entries = {name: convert(Entry, entry, function, f"{name} of {path}") for name, entry in header.items()}
    for name, entry in entries.items():
        kinds: dict[str, Any] = {**DTYPES, **WHOLE_NUMBERS} if name.endswith(COUNTERS) or whole_numbers else DTYPES
        kinds = {"U8": np.uint8} if name.startswith(TEXT) else kinds
        require(
            entry.dtype in kinds,
            function,
            f"{name} in {'U8' if name.startswith(TEXT) else ', '.join(DTYPES)}",
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
    texts = {name: entries.pop(name) for name in [*entries] if name.startswith(TEXT)}
    return entries, {**metadata, **read_texts(function, path, texts, 8 + length)}, 8 + length


def read_texts(function: str, path: Path, texts: Mapping[str, Entry], start: int) -> dict[str, str]:
    """The long texts of the metadata, by their names there; `start`: the offset of the tensors."""
    content = {}
    with path.open("rb") as file:
        for name, entry in texts.items():
            begin, nbytes = entry.data_offsets[0], math.prod(entry.shape)
            require(nbytes <= MOST_TEXT, function, f"texts of at most {MOST_TEXT:,} bytes", f"{nbytes:,} in {path}")
            file.seek(start + begin)
            content[name.removeprefix(TEXT)] = as_text(function, file.read(nbytes), f"{name} of {path}")
    return content


def read_tensors(
    function: str, path: Path, whole_numbers: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns (tensors by name, metadata); the tensors are read-only memory maps; torch's counters are left out.

    `whole_numbers`: keeps tensors of whole numbers and Booleans, counters among them, which otherwise raise.
    Raises: InputError for a file that is missing, cut short, or holds other numbers than floats.
    """
    try:
        entries, metadata, start = read_header(function, path, whole_numbers)
        has_data = path.stat().st_size > start
        data = np.asarray(np.memmap(path, np.uint8, "r", start)) if has_data else np.empty(0, np.uint8)
    except OSError as error:
        raise refusal(function, "a safetensors file", f"{path} ({error.strerror or error})") from error
    kinds: dict[str, Any] = {**DTYPES, **WHOLE_NUMBERS}
    return {
        name: data[slice(*entry.data_offsets)].view(kinds[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
        if whole_numbers or not name.endswith(COUNTERS)
    }, metadata

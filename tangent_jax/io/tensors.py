"""Tensors in a safetensors file, read by memory map, so that summing many files copies none.

    header     8 bytes of length, then JSON: {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}
    tensors    little-endian, one after another

A text of the metadata that is longer than LONG is a tensor of bytes: the provenance of a component that names many
images, since a header ends at 100 MB.

The safetensors package writes the file, and checks its header against its size. This reader adds memory maps, which
that package copies, and bfloat16, which NumPy lacks.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tangent_jax.core.checks import InputError
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.records import as_text

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
WHOLE_NUMBERS = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
}
MOST_HEADER = 100_000_000  # bytes: safetensors' own limit
LONG = 1 << 20  # characters of a text in the header
MOST_TEXT = 4 << 30  # bytes of a text: the memory that a file from another party may take
TEXT = "__metadata__/"  # begins the name of a tensor that holds a text


class Entry(NamedTuple):
    """A tensor of a file: the name of its dtype, its shape, and its first byte and its end after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def encode(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The tensors and the metadata as the bytes of a safetensors file.

    Raises:
        InputError: A text beyond MOST_TEXT, or other metadata beyond the limit of a header.
    """
    short = {name: text for name, text in metadata.items() if len(text) <= LONG}
    texts = {TEXT + name: np.frombuffer(metadata[name].encode(), np.uint8) for name in metadata.keys() - short.keys()}
    nbytes = len(json.dumps(short)) + 200 * len(tensors)  # a lower bound of the header's size
    if nbytes > MOST_HEADER:
        raise InputError(f"the header must have at most {MOST_HEADER:,} bytes; got {nbytes:,}")
    longest = max((len(text) for text in texts.values()), default=0)
    if longest > MOST_TEXT:
        raise InputError(
            f"texts must have at most {MOST_TEXT:,} bytes; got {longest:,}. Train on fewer images: a component names "
            "each of its own"
        )
    return save({name: np.asarray(value, order="C") for name, value in tensors.items()} | texts, short)


def read_header(path: Path, whole_numbers: bool = False) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Returns (entries by name, metadata, offset of the tensors), every entry checked against the file's size.

    Long texts are in the metadata, and not among the entries. `whole_numbers`: other tensors may hold them, too.

    Raises:
        InputError: It names the file, and the tensor that is of another dtype or lies outside it.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} must be a safetensors file; it is a folder, pipe or device")
    check_no_pointer(path)
    try:
        with safe_open(path, "np"):
            pass  # opening checks that the tensors lie one after another, up to the end of the file
    except SafetensorError as error:
        size = path.stat().st_size
        raise InputError(
            f"{path} must be a whole safetensors file; of its {size} bytes: {error}. Fetch or make it again"
        ) from error
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(start - 8))
    metadata = header.pop("__metadata__", None) or {}
    entries = {}
    texts = {}
    for name, fields in header.items():
        entry = Entry(fields["dtype"], tuple(fields["shape"]), *fields["data_offsets"])
        check_dtype(path, name, entry.dtype, whole_numbers)
        (texts if name.startswith(TEXT) else entries)[name] = entry
    return entries, {**metadata, **read_texts(path, texts, start)}, start


def check_dtype(path: Path, name: str, dtype: str, whole_numbers: bool) -> None:
    """Raises InputError for a tensor of a dtype that is not read."""
    choices = {**DTYPES, **WHOLE_NUMBERS} if whole_numbers else DTYPES
    if name.startswith(TEXT):
        choices = {"U8": np.uint8}
    if dtype not in choices:
        raise InputError(f"{name} of {path} must be one of {', '.join(choices)}; got {dtype}. Convert it first")


def read_texts(path: Path, texts: Mapping[str, Entry], start: int) -> dict[str, str]:
    """The long texts of the metadata, by their names there; `start`: the offset of the tensors."""
    content = {}
    with path.open("rb") as file:
        for name, entry in texts.items():
            nbytes = entry.end - entry.begin
            if nbytes > MOST_TEXT:
                raise InputError(f"texts must have at most {MOST_TEXT:,} bytes; got {nbytes:,} in {path}")
            file.seek(start + entry.begin)
            content[name.removeprefix(TEXT)] = as_text(file.read(nbytes), f"{name} of {path}")
    return content


def read_tensors(path: Path, whole_numbers: bool = False) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns (tensors by name, metadata); the tensors are read-only memory maps.

    Args:
        whole_numbers: Keeps tensors of whole numbers and Booleans, which otherwise raise.

    Raises:
        InputError: A file that is missing, cut short, or holds other numbers than floats.
    """
    try:
        entries, metadata, start = read_header(path, whole_numbers)
        has_data = path.stat().st_size > start
        content = np.asarray(np.memmap(path, np.uint8, "r", start)) if has_data else np.empty(0, np.uint8)
    except OSError as error:
        raise InputError(f"{path} must be a safetensors file; got {error.strerror or error}") from error
    dtypes = {**DTYPES, **WHOLE_NUMBERS}
    tensors = {
        name: content[entry.begin : entry.end].view(dtypes[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
    }
    return tensors, metadata

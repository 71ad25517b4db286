"""The one format of a trained step that leaves training: a safetensors file whose metadata bind what comes with it.

    metadata   "provenance" and others, and "binding": the SHA-256 over the step's fingerprint and all of them

Neither the numbers nor what is said of them can be altered alone.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tangent_jax.core import Tree, refusal, require, trees
from tangent_jax.core.files import digest, write_whole
from tangent_jax.core.tensors import encode, read_header, read_tensors


def binding(fingerprint: str, metadata: Mapping[str, str]) -> str:
    """The digest that ties a step, by its fingerprint, and its metadata together."""
    said = {name: text for name, text in metadata.items() if name != "binding"}
    return digest(f"{fingerprint} {json.dumps(said, sort_keys=True)}".encode())


def encode_step(dw: Tree, fingerprint: str, metadata: Mapping[str, str]) -> bytes:
    """The file of a step as bytes; `fingerprint`: the step's."""
    flat = {path: np.asarray(leaf) for path, leaf in trees.leaves(dw).items()}
    return encode(flat, {**metadata, "binding": binding(fingerprint, metadata)})


def write_step(path: str | os.PathLike, dw: Tree, metadata: Mapping[str, str]) -> None:
    """The step on disk, whole or not at all."""
    write_whole(Path(path), encode_step(dw, trees.fingerprint(dw), metadata))


def read_step(path: str | os.PathLike, *, check: bool = True) -> tuple[Tree, dict[str, str]]:
    """(dw, metadata); the leaves are read-only memory maps.

    Args:   check: whether the binding is computed again; not needed where the whole file's hash was.
    Raises: InputError for a file that is missing, cut short, no step, or whose numbers or metadata were altered.
    """
    path = Path(path)
    flat, metadata = read_tensors("read_step", path)
    try:
        dw = trees.nest(flat)
    except (TypeError, AttributeError) as error:
        raise refusal("read_step", "leaves by path", f"names that cannot be one tree in {path}") from error
    if check:
        good = metadata.get("binding") == binding(trees.fingerprint(dw), metadata)
        expected, do = f"the numbers and provenance of {path} to belong together", "Train it again"
        require(good, "read_step", expected, "one of them altered", do)
    return dw, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a step, without its numbers, unchecked."""
    try:
        return read_header("read_step", path)[1]
    except OSError as error:
        raise refusal("read_step", "a step", f"{path} ({error.strerror or error})") from error

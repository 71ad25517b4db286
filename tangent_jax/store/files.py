"""The file format of tangent weights: safetensors, with metadata that are bound to the numbers.

    metadata   "provenance" and others, and "binding": the SHA-256 over the fingerprint of dw and all others

A change of the numbers alone, or of the metadata alone, is detected.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import expand_path, fingerprint, write_whole
from tangent_jax.io.paths import passing_copy
from tangent_jax.io.tensors import encode, read_header, read_tensors


def binding(tree_fingerprint: str, metadata: Mapping[str, str]) -> str:
    """The hash that binds a component's metadata to the fingerprint of its numbers."""
    others = {name: text for name, text in metadata.items() if name != "binding"}
    return fingerprint(f"{tree_fingerprint} {json.dumps(others, sort_keys=True)}".encode())


def encode_component(dw: Tree, tree_fingerprint: str, metadata: Mapping[str, str]) -> bytes:
    """The bytes of a component's file; `tree_fingerprint`: the fingerprint of dw."""
    flat = {path: np.asarray(leaf) for path, leaf in trees.leaves(dw).items()}
    return encode(flat, {**metadata, "binding": binding(tree_fingerprint, metadata)})


def write_component(path: str | os.PathLike, dw: Tree, metadata: Mapping[str, str]) -> None:
    """Writes tangent weights and their metadata to a file, whole or not at all; InputError for a folder.

    >>> path = demo.folder() / "dw.safetensors"
    >>> tj.store.write_component(path, demo.fitted.dw, {"note": "all 24 examples"})
    >>> tj.store.read_component(path)[1]["note"]
    'all 24 examples'
    """
    content = encode_component(dw, trees.fingerprint(dw), metadata)
    path = expand_path(path)
    if path.is_dir():
        raise InputError(f"path must be that of a file; got the folder {path}")
    write_whole(path, content)


def read_component(path: str | os.PathLike, *, check: bool = True) -> tuple[Tree, dict[str, str]]:
    """(dw, metadata) of a file of tangent weights, or of a URL; the leaves are read-only memory maps.

    Args:
        check: Verify the binding; False if the hash of the whole file is verified elsewhere.

    Raises:
        InputError: A file that is missing, cut short, no component, or altered in numbers or metadata.

    >>> path = demo.folder() / "dw.safetensors"
    >>> tj.store.write_component(path, demo.fitted.dw, {})
    >>> tj.store.read_component(path)[0]["head"]["kernel"].shape
    (6, 3)
    """
    with passing_copy(path) as file:
        flat, metadata = read_tensors(file)
    try:
        dw = trees.nest(flat)
    except (TypeError, AttributeError) as error:
        raise InputError(f"{path} must hold leaves by path; got names that cannot be one tree") from error
    if check and metadata.get("binding") != binding(trees.fingerprint(dw), metadata):
        raise InputError(f"the numbers and provenance of {path} must belong together; one was altered. Train it again")
    return dw, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a component's file, unverified; the numbers are not read."""
    try:
        return read_header(path)[1]
    except OSError as error:
        raise InputError(f"{path} must be a component's file ({error.strerror or error})") from error

"""Reads a frozen head, the text embeddings of class names, from a safetensors file."""

import os

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.io.paths import local_copy
from tangent_jax.io.tensors import read_tensors
from tangent_jax.models.frozen_head import SCALE, FrozenHead


def read_frozen_head(path: str | os.PathLike) -> FrozenHead:
    """The head in a safetensors file.

        embeddings     "c d", floats, rows of any length
        logit_scale    one number, exp(logit_scale) of CLIP; 100 if missing
        metadata       "classes": the names of the rows, one per line

    Raises:
        InputError: It names the file, and what it lacks.

    >>> from safetensors.numpy import save_file
    >>> path = demo.folder() / "head.safetensors"
    >>> save_file({"embeddings": np.eye(2, 6)}, path, {"classes": "owl" + chr(10) + "gull"})
    >>> tj.pretrained.read_frozen_head(path).classes
    ('owl', 'gull')
    """
    path = local_copy(path)
    tensors, metadata = read_tensors(path)
    do = "Write it as docs/howto/merge.md shows"
    if not ("embeddings" in tensors and not {*tensors} - {"embeddings", "logit_scale"}):
        raise InputError(
            f"{path} must hold tensors embeddings and logit_scale alone; got {', '.join([*tensors][:3]) or 'none'}. "
            f"{do}"
        )
    if not metadata.get("classes"):
        raise InputError(f"metadata of {path} must name the classes, one a line, as classes; got none. {do}")
    scale = np.asarray(tensors.get("logit_scale", SCALE))
    if scale.size != 1:
        raise InputError(f"logit_scale in {path} must be one number; got shape {scale.shape}")
    embeddings = np.array(tensors["embeddings"], np.float32)
    return FrozenHead(tuple(metadata["classes"].split("\n")), embeddings, float(scale.item()), str(path))

"""Parts of a long run, saved when finished, so that a stopped run resumes."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.io.files import write_whole
from tangent_jax.io.progress import check_stop

Arrays = dict[str, np.ndarray]


def saved(folder: Path, key: str, title: str, compute: Callable[..., Arrays], *arguments: Any) -> Arrays:
    """The arrays of `compute` for the arguments, or those that an earlier run saved in the folder under this key."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{key[:24]}.npz"
    if not is_saved(folder, key):
        with tj.show_progress(title):
            arrays = compute(*arguments)
            file = io.BytesIO()
        np.savez(file, **arrays)  # pyright: ignore
        write_whole(path, file.getvalue())
    check_stop()
    with np.load(path) as file:
        return dict(file)


def is_saved(folder: Path, key: str) -> bool:
    """True if `saved` would read them."""
    return (folder / f"{key[:24]}.npz").exists()

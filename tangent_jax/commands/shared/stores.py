"""The store of --store."""

from pathlib import Path

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.io.records import first_names


def stores_in(path: Path) -> list[Path]:
    """The stores in a folder of stores."""
    return [marker.parent for marker in sorted(path.glob("*/store.json"))]  # HEAD alone is also git's


def check_store(path: Path, advice: str) -> None:
    """Raises InputError, with advice, if a folder is no store; for a folder of stores it names them."""
    if tj.store.is_store(path):
        return
    inside = stores_in(path)
    if inside:
        names = first_names([folder.name for folder in inside])
        raise InputError(f"--store must be one store; {path} is a folder of stores. Name one in it: {names}")
    raise InputError(f"--store must be a store; {path} is none. {advice}")

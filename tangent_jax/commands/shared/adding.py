"""The component that `store add` takes: from a folder that finetune wrote, of this machine or at a URL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import composed_name
from tangent_jax.io.paths import is_url, passing_copy


@contextmanager
def component_file(source: str) -> Iterator[Path]:
    """Yields the file of the component in a folder, or a copy of it of a URL; InputError where there is none."""
    names = ("dw.safetensors", "factors.safetensors")
    with passing_copy(source, names) as folder:
        path = folder / "dw.safetensors"
        if not path.exists():
            raise InputError(
                f"--source must be a folder with dw.safetensors; {folder} has none. Run finetune with --out"
            )
        yield path


def add(store: tj.Store, source: str, names: Sequence[str]) -> dict[str, Any]:
    """Adds the component in --source to the store, by the only name in --name, or by the folder's."""
    if len(names) > 1:
        raise InputError(f"--name must be one name; got {','.join(names)}")
    with component_file(source) as path:
        (name,) = names or [PurePath(source).name if is_url(source) else path.parent.resolve().name]
        return add_file(store, composed_name(name), path)  # macOS may spell the name of a folder in NFD


def add_file(store: tj.Store, name: str, path: Path) -> dict[str, Any]:
    """Adds the component in a file to the store, with the factors beside it, if there are any."""
    dw, metadata = tj.store.read_component(path)
    if "provenance" not in metadata:
        raise InputError(f"{path} must be a component with its provenance; it states none. Run finetune")
    where = f"the provenance in {path}"
    origin = tj.store.Provenance.from_json(metadata["provenance"], where)
    factors = path.with_name("factors.safetensors")
    store.add(name, dw, origin, tj.store.read_factors(factors) if factors.exists() else None)
    return {"added": name, "fingerprint": store.state.components[name].weights}

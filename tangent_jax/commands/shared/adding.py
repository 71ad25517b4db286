"""The component that `store add` takes: from a folder that finetune wrote, of this machine or at a URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core import trees
from tangent_jax.core.checks import require
from tangent_jax.remote import urls


@contextmanager
def component_file() -> Iterator[Path]:
    """Yields the file of the component in --source, or a copy of it of a URL; InputError where there is none."""
    names = ("dw.safetensors", "factors.safetensors")
    with urls.passing_copy(F.source or "out/finetune", names) as folder:
        path = folder / "dw.safetensors"
        require(path.exists(), "store add", f"dw.safetensors in {folder}", "no such file", "Run finetune with --out")
        yield path


def add(store: tj.Store) -> dict[str, Any]:
    """Adds the component in --source to the store."""
    require(len(F.name) <= 1, "store add", "one --name", ",".join(F.name))
    with component_file() as path:
        at_url = urls.is_url(F.source)
        (name,) = F.name or [PurePath(F.source).name if at_url else path.parent.resolve().name]
        return add_file(store, name, path)


def add_file(store: tj.Store, name: str, path: Path) -> dict[str, Any]:
    """Adds the component in a file to the store, with the factors beside it, if there are any."""
    dw, metadata = tj.store.read_component(path)
    require("provenance" in metadata, "store add", f"a component with provenance in {path}", "none", "Run finetune")
    where = f"the provenance in {path}"
    origin = tj.store.Provenance.from_json(metadata["provenance"], where, trees.fingerprint(dw))
    own = path.with_name("factors.safetensors")
    store.add(name, dw, origin, tj.store.read_factors(own) if own.exists() else None)
    return {"added": name, "fingerprint": store.state.components[name]["weights"]}

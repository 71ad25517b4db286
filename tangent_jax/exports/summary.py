"""The summary of components in an export: counts and settings, with no name of an image, an owner or a component."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from tangent_jax.core.checks import without_secrets
from tangent_jax.models.session import FirstSession
from tangent_jax.store.provenance import Provenance


@dataclasses.dataclass(frozen=True)
class Summary:
    """What an export says of its components.

    Attributes:
        components, images, public, owners: The number of components, of different images, of public images that
            whitened the training, and of owners.
        settings: Those that all components share, files without their folders.
        versions: The versions of the libraries that trained them.
    """

    components: int
    images: int
    public: int
    owners: int
    settings: dict[str, Any]
    versions: tuple[str, ...]


def summarize(origins: Iterable[Provenance]) -> Summary:
    """Returns the summary of components."""
    origins = [*origins]
    versions = {", ".join(f"{name} {v}" for name, v in sorted(origin.training.versions.items())) for origin in origins}
    return Summary(
        components=len(origins),
        images=len({identifier for origin in origins for identifier in origin.data.identifiers}),
        public=len({identifier for origin in origins for identifier, _ in origin.data.public}),
        owners=len({owner for origin in origins for owner in origin.data.owners.values()}),
        settings=shared_settings(origins),
        versions=tuple(sorted(versions)),
    )


def shared_settings(origins: Iterable[Provenance]) -> dict[str, Any]:
    """Returns the settings that the recipes of all components have; none if one has no recipe."""
    recipes = [origin.recipe.with_places(without_folders).settings if origin.recipe else {} for origin in origins]
    first = recipes[0] if recipes else {}
    # the order of examples is computed of a component's name
    return {k: v for k, v in first.items() if k != "order" and all(k in own and own[k] == v for own in recipes)}


def without_images(session: FirstSession | None) -> FirstSession | None:
    """Returns the first session for an export: the number of its images, and settings without folders."""
    if session is None or not session.images:
        return session
    settings = {name: without_folders(value) for name, value in session.settings.items()}
    count = len(session.identifiers)
    return dataclasses.replace(session, images=(), count=count, settings=settings)


USER = re.compile(r"(?<=://)[^/@]*@")
KIND = re.compile(r"[a-z][\w-]+:(?!//)")
QUESTION = re.compile(r"\?((image|label|group|folders?|train|validation|test)=[^&]*&?)+$")


def without_folders(spec: str) -> str:
    """A specification of weights or data with the last name of each path, without its folders or a URL's secrets."""
    if spec.startswith(("hf-hub:", "random:")):
        return spec
    kind = KIND.match(spec)
    prefix = kind.group() if kind else ""
    question = QUESTION.search(spec)
    path = spec[len(prefix) : question.start() if question else None]
    if prefix == "tfds:" and "@" in path:
        name, _, folder = path.partition("@")
        return f"{prefix}{name}@{last_name(folder)}"
    asked = question.group() if question else ""
    return prefix + last_name(path) + re.sub(r"(?<==)[^&]*", lambda value: last_name(value.group()), asked)


def last_name(path: str) -> str:
    """The name of a file or folder; of a URL without its query, its user and its password."""
    if "://" in path:
        path = USER.sub("", without_secrets(path))  # first, as a password may hold what begins a query
        path = re.split("[?#;]", path)[0].rpartition("@")[2]
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]

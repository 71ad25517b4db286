"""The summary of a store's components that leaves with an export: settings, numbers and commitments.

No name, no owner, and nothing of any one image, plain or hidden. Who holds the store's key (keys.py) can prove by a
commitment (commitment.py) that an image is among those of a component, or is not; nobody else can tell. Components
stand in an order that their names do not decide, and without what is computed of their names or of their images.
"""

import dataclasses
import json
import re
from collections.abc import Iterable

from tangent_jax.core.checks import without_secrets
from tangent_jax.io.records import plain
from tangent_jax.models.session import FirstSession
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.commitment import Commitment, commit
from tangent_jax.store.keys import Key
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import AnyRecipe


@dataclasses.dataclass(frozen=True)
class ComponentSummary:
    """What an export says of one component.

    `examples`, `public`: the number of its images, and of public images that whitened its training, with the
    commitment to them; `owners`: the number of their owners; `session`: of its anchor, which names no image.
    """

    recipe: AnyRecipe | None
    privacy: Spent | None
    versions: dict[str, str]
    owners: int
    examples: Commitment
    public: Commitment
    session: FirstSession | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """What an export says of all its components: the numbers of different images and owners, and each component's."""

    examples: int
    public: int
    owners: int
    components: tuple[ComponentSummary, ...]


def summarize(origins: Iterable[Provenance], key: Key | None = None) -> Summary:
    """The summary of components; `key`: of their store, None without one: then commitments are empty."""
    origins = [*origins]
    components = [
        ComponentSummary(
            recipe=origin.recipe and dataclasses.replace(origin.recipe.with_places(without_folders), order=1),
            privacy=origin.privacy,
            versions=origin.versions,
            owners=len({*origin.owners.values()}),
            examples=commitment_to(origin.identifiers, key),
            public=commitment_to([identifier for identifier, _ in origin.public], key),
            session=without_images(origin.session, key),
        )
        for origin in origins
    ]
    return Summary(
        examples=len({identifier for origin in origins for identifier in origin.identifiers}),
        public=len({identifier for origin in origins for identifier, _ in origin.public}),
        owners=len({owner for origin in origins for owner in origin.owners.values()}),
        components=tuple(sorted(components, key=lambda component: json.dumps(plain(component)))),
    )


def without_images(session: FirstSession | None, key: Key | None = None) -> FirstSession | None:
    """The first session for an export: the number of its images and a commitment to them, settings without folders."""
    if session is None or not session.images:
        return session
    settings = {name: without_folders(value) for name, value in session.settings.items()}
    images = commitment_to(session.identifiers, key)
    return dataclasses.replace(session, images=(), count=images.count, commitment=images.root, settings=settings)


def commitment_to(identifiers: Iterable[str], key: Key | None) -> Commitment:
    """The commitment to images under a store's key; their number alone without a key."""
    images = {*identifiers}
    return Commitment(len(images), "") if key is None else commit(map(key.hide_committed, images))


USER = re.compile(r"(?<=://)[^/@]*@")
KIND = re.compile(r"[a-z][\w-]+:(?!//)")
QUESTION = re.compile(r"\?((image|label|folders?|train|validation|test)=[^&]*&?)+$")


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

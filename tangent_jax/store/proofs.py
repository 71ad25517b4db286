"""Proofs that an image is among those of an export, or is not, for who trusts the holder of the store's key.

An export holds a commitment (commitment.py) to each set of images: of each component its images and its public ones,
and those of the anchor. A proof holds the image's hidden form (keys.py), and for each set the paths that show it. Who
has the export checks them. That the hidden form is the one of a photograph, only who holds the key can tell.
"""

import dataclasses
from collections.abc import Iterator

from tangent_jax.core.checks import InputError
from tangent_jax.store import commitment
from tangent_jax.store.commitment import Commitment, Path
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.store import Store
from tangent_jax.store.summary import Summary


@dataclasses.dataclass(frozen=True)
class SetProof:
    """The paths that show whether an image is in the set of a commitment."""

    commitment: Commitment
    paths: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class Proof:
    """The hidden form of an image, and a proof for each set of an export."""

    image: str
    sets: tuple[SetProof, ...]


def prove(store: Store, summary: Summary, identifier: str) -> Proof:
    """The proof for one image, by its content identifier, and an export's summary.

    Raises: InputError for an export of other components than the store holds now.
    """
    wanted = commitments_of(summary)
    key = store.key
    hidden = [[*map(key.hide_committed, images)] for origin in store.origins.values() for images in sets_of(origin)]
    sets = {commitment.commit(images): images for images in hidden}
    if wanted.keys() <= sets.keys():
        image = key.hide_committed(identifier)
        return Proof(image, tuple(SetProof(own, commitment.prove(sets[own], image)) for own in wanted))
    raise InputError(
        f"the export must be of components that {store.root} holds now; it was made of others, or without a store. "
        "Export again, and prove it of that export"
    )


def check_proof(proof: Proof, summary: Summary) -> bool:
    """True if a proof shows that its image is in a set of an export, False if it shows that it is in none.

    Raises: InputError if it shows neither.
    """
    paths = {part.commitment: part.paths for part in proof.sets}
    wanted = commitments_of(summary)
    missing = sum(own not in paths for own in wanted)
    if missing:
        raise InputError(f"a proof must be of this export; it says nothing of {missing} of its {len(wanted)} sets")
    return any([commitment.is_in(own, proof.image, paths[own]) for own in wanted])  # a list: each one is checked


def commitments_of(summary: Summary) -> dict[Commitment, None]:
    """The commitments of an export to sets that have images, each once."""
    found = []
    for component in summary.components:
        found += [component.examples, component.public]
        if component.session is not None:
            found.append(Commitment(component.session.count, component.session.commitment))
    no_image = ("", commitment.commit(()).root)  # a count of 0 beside another root is no set without images
    return dict.fromkeys(own for own in found if own.count or own.root not in no_image)


def sets_of(origin: Provenance) -> Iterator[set[str]]:
    """The content identifiers of a component's images, of its public ones, and of those of its anchor."""
    yield origin.identifiers
    yield {identifier for identifier, _ in origin.public}
    yield {identifier for identifier, _ in origin.anchor_images}

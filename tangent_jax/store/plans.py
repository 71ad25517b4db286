"""The plan of a removal: the images of a request, and the effect of removing them on each component.

Images are known by identifier, name or owner: in the provenance of the components, or, where no component saw them
(test and validation images), in the data sets that the components name.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tangent_jax.core import InputError, expect, one_of, require
from tangent_jax.core.boundary import public, public_class
from tangent_jax.core.files import fingerprint
from tangent_jax.data.owners import Owner
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of
from tangent_jax.store.moves import images_of
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.store import Store

WAYS = ("drop", "retrain", "exact")
"""The ways to treat a component that saw removed examples: see `remove`."""
IDENTIFIER = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Holding:
    """The effect of a removal on one component.

    `rows`: (content identifier, name) of each lost row, and of removed public images that whitened its training;
    `left`: the number of remaining rows; `seconds`: for each possible way, roughly the training time; `impossible`: for
    each other way, the reason.
    """

    rows: tuple[tuple[str, str], ...]
    left: int
    seconds: dict[str, float]
    impossible: dict[str, str]


@public_class
@dataclasses.dataclass(frozen=True)
class RemovalPlan:
    """The effect that a removal would have on a store in its present state.

    `components`: the affected ones, by name; `identifiers`: of the content that may not return; `copies`: the places of
    content that lies in several rows; `asked`, `owner`: the request; `unknown`: the part of the request that no
    component saw; `store`, `contents`: the store's identity, and the fingerprint of its components; `unseen`: (content
    identifier, name) of requested images that no component saw, such as test images: only their cached rows go.

    >>> plan = tj.store.plan_removal(demo.store(), examples=["0-13"])
    >>> [*plan.components], plan.components["bob"].left, plan.unknown
    (['bob'], 11, ())
    """

    components: dict[str, Holding]
    identifiers: tuple[str, ...]
    copies: dict[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    asked: tuple[str, ...]
    owner: str | None
    store: str
    contents: str
    unseen: tuple[tuple[str, str], ...] = ()

    @property
    def is_in_data(self) -> bool:
        """True if a data set of the components holds requested images that no component saw."""
        return any(identifier != name for identifier, name in self.unseen)

    def check_possible(self, how: str) -> None:
        """Raises InputError naming a component that cannot be treated this way, and the reason."""
        one_of("how", how, WAYS, by="remove")
        for name, holding in self.components.items():
            reason, do = holding.impossible.get(how), "Drop it; train anew"
            require(reason is None, "remove", f"components that allow {how}", f"{name}: {reason}", do)


@public
def plan_removal(
    store: Store,
    *,
    examples: Iterable[str] = (),
    names: Sequence[str] = (),
    owner: str | None = None,
    owners: Mapping[str, str] | None = None,
) -> RemovalPlan:
    """Plans the removal of examples, of whole components, or of all data of an owner; changes nothing.

    Args:    examples: content identifiers or names of images; names: of components; owner: the contributor whose images
             go; owners: image name -> owner, which overrides what the components say (`shards.read_owners` reads a
             CSV).
    Returns: RemovalPlan. Copies are found by content, under any name and in any component. Images that no component
             saw are known by identifier, or in the data sets that the components name, by name or in `owners`.
    Raises:  InputError unless exactly one of the three is given, and for an image without a known owner.

    >>> plan = tj.store.plan_removal(demo.store(), names=["bob"])
    >>> len(plan.identifiers), plan.unknown
    (12, ())
    """
    expect(not isinstance(examples, str) and not isinstance(names, str), "lists", "one text")
    asked, whole = tuple(dict.fromkeys(examples)), tuple(dict.fromkeys(names))
    wrong = [word for word in (*asked, *whole) if not isinstance(word, str)]
    expect(not wrong, "examples and names as texts", f"{wrong[:1]}")
    given = bool(asked) + bool(whole) + (owner is not None)
    expect(given == 1, "examples, names or an owner, one of them", f"{given} of them")
    expect(owner is not None or not owners, "an owner, of those in owners", "none")
    owner = None if owner is None else Owner(owner)
    with store.using():
        origins = {name: store.provenance(name) for name in store}
        missing, do = [name for name in whole if name not in origins], "list says them"
        expect(not missing, "names of components", f"{missing[:1]}", do)
        state = store.identity, contents(store)
    unknown: tuple[str, ...] = ()
    unseen: dict[str, str] = {}
    if whole:
        left = {i for name, origin in origins.items() if name not in whole for i, _ in origin.images_seen}
        gone = {i for name in whole for i in origins[name].identifiers} - left
    elif owner is not None:
        gone = rows_of_owner(origins, owner, owners or {})
        asked, unknown = (), () if gone else (owner,)
        unseen = unseen_images(origins.values(), (), owner, owners or {})
    else:
        gone, unknown = identifiers_of(origins, asked)
        unseen = unseen_images(origins.values(), unknown, None, {})
    held = whole or [name for name, origin in origins.items() if gone & {i for i, _ in origin.images_seen}]
    components = {name: holding_of(origins[name], gone, bool(whole)) for name in sorted(held)}
    copies = {} if whole else copies_in(components)
    unseen = {i: name for i, name in unseen.items() if i not in gone and not store.state.has_forgotten(i)}
    every = tuple(sorted(gone | unseen.keys()))
    asked = asked if owner is None else every
    return RemovalPlan(components, every, copies, unknown, asked, owner, *state, tuple(unseen.items()))


def identifiers_of(origins: Mapping[str, Provenance], asked: Sequence[str]) -> tuple[set[str], tuple[str, ...]]:
    """(the identifiers of the request, given by identifier or name; the part that no component saw)."""
    known, wanted = dict[str, set[str]](), {*asked}
    for pair in (pair for origin in origins.values() for pair in origin.images_seen):
        for word in wanted.intersection(pair):
            known.setdefault(word, set()).add(pair[0])
    return set().union(*(known.get(word, ()) for word in asked)), tuple(word for word in asked if word not in known)


def rows_of_owner(origins: Mapping[str, Provenance], owner: Owner, owners: Mapping[str, str]) -> set[str]:
    """The identifiers of an owner's rows; InputError for a row without a known owner."""
    gone = set()
    for component, origin in origins.items():
        said = owners_of([name for _, name in origin.examples], owners)
        for (identifier, name), other in zip(origin.examples, said, strict=True):
            whose, do = other or origin.owners.get(name), "Pass owners=, image name -> owner"
            expect(whose is not None, f"an owner of {name} in {component}", "none", do)
            gone |= {identifier} if whose == owner else set()
        said = owners_of([name for _, name in origin.public], owners)
        gone |= {i for (i, _), whose in zip(origin.public, said, strict=True) if whose == owner}
    return gone


def unseen_images(
    origins: Iterable[Provenance], words: Sequence[str], owner: Owner | None, owners: Mapping[str, str]
) -> dict[str, str]:
    """{identifier: name} of requested images, whether a component saw them or not.

    Identifiers among the words count as they are. Other words, and an owner's lines in `owners`, name images in any
    split of the data sets that components of this machine name; a data set that is not there now is passed over.
    """
    images = {word: word for word in words if IDENTIFIER.fullmatch(word)}
    names = {*words} - images.keys()
    here = {o.recipe.dataset for o in origins if o.recipe is not None and (o.is_own or o.recipe.dataset == "digits")}
    for spec in sorted(here) if names or owners else ():
        with contextlib.suppress(InputError, OSError):
            for part in open_dataset(spec).splits.values():
                whose = owners_of(part.names, owners)
                rows = [i for i, name in enumerate(part.names) if name in names or (owner and whose[i] == owner)]
                asked = part.take(np.array(rows, int))
                images |= zip(asked.identifiers(), asked.names, strict=True)
    return images


def copies_in(components: Mapping[str, Holding]) -> dict[str, tuple[str, ...]]:
    """The places of each removed content that lies in more than one row."""
    places: dict[str, list[str]] = {}
    for name, holding in components.items():
        for identifier, image in holding.rows:
            places.setdefault(identifier, []).append(f"{image} in {name}")
    return {identifier: tuple(where) for identifier, where in places.items() if len(where) > 1}


def holding_of(origin: Provenance, gone: set[str], whole: bool) -> Holding:
    """The effect on a component of removing these identifiers, or the whole component."""
    rows = origin.examples if whole else tuple(pair for pair in origin.images_seen if pair[0] in gone)
    left = 0 if whole else sum(identifier not in gone for identifier, _ in origin.examples)
    seconds, impossible = {"drop": 0.0}, {}
    for how in WAYS[1:]:
        reason = "it was asked for by its name, and nothing of it is left" if whole else obstacle(origin, how, gone)
        if reason is not None and (left or whole):
            impossible[how] = reason
        else:
            seconds[how] = origin.seconds * left / max(len(origin.examples), 1)
    return Holding(rows, left, seconds, impossible)


def obstacle(origin: Provenance, how: str, gone: set[str]) -> str | None:
    """The reason why a component cannot be treated this way without these identifiers; None if it can."""
    if gone & {i for i, _ in origin.public}:
        return "public images went into its anchor or its training, and must go"
    if gone & {i for i, _ in images_of(origin.moves, False)}:
        return "they moved its anchor: repeat the rounds from there (`tj.store.repeat_rounds`)"
    if origin.privacy is not None:
        return "only components without privacy are trained again"
    if origin.recipe is None:
        return "no recipe says how it was trained"
    is_optimum = origin.recipe.solver == "optimum" and origin.total_penalty
    unsolved = "only a component that was solved to its optimum, with a penalty above 0, can be moved"
    return None if how == "retrain" or is_optimum else unsolved


def contents(store: Store) -> str:
    """The fingerprint of the names and files of a store's components."""
    return fingerprint(
        json.dumps(sorted((name, entry["id"]) for name, entry in store.state.components.items())).encode()
    )

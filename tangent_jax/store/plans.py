"""The plan of a removal: the images of a request, and the effect of removing them on each component.

A request is a set of content identifiers. Images are asked for by identifier, by a name or by an owner that components
recorded when they were trained. All else follows from the identifiers: the components that saw them, the images that
none saw, the places of copies. Data sets are not opened.
"""

import dataclasses
import difflib
import functools
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NoReturn

from tangent_jax.core.checks import InputError, one_of, visible
from tangent_jax.core.names import composed_name, normal_name
from tangent_jax.core.owners import Owner
from tangent_jax.io.files import fingerprint
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.store import Store

WAYS = ("drop", "retrain", "exact")
"""The ways to treat a component that saw removed examples: see `remove`."""
IDENTIFIER = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Holding:
    """The effect of a removal on one component.

    Attributes:
        rows: (content identifier, name) of each lost row, and of removed public images that whitened its training.
        left: The number of remaining rows.
        seconds: For each possible way, roughly the training time.
        impossible: For each other way, the reason.
    """

    rows: tuple[tuple[str, str], ...]
    left: int
    seconds: dict[str, float]
    impossible: dict[str, str]


@dataclasses.dataclass(frozen=True)
class RemovalPlan:
    """The effect that a removal would have on a store in its present state.

    Attributes:
        components: The affected ones, by name.
        identifiers: The identifiers of the content that may not return.
        asked, owner: The request.
        store, contents: The store's identity, and the fingerprint of its components.
        unseen: Identifiers of requested images that no component saw, such as test images: only their cached rows go.
        removed: The day of the removal of each word of the request that was asked for before, or whose image was
            removed before.
        anchors: A line for each anchor that was fine-tuned on images of the request, which no removal changes.

    >>> plan = tj.store.plan_removal(demo.store(), examples=["0-13"])
    >>> [*plan.components], plan.components["bob"].left, plan.unseen
    (['bob'], 11, ())
    """

    components: dict[str, Holding]
    identifiers: tuple[str, ...]
    asked: tuple[str, ...]
    owner: str | None
    store: str
    contents: str
    unseen: tuple[str, ...] = ()
    removed: dict[str, str] = dataclasses.field(default_factory=dict)
    anchors: tuple[str, ...] = ()

    def check_possible(self, how: str) -> None:
        """Raises InputError naming a component that cannot be treated this way, and the reason."""
        one_of("how", how, WAYS)
        for name, holding in self.components.items():
            if how in holding.impossible:
                raise InputError(f"{name} does not allow how={how}: {holding.impossible[how]}. Drop it and retrain")


def plan_removal(
    store: Store, *, examples: Iterable[str] = (), names: Sequence[str] = (), owner: str | None = None
) -> RemovalPlan:
    """Plans the removal of examples, of whole components, or of all data of an owner; changes nothing.

    Args:
        examples: Content identifiers, or names of images as components recorded them.
        names: The names of components to remove.
        owner: The contributor whose images go, as components recorded them.

    Returns:
        RemovalPlan. Copies are found by content, under any name and in any component. A name that means several images
        asks for all of them, and a line on stderr says so.

    Raises:
        InputError: Unless exactly one of the three is given; for a name or an owner that no component recorded, with
            those that are near; for an owner, if a component recorded no owner of an image.

    >>> plan = tj.store.plan_removal(demo.store(), names=["bob"])
    >>> len(plan.identifiers), plan.unseen
    (12, ())
    """
    if isinstance(examples, str) or isinstance(names, str):
        raise InputError("examples and names must be lists; got one text")
    words = tuple(dict.fromkeys(examples))
    names = tuple(dict.fromkeys(map(composed_name, names)))
    given = bool(words) + bool(names) + (owner is not None)
    if given != 1:
        raise InputError(f"exactly one of examples, names and owner must be given; got {given} of them")
    with store.using():
        origins = {name: store.provenance(name) for name in store}
        for name in names:
            if name not in origins:
                days = [line.time[:10] for line in store.state.removals if name in line.removed]
                before = f", which was removed on {days[-1]}" if days else near_to(name, origins)
                raise InputError(f"names must be of components; got {visible(name)}{before}. `store list` shows them")
        present = contents(store)
        removed = {}
        if names:
            gone = images_of_components(origins, names)
        elif owner is not None:
            gone, removed = images_of_owner(store, origins, Owner(owner))
        else:
            gone, removed = images_named(store, origins, words)
    seen = {identifier for origin in origins.values() for identifier, _ in origin.data.seen}
    unseen = tuple(sorted(identifier for identifier in gone - seen if not store.has_forgotten(identifier)))
    affected = names or [n for n, origin in origins.items() if any(i in gone for i, _ in origin.data.seen)]
    components = {name: holding_of(origins[name], gone, bool(names)) for name in sorted(affected)}
    identifiers = tuple(sorted((gone & seen) | {*unseen}))
    return RemovalPlan(
        components=components,
        identifiers=identifiers,
        asked=words if owner is None else identifiers,
        owner=None if owner is None else Owner(owner),
        store=store.identity,
        contents=present,
        unseen=unseen,
        removed=removed,
        anchors=anchors_that_saw(origins.values(), gone, str(store.root)),
    )


def images_of_components(origins: Mapping[str, Provenance], names: Sequence[str]) -> set[str]:
    """The identifiers of the images of these components that no other component saw."""
    others = {i for name, origin in origins.items() if name not in names for i, _ in origin.data.seen}
    return {identifier for name in names for identifier in origins[name].data.identifiers} - others


def images_of_owner(store: Store, origins: Mapping[str, Provenance], owner: Owner) -> tuple[set[str], dict[str, str]]:
    """(the identifiers of an owner's images, the date of an earlier removal of this owner if there are none)."""
    found: set[str] = set()
    for component, origin in origins.items():
        recorded = {normal_name(name): whose for name, whose in origin.data.owners.items()}
        for identifier, name in origin.data.examples:
            whose = recorded.get(normal_name(name))
            if whose is None:
                raise InputError(
                    f"the owner of {name} in {component} must be known; it recorded none. Ask for images by examples"
                )
            if whose == owner:
                found.add(identifier)
    if found:
        return found, {}
    owners = {whose for origin in origins.values() for whose in origin.data.owners.values()}
    day = removal_days(store).get(store.key.hide(owner))
    return found, {owner: day or refuse("owner", owner, owners)}


def images_named(
    store: Store, origins: Mapping[str, Provenance], words: Sequence[str]
) -> tuple[set[str], dict[str, str]]:
    """(the identifiers of the named images, the date of the removal of each name that is of none or of a removed one).

    A word is an identifier, or the name of an image that a component or its anchor recorded.
    """
    named: dict[str, set[str]] = {}
    for origin in origins.values():
        for identifier, name in origin.data.seen + origin.anchor_images:
            named.setdefault(normal_name(name), set()).add(identifier)
    found: set[str] = set()
    removed: dict[str, str] = {}
    days = functools.cache(lambda: removal_days(store))  # reads receipts, which few requests need
    for word in words:
        meant = {word} if IDENTIFIER.fullmatch(word) else named.get(normal_name(word), set())
        if len(meant) > 1:
            where = [name for name, origin in origins.items() if origin.data.identifiers & meant]
            several = f"names {len(meant)} images, in {', '.join(where)}"
            print(f"{visible(word)} {several}; all are asked for (an identifier asks for one)", file=sys.stderr)
        if not meant:
            removed[word] = days().get(store.key.hide(normal_name(word))) or refuse("examples", word, named)
        elif all(map(store.has_forgotten, meant)):
            hidden = {*store.key.hide_all(meant)}
            removed[word] = max(line.time[:10] for line in store.state.removals if hidden & {*line.forgotten})
        found |= meant
    return found, removed


def refuse(what: str, word: str, known: Iterable[str]) -> NoReturn:
    """Raises InputError for a name that no component recorded, with those that are near."""
    raise InputError(f"{what} must be as components recorded them; got {visible(word)}{near_to(word, known)}")


def near_to(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known names that are near to a word, or all if they are few."""
    known = sorted({*known})
    near = difflib.get_close_matches(normal_name(word), known)
    if not near and 0 < len(known) <= 5:
        return visible(f"; they are {', '.join(known)}")
    return visible(f", and near it are {', '.join(near)}" if near else ", and none is near it")


def removal_days(store: Store) -> dict[str, str]:
    """The day on which each requested name and owner was last removed, by its hidden form: receipts say it."""
    days: dict[str, str] = {}
    for line in store.state.removals:
        receipt = read_receipt(store.root / "receipts" / f"{line.receipt}.json")[0]
        owner = () if receipt.owner is None else (receipt.owner,)
        days |= dict.fromkeys((*receipt.asked, *owner), line.time[:10])
    return days


def holding_of(origin: Provenance, gone: set[str], by_name: bool) -> Holding:
    """The effect on a component of removing these identifiers, or the whole component."""
    rows = origin.data.examples if by_name else tuple(pair for pair in origin.data.seen if pair[0] in gone)
    left = 0 if by_name else sum(identifier not in gone for identifier, _ in origin.data.examples)
    seconds = {"drop": 0.0}
    impossible: dict[str, str] = {}
    for how in WAYS[1:]:
        reason = "it was asked for by its name, and nothing of it is left" if by_name else obstacle(origin, how, gone)
        if reason is not None and (left or by_name):
            impossible[how] = reason
        else:
            seconds[how] = origin.training.seconds * left / max(len(origin.data.examples), 1)
    return Holding(rows, left, seconds, impossible)


def obstacle(origin: Provenance, how: str, gone: set[str]) -> str | None:
    """The reason why a component cannot be treated this way without these identifiers; None if it can."""
    if gone & {i for i, _ in origin.data.public}:
        return "public images went into its training, and must go"
    if origin.training.privacy is not None:
        return "only components without privacy are trained again"
    if origin.recipe is None:
        return "no recipe says how it was trained"
    is_optimum = origin.recipe.is_optimum and origin.training.total_penalty
    unsolved = "only a component that was solved to its optimum, with a penalty above 0, can be moved"
    return None if how == "retrain" or is_optimum else unsolved


def anchors_that_saw(origins: Iterable[Provenance], gone: Set[str], store: str) -> tuple[str, ...]:
    """A line for each anchor that was fine-tuned on removed images: their number, what it spent, and its command.

    Args:
        origins: The origins of the components.
        gone: Identifiers of the removed images.
        store: The path of the store, whose removed images the command leaves out.
    """
    lines = []
    for origin in {origin.anchor: origin for origin in origins}.values():
        session = origin.session
        if session is None:
            continue
        file = f"anchor {origin.anchor[:12]}.safetensors" if origin.recipe is None else origin.recipe.weights
        if not session.images:
            lines.append(
                f"removed images may be in the anchor {file}, which was fine-tuned on {session.count} images: it came "
                "with an export, which names none; ask who made it"
            )
            continue
        count = len(gone & session.identifiers)
        if not count:
            continue
        flags = {**session.settings, "store": store, "save_anchor": file}
        command = shlex.join(["tangent-jax", session.command, *(f"--{name}={value}" for name, value in flags.items())])
        images, them = (
            ("1 of the removed images is", "it") if count == 1 else (f"{count} of the removed images are", "them")
        )
        spent = f" and spent {session.paid}" if session.paid else ""
        lines.append(
            f"{images} in the anchor {file}, which was fine-tuned on {them}{spent}: the anchor does not change, and is "
            f"whole for all other images; make it again without {them} with: {command}"
        )
    return tuple(lines)


def contents(store: Store) -> str:
    """The fingerprint of the names and files of a store's components."""
    files = sorted((name, entry.id) for name, entry in store.state.components.items())
    return fingerprint(json.dumps(files).encode())

"""The plan of a removal: the images of a request, and the effect of removing them on each component.

A request is a set of content identifiers. Images are asked for by identifier, name or owner. Names are looked up in
the provenance of the components and in the data sets that the components name, as they are now: so a renamed file, a
copy in the test split and an image that no component saw are found. All else follows from the identifiers: the
components that saw them, the images that none saw, the places of copies.
"""

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from tangent_jax.core.checks import InputError, one_of, visible
from tangent_jax.core.names import composed_name, normal_name, other_spellings
from tangent_jax.core.owners import Owner
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of
from tangent_jax.data.sources import Dataset
from tangent_jax.io.files import fingerprint
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.sessions import anchors_that_saw
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


@dataclasses.dataclass(frozen=True)
class RemovalPlan:
    """The effect that a removal would have on a store in its present state.

    `components`: the affected ones, by name; `identifiers`: of the content that may not return; `copies`: the places of
    content that lies in several rows; `asked`, `owner`: the request; `unknown`: the part of the request that no
    component saw; `store`, `contents`: the store's identity, and the fingerprint of its components; `unseen`: (content
    identifier, name) of requested images that no component saw, such as test images: only their cached rows go;
    `removed`: for words of `unknown` that name an image in a data set which was removed before, its identifier;
    `anchors`: a line for each anchor that was fine-tuned on images of the request, which no removal changes.

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
    removed: dict[str, str] = dataclasses.field(default_factory=dict)
    anchors: tuple[str, ...] = ()

    @property
    def is_in_data(self) -> bool:
        """True if a data set of the components holds requested images that no component saw."""
        return any(identifier != name for identifier, name in self.unseen)

    def check_possible(self, how: str) -> None:
        """Raises InputError naming a component that cannot be treated this way, and the reason."""
        one_of("how", how, WAYS)
        for name, holding in self.components.items():
            if how in holding.impossible:
                raise InputError(f"{name} does not allow how={how}: {holding.impossible[how]}. Drop it; train anew")


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
    Returns: RemovalPlan. Copies are found by content, under any name and in any component. Names are those of the
             components and those of the data sets that the components name, as they are now; a name that means two
             images asks for both, and a line on stderr says so.
    Raises:  InputError unless exactly one of the three is given, and for an image without a known owner.

    >>> plan = tj.store.plan_removal(demo.store(), names=["bob"])
    >>> len(plan.identifiers), plan.unknown
    (12, ())
    """
    if isinstance(examples, str) or isinstance(names, str):
        raise InputError("examples and names must be lists; got one text")
    words = tuple(dict.fromkeys(examples))
    names = tuple(dict.fromkeys(map(composed_name, names)))
    given = bool(words) + bool(names) + (owner is not None)
    if given != 1:
        raise InputError(f"exactly one of examples, names and owner must be given; got {given} of them")
    if owners and owner is None:
        raise InputError("owner must be given with owners; got none")
    with store.using():
        origins = {name: store.provenance(name) for name in store}
        missing = [name for name in names if name not in origins]
        if missing:
            raise InputError(f"names must be of components; got {missing[0]}. `store list` shows them")
        present = contents(store)
    seen = {identifier for origin in origins.values() for identifier, _ in origin.images_seen}
    if names:
        request = request_components(origins, names)
    elif owner is not None:
        request = request_owner(origins, Owner(owner), owners or {}, seen)
    else:
        request = request_words(origins, words, seen)
    gone = request.identifiers
    before = {word: sorted(filter(store.has_forgotten, request.answers.get(word, ()))) for word in request.unknown}
    affected = names or [n for n, origin in origins.items() if any(i in gone for i, _ in origin.images_seen)]
    components = {name: holding_of(origins[name], gone, bool(names)) for name in sorted(affected)}
    unseen = sorted(identifier for identifier in gone - seen if not store.has_forgotten(identifier))
    named = {identifier: name for origin in origins.values() for identifier, name in origin.anchor_images}
    named |= request.in_data
    identifiers = tuple(sorted((gone & seen) | {*unseen}))
    return RemovalPlan(
        components=components,
        identifiers=identifiers,
        copies={} if names else copies_in(components),
        unknown=request.unknown,
        asked=words if owner is None else identifiers,
        owner=None if owner is None else Owner(owner),
        store=store.identity,
        contents=present,
        unseen=tuple((identifier, named.get(identifier, identifier)) for identifier in unseen),
        removed={word: forgotten[0] for word, forgotten in before.items() if forgotten},
        anchors=anchors_that_saw(origins.values(), gone, str(store.root)),
    )


class Request(NamedTuple):
    """The images that a request means.

    `identifiers`: of their content; `in_data`: their names in a data set, by identifier; `unknown`: the words of the
    request that mean no image of a component; `answers`: for each word, the identifiers that it means.
    """

    identifiers: set[str]
    in_data: Mapping[str, str] = {}
    unknown: tuple[str, ...] = ()
    answers: Mapping[str, set[str]] = {}


def request_components(origins: Mapping[str, Provenance], names: Sequence[str]) -> Request:
    """The images of these components that no other component saw."""
    others = {i for name, origin in origins.items() if name not in names for i, _ in origin.images_seen}
    return Request({identifier for name in names for identifier in origins[name].identifiers} - others)


def request_owner(
    origins: Mapping[str, Provenance], owner: Owner, owners: Mapping[str, str], seen: Set[str]
) -> Request:
    """The images of an owner, by the components and by `owners`; `seen`: of all components."""
    datasets = open_datasets(origins.values()) if owners else []
    trained, others = images_of_owner_in(origins, owner, owners, datasets)
    in_data = {i: name for i, name in images_of_owner(datasets, owner, owners).items() if i not in others}
    say_unmatched(origins, datasets, owner, owners)
    identifiers = trained | in_data.keys()
    return Request(identifiers, in_data, () if identifiers & seen else (owner,))


def request_words(origins: Mapping[str, Provenance], words: Sequence[str], seen: Set[str]) -> Request:
    """The images that words name, each an identifier or a name; `seen`: of all components."""
    by_identifier = all(IDENTIFIER.fullmatch(word) for word in words)
    answers, in_data = find_images(origins, [] if by_identifier else open_datasets(origins.values()), words)
    unknown = tuple(word for word in words if not answers[word] & seen)
    return Request(set[str]().union(*answers.values()), in_data, unknown, answers)


def find_images(
    origins: Mapping[str, Provenance], datasets: Sequence[Dataset], asked: Sequence[str]
) -> tuple[dict[str, set[str]], dict[str, str]]:
    """({word of the request: the identifiers that it means}, {identifier: its name in a data set}).

    A word is an identifier or the name of an image, in a component, its anchor or a data set. Other spellings of the
    word count only where nothing has its own spelling.
    """
    others = {word: [*other_spellings(word)] for word in asked}
    for word, forms in others.items():
        forms += filter(IDENTIFIER.fullmatch, [word.strip().lower()])
    wanted = {form for word in asked for form in (normal_name(word), *others[word])}
    trained: dict[str, set[str]] = {}
    for origin in origins.values():
        for identifier, name in origin.images_seen + origin.anchor_images:
            for form in wanted.intersection((identifier, normal_name(name))):
                trained.setdefault(form, set()).add(identifier)
    in_data: dict[str, str] = {}
    present: dict[str, set[str]] = {}
    for dataset in datasets:
        for identifier, name in images_named(dataset, wanted):
            in_data[identifier] = name
            present.setdefault(normal_name(name), set()).add(identifier)
    answers: dict[str, set[str]] = {}
    for word in asked:
        forms = [normal_name(word)]
        if not {*forms} & (trained.keys() | present.keys()):
            forms += others[word]
        before = set[str]().union(*(trained.get(form, ()) for form in forms))
        now = set[str]().union(*(present.get(form, ()) for form in forms))
        answers[word] = before | now
        if not answers[word]:  # no component saw it, but caches may hold it
            answers[word] = {form for form in forms if IDENTIFIER.fullmatch(form)}
        if len(answers[word]) > 1:
            where = [name for name, origin in origins.items() if origin.identifiers & answers[word]]
            where += ["the data sets as they are now"] * bool(now - before)
            several = f"names {len(answers[word])} images, in {', '.join(where)}"
            print(f"{visible(word)} {several}; all are asked for (an identifier asks for one)", file=sys.stderr)
    return answers, in_data


def images_named(dataset: Dataset, names: Set[str]) -> list[tuple[str, str]]:
    """(content identifier, name) of the images of a data set, in any split, that have one of these normal names."""
    images: list[tuple[str, str]] = []
    for part in dataset.splits.values():
        rows = [row for row, name in enumerate(part.names) if normal_name(name) in names]
        named = part.take(np.array(rows, int))
        images += zip(named.identifiers(), named.names, strict=True)
    return images


def images_of_owner(datasets: Iterable[Dataset], owner: Owner, owners: Mapping[str, str]) -> dict[str, str]:
    """{content identifier: name} of an owner's images in any split of the data sets."""
    images: dict[str, str] = {}
    for dataset in datasets:
        for part in dataset.splits.values():
            rows = [row for row, whose in enumerate(owners_of(part.names, owners)) if whose == owner]
            owned = part.take(np.array(rows, int))
            images |= zip(owned.identifiers(), owned.names, strict=True)
    return images


class Row(NamedTuple):
    """An image of a component, by its normal name; `line`: its owner in a table, `recorded`: in the component."""

    identifier: str
    name: str
    line: Owner | None
    recorded: str | None = None

    def owner(self, several: Set[str]) -> str | None:
        """Its owner: of both that of the line, unless its name is one that means several images."""
        by_line = self.recorded is None or self.name not in several
        return (self.line or self.recorded) if by_line else self.recorded


def images_of_owner_in(
    origins: Mapping[str, Provenance], owner: Owner, owners: Mapping[str, str], datasets: Sequence[Dataset]
) -> tuple[set[str], set[str]]:
    """(the identifiers of an owner's images in components, those of images that lines give to them in vain).

    A line of `owners` comes before what a component says, where its name means one image among all components and the
    data sets as they are now. Where it means several, such as 0.png of two contributors, each image stays with the
    owner that its component names. The last part of a name is such a line only where it means one training image.
    Raises: InputError for a row without a known owner.
    """
    files = {name for dataset in datasets for name in dataset.train.names}
    files |= {name for origin in origins.values() for _, name in origin.images_seen} if owners else set()
    rows: list[Row] = []
    for component, origin in origins.items():
        recorded = {normal_name(name): whose for name, whose in origin.owners.items()}
        lines = owners_of([name for _, name in origin.examples], owners, files)
        for (identifier, name), line in zip(origin.examples, lines, strict=True):
            rows.append(Row(identifier, normal_name(name), line, recorded.get(normal_name(name))))
            if rows[-1].line is None and rows[-1].recorded is None:
                raise InputError(
                    f"the owner of {name} in {component} must be known; none is. Pass owners=, image name -> owner"
                )
        others = origin.public + origin.anchor_images
        lines = owners_of([name for _, name in others], owners, files)
        rows += [Row(i, normal_name(name), line) for (i, name), line in zip(others, lines, strict=True)]
    several = names_of_several(rows, owner, datasets)
    found = {row.identifier for row in rows if row.owner(several) == owner}
    return found, {row.identifier for row in rows if row.line == owner} - found


def names_of_several(rows: Iterable[Row], owner: Owner, datasets: Iterable[Dataset]) -> set[str]:
    """The names that mean several images, of those rows of which a line and a component name two owners, one `owner`.

    Prints how many there are.
    """
    disputed = {row.name for row in rows if row.line and row.recorded not in (None, row.line)}
    disputed &= {row.name for row in rows if owner in (row.line, row.recorded)}
    images = {name: {row.identifier for row in rows if row.name == name} for name in disputed}
    for dataset in datasets if disputed else ():
        for identifier, name in images_named(dataset, disputed):
            images[normal_name(name)].add(identifier)
    several = {name for name in disputed if len(images[name]) > 1}
    if several:
        which = f"{len(several)} names in the owners mean several images, such as {min(several)}"
        print(f"{which}: each image stays with the owner that its component names", file=sys.stderr)
    return several


def say_unmatched(
    origins: Mapping[str, Provenance], datasets: Iterable[Dataset], owner: Owner, owners: Mapping[str, str]
) -> None:
    """Prints how many of an owner's lines in `owners` match no image of the components and data sets."""
    files = {normal_name(name) for origin in origins.values() for _, name in origin.images_seen}
    files |= {normal_name(name) for dataset in datasets for part in dataset.splits.values() for name in part.names}
    files |= {file.rpartition("/")[2] for file in files}
    spellings = [
        (name, {normal_name(name), *other_spellings(name)}) for name, whose in owners.items() if Owner(whose) == owner
    ]
    unmatched = [name for name, forms in spellings if files.isdisjoint(forms)]
    if unmatched:
        where = f"match no image of the components, nor of their data sets, such as {visible(unmatched[0])}"
        print(f"{len(unmatched)} of {len(spellings)} lines of {owner} in the owners {where}", file=sys.stderr)


def open_datasets(origins: Iterable[Provenance]) -> list[Dataset]:
    """The data sets that components of this machine name, as they are now; one that is not there is left out."""
    specs = {o.recipe.dataset for o in origins if o.recipe is not None and (o.is_own or o.recipe.dataset == "digits")}
    datasets = []
    for spec in sorted(specs):
        with contextlib.suppress(InputError, OSError):
            datasets.append(open_dataset(spec))
    return datasets


def copies_in(components: Mapping[str, Holding]) -> dict[str, tuple[str, ...]]:
    """The places of each removed content that lies in more than one row."""
    places: dict[str, list[str]] = {}
    for name, holding in components.items():
        for identifier, image in holding.rows:
            places.setdefault(identifier, []).append(f"{image} in {name}")
    return {identifier: tuple(where) for identifier, where in places.items() if len(where) > 1}


def holding_of(origin: Provenance, gone: set[str], by_name: bool) -> Holding:
    """The effect on a component of removing these identifiers, or the whole component."""
    rows = origin.examples if by_name else tuple(pair for pair in origin.images_seen if pair[0] in gone)
    left = 0 if by_name else sum(identifier not in gone for identifier, _ in origin.examples)
    seconds = {"drop": 0.0}
    impossible: dict[str, str] = {}
    for how in WAYS[1:]:
        reason = "it was asked for by its name, and nothing of it is left" if by_name else obstacle(origin, how, gone)
        if reason is not None and (left or by_name):
            impossible[how] = reason
        else:
            seconds[how] = origin.seconds * left / max(len(origin.examples), 1)
    return Holding(rows, left, seconds, impossible)


def obstacle(origin: Provenance, how: str, gone: set[str]) -> str | None:
    """The reason why a component cannot be treated this way without these identifiers; None if it can."""
    if gone & {i for i, _ in origin.public}:
        return "public images went into its training, and must go"
    if origin.privacy is not None:
        return "only components without privacy are trained again"
    if origin.recipe is None:
        return "no recipe says how it was trained"
    is_optimum = origin.recipe.is_optimum and origin.total_penalty
    unsolved = "only a component that was solved to its optimum, with a penalty above 0, can be moved"
    return None if how == "retrain" or is_optimum else unsolved


def contents(store: Store) -> str:
    """The fingerprint of the names and files of a store's components."""
    files = sorted((name, entry.id) for name, entry in store.state.components.items())
    return fingerprint(json.dumps(files).encode())

"""The content of a removal request's page: the images, the components that hold them, the cost of each way of removal.

The store does not change. A rehearsal trains the replacements of components outside the store.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.report.inspector import Inspection, Removal
from tangent_jax.commands.shared.thumbnails import thumbnail
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name
from tangent_jax.data import SUFFIXES, Dataset, content_identifier
from tangent_jax.io.records import read_lines
from tangent_jax.store.erasure import count_rows
from tangent_jax.store.removal import folders_of

SHOWN = 60
"""The most thumbnails on a page."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request: identifiers or names of images, or an owner; `files`: the files of images given as such.

    `spelling`: the owner as given.
    """

    asked: tuple[str, ...] = ()
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    owner: str | None = None
    spelling: str = ""

    def plan(self, store: tj.Store, owners: Mapping[str, str] | None) -> tj.store.RemovalPlan:
        """The plan of the removal; changes nothing."""
        return tj.store.plan_removal(store, examples=self.asked, owner=self.owner, owners=owners)

    def spelled(self, word: str) -> str:
        """The word for readers: for an image, the name of its file."""
        return self.files[word].name if word in self.files else word


@dataclasses.dataclass(frozen=True)
class Asked:
    """An image to remove: (component, name) of each row with it, its owner and picture, None if unknown."""

    identifier: str
    places: list[tuple[str, str]]
    owner: str | None
    picture: str | None


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A word of a request that no component saw.

    `removals`: those that removed it; `requests`: earlier requests with this word, whose images a name does not
    identify; `alike`: examples with the same last part of the name and other content.
    """

    word: str
    removals: list[Removal]
    requests: list[Removal]
    alike: list[str]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of removal.

    `impossible`: the reason, by component; `lost`: rows that are removed although they were not requested; `seconds`:
    measured if `rehearsed`, else estimated from the training time; `accuracies`: of each task afterwards, if measured;
    `bounds`: the largest distance of each rehearsed component from the optimum.
    """

    how: str
    command: Sequence[str]
    impossible: Mapping[str, str]
    lost: int
    seconds: float
    rehearsed: bool = False
    accuracies: Sequence[float | None] = ()
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Preview:
    """The effect of a removal on files, before it happens.

    `deleted`: a line for each file or trace; `not_reached`: a line for each place that it cannot reach, such as earlier
    exports, the data sets, neighbouring stores; `caches`: the number of rows of the images in each cache that it
    searches, None if the cache is not there.
    """

    deleted: Sequence[str]
    not_reached: Sequence[str]
    caches: Mapping[str, int | None]


def read_request(path: Path) -> Request:
    """The request in a file of identifiers or names, one per line; or for an image, or all images in a folder."""
    if not path.exists():
        raise InputError(f"--examples must be a file or a folder; {path} does not exist")
    images = [path] if path.suffix.lower() in SUFFIXES else []
    if path.is_dir():
        images = sorted(p for p in path.rglob("[!.]*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not images:
            raise InputError(f"--examples must be a folder with images; {path} has none")
    if images:
        files = {content_identifier(image.read_bytes()): image for image in images}
        return Request(tuple(files), files)
    asked = read_lines(path)
    if not asked:
        raise InputError(f"--examples must be a file of identifiers or names of images, one a line; {path} has none")
    return Request(tuple(dict.fromkeys(asked)))


def check_known(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> None:
    """Raises InputError if the store holds nothing of the request, and no earlier removal answered it."""
    before = any(entry.removals or entry.requests for entry in unknown(seen, request, plan))
    if not (plan.components or before or plan.is_in_data):
        if request.owner is not None:
            raise InputError(
                f"the owner must be one that {seen.store.root}, a removal, or --owners for its data sets knows; got "
                f"{request.spelling}. Look up the spelling in --owners, or in the page of the store (index.html)"
            )
        got = f"{len(plan.unknown)} that no component saw, such as {plan.unknown[0]}" if plan.unknown else "none"
        raise InputError(
            f"an image of the request must be one that {seen.store.root} holds or has removed; got {got}. Name images "
            "as the components do, or pass the files: content decides"
        )


def unknown(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> list[Unknown]:
    """The words of a request that no component saw."""
    entries = []
    names = {name for origin in seen.origins.values() for _, name in origin.examples}
    for word in plan.unknown:
        forms = seen.store.forms([normal_name(word)])
        before = [r for r in seen.removals if answers(r, seen.store.forms([plan.removed.get(word, word)]))]
        asked = [r for r in seen.removals if r.receipt and not forms.isdisjoint(r.receipt.asked) and r not in before]
        last = Path(request.spelled(word)).name
        alike = sorted(name for name in names if Path(name).name == last)
        entries.append(Unknown(request.spelled(word), before, asked, alike[:3]))
    return entries


def answers(removal: Removal, forms: Set[str]) -> bool:
    """True if a removal removed the image of an identifier, or all images of an owner, by its hidden forms."""
    owner = removal.receipt.owner if removal.receipt else None
    return not forms.isdisjoint({owner, *removal.line.forgotten})


def asked_images(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> tuple[list[Asked], list[str]]:
    """(the images to remove, the reasons why some have no picture)."""
    places: dict[str, list[tuple[str, str]]] = {}
    for component, holding in plan.components.items():
        for identifier, name in holding.rows:
            places.setdefault(identifier, []).append((component, name))
    pictures = Pictures(request.files)
    images = []
    for identifier, held in places.items():
        origins = [(seen.origins[component], name) for component, name in held]
        owner = next((o.owners[name] for o, name in origins if name in o.owners), plan.owner)
        picture = pictures.of(identifier, origins) if len(images) < SHOWN else None
        images.append(Asked(identifier, held, owner, picture))
    return images, [*dict.fromkeys(pictures.reasons)]


class Pictures:
    """Thumbnails, from the files of a request, or from the data set of a component that saw the images."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files
        self.reasons: list[str] = []
        self.dataset = functools.cache(self.open)

    def open(self, spec: str) -> tuple[Dataset, dict[str, int]] | None:
        """(a data set, the row of each training image by name), or None if it is missing."""
        try:
            with tj.show_progress(f"reading {spec}"):
                dataset = tj.open_dataset(spec)
        except (InputError, OSError) as error:
            self.reasons.append(f"{spec} is not there now: {error}")
            return None
        return dataset, {name: row for row, name in enumerate(dataset.train.names)}

    def of(self, identifier: str, origins: Sequence[tuple[tj.store.Provenance, str]]) -> str | None:
        """The picture of an image, checked by its identifier; None if there is none."""
        try:
            if identifier in self.files:
                return thumbnail(self.files[identifier].read_bytes(), str(self.files[identifier]))
            for origin, name in origins:
                spec = origin.recipe.dataset if origin.recipe else ""
                if spec != "digits" and not origin.is_own:
                    self.reasons.append(f"{spec or name}: not opened: named by another machine (--trust)")
                    continue
                opened = self.dataset(spec) if spec else None
                if opened and name in opened[1]:
                    content = opened[0].train.read(opened[1][name])
                    if content_identifier(content) == identifier:
                        return thumbnail(content, name)
        except (InputError, OSError) as error:
            self.reasons.append(str(error))
        return None


def ways_of(
    plan: tj.store.RemovalPlan, commands: Mapping[str, Sequence[str]],
    measure: Callable[..., Sequence[float | None]] | None, rehearse: Callable[[str], Mapping[str, Any]] | None,
) -> list[Way]:  # fmt: skip
    """All ways of a removal, impossible ones too.

    Args: commands: of each way; measure: the accuracies without some components and with their replacements, None
          without test data; rehearse: trains the replacements, None to train nothing.
    """
    ways = []
    for how in tj.store.WAYS:
        held = plan.components
        impossible = {name: h.impossible[how] for name, h in held.items() if how in h.impossible}
        lost = sum(h.left for h in held.values()) if how == "drop" else 0
        way = Way(how, commands[how], impossible, lost, sum(h.seconds.get(how, 0.0) for h in held.values()))
        began = time.perf_counter()
        new = {}
        if how != "drop" and not impossible and rehearse is not None:
            print(f"rehearsing {how}; the store stays as it is", file=sys.stderr)
            new = rehearse(how)
            bounds = {name: each.distance_bound for name, each in new.items() if each.distance_bound is not None}
            seconds = time.perf_counter() - began
            way = dataclasses.replace(way, seconds=seconds, rehearsed=True, bounds=bounds)
        if measure is not None and (how == "drop" or way.rehearsed):
            way = dataclasses.replace(way, accuracies=measure([*held], new))
        ways.append(way)
    return ways


def preview_of(seen: Inspection, plan: tj.store.RemovalPlan, cache: tj.Cache) -> Preview:
    """What a removal would delete and not reach, and the rows in the caches that it searches; changes nothing."""
    traces = tj.store.preview_removal(seen.store, plan, cache)
    caches = count_rows(seen.store, [*plan.components], {*plan.identifiers}, folders_of(cache), plan.unseen)
    return Preview(traces.deleted, traces.not_reached, caches)


def commands_of(flags: Sequence[str]) -> dict[str, list[str]]:
    """The words of each way's command; `flags`: those that name the store and the request."""
    ends = {how: [] if how == "drop" else [f"--{how}"] for how in tj.store.WAYS}
    return {how: ["tangent-jax", "store", "remove", *flags, *end] for how, end in ends.items()}

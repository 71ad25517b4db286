"""A removal request as a page shows it: the images asked for, who holds them, what each way of removal costs.

Nothing is changed. A way is rehearsed by training apart from the store what would take a component's place.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.report.inspector import Inspection, Removal
from tangent_jax.commands.shared.thumbnails import thumbnail
from tangent_jax.core import InputError, read_lines, require
from tangent_jax.data import SUFFIXES, Dataset, content_identifier, hidden

SHOWN = 60
"""Thumbnails on a page."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request: identifiers or names of images, or an owner; `files`: of those that came as images, the file."""

    asked: tuple[str, ...] = ()
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    owner: str | None = None

    def plan(self, store: tj.Store, owners: Mapping[str, str] | None) -> tj.store.RemovalPlan:
        """The plan of the removal; nothing is changed."""
        return tj.store.plan_removal(store, examples=self.asked, owner=self.owner, owners=owners)

    def spelled(self, word: str) -> str:
        """The word as a reader knows it: of an image, the name of its file."""
        return self.files[word].name if word in self.files else word


@dataclasses.dataclass(frozen=True)
class Asked:
    """An image that must go: (component, name) of each row that holds it, its owner and picture, None where unknown."""

    identifier: str
    places: list[tuple[str, str]]
    owner: str | None
    picture: str | None


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A word of a request that no component saw.

    `removals`: those that took it out; `requests`: others that answered a request with this word in it, of which a name
    does not tell whether an image was there; `alike`: examples whose last name it is, with other content.
    """

    word: str
    removals: list[Removal]
    requests: list[Removal]
    alike: list[str]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of removal.

    `impossible`: by component the reason why it is not possible; `lost`: rows that go without being asked for;
    `seconds`: measured where it was `rehearsed`, else from what the training took; `accuracies`: of each task after it,
    where they were measured; `bounds`: the distance of each rehearsed component from the optimum, at most.
    """

    how: str
    command: Sequence[str]
    impossible: Mapping[str, str]
    lost: int
    seconds: float
    rehearsed: bool = False
    accuracies: Sequence[float | None] = ()
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)


def read_request(path: Path) -> Request:
    """The request in a file of identifiers or names, one a line; or that of an image, or of all images in a folder."""
    require(path.exists(), "inspect", "a file or a folder in --examples", f"{path}, which does not exist")
    images = [path] if path.suffix.lower() in SUFFIXES else []
    if path.is_dir():
        images = sorted(p for p in path.rglob("[!.]*") if p.suffix.lower() in SUFFIXES and p.is_file())
        require(images, "inspect", f"images in {path}", "none")
    if images:
        files = {content_identifier(image.read_bytes()): image for image in images}
        return Request(tuple(files), files)
    asked = read_lines("inspect", path)
    require(asked, "inspect", f"identifiers or names of images in {path}, one a line", "none")
    return Request(tuple(dict.fromkeys(asked)))


def check_known(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> None:
    """Raises InputError for a request of nothing that the store holds, or was asked for before."""
    before = any(entry.removals or entry.requests for entry in unknown(seen, request, plan))
    got = f"{len(plan.unknown)} that no component saw, such as {plan.unknown[0]}" if plan.unknown else "none"
    do = "Name images as the components do, or pass the files: content decides"
    require(plan.components or before, "inspect", f"an image that {seen.store.root} holds or has removed", got, do)


def unknown(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> list[Unknown]:
    """The words of a request that no component saw."""
    entries = []
    names = {name for origin in seen.origins.values() for _, name in origin.examples}
    for word in plan.unknown:
        before = [removal for removal in seen.removals if answers(removal, word)]
        asked = [r for r in seen.removals if r.receipt and word in r.receipt.asked and r not in before]
        last = Path(request.spelled(word)).name
        alike = sorted(name for name in names if Path(name).name == last)
        entries.append(Unknown(request.spelled(word), before, asked, alike[:3]))
    return entries


def answers(removal: Removal, word: str) -> bool:
    """True where a removal took out the image of an identifier, or all images of an owner."""
    owner = removal.receipt.owner if removal.receipt else None
    return word == owner or bool(hidden([word]) & {*removal.line["forgotten"]})


def asked_images(seen: Inspection, request: Request, plan: tj.store.RemovalPlan) -> tuple[list[Asked], list[str]]:
    """(the images that must go, why there is no picture of some)."""
    places: dict[str, list[tuple[str, str]]] = {}
    for component, holding in plan.components.items():
        for identifier, name in holding.rows:
            places.setdefault(identifier, []).append((component, name))
    pictures, images = Pictures(request.files), []
    for identifier, held in places.items():
        origins = [(seen.origins[component], name) for component, name in held]
        owner = next((o.owners[name] for o, name in origins if name in o.owners), plan.owner)
        picture = pictures.of(identifier, origins) if len(images) < SHOWN else None
        images.append(Asked(identifier, held, owner, picture))
    return images, [*dict.fromkeys(pictures.reasons)]


class Pictures:
    """Thumbnails of images: from the files of a request, or from the data set of a component that saw them."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files, self.reasons = files, []
        self.dataset = functools.cache(self.open)

    def open(self, spec: str) -> tuple[Dataset, dict[str, int]] | None:
        """(a data set, the row of each training image by its name), None where it is not there."""
        try:
            with tj.show_progress(f"reading {spec}"):
                dataset = tj.open_dataset(spec)
        except (InputError, OSError) as error:
            self.reasons.append(f"{spec} is not there now: {error}")
            return None
        return dataset, {name: row for row, name in enumerate(dataset.train.names)}

    def of(self, identifier: str, origins: Sequence[tuple[tj.store.Provenance, str]]) -> str | None:
        """The picture of an image, whose content is its identifier's; None where there is none."""
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
    """The ways of a removal, those that are not possible too.

    Args: commands: of each way; measure: the accuracies without some components and with others in their places, None
          where no test data is given; rehearse: trains what takes the components' places, None to train nothing.
    """
    ways = []
    for how in tj.store.WAYS:
        held = plan.components
        impossible = {name: h.impossible[how] for name, h in held.items() if how in h.impossible}
        lost = sum(h.left for h in held.values()) if how == "drop" else 0
        way = Way(how, commands[how], impossible, lost, sum(h.seconds.get(how, 0.0) for h in held.values()))
        began, new = time.perf_counter(), {}
        if how != "drop" and not impossible and rehearse is not None:
            print(f"rehearsing {how}; the store stays as it is", file=sys.stderr)
            new = rehearse(how)
            bounds = {name: own.distance_bound for name, own in new.items() if own.distance_bound is not None}
            seconds = time.perf_counter() - began
            way = dataclasses.replace(way, seconds=seconds, rehearsed=True, bounds=bounds)
        if measure is not None and (how == "drop" or way.rehearsed):
            way = dataclasses.replace(way, accuracies=measure([*held], new))
        ways.append(way)
    return ways


def beyond_reach(seen: Inspection, plan: tj.store.RemovalPlan, cache: tj.Cache) -> list[str]:
    """A line for each place that a removal leaves alone: earlier exports, the data sets, other stores beside it."""
    left = [export.path for export in seen.store.state.exports if {*export.names} & {*plan.components}]
    lines = [f"{path}: an export of a component that goes" for path in left]
    return lines + tj.store.preview_removal(seen.store, plan, cache)[1].not_reached


def commands_of(request: Request, file: Path, given: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The words of each way's command; `file`: of the request; `given`: other flags, None to leave one out."""
    what = f"--examples={file}" if request.owner is None else f"--owner={request.owner}"
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    ends = {how: [] if how == "drop" else [f"--{how}"] for how in tj.store.WAYS}
    return {how: ["tangent-jax", "store", "remove", *flags, what, *end] for how, end in ends.items()}

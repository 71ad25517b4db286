"""The content of a store's page: components, owners, privacy, similarity, compositions, removals, and events.

All values come from the store. Missing or altered files are named; the others are read.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.composition.kinds import check_beside, check_component, have_own_heads, summands
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar, show_progress
from tangent_jax.store.lines import Add, Compose, Discard, Entry, Export, Line, Merge, Remove

MOST_BYTES = 1 << 28
"""The bytes of tangent weights in memory while components are compared."""


@dataclasses.dataclass(frozen=True)
class Component:
    """A component: its number in the order of names, from 1; when it was added; `damage`: the fault of its file.

    Attributes:
        origin: Its provenance, None if unreadable.
    """

    number: int
    name: str
    added: str
    fingerprint: str
    origin: tj.store.Provenance | None
    damage: str

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that decided it, except its examples, in words."""
        origin = self.origin
        if origin is None:
            return {}
        recipe = {} if origin.recipe is None else origin.recipe.settings
        words = {name.replace("_", " "): value for name, value in recipe.items() if name != "order"}  # of its name
        if origin.session is not None:
            words["first session"] = str(origin.session)
        words |= {"method": origin.method, "leaves": len(origin.subset), "anchor": origin.anchor[:12]}
        words["head at the anchor"] = origin.head[:12]
        return words | {f"version of {name}": version for name, version in origin.training.versions.items()}

    @property
    def classes(self) -> int | None:
        """The number of its outputs."""
        return self.origin and (len(self.origin.classes) or self.origin.config.get("classes"))


@dataclasses.dataclass(frozen=True)
class Removal:
    """A removal: its journal line; its receipt, None if unreadable; `wrong`: claims that do not verify."""

    line: Remove
    receipt: tj.store.Receipt | None
    wrong: list[str]

    @property
    def retrained(self) -> list[str]:
        """The retrained components."""
        return self.line.adds

    @property
    def dropped(self) -> list[str]:
        """The components that were removed for good."""
        return [name for name in self.line.removed if name not in self.line.added]


@dataclasses.dataclass(frozen=True)
class Event:
    """Consecutive journal lines of one operation, and the components that they name."""

    operation: str
    lines: list[Line]
    names: list[str]


@dataclasses.dataclass(frozen=True)
class Owned:
    """The images of an owner (None: unknown owner), and the components that hold them."""

    owner: str | None
    images: int
    components: list[str]


class Inspection:
    """All data of a store's pages, read once."""

    def __init__(self, store: tj.Store) -> None:
        self.store = store
        with show_progress("verifying"):
            self.wrong = tj.store.verify(store)
            self.removals = [*removals_of(store)]
        self.components = [*components_of(store, self.wrong)]
        self.origins = {c.name: c.origin for c in self.components if c.origin is not None}
        self.whole = [component.name for component in self.components if not component.damage]
        self.numbers = [component.number for component in self.components if not component.damage]
        self.wrong += [line for removal in self.removals for line in removal.wrong if line not in self.wrong]
        self.has_own_heads = have_own_heads(self.origins.values())
        self.tasks = groups(self.origins)
        self.owners = owners_of(self.origins)
        self.events = events_of(store.state.lines)
        self.common, self.differing = common_settings([c.settings for c in self.components if c.origin])
        self.cost, self.no_cost = cost_of(store, self)
        self.cosines = similarity(summands(store.read_tree, self.origins), self.whole)

    @property
    def images(self) -> int:
        """The number of distinct images that the components saw."""
        return len(set().union(*(origin.data.identifiers for origin in self.origins.values())))

    @property
    def sessions(self) -> list[str]:
        """The first sessions of the anchors of its components, in words."""
        sessions = dict.fromkeys(origin.session for origin in self.origins.values())
        return [str(session) for session in sessions if session]

    @property
    def compositions(self) -> list[dict[str, Any]]:
        """All compositions, newest first; "after": a removal made it; "here": its file is in the store."""
        lines = []
        for line in reversed(self.store.state.lines):
            match line:
                case Compose():
                    composed = line.entry
                    how = {"weighted": line.weighted, "merge": line.merge, "privacy": line.privacy}
                case Remove(composed=Entry() as composed):
                    how = {"weighted": None, "merge": "mean", "privacy": None}
                case _:
                    continue
            here = composed.id in self.store.state.composed
            file = {"time": line.time, "names": line.names, "weights": composed.weights}
            lines.append({**file, **how, "after": isinstance(line, Remove), "here": here})
        return lines

    @property
    def exports(self) -> list[Export]:
        """The lines of all exports."""
        return [line for line in self.store.state.lines if isinstance(line, Export)]


def components_of(store: tj.Store, wrong: Sequence[str]) -> Iterator[Component]:
    """The components of a store by name; `wrong`: what `verify` says."""
    added: dict[str, str] = {}
    for line in store.state.lines:
        added |= dict.fromkeys(line.adds, line.time)
    first: tuple[Tree, tj.store.Provenance] | tuple[()] = ()
    for number, name in enumerate(store, 1):
        entry = store.state.components[name]
        damage = next((line for line in wrong if line.startswith(f"components/{entry.id}")), "")
        try:
            origin = store.provenance(name)
            if not damage:  # it may not pass the checks of `add`
                dw = store[name].dw
                check_component(dw, origin, is_new=False)
                first = first or (dw, origin)
                check_beside(dw, origin, *first)
        except InputError as error:
            origin, damage = None, damage or str(error)
        yield Component(number, name, added[name], entry.weights, origin, damage)


def names_in(line: Line) -> tuple[str, ...]:
    """The components of a journal line."""
    match line:
        case Add():
            return (line.name,)
        case Discard():
            return line.removed
        case Merge():
            return line.showed
        case Compose():
            return line.names
        case Export():
            return line.export.names
    return ()


def removals_of(store: tj.Store) -> Iterator[Removal]:
    """The removals of a store, newest first, with their receipts, verified."""
    lines = store.state.removals
    with progress_bar(len(lines), "receipt") as bar:
        for line in reversed(lines):
            path = store.root / "receipts" / f"{line.receipt}.json"
            receipt = None
            wrong = []
            try:
                receipt = tj.store.read_receipt(path)[0]
                wrong = tj.store.verify_receipt(store, path)
            except InputError as error:
                wrong.append(str(error))
            bar.update()
            yield Removal(line, receipt, [text.replace(f"{store.root}/", "") for text in wrong])


def groups(origins: Mapping[str, tj.store.Provenance]) -> dict[str, list[str]]:
    """The components of each data set by its specification, "" where no recipe says it."""
    members = defaultdict(list)
    for name, origin in origins.items():
        members[origin.recipe.dataset if origin.recipe else ""].append(name)
    return dict(members)


def owners_of(origins: Mapping[str, tj.store.Provenance]) -> list[Owned]:
    """The owners, by the number of their images, and at the end the images without a known owner."""
    images = defaultdict(set)
    held = defaultdict(list)
    for name, origin in origins.items():
        for owner in dict.fromkeys(origin.data.owners.get(image) for _, image in origin.data.examples):
            held[owner].append(name)
        for identifier, image in origin.data.examples:
            images[origin.data.owners.get(image)].add(identifier)
    order = sorted(images, key=lambda owner: (owner is None, -len(images[owner]), owner or ""))
    return [Owned(owner, len(images[owner]), held[owner]) for owner in order]


def events_of(lines: Sequence[Line]) -> list[Event]:
    """The journal's lines, newest first; consecutive additions within a day are one event."""

    def kind(numbered: tuple[int, Line]) -> tuple[str, str | int]:
        number, line = numbered
        return line.operation, line.time[:10] if isinstance(line, Add) else number

    events = []
    for (operation, _), numbered in groupby(enumerate(lines), kind):
        together = [line for _, line in numbered]
        events.append(Event(operation, together, [name for line in together for name in names_in(line)]))
    return events[::-1]


def common_settings(settings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], set[str]]:
    """(the settings that all components share, the words in which they differ)."""
    words = dict.fromkeys(word for component in settings for word in component)
    values = {word: [component.get(word) for component in settings] for word in words}
    common = {word: column[0] for word, column in values.items() if all(value == column[0] for value in column)}
    return common, {*words} - {*common}


def cost_of(store: tj.Store, seen: Inspection) -> tuple[tj.privacy.PrivacyCost | None, str]:
    """(the privacy cost of all components together, or the reason why there is none)."""
    lacking = [name for name, origin in seen.origins.items() if origin.training.privacy is None]
    if len(seen.origins) < len(store):
        return None, "some components cannot be read"
    if lacking:
        return None, f"{len(lacking)} of {len(store)} components have no account"
    if None in [account.privacy for account in store.state.released]:
        return None, "a component without an account was composed or exported before it was removed"
    try:
        cost = store.spent([*store])
        return cost, "" if cost else "the store is empty"
    except InputError as error:
        return None, str(error)


def similarity(read: Callable[[str], Tree], names: Sequence[str]) -> np.ndarray:
    """The cosine of each pair of components, as they are summed, "s s"; NaN if one is zero or has no leaves.

    Few are in memory at once: each block of components is compared with the blocks before it.
    """

    def flat(dw: Tree) -> np.ndarray:
        numbers = [np.asarray(leaf, np.float32).ravel() for leaf in trees.leaves(dw).values()]
        return np.concatenate([*numbers, np.zeros(0, np.float32)])

    count = len(names)
    gram = np.zeros((count, count))
    size = 1
    if count:
        size = max(1, MOST_BYTES // (2 * max(flat(read(names[0])).nbytes, 1)))
    blocks = [range(start, min(start + size, count)) for start in range(0, count, size)]
    with show_progress("similarity"), progress_bar(len(blocks), "block") as bar:
        for i, rows in enumerate(blocks):
            block = np.stack([flat(read(names[s])) for s in rows])
            for columns in blocks[: i + 1]:
                other = block if columns is rows else np.stack([flat(read(names[s])) for s in columns])
                gram[np.ix_(rows, columns)] = block @ other.T
                gram[np.ix_(columns, rows)] = gram[np.ix_(rows, columns)].T
            bar.update()
    norms = np.sqrt(np.diag(gram))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.clip(gram / np.outer(norms, norms), -1, 1)
    np.fill_diagonal(cosines, np.where(norms > 0, 1.0, np.nan))
    return cosines

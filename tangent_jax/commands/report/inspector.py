"""The content of a store's page: components, owners, privacy cost, removals with their receipts, and exports.

All values come from the store. Missing or altered files are named; the others are read.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import tangent_jax as tj
from tangent_jax.composition.kinds import check_beside, check_component
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar, show_progress
from tangent_jax.store.lines import Export, Remove


@dataclasses.dataclass(frozen=True)
class Component:
    """A component: when it was added; its provenance, None if unreadable; `damage`: the fault of its file."""

    name: str
    added: str
    origin: tj.store.Provenance | None
    damage: str

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
    def dropped(self) -> list[str]:
        """The components that were removed for good."""
        return [name for name in self.line.removed if name not in self.line.added]


@dataclasses.dataclass(frozen=True)
class Owned:
    """The images of an owner (None: unknown owner), and the components that hold them."""

    owner: str | None
    images: int
    components: list[str]


class Inspection:
    """All data of a store's page, read once."""

    def __init__(self, store: tj.Store) -> None:
        self.store = store
        with show_progress("verifying"):
            self.wrong = tj.store.verify(store)
            self.removals = [*removals_of(store)]
        self.components = [*components_of(store, self.wrong)]
        self.origins = {c.name: c.origin for c in self.components if c.origin is not None}
        self.wrong += [line for removal in self.removals for line in removal.wrong if line not in self.wrong]
        self.owners = owners_of(self.origins)
        self.cost, self.no_cost = cost_of(store, self.origins)
        self.exports = [line for line in store.state.lines if isinstance(line, Export)]

    @property
    def images(self) -> int:
        """The number of distinct images that the components saw."""
        return len(set().union(*(origin.data.identifiers for origin in self.origins.values())))

    @property
    def sessions(self) -> list[str]:
        """The first sessions of the anchors of its components, in words."""
        sessions = dict.fromkeys(origin.session for origin in self.origins.values())
        return [str(session) for session in sessions if session]


def components_of(store: tj.Store, wrong: Sequence[str]) -> Iterator[Component]:
    """The components of a store by name; `wrong`: what `verify` says."""
    added = store.state.added
    first: tuple[Tree, tj.store.Provenance] | tuple[()] = ()
    for name in store:
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
        yield Component(name, added[name], origin, damage)


def removals_of(store: tj.Store) -> Iterator[Removal]:
    """The removals of a store, newest first, with their receipts, verified."""
    lines = store.state.removals
    with progress_bar(len(lines), "receipt") as bar:
        for line in reversed(lines):
            path = store.root / "receipts" / f"{line.receipt}.json"
            receipt = None
            try:
                receipt = tj.store.read_receipt(path)[0]
                wrong = tj.store.verify_receipt(store, path)
            except InputError as error:
                wrong = [str(error)]
            bar.update()
            yield Removal(line, receipt, [text.replace(f"{store.root}/", "") for text in wrong])


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


def cost_of(store: tj.Store, origins: Mapping[str, tj.store.Provenance]) -> tuple[tj.privacy.PrivacyCost | None, str]:
    """(the privacy cost of all components together, or the reason why there is none)."""
    lacking = [name for name, origin in origins.items() if origin.training.privacy is None]
    if len(origins) < len(store):
        return None, "some components cannot be read"
    if lacking:
        return None, f"{len(lacking)} of {len(store)} components have no account"
    if None in [account.privacy for account in store.state.released]:
        return None, "a component without an account was composed or exported before it was removed"
    try:
        cost = store.spent()
        return cost, "" if cost else "the store is empty"
    except InputError as error:
        return None, str(error)

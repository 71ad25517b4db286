"""The store: components on disk, with their provenance, added, summed and exported. removal.py removes them.

    with store.using(change=True): write files, then commit the journal's line, then delete the files it removes

Each operation appends one line to the journal; state.py interprets the lines, disk.py manages the folder. Every read
checks the file's hash; a provenance that was read is read again where its file has another size or time.
"""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tangent_jax.composition.component import Component, Components
from tangent_jax.composition.compose import SumOfComponents, compose, statistics
from tangent_jax.composition.kinds import check_beside, check_component, have_own_heads
from tangent_jax.composition.merge import MERGES, merge
from tangent_jax.composition.origin import check_summable
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, check_printable, one_of
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import expand_path, fingerprint
from tangent_jax.io.progress import progress_bar
from tangent_jax.privacy.mechanism import PrivacyCost
from tangent_jax.solver.curvature import Curvature
from tangent_jax.store.accounts import accounts_shown, check_account, spent_by
from tangent_jax.store.disk import Disk
from tangent_jax.store.factors import check_factors
from tangent_jax.store.files import read_component, read_metadata
from tangent_jax.store.lines import Add, Compose, Discard, Export, Exported
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import check_spelling


class Store(Disk, Components):
    """A folder of named components that compose; it survives kills, concurrent processes, and detects altered bytes.

    A mapping: `store[name]` reads one `tj.Component`, its numbers as memory maps on the host; names are sorted. So
    `tj.compose(store)` and `tj.merge(store, how)` take it. The folder must be new, empty, or a store.

    >>> store = tj.Store(demo.folder() / "store")
    >>> for name, dw in demo.components.items():
    ...     store.add(name, dw, demo.origin.trained_on(demo.train.take(demo.halves[name]), 0.1))
    >>> [*store], tj.evaluate(demo.predict, store.compose(), demo.test)
    (['ann', 'bob'], 0.83)
    """

    def __init__(self, root: str | os.PathLike) -> None:
        super().__init__(root)
        self._origins: dict[str, tuple[Any, Provenance]] = {}  # that were read, by file, with the stamp of the file

    # Reading

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.state.components))

    def __len__(self) -> int:
        return len(self.state.components)

    def __contains__(self, name: object) -> bool:
        return name in self.state.components

    def __getitem__(self, name: str) -> Component:
        factors = self.factors(name) if self.has_factors(name) else None
        return Component(self.read_tree(name), self.provenance(name), factors)

    def read_tree(self, name: str) -> Tree:
        """The tangent weights or statistics of a component, checked against the journal."""
        return self.read_checked(self.path(name), self.state.components[name])

    def provenance(self, name: str) -> Provenance:
        """The provenance of a component, verified against the journal."""
        path, entry = self.path(name), self.state.components[name]
        found = path.stat() if path.is_file() else None
        stamp = found and (entry.origin, found.st_size, found.st_mtime_ns)
        if stamp is None or self._origins.get(entry.id, (None,))[0] != stamp:
            text = read_metadata(path).get("provenance", "")
            if fingerprint(text.encode()) != entry.origin:
                raise InputError(f"the provenance of {name} in {path} was altered. Run verify")
            live = {entry.id for entry in self.state.components.values()}  # those of removed components are forgotten
            self._origins = {file: kept for file, kept in self._origins.items() if file in live}
            self._origins[entry.id] = stamp, Provenance.from_json(text, f"the provenance of {name}")
        return self._origins[entry.id][1]

    def path(self, name: str) -> Path:
        """The file of a component."""
        if name not in self.state.components:
            raise InputError(f"{self.root} holds no component {name}")
        return self.file("components", self.state.components[name])

    def spent(self) -> PrivacyCost | None:
        """The privacy cost of all components, and of removed ones (accounts.py); None if one has no account."""
        return spent_by([self.provenance(name) for name in self], self.state, self.key)

    # Changing

    def add(self, name: str, dw: Tree, provenance: Provenance, factors: Curvature | None = None) -> None:
        """Adds a component; with Kronecker factors it can be merged by curvature.

        Says on stderr if it lists no images, which no request for an image or an owner then finds, or images that other
        components list, too: a removal of one of them concerns all.

        Raises:
            InputError: If the name is taken, its numbers are here under another name, a leaf is missing, not finite or
                of another shape, its factors are of another anchor or no sums, it could not be summed with those here,
                it saw an example that was removed, or an image is private in one account and public in another.
        """
        self.put(name, dw, provenance, factors, is_made_here=False)
        warn_lists(self, [name])

    def put(
        self, name: str, dw: Tree, provenance: Provenance, factors: Curvature | None = None, shown: bool = False,
        is_made_here: bool = True,
    ) -> None:  # fmt: skip
        """`add`; what takes long to check is not checked of a component that was just made here of images.

        Args:
            shown: It was composed or exported before, so its privacy cost still counts after a removal.
        """
        check_spelling(name)
        check_component(dw, provenance, is_new=not is_made_here)  # slow, and of this component alone
        check_factors(dw, factors, provenance)
        with self.using(change=True):
            if name in self:
                raise InputError(f"name must be new; got {name}, which {self.root} holds")
            origins = self.origins.values()
            check_summable(origins, provenance)
            check_account(provenance, origins, self.state, self.key)
            first = min(self, default=None)
            if first is not None:
                other = read_component(self.path(first), check=False)[0]
                check_beside(dw, provenance, other, self.provenance(first))
            self.check_forgotten(provenance)
            new = self.write("components", dw, provenance)
            twins = [name for name, entry in self.state.components.items() if entry.weights == new.weights]
            if twins:
                self.sweep()  # of the file just written
                raise InputError(f"{name} must have numbers of its own; got those of {twins[0]}")
            new = dataclasses.replace(new, factors=self.write_factors(factors))
            self.commit(Add(name=name, entry=new, shown=shown))

    @property
    def origins(self) -> dict[str, Provenance]:
        """The provenance of each component, by name; one that was read before is not read again."""
        kept, entries = self._origins, self.state.components
        return {name: kept[entries[name].id][1] if entries[name].id in kept else self.provenance(name) for name in self}

    @property
    def has_own_heads(self) -> bool:
        """True if heads differ, so that only bodies are summed."""
        return have_own_heads(self.origins.values())

    def check_forgotten(self, provenance: Provenance) -> None:
        """Raises InputError if a component saw an example that was removed from this store."""
        back = [name for i, name in provenance.data.seen if self.has_forgotten(i)]
        if back:
            raise InputError(
                f"examples must not be removed ones; {len(back)} were removed from this store, such as {back[0]}. "
                "Train without them"
            )

    def compose(self, how: str = "mean", penalty: float = 1e-3) -> Tree:
        """The mean of all components (for statistics, the sum), or another merge, in the order of names; journaled.

        If heads differ, the bodies are composed, without heads (`join` composes those).

        Args:
            how, penalty: As `merge`; a merge by factors needs those of every component.

        Guarantees:
            Reads one component at a time; the same bits for the same components, whatever was added and removed before.
        """
        while True:
            with self.using():
                summed = self.state.components
                if not summed:
                    raise InputError(f"{self.root} must hold at least one component; got none")
                dw = self.sum(how, penalty)
            result = trees.fingerprint(dw)
            with self.using(change=True):  # held for the line alone, not for the sum
                if self.state.components == summed:
                    self.commit(Compose(names=tuple(self), merge=how, result=result))
                    return dw

    def sum(self, how: str = "mean", penalty: float = 1e-3) -> Tree:
        """The sum of `compose`, neither written nor journaled."""
        one_of("how", how, MERGES)
        return compose(self) if how == "mean" else merge(self, how, penalty)

    def statistics(self) -> SumOfComponents:
        """The sum of components of statistics over all their classes; neither written nor journaled.

        Raises:
            InputError: A store of tangent weights, an empty one, and a component that no images give, by name.
        """
        if not len(self):
            raise InputError(f"{self.root} must hold at least one component; got none")
        return statistics(self, progress_bar)

    def release(self, path: str | os.PathLike, dw: Tree) -> dict[str, Any]:
        """Journals an export of tangent weights of all components to `path`, before the export is made.

        So neither a kill nor a removal in between can hide an export from a later receipt.

        Returns:
            A dict for the provenance of `tj.export`, with `of`, that of each component, and `journal`, the number of
            the journal's lines, by which the holder of the store can tell which state was exported.
        """
        with self.using(change=True):
            place = str(expand_path(path).absolute())
            check_printable("the path of an export", place)
            origins = self.origins
            self.commit(Export(export=Exported(names=tuple(self), path=place, result=trees.fingerprint(dw))))
            return {"of": origins, "journal": len(self.state.lines)}

    def discard(self, names: Sequence[str]) -> None:
        """Removes components that are to be replaced: no receipt, and their examples may return."""
        with self.using(change=True):
            removed = {name: self.provenance(name) for name in names}
            released = accounts_shown(removed, self.state, self.key)
            self.commit(Discard(removed=tuple(sorted(names)), released=released))


def warn_lists(store: Store, names: Sequence[str]) -> None:
    """Prints a line for each of these new components that lists no images, or images of other components."""
    with store.using():
        origins = store.origins  # reads those that no earlier call has read
    for name in (name for name in names if name in origins):
        images = origins[name].data.every_identifier
        rest = {other: origin.data.every_identifier for other, origin in origins.items() if other != name}
        others = +Counter({other: len(images & theirs) for other, theirs in rest.items()})
        shown = ", ".join(f"{count} of {other}" for other, count in others.most_common(3))
        more = f" and of {len(others) - 3} other components" if len(others) > 3 else ""
        if not images:
            nothing = "no request for an image or an owner finds it; remove it by its name"
            print(f"{name} lists no images: {nothing}", file=sys.stderr)
        if others:
            both = "a removal of one of them concerns each component that lists it"
            print(f"{name} lists images of other components, {shown}{more}: {both}", file=sys.stderr)

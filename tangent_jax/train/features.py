"""Features: examples in memory or on disk, with their targets, identifiers, owners and groups."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import columns
from tangent_jax.core.rows import Rows
from tangent_jax.train.batches import Batches, OnDevice

FOLDS = 5  # one of them is held out


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Inputs "n ..." of the first trained stage, targets "n ...", and (content identifier, name) of each image.

    Targets are the data set's class indices; `dataclasses.replace(features, targets=y)` trains on others. `skipped`:
    the number of unreadable images; `folder`: the cache of the inputs, or None; `owners`: the owner of each example, if
    known (`dataclasses.replace(features, owners=names)`); `groups`: the group of each example, such as the track of a
    frame, if known: examples of a group are held out together; `device`: the copy on the device that all batches share.

    >>> demo.train.inputs.shape, demo.train.targets[:3]
    ((24, 6), array([0, 1, 2], dtype=int32))
    >>> train, held_out = demo.train.hold_out()
    >>> len(train), len(held_out)
    (21, 3)
    """

    inputs: Any
    targets: np.ndarray
    examples: tuple[tuple[str, str], ...]
    skipped: int = 0
    folder: str | None = None
    owners: tuple[Any, ...] | None = None
    groups: tuple[Any, ...] | None = None
    device: OnDevice = dataclasses.field(default_factory=OnDevice, init=False, repr=False)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Features":
        """The examples at `rows`, "k", in that order; the inputs are not copied."""
        rows = np.arange(len(self))[np.asarray(rows) if len(rows) else np.zeros(0, int)]  # rows may be a mask
        examples = tuple(self.examples[i] for i in rows)
        owners = self.owners and tuple(self.owners[i] for i in rows)
        groups = self.groups and tuple(self.groups[i] for i in rows)
        taken = {"inputs": Rows(self.inputs, rows), "targets": self.targets[rows]}
        return dataclasses.replace(self, **taken, examples=examples, owners=owners, groups=groups)

    def batches(self, key: Array | None = None, *, rows: np.ndarray | None = None, batch_size: int = 32) -> Batches:
        """The examples, or those at `rows`, "k", for `fit` (which needs the key) or `fit_private`."""
        shared: Any = {"device": self.device, "owners": self.owners}
        return Batches(self.inputs, self.targets, key, rows=rows, batch_size=batch_size, **shared)

    @property
    def whole_groups(self) -> tuple[Any, ...] | None:
        """The group of each example that is held out as a whole: `groups`, else `owners`, else copies; None for none.

        Copies are examples with one content identifier; groups or owners that share a copy are one.
        """
        identifiers = tuple(identifier for identifier, _ in self.examples)
        copies = identifiers if len({*identifiers}) < len(identifiers) else None
        groups = self.owners if self.groups is None else self.groups
        if groups is None or copies is None:
            return copies if groups is None else groups
        from scipy.sparse import coo_array  # data with copies alone load it
        from scipy.sparse.csgraph import connected_components

        by_group, by_copy = numbered(groups), numbered(copies)
        edges = np.ones(len(self), bool), (by_group, by_copy + by_group.max() + 1)
        nodes = by_group.max() + by_copy.max() + 2
        _, joined = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)
        return tuple(joined[by_group].tolist())

    def held_out(self) -> Bool[np.ndarray, "n"]:
        """A mask, "n", of every fifth example of each class; if targets are no classes, of every fifth example.

        With groups (`whole_groups`) it is every fifth group of each class, or one of two to four: see `folds_of`.

        Guarantees:
            No group is partly held out; each class keeps an example that is not held out.
        """
        is_class = self.targets.ndim == 1 and self.targets.dtype.kind in "iu"
        labels = self.targets if is_class else np.zeros(len(self), int)
        held = folds_of(labels, self.whole_groups) == FOLDS - 1
        lost = np.setdiff1d(labels, labels[~held])
        if len(lost):  # classes whose examples are all in held-out groups of several classes
            numbers = numbered(self.whole_groups or ())
            held &= ~np.isin(numbers, numbers[np.isin(labels, lost)])
        return held

    def folds(self) -> Int[np.ndarray, "n"]:
        """The fold of each example, 0 to 4; a group is in one fold: see `folds_of`.

        >>> demo.train.folds()[:6]
        array([0, 0, 0, 1, 1, 1])
        """
        return folds_of(self.targets, self.whole_groups)

    def hold_out(self) -> tuple["Features", "Features"]:
        """Returns (the rest, the examples of `held_out`): always the same split."""
        held = self.held_out()
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))

    def relabel(self, classes: Sequence[str], chosen: Sequence[str]) -> "Features":
        """The same examples, with class indices among `chosen` instead of `classes`.

        Raises:
            InputError: An example of a class that is not chosen.
        """
        if tuple(classes) == tuple(chosen):
            return self
        index = np.full(len(classes), -1, self.targets.dtype)
        index[columns(classes, chosen)] = np.arange(len(chosen))
        targets = index[self.targets]
        if (targets < 0).any():
            raise InputError(f"all examples must be of these {len(chosen)} classes; got one of another class")
        return dataclasses.replace(self, targets=targets)

    def of_classes(self, classes: Sequence[str], chosen: Sequence[str]) -> "Features":
        """The examples of the chosen classes, with class indices among these.

        >>> few = demo.train.of_classes(["a", "b", "c"], ["c", "a"])
        >>> len(few), few.targets[:2].tolist()
        (16, [1, 0])
        """
        rows = np.flatnonzero(np.isin(self.targets, columns(classes, chosen)))
        return self.take(rows).relabel(classes, chosen)

    def classes_in(self, classes: Sequence[str]) -> tuple[str, ...]:
        """The classes that have examples, in the order of `classes`.

        >>> demo.train.take([0, 2]).classes_in(["a", "b", "c"])
        ('a', 'c')
        """
        labels = np.unique(self.targets)
        least = int(labels.max(initial=-1)) + 1
        if len(classes) < least:
            raise InputError(f"classes must be the names of {least} classes or more; got {len(classes)}")
        return tuple(classes[int(label)] for label in labels)


def folds_of(labels: Int[np.ndarray, "n"], groups: Sequence[Any] | None = None) -> Int[np.ndarray, "n"]:
    """The fold of each example, 0 to 4, "n": the examples of a class go to the folds in turn, or its groups do.

    As scikit-learn's StratifiedGroupKFold, without its balancing. Groups are taken in the order of their first
    examples; those that hold several classes count as one class more. The last of two to four groups is in fold 4.

    Guarantees:
        A group is in one fold.

    Edge cases:
        A class of one group is in fold 0.

    >>> folds_of(np.array([0, 0, 0, 1, 1, 1, 1, 1, 1])).tolist()
    [0, 1, 2, 0, 1, 2, 3, 4, 0]
    >>> folds_of(np.array([0, 0, 0, 1, 1, 1, 1]), ["a", "a", "b", "c", "d", "d", "c"]).tolist()
    [3, 3, 4, 3, 4, 4, 3]
    """
    numbers = numbered(range(len(labels)) if groups is None else groups)
    first = np.unique(numbers, return_index=True)[1]
    folds = np.zeros(len(first), int)
    class_of = np.unique(labels[first], return_inverse=True)[1]
    class_of[numbers[labels != labels[first][numbers]]] = -1  # groups of several classes
    for label in np.unique(class_of):
        own = np.flatnonzero(class_of == label)
        start = FOLDS - len(own) if groups is not None and 1 < len(own) < FOLDS else 0
        folds[own] = (start + np.arange(len(own))) % FOLDS
    return folds[numbers]


def numbered(groups: Sequence[Any]) -> Int[np.ndarray, "n"]:
    """The number of each example's group, "n", in the order of first appearance.

    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], int)

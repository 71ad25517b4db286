"""Features: examples in memory or on disk, with their targets, identifiers and owners."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Bool

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import columns
from tangent_jax.core.rows import Rows
from tangent_jax.train.batches import Batches, OnDevice


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Inputs "n ..." of the first trained stage, targets "n ...", and (content identifier, name) of each image.

    Targets are the data set's class indices; `dataclasses.replace(features, targets=y)` trains on others. `skipped`:
    the number of unreadable images; `folder`: the cache of the inputs, or None; `owners`: the owner of each example, if
    known (`dataclasses.replace(features, owners=names)`); `device`: the copy on the device that all batches share.

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
    device: OnDevice = dataclasses.field(default_factory=OnDevice, init=False, repr=False)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Features":
        """The examples at `rows`, "k", in that order; the inputs are not copied."""
        rows = np.arange(len(self))[np.asarray(rows) if len(rows) else np.zeros(0, int)]  # rows may be a mask
        examples = tuple(self.examples[i] for i in rows)
        owners = self.owners and tuple(self.owners[i] for i in rows)
        taken = {"inputs": Rows(self.inputs, rows), "targets": self.targets[rows]}
        return dataclasses.replace(self, **taken, examples=examples, owners=owners)

    def batches(self, key: Array | None = None, *, rows: np.ndarray | None = None, batch_size: int = 32) -> Batches:
        """The examples, or those at `rows`, "k", for `fit` (which needs the key) or `fit_private`."""
        shared: Any = {"device": self.device, "owners": self.owners}
        return Batches(self.inputs, self.targets, key, rows=rows, batch_size=batch_size, **shared)

    def held_out(self) -> Bool[np.ndarray, "n"]:
        """A mask, "n", of every fifth example of each class; if targets are no classes, of every fifth example."""
        is_class, rank = self.targets.ndim == 1 and self.targets.dtype.kind in "iu", np.zeros(len(self), int)
        groups = self.targets if is_class else rank
        for label in np.unique(groups):
            rows = np.flatnonzero(groups == label)
            rank[rows] = np.arange(len(rows))
        return rank % 5 == 4

    def hold_out(self) -> tuple["Features", "Features"]:
        """Returns (the rest, the examples of `held_out`): always the same split."""
        held = self.held_out()
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))

    def relabel(self, classes: Sequence[str], chosen: Sequence[str]) -> "Features":
        """The same examples, with class indices among `chosen` instead of `classes`.

        Raises: InputError for an example of a class that is not chosen.
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

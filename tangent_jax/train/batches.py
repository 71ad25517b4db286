"""Batches of examples in an order that a key decides; resident on the devices if they fit, else streamed.

Each batch is divided over the devices (core/placement.py). Resident inputs are complete on every device, and the rows
of a batch are divided. For streamed inputs every device receives its own rows only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32, Integer, Shaped

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, as_array, whole_number
from tangent_jax.core.owners import Owner
from tangent_jax.core.rows import Rows
from tangent_jax.core.trees import check_key
from tangent_jax.train.targets import as_targets

STEPS = 64  # the most steps of one chunk of resident inputs; a run can stop between chunks


class Chunk(NamedTuple):
    """The batches of some steps.

    Inputs "n ..." and targets, with `order`, "k b", of their rows; or, if `order` is None, inputs "k b ..." and targets
    of these steps alone. `present`, "k b", is 0 where padded.
    """

    inputs: Any
    targets: Any
    order: Any
    present: Any

    def at(self, i: Any) -> tuple[Any, Any]:
        """(inputs "b ...", targets "b ...") of step i."""
        if self.order is None:
            return self.inputs[i], self.targets[i]
        return self.inputs[self.order[i]], self.targets[self.order[i]]

    def pad(self, steps: int) -> "Chunk":
        """The chunk with empty steps appended, `steps` in total."""

        def pad(a: Any) -> Any:
            more = ((0, steps - len(a)), *[(0, 0)] * (a.ndim - 1))
            return a if steps == len(a) else (jnp if isinstance(a, Array) else np).pad(a, more)

        if self.order is not None:
            return self._replace(order=pad(self.order), present=pad(self.present))
        return Chunk(pad(self.inputs), pad(self.targets), None, pad(self.present))

    def place(self) -> "Chunk":
        """The chunk with the rows of each batch divided over the devices."""
        order = None if self.order is None else placement.divide(self.order, 1)
        return self._replace(order=order, present=placement.divide(self.present, 1))


class Batches:
    """The examples of one run: inputs "n ..." (an array or memory map) and targets "n ...", or their part at `rows`.

    Targets are class indices, or arrays of any shape that the loss takes. `key`: decides the order of every epoch
    (None: no order is needed); `batch_size`: examples per step; `resident_bytes`: inputs above it are streamed in
    chunks, read ahead (None: `placement.resident_bytes`); `device`: a copy on the devices that several Batches share;

    Attributes:
        owners: The owner of each example, a name or number, "n", if known.

    >>> batches = tj.Batches(np.ones((5, 2)), np.arange(5), jax.random.key(0), batch_size=2)
    >>> batches.steps, batches.order(epoch=0)[0].shape
    (3, (3, 2))
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        key: Array | None = None,
        *,
        rows: np.ndarray | None = None,
        batch_size: int = 32,
        resident_bytes: int | None = None,
        device: "OnDevice | None" = None,
        owners: Sequence[Any] | Shaped[np.ndarray, "n"] | None = None,
    ) -> None:
        whole_number("batch_size", batch_size, 1)
        targets = as_targets(targets)
        inputs = as_inputs(inputs)
        if not len(targets):
            raise InputError("data must have at least one example to train on or to evaluate; got none.")
        if len(inputs) != len(targets):
            raise InputError(f"inputs must be as many as the targets, {len(targets)}; got {len(inputs)}")
        self.inputs = inputs
        self.targets = targets
        if key is not None:
            check_key(key)
        self.key = key
        self.rows = np.arange(len(targets)) if rows is None else as_array("rows", rows)
        if not len(self.rows):
            raise InputError("rows must name at least one example; got none")
        are_indices = self.rows.dtype.kind in "iu" and self.rows.ndim == 1
        if not are_indices or self.rows.min() < 0 or self.rows.max() >= len(targets):
            raise InputError(f"rows must be whole numbers in 0..{len(targets) - 1}; got {self.rows[:3]}")
        self.batch_size = min(batch_size, len(self.rows))
        self.resident_bytes = placement.resident_bytes() if resident_bytes is None else resident_bytes
        self.device = OnDevice() if device is None else device
        self.owners = None if owners is None else as_owners(owners, len(targets))

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.rows)

    @property
    def steps(self) -> int:
        """The number of batches in an epoch; the last may be padded."""
        return -(-len(self) // self.batch_size)

    @property
    def is_resident(self) -> bool:
        """True if the devices hold all inputs; otherwise they are streamed."""
        return self.inputs.nbytes <= self.resident_bytes

    @property
    def chunk_steps(self) -> int:
        """The most steps in a chunk; streamed steps take a quarter of `resident_bytes`."""
        bytes_each = max(1, self.inputs.nbytes // len(self.targets))
        return STEPS if self.is_resident else max(1, self.resident_bytes // (4 * self.batch_size * bytes_each))

    @property
    def width(self) -> int:
        """The rows of a padded batch, divisible by the devices."""
        return placement.width(self.batch_size)

    def permutation(self, epoch: int) -> Integer[np.ndarray, "n"]:
        """Returns the rows, "n", in the order of an epoch."""
        assert self.key is not None
        return self.rows[np.asarray(permuted(self.key, epoch, len(self)))]

    def order(self, epoch: int) -> tuple[Int32[np.ndarray, "k b"], Float32[np.ndarray, "k b"]]:
        """Returns (order, present) of an epoch, "k b": a permutation of the rows, and 0 where a batch is padded."""
        return self.pad(self.permutation(epoch))

    def in_order(self) -> tuple[Int32[np.ndarray, "k b"], Float32[np.ndarray, "k b"]]:
        """Returns (order, present), "k b", of all rows in their given order."""
        return self.pad(self.rows)

    def pad(self, rows: Integer[np.ndarray, "n"]) -> tuple[Int32[np.ndarray, "k b"], Float32[np.ndarray, "k b"]]:
        """Returns the rows in batches, "k b", and 1 for real entries, 0 for padding; at least one batch."""
        rows, size = np.asarray(rows, np.int32), self.batch_size
        padding = size - len(rows) if not len(rows) else -len(rows) % size
        filler = (rows if len(rows) else self.rows)[0]  # a requested row, as others may hold NaN
        present = np.concatenate([np.ones(len(rows), np.float32), np.zeros(padding, np.float32)])
        order = np.pad(rows, (0, padding), constant_values=filler)
        more = (0, 0), (0, self.width - size)
        return np.pad(order.reshape(-1, size), more, constant_values=filler), np.pad(present.reshape(-1, size), more)

    def resident(self) -> tuple[Array, Array]:
        """Returns all (inputs, targets), "n ...", on the device; InputError for more than `resident_bytes`."""
        if not self.is_resident:
            raise InputError(
                f"inputs that the device holds must take at most {self.resident_bytes} bytes; got {self.inputs.nbytes}."
                " Give fewer examples or more resident_bytes."
            )
        return self.device.copy(lambda: placement.replicate((own(self.inputs), own(self.targets))))

    def chunks(self, order: np.ndarray, present: np.ndarray) -> Iterator[Chunk]:
        """Yields the inputs and targets of `order`, "k b", in chunks."""
        steps = self.chunk_steps
        if self.is_resident:
            for start in range(0, len(order), steps):
                yield Chunk(*self.resident(), order[start : start + steps], present[start : start + steps])
            return

        def read(start: int) -> Chunk:
            rows = order[start : start + steps]
            inputs, targets = (placement.divide(Rows(a, rows), 1) for a in (self.inputs, self.targets))
            return Chunk(inputs, targets, None, present[start : start + steps])

        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, 0)
            for start in range(0, len(order), steps):
                chunk = ahead.result()
                if start + steps < len(order):
                    ahead = reader.submit(read, start + steps)
                yield chunk


class OnDevice:
    """What lies on the devices since its first use; a pickle does not hold it."""

    def __init__(self) -> None:
        self.held: Any = None
        self.mesh: Any = None  # the devices that hold it

    def __reduce__(self) -> tuple[type["OnDevice"], tuple[()]]:
        return OnDevice, ()

    def copy(self, place: Callable[[], Any]) -> Any:
        """What place() puts on the devices, called again only for other devices."""
        if self.held is None or self.mesh != placement.mesh():
            self.held, self.mesh = place(), placement.mesh()
        return self.held


def own(array: Any) -> Any:
    """The array, with memory of its own unless it is one of JAX; rows on disk are read."""
    return array.copy() if isinstance(array, np.ndarray) else array if isinstance(array, Array) else np.asarray(array)


def as_inputs(inputs: Any) -> Any:
    """The inputs as an array of numbers "n ..."; an array on disk or on the device stays there."""
    inputs = placement.automatic(inputs) if hasattr(inputs, "nbytes") else as_array("inputs", inputs)
    are_numbers = jnp.issubdtype(inputs.dtype, jnp.number) or inputs.dtype == bool
    if not inputs.shape or not are_numbers:
        raise InputError(
            f"inputs must be one array of numbers, an example a row; got {inputs.dtype} of shape {inputs.shape}"
        )
    return inputs


def as_owners(owners: Any, count: int) -> Shaped[np.ndarray, "n"]:
    """The owner of each of `count` examples, in one spelling; InputError if one has none."""
    names = as_array("owners", owners)
    if names.dtype.kind in "UT":
        names = np.array([Owner(name) if name else "" for name in names.ravel().tolist()]).reshape(names.shape)
    expected = f"owners must be the owner of each of {count} examples, a name or a number"
    if names.shape != (count,) or names.dtype.kind not in "iuU":
        raise InputError(f"{expected}; got {names.dtype} of shape {names.shape}")
    if names.dtype.kind == "U" and not names.all():
        raise InputError(f"{expected}; got one without a name")
    return names


@partial(jax.jit, static_argnames="count")
def permuted(key: Array, epoch: int, count: int) -> Int32[Array, "n"]:
    """The numbers below `count` in the order of an epoch, by one program."""
    return jax.random.permutation(jax.random.fold_in(key, epoch), count)


@runtime_checkable
class Data(Protocol):
    """Examples that make batches, such as Features."""

    def batches(self, key: Array | None = None, *, batch_size: int = 32) -> Batches:
        """The examples in batches, in an order that the key decides."""
        ...


def as_batches(data: Any, batch_size: int = 32, key: Array | None = None) -> Batches:
    """The data as Batches: Batches unchanged, Features by their `batches`.

    Raises:
        InputError: Other data.
    """
    if isinstance(data, Batches):
        return data
    if not hasattr(data, "batches"):
        raise InputError(
            f"data must be Features or Batches; got {type(data).__name__}."
            " Pass what tj.extract gives, or Batches(inputs, targets)."
        )
    return data.batches(key, batch_size=batch_size)


Source = Batches | Data | Iterable[Any] | Callable[[int], Iterable[Any]]
"""Data that `fit` reads: Features, Batches, an iterable of batches (x, y) that each epoch reads, or a function that
maps an epoch to such an iterable."""


def epoch_chunks(source: Any, epoch: int, check: Callable[[np.ndarray, np.ndarray], None]) -> Iterator[Chunk]:
    """Yields one epoch of the source, every batch "b ..." padded to the size of the first and passed to `check`."""
    if isinstance(source, Batches):
        yield from source.chunks(*source.order(epoch))
        return
    size = None
    batches: Any = source(epoch) if callable(source) else source
    for batch in batches:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError(f"each batch must be a pair (x, y); got {type(batch).__name__}")
        x, y = np.asarray(batch[0]), as_targets(batch[1])
        size = size or len(y)
        if x.ndim < 1 or not 1 <= len(y) <= size or len(x) != len(y):
            raise InputError(
                f"each batch (x, y) must be of one length, none above the first's {size}; got {x.shape} and {y.shape}"
            )
        check(x, y)
        more = placement.width(size) - len(y)
        present = (np.arange(len(y) + more) < len(y)).astype(np.float32)
        x, y = (placement.divide(np.concatenate([a, a[:1].repeat(more, 0)])[None], 1) for a in (x, y))
        yield Chunk(x, y, None, present[None])
    if not size:
        raise InputError(
            f"data must have a batch in every epoch; got none in epoch {epoch + 1}. Pass an iterable, not an iterator."
        )

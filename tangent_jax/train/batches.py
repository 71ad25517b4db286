"""Batches of examples in an order that a key decides, on the device once where they fit, else read ahead."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, require, whole_number
from tangent_jax.train.targets import as_targets

Chunk = tuple[Any, Any, np.ndarray, np.ndarray]
"""(inputs, targets, order, present): steps "k" of batches "b", as rows of inputs and targets, 0 where padded."""
RESIDENT_BYTES = 4 << 30
STEPS = 64  # at most in one chunk of resident inputs: between chunks a run can be stopped


class Batches:
    """The examples of one run: an array or memory map of inputs "n ...", targets "n ...", or their part at `rows`.

    Targets are class indices, or arrays of any shape that the loss compares with outputs. `key` decides the order,
    epoch by epoch (None: no order is needed); `batch_size`: examples in a step; inputs of more than `resident_bytes`
    are streamed in chunks, the next read while this one trains. `device`: the copy on the device that several share.
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        key: Array | None = None,
        *,
        rows: np.ndarray | None = None,
        batch_size: int = 32,
        resident_bytes: int = RESIDENT_BYTES,
        device: "OnDevice | None" = None,
    ) -> None:
        whole_number("Batches", "batch_size", batch_size, 1)
        targets, inputs = as_targets("Batches", targets), as_inputs("Batches", inputs)
        good = len(inputs) == len(targets) and len(targets) >= 1
        require(good, "Batches", f"as many inputs as targets ({len(targets)}, at least 1)", len(inputs))
        self.inputs, self.targets, self.key = inputs, targets, checked_key(key)
        self.rows = np.arange(len(targets)) if rows is None else np.asarray(rows)
        require(len(self.rows) >= 1, "Batches", "at least one row", "none")
        within = (
            self.rows.dtype.kind in "iu"
            and self.rows.ndim == 1
            and self.rows.min() >= 0
            and self.rows.max() < len(targets)
        )
        require(within, "Batches", f"rows in 0..{len(targets) - 1}, whole numbers", self.rows[:3])
        self.batch_size, self.resident_bytes = min(batch_size, len(self.rows)), resident_bytes
        self.device = OnDevice() if device is None else device

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.rows)

    @property
    def steps(self) -> int:
        """Batches in an epoch; the last may be padded."""
        return -(-len(self) // self.batch_size)

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (order, present) of an epoch, "k b": a permutation of the rows, and 0 where a batch is padded."""
        assert self.key is not None
        permuted = np.asarray(jax.random.permutation(jax.random.fold_in(self.key, epoch), len(self)))
        return self.padded(self.rows[permuted])

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (order, present), "k b", of all rows in their own order."""
        return self.padded(self.rows)

    def padded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows in batches, "k b", and 1 where an entry is real, 0 where padded; at least one batch."""
        padding = self.batch_size - len(rows) if not len(rows) else -len(rows) % self.batch_size
        present = np.concatenate([np.ones(len(rows), np.float32), np.zeros(padding, np.float32)])
        filler = (rows if len(rows) else self.rows)[0]  # one of those asked for: another may hold NaN
        order = np.pad(np.asarray(rows, np.int32), (0, padding), constant_values=filler)
        return order.reshape(-1, self.batch_size), present.reshape(-1, self.batch_size)

    def resident(self) -> tuple[Array, Array]:
        """Returns all (inputs, targets), "n ...", on the device; InputError for more than `resident_bytes`."""
        fit = self.inputs.nbytes <= self.resident_bytes
        expected = f"inputs that the device holds, of at most {self.resident_bytes} bytes"
        require(fit, "Batches", expected, self.inputs.nbytes, "Give fewer examples or more resident_bytes")
        return self.device.copy(self.inputs, self.targets)

    def chunks(self, order: np.ndarray, present: np.ndarray) -> Iterator[Chunk]:
        """Yields the inputs and targets of `order`, "k b", in chunks; a chunk's order counts from its own first row."""
        if self.inputs.nbytes <= self.resident_bytes:
            for start in range(0, len(order), STEPS):
                yield (*self.resident(), order[start : start + STEPS], present[start : start + STEPS])
            return
        bytes_each = max(1, self.inputs.nbytes // len(self.targets))
        steps = max(1, self.resident_bytes // (4 * self.batch_size * bytes_each))

        def read(start: int) -> Chunk:
            rows = order[start : start + steps]
            flat = rows.ravel()
            local = np.arange(flat.size, dtype=np.int32).reshape(rows.shape)
            inputs, targets = placement.replicated((self.inputs[flat], self.targets[flat]))
            return inputs, targets, local, present[start : start + steps]

        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, 0)
            for start in range(0, len(order), steps):
                chunk = ahead.result()
                if start + steps < len(order):
                    ahead = reader.submit(read, start + steps)
                yield chunk


class OnDevice:
    """Inputs and targets on the device, copied there at their first use."""

    def __init__(self) -> None:
        self.arrays: tuple[Array, Array] | None = None

    def copy(self, inputs: Any, targets: Any) -> tuple[Array, Array]:
        """Returns (inputs, targets), "n ...", on the device."""
        arrays = self.arrays
        if arrays is None:
            inputs = inputs if isinstance(inputs, Array) else np.asarray(inputs)
            arrays = self.arrays = placement.replicated((inputs, targets))
        return arrays


def as_inputs(function: str, inputs: Any) -> Any:
    """The inputs as an array of numbers "n ..."; an array on disk or on the device stays there."""
    inputs = inputs if hasattr(inputs, "nbytes") else np.asarray(inputs)
    good = len(inputs.shape) >= 1 and (jnp.issubdtype(inputs.dtype, jnp.number) or inputs.dtype == bool)
    require(good, function, "inputs as one array of numbers, an example a row", f"{inputs.dtype} of {inputs.shape}")
    return inputs


def checked_key(key: Any) -> Array | None:
    """The key, where it is one of JAX's or None; InputError for anything else."""
    is_old = isinstance(key, Array) and key.shape == (2,) and key.dtype == "uint32"
    good = key is None or is_old or (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key))
    require(good, "Batches", "a key such as jax.random.key(0)", repr(key))
    return key


class Data(Protocol):
    """Examples that make their own batches, such as Features."""

    def batches(self, key: Array | None = None, *, batch_size: int = 32) -> Batches:
        """The examples in batches, in an order that the key decides."""
        ...


def as_batches(function: str, data: Any, batch_size: int = 32, key: Array | None = None) -> Batches:
    """The data as Batches: themselves, or those that Features make.

    Raises: InputError for other data.
    """
    if isinstance(data, Batches):
        return data
    do = "Pass what predict.features gives, or Batches(inputs, targets)"
    require(hasattr(data, "batches"), function, "Features or Batches", type(data).__name__, do)
    return data.batches(key, batch_size=batch_size)


Source = Batches | Data | Iterable[tuple[Any, Any]] | Callable[[int], Iterable[tuple[Any, Any]]]
"""Data that `fit` reads: Features or Batches; an iterable of batches (x, y), read once an epoch; or a function of the
epoch."""


def epoch_chunks(source: Any, epoch: int, check: Callable[[np.ndarray, np.ndarray], None]) -> Iterator[Chunk]:
    """Yields one epoch of the source, every batch "b ..." padded to the size of the first and passed to `check`."""
    if isinstance(source, Batches):
        yield from source.chunks(*source.order(epoch))
        return
    size = None
    batches: Any = source(epoch) if callable(source) else source
    for batch in batches:
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        require(is_pair, "fit", "batches that are pairs (x, y)", type(batch).__name__)
        x, y = np.asarray(batch[0]), as_targets("fit", batch[1])
        size = size or len(y)
        good = x.ndim >= 1 and 1 <= len(y) <= size and len(x) == len(y)
        require(good, "fit", f"batches (x, y) of one length, none above the first's {size}", (x.shape, y.shape))
        check(x, y)
        padding = size - len(y)
        x, y = (np.concatenate([a, a[:1].repeat(padding, 0)]) for a in (x, y))
        order, present = np.arange(size, dtype=np.int32)[None], (np.arange(size) < size - padding).astype(np.float32)
        yield x, y, order, present[None]
    require(size, "fit", "a batch in every epoch", f"none in epoch {epoch + 1}", "Pass an iterable, not an iterator")

"""The inputs of a model's first stage: images decoded ahead, or arrays unchanged."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import sides
from tangent_jax.data.decode import size_of
from tangent_jax.data.sources import Examples
from tangent_jax.data.workers import Decoded, Decoder, decode_chunks
from tangent_jax.io.progress import tell
from tangent_jax.models.protocol import Arrays, Model, input_dtype

FEW_PIXELS = 32  # pixels; a model of fewer reads letters, not photographs
OR_SKIP = ", or skip it by skip_unreadable"
"""The end of what the decoders advise for an unreadable image."""


def read_inputs(
    model: Model, examples: Examples, spans: Sequence[Sequence[int]], processes: int, most_pixels: int
) -> Iterator[Decoded]:
    """The inputs of stage 0 for each span of rows, in the model's form: images decoded, arrays unchanged.

    Raises:
        InputError: A row that is not an array of the model's shape and kind of numbers.
    """
    read = examples.read_identified()
    if not isinstance(model.preprocessing, Arrays):
        decoder = Decoder(read, examples.names, model.image_size, model.preprocessing, most_pixels)
        return decode_chunks(decoder, spans, processes)
    return ((np.stack([check_row(model, read(i), examples.names[i]) for i in rows]), {}) for rows in spans)


def check_row(model: Model, row: Any, name: str) -> Shaped[np.ndarray, "..."]:
    """The row in the dtype of a model of arrays; InputError for another shape or kind of numbers."""
    dtype, shape = input_dtype(model), tuple(model.input_shape(0))
    if isinstance(row, np.ndarray) and row.shape == shape and np.can_cast(row.dtype, dtype, "same_kind"):
        value = row.astype(dtype)
        if dtype.kind == "f" or (value == row).all():
            return value
    found = f"{row.dtype}{row.shape}" if isinstance(row, np.ndarray) else type(row).__name__
    rows = ", ".join(map(str, ("n", *shape)))
    raise InputError(
        f"{name} must be an array {dtype}{shape}, as the model reads it; got {found}. Make examples by "
        f"tj.examples(x, targets), x of {dtype} ({rows})"
    )


def check_classes(is_skipped: Bool[np.ndarray, "n"], examples: Examples, model: Model, most_pixels: int) -> None:
    """Raises InputError for a class of a training split without a readable image; prints a line for other splits.

    The data set was checked when it was opened, by the names of its images; only decoding tells which can be read.
    """
    for label in np.unique(examples.labels[is_skipped]) if examples.labels.ndim == 1 else ():
        of_class = np.flatnonzero(examples.labels == label)
        if not is_skipped[of_class].all():
            continue
        cause = cause_of(int(of_class[0]), examples, model, most_pixels)
        count = f"{len(of_class)} of {len(of_class)} images of {examples.class_name(int(label))} cannot be read"
        line = f"{count}, the first because: {cause}"
        if examples.every_class:
            raise InputError(f"{line}; a class needs a readable training image: fix them, or remove the class")
        tell(line)


def cause_of(row: int, examples: Examples, model: Model, most_pixels: int) -> str:
    """Why the image of a row cannot be decoded; it is read again."""
    preprocessing = model.preprocessing
    assert not isinstance(preprocessing, Arrays)  # such rows are not skipped
    decoded = Decoder(examples.read, examples.names, model.image_size, preprocessing, most_pixels)(row)
    if isinstance(decoded, InputError):
        return str(decoded).removesuffix(OR_SKIP)  # this caller skips already
    return f"{examples.names[row]} could not be read before"


def tell_of_small_model(model: Model, examples: Examples) -> None:
    """Warns on stderr if the first image is larger than a model of few pixels, like the embedded one, reads."""
    if isinstance(model.preprocessing, Arrays) or max(sides(model.image_size)) >= FEW_PIXELS or not len(examples):
        return
    with contextlib.suppress(InputError):  # unreadable images are reported when they are decoded
        wide, high = size_of(examples.read(0), examples.names[0])
        rows, columns = sides(model.image_size)
        if min(wide, high) > max(rows, columns):
            reads = f"the model reads {columns} x {rows}: of the embedded weights, which know letters of that size"
            tell(f"the images have {wide} x {high} pixels, and {reads}. Pass weights of a model of photographs")

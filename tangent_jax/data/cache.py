"""Tail inputs, computed once and kept on disk under a fingerprint of all that decides them.

    cache_dir/KEY/inputs.bin      rows in order, one dtype and shape, memory-mapped
    cache_dir/KEY/journal.jsonl   one line per finished chunk: its number, CRC-32 and skipped rows
    cache_dir/KEY/meta.json       what the key was made of, for people

KEY hashes the trunk's weights, the split, the preprocessing, the compute dtype and every image's content.
A chunk is journaled after its bytes are on disk, so an interrupted extraction goes on where it stopped;
a chunk whose bytes are missing or altered fails its CRC and is computed again. A cached lower split of
the same data is continued from, not recomputed.
"""

import fcntl
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax import trees
from tangent_jax.checks import InputError, refusal
from tangent_jax.config import ViTConfig
from tangent_jax.data.decode import decode, decode_ahead
from tangent_jax.data.sources import Examples
from tangent_jax.notation import Tree
from tangent_jax.progress import progress_bar
from tangent_jax.subsets import IMAGES
from tangent_jax.vit import ViT, tail_shape
from tangent_jax.weights import Preprocessing, Pretrained

CHUNK = 64  # rows per journal line


class TailInputs(NamedTuple):
    """What the tail trains on: inputs "n ...", labels "n", (content identifier, name) of each, images skipped."""

    inputs: np.ndarray
    labels: np.ndarray
    examples: tuple[tuple[str, str], ...]
    skipped: int

    def take(self, rows: np.ndarray) -> "TailInputs":
        """The examples at `rows`, in that order."""
        return TailInputs(self.inputs[rows], self.labels[rows], tuple(self.examples[i] for i in rows), self.skipped)


def tail_inputs(
    model: Pretrained,
    examples: Examples,
    split: int,
    cache_dir: str | os.PathLike,
    *,
    dtype: Any = None,
    stored: Any = None,
    skip_unreadable: bool = False,
    progress: str | None = None,
) -> TailInputs:
    """The input of block `split` for every example, from the cache or computed now.

    Args:       split: as in `ViT.trunk`; IMAGES keeps the decoded uint8 images;
                dtype: the trunk's compute dtype (None: float32); stored: the cache's, such as jnp.float16
                (None: the compute dtype);
                skip_unreadable: leave unreadable images out and count them;
                progress: the title of the bar on stderr, or None.
    Returns:    TailInputs; `inputs` is a read-only memory map unless rows were skipped.
    Raises:     InputError naming the first unreadable image, unless they are skipped.
    """
    folders = {s: Path(cache_dir).expanduser() / key for s, key in keys(model, examples, split, dtype, stored).items()}
    shape, kind = row_of(model.config, split, stored or dtype)
    folder = folders[split]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        store = Store(folder, len(examples), shape, kind)
        missing = store.missing()
        if missing:
            (folder / "complete").unlink(missing_ok=True)
            (folder / "meta.json").write_text(
                json.dumps({"split": split, "rows": len(examples), "source": model.source})
            )
            lower = next(whole_below(model.config, folders, len(examples), split, stored or dtype), None)
            if lower is None:
                rows = from_images(model, examples, split, dtype, missing, skip_unreadable)
            else:
                rows = from_lower(model, *lower, split, dtype, missing)
            done = len(examples) - sum(len(store.rows(chunk)) for chunk in missing)
            with progress_bar(progress, len(examples), "image", done) as bar:
                for chunk, (values, skipped) in zip(missing, rows, strict=True):
                    store.write(chunk, values, skipped)
                    bar.update(len(values))
            (folder / "complete").touch()
        inputs, skipped = store.inputs, sorted(store.skipped)
    if skipped and not skip_unreadable:
        raise refusal(
            "tail_inputs",
            "readable images",
            f"{len(skipped)} unreadable, first {examples.names[skipped[0]]}",
            "Mend or remove it, or pass --skip_unreadable",
        )
    pairs = tuple(zip(examples.identifiers(), examples.names, strict=True))
    found = TailInputs(inputs, examples.labels, pairs, len(skipped))
    return found.take(np.setdiff1d(np.arange(len(examples)), skipped)) if skipped else found


def keys(model: Pretrained, examples: Examples, split: int, dtype: Any, stored: Any = None) -> dict[int, str]:
    """The cache key of every split up to `split`: weights are hashed leaf by leaf, once."""
    config, identifiers = model.config, "".join(examples.identifiers())
    leaves = {path: trees.fingerprint(leaf) for path, leaf in trees.leaves(model.params).items()}
    shared = [
        config.image_size,
        config.heads,
        config.activation,
        config.epsilon,
        config.pre_norm,
        str(model.preprocessing),
        str(jnp.dtype(dtype or jnp.float32)),
        str(jnp.dtype(stored or dtype or jnp.float32)),
        hashlib.sha256(identifiers.encode()).hexdigest(),
    ]

    def below(path: str, split: int) -> bool:
        if path.startswith("block_"):
            return int(path.split("/")[0][6:]) < split
        return split != IMAGES and not path.startswith(("norm/", "head/", "new_class_token"))

    made = {}
    for s in {*range(split), IMAGES, split}:
        at = config.class_token_at
        replaced = [at, leaves["new_class_token"]] if at is not None and at < s else None
        trunk = [
            s,
            config.pool if s >= config.depth - 1 else "",
            replaced,
            sorted((path, digest) for path, digest in leaves.items() if below(path, s)),
        ]
        made[s] = hashlib.sha256(json.dumps([shared, trunk]).encode()).hexdigest()[:24]
    return made


def row_of(config: ViTConfig, split: int, dtype: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one row of the cache."""
    if split == IMAGES:
        return (config.image_size, config.image_size, 3), np.dtype(np.uint8)
    return tail_shape(config, split), np.dtype(dtype or np.float32)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock; a second process waits, and says so."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for the process that fills {path.parent}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Store:
    """The rows of one key on disk, chunk by chunk."""

    def __init__(self, folder: Path, count: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.count, self.journal = count, folder / "journal.jsonl"
        path, size = folder / "inputs.bin", count * int(np.prod(shape)) * dtype.itemsize
        if not path.exists() or path.stat().st_size != size:
            with path.open("ab") as file:
                file.truncate(size)
        self.data = np.memmap(path, dtype, "r+", shape=(count, *shape))
        self.inputs = np.memmap(path, dtype, "r", shape=(count, *shape))
        self.skipped: set[int] = set()

    def rows(self, chunk: int) -> range:
        return range(chunk * CHUNK, min(self.count, (chunk + 1) * CHUNK))

    def checksum(self, chunk: int) -> int:
        rows = self.rows(chunk)
        return zlib.crc32(np.ascontiguousarray(self.inputs[rows.start : rows.stop]).view(np.uint8).data)

    def missing(self) -> list[int]:
        """The chunks that are not there whole and unaltered."""
        found: dict[int, dict] = {}
        for line in self.journal.read_text().splitlines() if self.journal.exists() else []:
            try:
                entry = json.loads(line)
                found[entry["chunk"]] = entry
            except (ValueError, KeyError):
                continue  # a line cut short by a kill
        chunks = range(-(-self.count // CHUNK))
        good = {c for c in chunks if c in found and found[c]["crc"] == self.checksum(c)}
        self.skipped = {row for c in good for row in found[c]["skipped"]}
        return [c for c in chunks if c not in good]

    def write(self, chunk: int, values: np.ndarray, skipped: list[int]) -> None:
        rows = self.rows(chunk)
        self.data[rows.start : rows.stop] = values
        self.data.flush()
        entry = {"chunk": chunk, "crc": self.checksum(chunk), "skipped": [rows.start + i for i in skipped]}
        with self.journal.open("a") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(entry))
            file.flush()
            os.fsync(file.fileno())
        self.skipped.update(entry["skipped"])


@partial(jax.jit, static_argnames=("config", "split", "dtype", "preprocessing"))
def trunk(w: Tree, images: Array, config: ViTConfig, split: int, dtype: Any, preprocessing: Preprocessing) -> Array:
    """uint8 images to the input of block `split`."""
    return ViT(config, dtype).apply({"params": w}, preprocessing.normalize(images), split, method="trunk")  # pyright: ignore


@partial(jax.jit, static_argnames=("config", "start", "split", "dtype"))
def between(w: Tree, x: Array, config: ViTConfig, start: int, split: int, dtype: Any) -> Array:
    """The input of block `start` to that of block `split`."""
    return ViT(config, dtype).apply({"params": w}, x, start, split, method="between")  # pyright: ignore


def in_batches(run: Callable[[Any], Array], x: np.ndarray) -> np.ndarray:
    """`run` over x in batches of one shape; small ones on a CPU, where they stay in its caches."""
    size = 8 if jax.default_backend() == "cpu" else CHUNK
    parts = []
    for start in range(0, len(x), size):
        batch = x[start : start + size]
        padded = np.concatenate([batch, np.zeros((size - len(batch), *x.shape[1:]), x.dtype)])
        parts.append(run(padded)[: len(batch)])
    return np.concatenate([np.asarray(part) for part in parts])


Rows = Iterator[tuple[np.ndarray, list[int]]]


def from_images(model: Pretrained, examples: Examples, split: int, dtype: Any, chunks: list[int], skip: bool) -> Rows:
    """Chunks computed from the images, which are decoded ahead in threads."""
    size = model.config.image_size
    wanted = [range(c * CHUNK, min(len(examples), (c + 1) * CHUNK)) for c in chunks]
    jobs = (
        partial(lambda i: decode(examples.read(i), examples.names[i], size, model.preprocessing), i)
        for rows in wanted
        for i in rows
    )
    decoded = decode_ahead(jobs, workers=os.cpu_count() or 1, ahead=2 * CHUNK)
    for rows in wanted:
        images, skipped = np.zeros((len(rows), size, size, 3), np.uint8), []
        for i in range(len(rows)):
            result = next(decoded)
            if isinstance(result, InputError):
                if not skip:
                    raise result
                skipped.append(i)
            else:
                images[i] = result
        if split == IMAGES:
            yield images, skipped
        else:
            yield (
                in_batches(lambda x: trunk(model.params, x, model.config, split, dtype, model.preprocessing), images),
                skipped,
            )


def whole_below(
    config: ViTConfig, folders: dict[int, Path], count: int, split: int, dtype: Any
) -> Iterator[tuple[int, Store]]:
    """The cached lower splits of the same data that are complete and unaltered, the nearest first."""
    for lower in sorted((s for s in folders if s < split), reverse=True):
        if (folders[lower] / "complete").exists():
            below = Store(folders[lower], count, *row_of(config, lower, dtype))
            if not below.missing():
                yield lower, below


def from_lower(model: Pretrained, start: int, below: Store, split: int, dtype: Any, chunks: list[int]) -> Rows:
    """Chunks computed from the cached input of a lower block."""
    for chunk in chunks:
        rows = below.rows(chunk)
        x = np.asarray(below.inputs[rows.start : rows.stop])
        if start == IMAGES:
            values = in_batches(lambda x: trunk(model.params, x, model.config, split, dtype, model.preprocessing), x)
        else:
            values = in_batches(lambda x: between(model.params, x, model.config, start, split, dtype), x)
        yield values, [row - rows.start for row in below.skipped if row in rows]

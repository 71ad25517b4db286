"""Data sets by name: `open_dataset(spec)`. A new archive is one more entry in `archives.ARCHIVES`."""

from tangent_jax.core import require
from tangent_jax.data.archives import ARCHIVES
from tangent_jax.data.sources import Dataset, digits, existing, folder, tfds

KNOWN = "digits, folder:PATH, tfds:NAME, " + ", ".join(f"{name}:PATH" for name in ARCHIVES)


def open_dataset(spec: str) -> Dataset:
    """The data set that a specification names: digits, folder:PATH, tfds:NAME[@DATA_DIR], or ARCHIVE:PATH.

    Source: sources.py and archives.py say what each must hold.
    Raises: InputError for an unknown kind, a missing path, a class without images, fewer than two classes.
    """
    kind, _, where = spec.partition(":")
    if kind == "digits":
        return digits()
    openers = {"folder": folder, "tfds": tfds}
    require((kind in openers or kind in ARCHIVES) and where, "open_dataset", f"one of {KNOWN}", spec)
    return openers[kind](where) if kind in openers else ARCHIVES[kind](existing(where))

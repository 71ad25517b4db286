"""Cached rows at a URL: fetched before rows are computed, and copied there when all are complete (remote/snapshots.py).

    URL/TRUNK-IMAGES/    the files of a folder of cached rows, without `complete`, which describes one disk

Every fetched chunk is checked against its checksum before it is read, like rows on a disk that changed.
"""

from pathlib import Path

from tangent_jax.features.layout import holds_rows
from tangent_jax.io.files import file_fingerprint
from tangent_jax.remote.snapshots import Remote

JOURNAL = "journal.jsonl"


def fetch_rows(url: str | None, folder: Path) -> None:
    """Fetches a URL's rows into a folder without rows; after a kill, the others count as missing."""
    if url is None or holds_rows(folder):
        return
    remote = Remote(f"{url}/{folder.name}")
    objects = remote.fetch(folder / "objects")
    for name, whole in sorted(remote.files.items(), key=lambda pair: (pair[0] == JOURNAL, pair)):
        if Path(name).name == name and name not in ("lock", "complete"):
            (objects / whole).replace(folder / name)
    if remote.files:
        objects.rmdir()


def share_rows(url: str | None, folder: Path) -> None:
    """Copies the rows of a folder to a URL, unless it has them; without a URL it does nothing."""
    if url is None:
        return
    remote = Remote(f"{url}/{folder.name}")
    if remote.files.get(JOURNAL) == file_fingerprint(folder / JOURNAL):
        return
    names = [path.name for path in folder.iterdir() if path.is_file() and path.name not in ("lock", "complete")]
    remote.push(folder, {name: file_fingerprint(folder / name) for name in names if not name.endswith(".partial")})

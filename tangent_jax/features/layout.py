"""The files of cached rows: the rows of each file, and its folder.

    FOLDER/inputs.bin, inputs-1.bin, ...    at most FILE_BYTES each, alternating over the folders
    FOLDER/layout.json                      in each folder: the rows per file, and all the folders

Without a layout.json one file holds all rows. Rows stay where their layout says, even if other folders are given later.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from tangent_jax.core.checks import require
from tangent_jax.io.files import write_whole
from tangent_jax.io.records import convert, parse_json

CHUNK = 64  # rows of a chunk, which lies in one file
FILE_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class Layout:
    """The number of rows per file, and the folders that hold the files in turn, relative to the layout's own."""

    rows_per_file: int
    folders: tuple[str, ...]

    def path(self, folder: Path, number: int) -> Path:
        """The path of a file; `folder` is where the layout was read."""
        return folder / self.folders[number % len(self.folders)] / (f"inputs-{number}.bin" if number else "inputs.bin")


def read_layout(folder: Path, count: int) -> Layout:
    """The layout of a folder; if there is none, one file holds all `count` rows."""
    path = folder / "layout.json"
    if not path.exists():
        return Layout(max(1, count), (".",))
    layout = convert(Layout, parse_json(path.read_bytes(), path), path)
    require(layout.rows_per_file >= 1 and layout.folders, "read_layout", f"rows and folders in {path}", "none")
    return layout


def make_layout(folders: Sequence[Path], count: int, nbytes: int, file_bytes: int | None = None) -> Layout:
    """Writes and returns the layout of new rows of `nbytes` each; a chunk lies in one file; None: of FILE_BYTES."""
    rows_per_file = max(CHUNK, (file_bytes or FILE_BYTES) // max(1, nbytes) // CHUNK * CHUNK)
    if rows_per_file >= count:
        return Layout(max(1, count), (".",))
    for own in reversed(folders):  # the first folder's is written last: it makes the rows exist
        layout = Layout(rows_per_file, tuple("." if other == own else str(other) for other in folders))
        write_whole(own / "layout.json", json.dumps(dataclasses.asdict(layout)))
    return read_layout(folders[0], count)


def holds_rows(folder: Path) -> bool:
    """True for a folder of cached rows, or of a part of them."""
    return (folder / "layout.json").exists() or (folder / "inputs.bin").exists()


def first_folder(folders: Sequence[Path]) -> Path:
    """The folder with the rows' journal; the first one if none has it."""
    for folder in filter(holds_rows, folders):
        first = folder / read_layout(folder, 0).folders[0]
        check_there(first, folder)
        return first
    return folders[0]


def check_together(folder: Path, first: Path) -> None:
    """Raises InputError if a layout names a folder whose own layout does not name the same folders.

    A folder of rows may come from another party, and its layout may name any folder of this machine.
    """
    of = [folder / name for name in read_layout(folder, 0).folders]
    for other in (other for other in of if other.is_dir()):
        said = [other / name for name in read_layout(other, 0).folders] if holds_rows(other) else []
        alike = len(of) == 1 or [*map(resolve, said)] == [*map(resolve, of)]
        do = "Delete the folder yourself if it is yours"
        require(alike, "cache", f"a folder of rows that belongs to {first}", f"{other}, which does not say so", do)


def resolve(path: Path) -> Path:
    """The absolute path without links."""
    return path.resolve()


def check_there(folder: Path, other: Path) -> None:
    """Raises InputError for a missing folder of rows, such as a disk that is not mounted."""
    do = f"Mount its disk, or delete {other}"
    require(folder.is_dir(), "cache", f"the folder {folder}, which holds rows together with {other}", "none", do)

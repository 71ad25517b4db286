"""The list of backups and copies that a store's operator keeps beside it, with the days on which they end.

    STORE.backups.toml, in the folder that the store STORE is in:

    [[copy]]
    what = "nightly backup of the server"
    where = "s3://backups/models"
    until = 2027-01-31        # the day on which it is deleted or overwritten; without it the copy has no end

The library does not look for these copies and deletes none: it prints the list where a removal does not reach.
"""

import dataclasses
import datetime
import tomllib
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import convert, read_text


@dataclasses.dataclass(frozen=True)
class Backup:
    """A copy that no removal reaches: what it is, where it lies, the day on which it ends (None: it has no end)."""

    what: str
    where: str
    until: Any = None

    def __post_init__(self) -> None:
        """Raises InputError for an empty text, and for an end that is no day."""
        for name, value in (("what", self.what), ("where", self.where)):
            if not value.strip():
                raise InputError(f"{name} of a copy must be a text; got an empty one")
        if self.until is not None and type(self.until) is not datetime.date:  # a datetime is a date, too
            raise InputError(f"until of {self.what} must be a day without quotes, such as 2027-01-31; got {self.until}")


@dataclasses.dataclass(frozen=True)
class Backups:
    """The list: `copy` has a Backup for each [[copy]]; `copy = []` says that there is none."""

    copy: tuple[Backup, ...]


def backups_file(root: Path) -> Path:
    """The file of the list: beside the store, as the store does not verify with a foreign file in it."""
    return root.with_name(f"{root.name}.backups.toml")


def read_backups(root: Path) -> tuple[Backup, ...] | None:
    """The backups and copies of the store in `root`, None if there is no list.

    Raises: InputError for a list with an unknown, missing or wrong field.
    """
    path = backups_file(root)
    if not path.exists():
        return None
    try:
        fields = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} must be TOML; {error}") from error
    except OSError as error:
        raise InputError(f"{path} must be a file that can be read; {error.strerror}") from error
    try:
        return convert(Backups, fields, path).copy
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error

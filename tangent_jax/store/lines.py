"""The lines of a store's journal: one dataclass for each operation, parsed and checked once, where they are read.

{"op": "add", "time": "2026-11-26T15:00:00Z", "name": "ann", "entry": {"id": ...}}    ->    Add(...)
"""

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError, one_of
from tangent_jax.io.records import convert
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.receipts import is_name

IDENTITY = re.compile("[0-9a-f]{16}")
SPELLINGS = {
    "time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").fullmatch,
    **dict.fromkeys(("id", "receipt"), IDENTITY.fullmatch),
    **dict.fromkeys(("name", "names", "removed", "added", "showed"), is_name),
}
"""The check of a field's texts; those of any other field are printable, so that no line moves a terminal's cursor."""


def timestamp() -> str:
    """The present time (UTC), as journals and receipts state it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A record whose texts are spelled as a store writes them: no identity leads out of its folder."""

    def __post_init__(self) -> None:
        """Raises InputError for a text that no store writes."""
        for field, value in vars(self).items():
            is_valid = SPELLINGS.get(field, str.isprintable)
            for text in [value] if isinstance(value, str) else value if isinstance(value, (tuple, dict)) else ():
                if isinstance(text, str) and not is_valid(text):
                    raise InputError(f"{field} must be as a store writes it; got {text!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Checked):
    """A line; time: when it was committed, in UTC."""

    time: str = dataclasses.field(default_factory=timestamp)

    @property
    def adds(self) -> list[str]:
        """The names of the components that it brings in."""
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry(Checked):
    """A file of the store.

    Attributes:
        id: The file's name in the folder of its kind.
        weights: The fingerprint of its numbers.
        file, crc: The SHA-256 and the CRC-32 of its bytes.
        origin: The SHA-256 of its provenance.
        factors: The file of its Kronecker factors.
    """

    id: str
    weights: str
    file: str
    origin: str
    crc: str
    factors: "Entry | None" = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported(Checked):
    """An export: its components, its folder, and the fingerprint of the exported sum."""

    names: tuple[str, ...]
    path: str
    result: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released(Checked):
    """The account of a component that was composed or exported and then removed: its cost still counts.

    Attributes:
        privacy: None without an account.
        examples, public: Hidden units and public images (keys.py).
    """

    privacy: Spent | None = None
    examples: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add(Line):
    """A component was added; shown: it was composed or exported before it came here."""

    name: str
    entry: Entry
    shown: bool = False

    @property
    def adds(self) -> list[str]:
        """The component's name."""
        return [self.name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compose(Line):
    """All components were composed; result: the fingerprint of the composition."""

    names: tuple[str, ...]
    result: str
    merge: str = "mean"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Line):
    """All components were exported."""

    export: Exported


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discard(Line):
    """Components were taken out, to be replaced; their examples may return."""

    removed: tuple[str, ...]
    released: tuple[Released, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove(Discard):
    """Components were removed, and others trained again; names: the survivors; composed: the fingerprint of their sum.

    Attributes:
        forgotten: The hidden identifiers (keys.py) of images that must not return.
    """

    added: dict[str, Entry] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ()
    composed: str | None = None
    receipt: str
    receipt_hash: str
    forgotten: tuple[str, ...] = ()

    @property
    def adds(self) -> list[str]:
        """The components that were trained again."""
        return sorted(self.added)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge(Line):
    """Components of another store came in; released, exports, showed: what that store had done with them."""

    of: str
    released: tuple[Released, ...]
    exports: tuple[Exported, ...]
    showed: tuple[str, ...]


KINDS = (Add, Compose, Export, Discard, Remove, Merge)
OPERATIONS = {kind.__name__.lower(): kind for kind in KINDS}


def parse(fields: dict[str, Any]) -> Line:
    """The line of these fields; InputError for an operation that this version does not know, or wrong fields."""
    operation = one_of("op", str(fields.get("op")), OPERATIONS)
    if "time" not in fields:
        raise InputError("the field time is missing")
    return convert(OPERATIONS[operation], {name: value for name, value in fields.items() if name != "op"}, operation)


def spell(line: Line) -> dict[str, Any]:
    """The fields of a line as JSON has them: the inverse of `parse`."""
    fields = {name: value for name, value in dataclasses.asdict(line).items() if value is not None}
    return {"op": type(line).__name__.lower(), **fields}


def partial_of(folder: Path, fingerprint: str) -> Path:
    """The folder in which an export of this fingerprint is written, before it becomes `folder`; a kill leaves it."""
    return folder.parent / f"{folder.name}.{fingerprint[:8]}.partial"

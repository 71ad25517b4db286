"""Receipts of removals, files that the journal of their store commits, and the check of one.

A receipt names its store and the journal's last line before the removal; the journal names the receipt's hash. So a
receipt that was edited or forged is told from one of another store.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import NamedTuple

from tangent_jax.core import InputError, require
from tangent_jax.core.boundary import public, public_class
from tangent_jax.core.files import fingerprint, open_plain
from tangent_jax.core.records import convert, parse_json

STATEMENT = (
    "The components named, and every composition that held them, are deleted from this store, and what is composed now "
    "is bitwise the composition of the survivors and the retrained alone. A retrained component saw only the examples "
    "it retains; but one under optima was moved to their optimum from the removed component, and only its certificate "
    "bounds how far it is from there. What else this library had written of the removed images, where the components' "
    "provenance names it, is listed under deleted; what it knows of and left alone, under not_reached. Not covered: "
    "the pre-trained anchor, settings chosen with the removed data, models in other folders that saw the same images, "
    "and copies or backups made by other programs. A distance bound is |grad L_retain(dw)| / lambda: a retrained "
    "component of a tangent is at most that far, in L2, from the optimum on the data it retains; for one under optima "
    "Lambda is what it was before the examples left."
)


NAME = re.compile(r"[\w.@+\-]+( [\w.@+\-]+)*")


class Traces(NamedTuple):
    """The work of a removal outside its store: a line for all that it deleted, and for all that it could not reach."""

    deleted: list[str]
    not_reached: list[str]


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The move of a component to the optimum of its remaining data.

    `total_penalty`: Lambda, which stays what it was; `certificate_before`, `certificate`: how far at most, in L2, the
    component was from that optimum and is now; `passes`: over the data; `converged`: as close as was asked for.
    """

    total_penalty: float
    certificate_before: float
    certificate: float
    passes: int
    converged: bool


@public_class
@dataclasses.dataclass(frozen=True)
class Receipt:
    """The record of a removal; components are named by their fingerprints.

    `asked`: the examples that it answers; `owner`: whose they are, where all of an owner's had to go; `deleted`: what
    it deleted besides the store's own files; `not_reached`: what it knows to hold the removed images or what was
    trained on them, and could not or must not delete; `optima`: of retrained components that are optima; `path`: the
    receipt's file, which does not say so itself.
    """

    removed: dict[str, str]
    retrained: dict[str, str]
    survivors: dict[str, str]
    composed_before: str | None
    composed_after: str | None
    exported_before: tuple[str, ...]
    asked: tuple[str, ...]
    distance_bounds: dict[str, float]
    statement: str = STATEMENT
    deleted: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()
    optima: dict[str, Optimum] = dataclasses.field(default_factory=dict)
    store: str = ""
    journal: str = ""
    owner: str | None = None
    path: Path = Path()


def receipt_text(receipt: Receipt) -> str:
    """The text of a receipt's file."""
    fields = dataclasses.asdict(receipt)
    return json.dumps({name: value for name, value in fields.items() if name != "path"}, indent=1) + "\n"


@public
def read_receipt(path: Path) -> tuple[Receipt, str]:
    """(the receipt of a file, the fingerprint of its text)."""
    try:
        with open_plain(path, "rb") as file:
            content = file.read()
        receipt = convert(Receipt, parse_json("verify_receipt", content, path), "verify_receipt", path)
        return dataclasses.replace(receipt, path=path), fingerprint(content)
    except InputError as error:
        raise InputError(f"verify_receipt: expected a receipt of a removal; got {path} ({error})") from error
    except OSError as error:
        raise InputError(f"verify_receipt: expected a receipt; got {path} ({error.strerror})") from error


def check_spelling(name: str) -> None:
    """Raises InputError for what is no name of a component; those of contributors may be e-mail addresses."""
    expected = "a name of letters, digits, '.', '-', '_', '@', '+', single spaces"
    require(is_name(name), "Store.add", expected, repr(name))


def is_name(name: object) -> bool:
    """True for what can name a component, in a journal too: no character moves a cursor or leaves a folder."""
    return isinstance(name, str) and bool(NAME.fullmatch(name))

"""Receipts of removals: files that the store's journal commits, and their check.

A receipt names its store and the last journal line before the removal; the journal holds the receipt's hash. So an
edited or forged receipt, and one of another store, are detected and distinguished.
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
    "the pre-trained anchor, anchors that removed images moved in earlier rounds (under anchors; repeat those rounds), "
    "settings chosen with the removed data, models in other folders that saw the same images, "
    "and copies or backups made by other programs. A distance bound is |grad L_retain(dw)| / lambda: a retrained "
    "component of a tangent is at most that far, in L2, from the optimum on the data it retains; for one under optima "
    "Lambda is what it was before the examples left."
)


NAME = re.compile(r"[\w.@+\-]+( [\w.@+\-]+)*")


class Traces(NamedTuple):
    """The effect of a removal outside its store: a line for each deletion, and for each copy out of reach."""

    deleted: list[str]
    not_reached: list[str]


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The move of a component to the optimum on its remaining data.

    `total_penalty`: Lambda, unchanged; `certificate_before`, `certificate`: bounds on the L2 distance to that optimum
    before and after; `passes`: over the data; `converged`: True if the requested certificate was reached.
    """

    total_penalty: float
    certificate_before: float
    certificate: float
    passes: int
    converged: bool


@public_class
@dataclasses.dataclass(frozen=True)
class Receipt:
    """The record of a removal; fingerprints name the components.

    `asked`: the requested examples; `owner`: the owner, if all images of one were requested; `deleted`: deletions
    outside the store; `not_reached`: known copies of the images, or of weights trained on them, that it could not or
    must not delete; `anchors`: a line for each remaining anchor that removed images moved; `optima`: of retrained
    components that are optima; `path`: the receipt's file, which is not part of its text.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"]))
    >>> [*receipt.removed], [*receipt.survivors]
    (['bob'], ['ann'])
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
    anchors: tuple[str, ...] = ()
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
    """(the receipt in a file, the hash of its text).

    >>> store = demo.store()
    >>> path = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"])).path
    >>> [*tj.store.read_receipt(path)[0].removed], store.verify_receipt(path)
    (['bob'], [])
    """
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
    """Raises InputError for an invalid component name; e-mail addresses are valid."""
    expected = "a name of letters, digits, '.', '-', '_', '@', '+', single spaces"
    require(is_name(name), "Store.add", expected, repr(name))


def is_name(name: object) -> bool:
    """True for a valid component name: printable, moves no cursor in a journal, leaves no folder."""
    return isinstance(name, str) and bool(NAME.fullmatch(name))

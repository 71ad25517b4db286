"""Receipts of removals: files that the store's journal commits, and their check.

A receipt names its store and the last journal line before the removal; the journal holds the receipt's hash. So an
edited or forged receipt, and one of another store, are detected and distinguished.

The file is an in-toto Statement, which auditors' tools read. Its subject is the journal as it was before the removal,
and the composition after it; its predicate, of the type RECEIPT, has the fields of `Receipt`.
docs/reference/receipts.md describes each.
"""

import dataclasses
import json
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tangent_jax.core.checks import InputError, one_of, visible
from tangent_jax.core.names import composed_name
from tangent_jax.io.files import fingerprint, open_plain
from tangent_jax.io.records import convert, parse_json
from tangent_jax.store.keys import Key

STATEMENT = "https://in-toto.io/Statement/v1"
RECEIPT = "urn:tangent-jax:removal-receipt:v1"
"""The type of a receipt's predicate."""
DELETED = (
    "The removed components are deleted from this store. What is composed now is bit for bit the composition of the "
    "survivors alone."
)
RETRAINED = (
    "A retrained component was trained from zero on the images that stay. One under distance_bounds is at most that "
    "far, in L2, from the optimum on these images: the bound is |grad L(dw)| / lambda."
)
MOVED = (
    "A retrained component was not trained from zero: it was moved from the removed component to the optimum on the "
    "images that stay. Its certificate, under optima, bounds the distance, and is not a privacy guarantee."
)
COUNTED = "The penalty Lambda of a component under optima still counts the removed images."
LIMITS = (
    "Deleted files of the store, and cached rows of the removed images that were overwritten, are listed under "
    "deleted. Other caches, results of runs, exports and copies that are known are listed under not_reached, and were "
    "left alone. Not covered: the pre-trained anchor, and one that was fine-tuned on removed images (under anchors); "
    "settings chosen with the removed data; models in other folders that saw the same images; copies and backups of "
    "other programs."
)


def statement(how: str, solved: bool) -> str:
    """The guarantee of a removal in words; `how`: of WAYS; `solved`: if components under optima were put back."""
    of_way = {"drop": [], "retrain": [RETRAINED], "exact": [MOVED]}[how]
    return " ".join([DELETED, *of_way, *[COUNTED] * solved, LIMITS])


NAME = re.compile(r"[\w.@+\-]+( [\w.@+\-]+)*")


TRACES = {
    "component": "the component {component}",
    "factors": "the factors of {component}",
    "rows": "{rows} rows of removed images",
    "index": "identifiers and names of removed images",
    "export": "an export of a removed component",
    "unfinished export": "an export of a removed component that was killed",
    "run": "a cache, or results of a run",
    "data set": "the data set",
    "store": "another store",
    "part": "a part of a store",
}
"""The kinds of traces, in words."""


@dataclasses.dataclass(frozen=True)
class Trace:
    """A place that holds, or held, something of what was removed.

    Attributes:
        kind: One of TRACES.
        path: A file, folder or URL, or a data set as `open_dataset` takes it.
        component: Whose file it is.
        rows: How many rows were erased.
        why: The reason why a place in the cache was not reached.

    >>> str(tj.store.Trace("rows", "cache", rows=3)), str(tj.store.Trace("rows", "cache", why="No space left"))
    ('cache: 3 rows of removed images', 'cache: rows of removed images (No space left)')
    """

    kind: str
    path: str
    component: str | None = None
    rows: int | None = None
    why: str | None = None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, TRACES)

    def __str__(self) -> str:
        what = TRACES[self.kind].format(component=self.component, rows="" if self.rows is None else self.rows).strip()
        return visible(f"{self.path}: {what}" + (f" ({self.why})" if self.why else ""))


class Traces(NamedTuple):
    """The effect of a removal: what it deleted, and the known places that it does not reach."""

    deleted: tuple[Trace, ...]
    not_reached: tuple[Trace, ...]


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The solve of a component on its remaining data, from the removed component or from zero.

    Attributes:
        total_penalty: Lambda, unchanged.
        certificate_before, certificate: Bounds on the L2 distance to the optimum at its start and at its end.
        passes: Over the data.
        converged: True if the requested certificate was reached.
    """

    total_penalty: float
    certificate_before: float
    certificate: float
    passes: int
    converged: bool


@dataclasses.dataclass(frozen=True)
class Receipt:
    """The record of a removal.

    Attributes:
        removed, retrained: Fingerprints of components, by name.
        survivors: Those of all that the store held afterwards, by name, both hidden, as names may be those of other
            people.
        composed_before, composed_after: Fingerprints of the composition. All but the last are in hidden form (keys.py):
            one who trains a component of few images again must not find it here.
        how: The way, of WAYS.
        asked: The words of the request.
        owner: The owner, if all images of one were requested.
        unseen: Identifiers of requested images that no component saw; these three in hidden form (keys.py), so that
            only with the store's key can anyone test whether a photograph or a person is listed.
        deleted: Files of the store, and rows in the cache.
        not_reached: Known places of the images, or of weights trained on them, that were left alone, with exports.
        anchors: A line for each anchor that was fine-tuned on removed images.
        optima: The solves of retrained components that are optima.
        time: In UTC.
        path: The receipt's file, which is not part of its text.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"]))
    >>> [*receipt.removed], len(receipt.survivors)
    (['bob'], 1)
    """

    removed: dict[str, str]
    retrained: dict[str, str]
    survivors: dict[str, str]
    composed_before: str | None
    composed_after: str | None
    asked: tuple[str, ...]
    distance_bounds: dict[str, float]
    statement: str
    unseen: tuple[str, ...] = ()
    deleted: tuple[Trace, ...] = ()
    not_reached: tuple[Trace, ...] = ()
    anchors: tuple[str, ...] = ()
    optima: dict[str, Optimum] = dataclasses.field(default_factory=dict)
    store: str = ""
    journal: str = ""
    owner: str | None = None
    how: str = ""
    time: str = ""
    path: Path = Path()


def survivors_of(weights: Mapping[str, str], key: Key) -> dict[str, str]:
    """The components of a store as a receipt lists them: hidden names and fingerprints, sorted by hidden name."""
    return dict(sorted((key.hide(name), key.hide(of_weights)) for name, of_weights in weights.items()))


def receipt_text(receipt: Receipt) -> str:
    """The text of a receipt's file: an in-toto Statement."""
    fields = dataclasses.asdict(receipt)
    del fields["path"]
    subject = {"journal": receipt.journal}
    if receipt.composed_after is not None:
        subject["composition"] = receipt.composed_after
    artefacts = [{"name": name, "digest": {"sha256": digest}} for name, digest in subject.items()]
    whole = {"_type": STATEMENT, "subject": artefacts, "predicateType": RECEIPT, "predicate": fields}
    return json.dumps(whole, indent=1) + "\n"


def read_receipt(path: Path) -> tuple[Receipt, str]:
    """(the receipt in a file, the hash of its text).

    >>> store = demo.store()
    >>> path = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"])).path
    >>> [*tj.store.read_receipt(path)[0].removed], tj.store.verify_receipt(store, path)
    (['bob'], [])
    """
    try:
        with open_plain(path, "rb") as file:
            content = file.read()
        fields = parse_json(content, path)
        kind = (fields.get("_type"), fields.get("predicateType"))
        if kind != (STATEMENT, RECEIPT):
            raise InputError(f"its type must be {STATEMENT} with {RECEIPT}; got {kind[0]} with {kind[1]}")
        receipt = convert(Receipt, fields.get("predicate"), path)
        return dataclasses.replace(receipt, path=path), fingerprint(content)
    except InputError as error:
        raise InputError(f"{path} must be a receipt of a removal ({error})") from error
    except OSError as error:
        raise InputError(f"{path} must be a receipt of a removal ({error.strerror})") from error


def check_spelling(name: str) -> None:
    """Raises InputError for an invalid component name; e-mail addresses are valid."""
    if not is_name(name):
        raise InputError(
            f"a component's name must be of letters, digits, '.', '-', '_', '@', '+', single spaces; got {name!r}"
        )


def is_name(name: object) -> bool:
    """True for a valid component name, in NFC: printable, moves no cursor in a journal, leaves no folder."""
    if not isinstance(name, str) or name != composed_name(name):
        return False
    marks = {char for char in name if unicodedata.category(char)[0] == "M"}  # vowels of Hindi, which are no letters
    return bool(NAME.fullmatch("".join(char for char in name if char not in marks)))

"""Shards: disjoint sets of rows that together hold every example."""

import csv
import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from tangent_jax.core.checks import InputError, finite_number, whole_number
from tangent_jax.core.names import caseless_name, normal_name, other_spellings
from tangent_jax.core.owners import Owner
from tangent_jax.data.columns import options
from tangent_jax.data.csv_file import divider
from tangent_jax.io.paths import passing_copy
from tangent_jax.io.records import read_text, short

FILES = ("file", "path", "image", "filename", "file_name")
"""Names of the column of files in a CSV of owners."""


def uniform(count: int, shards: int, seed: int) -> list[Int[np.ndarray, "_"]]:
    """Equal shards of a seeded shuffle, as in the paper; adding or removing an example moves others.

    Returns:
        `shards` sorted arrays of rows of 0..count-1; sizes differ by at most one.

    >>> [len(rows) for rows in tj.shards.uniform(10, 3, seed=0)]
    [4, 3, 3]
    """
    whole_number("shards", shards, 1, count)
    return [np.sort(rows) for rows in np.array_split(np.random.default_rng(seed).permutation(count), shards)]


def by_identifier(identifiers: Sequence[str], shards: int) -> list[Int[np.ndarray, "_"]]:
    """Shards by content identifier: adding or removing an example moves no other.

    Returns:
        `shards` sorted arrays of rows; sizes vary at random, and one may be empty. Copies of one content share a shard.

    >>> identifiers = demo.examples(10, seed=0).identifiers()
    >>> sum(len(rows) for rows in tj.shards.by_identifier(identifiers, 3))
    10
    """
    whole_number("shards", shards, 1)
    return group_rows(np.array([int(name[:16], 16) % shards for name in identifiers], np.int64), shards)


def by_class(labels: Int[np.ndarray, "n"], shards: int) -> list[Int[np.ndarray, "_"]]:
    """Shards of whole classes: class c goes to shard c modulo `shards`.

    Args:
        labels: Class indices, "n".

    Returns:
        `shards` sorted arrays of rows.

    >>> [rows.tolist() for rows in tj.shards.by_class(np.array([0, 1, 2, 0]), 2)]
    [[0, 2, 3], [1]]
    """
    classes = len(np.unique(labels))
    whole_number("shards", shards, 1, classes)
    return group_rows(np.unique(labels, return_inverse=True)[1] % shards, shards)


def by_owner(names: Sequence[str], table: str | os.PathLike) -> dict[Owner, Int[np.ndarray, "_"]]:
    r"""One shard per owner, in sorted order; `table`: a CSV for `read_owners`.

    Raises:
        InputError: An example without an owner, or a file with two.

    >>> table = demo.folder() / "owners.csv"
    >>> _ = table.write_text("file,owner\n1.png,bob\n2.png,ann\n")
    >>> [(owner, rows.tolist()) for owner, rows in tj.shards.by_owner(["1.png", "2.png"], table).items()]
    [('ann', [1]), ('bob', [0])]
    """
    whose = every_owner(names, table)
    return {owner: np.flatnonzero([o == owner for o in whose]) for owner in sorted({*whose})}


def every_owner(names: Sequence[str], table: str | os.PathLike) -> list[Owner]:
    r"""The owner of each example; `table`: a CSV for `read_owners`.

    Raises:
        InputError: An example without an owner or with two.

    >>> table = demo.folder() / "owners.csv"
    >>> _ = table.write_text("file,owner\n1.png,bob\n2.png,ann\n")
    >>> tj.shards.every_owner(["2.png"], table)
    ['ann']
    """
    whose = owners_of(names, read_owners(table))
    for name, owner in zip(names, whose, strict=True):
        if owner is None:
            raise InputError(f"{table} must name an owner of every example; it names none of {name}")
    return [*map(Owner, whose)]


def read_owners(table: str | os.PathLike) -> dict[str, Owner]:
    r"""The owner of each file in a CSV of file,owner, in one spelling; a header is allowed.

    A header says which column is which: `owner`, and file, path, image, filename or file_name. A CSV of more than two
    columns has one; `FILE?file=COLUMN&owner=COLUMN` names columns of other names.
    Names have their normal form (NFC), so that a file is found whatever system wrote its name.

    Raises:
        InputError: A missing file, columns that are not named, a short line, an empty name, a file with two owners, or
            two owners whose names differ only by letter case or by compatible forms of a letter.

    >>> table = demo.folder() / "owners.csv"
    >>> _ = table.write_text("file,owner\n1.png,Bob\n2.png,Ann\n")
    >>> tj.shards.read_owners(table)["1.png"]
    'bob'
    >>> _ = table.write_text("image,label,shop\n1.png,hat,Harbour\n")
    >>> tj.shards.read_owners(f"{table}?file=image&owner=shop")
    {'1.png': 'harbour'}
    """
    where, chosen = options(os.fspath(table), "FILE", ("file", "owner"))
    with passing_copy(where) as path:
        if not path.exists():
            raise InputError(f"{path} must be a CSV of file,owner; it does not exist")
        lines = [line for line in read_text(path).splitlines() if line.strip()]
        first = "".join(lines[:1])
        separator = "," if "," in first else divider(path, first, set())  # Excel writes semicolons in some languages
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator, skipinitialspace=True)]
    pairs = file_and_owner(where, rows, chosen)
    short = [pair for pair in pairs if len(pair) != 2 or not all(pair)]
    if short:
        raise InputError(f"{where} must hold file,owner in every line; got {','.join(short[0])}: leave such lines out")
    spellings: dict[Owner, str] = {}
    for _, owner in pairs:
        first = spellings.setdefault(Owner(owner), owner)
        if first != owner:
            raise InputError(
                f"{first} must have one spelling; got {owner}. Write each owner one way: what is protected is one name"
            )
    owners: dict[str, Owner] = {}
    for name, owner in pairs:
        own = Owner(owner)
        two = owners.setdefault(normal_name(name), own) != own
        if two:
            raise InputError(f"{where} must name one owner of {name}; got two")
    return owners


def file_and_owner(where: str, rows: Sequence[Sequence[str]], chosen: Mapping[str, str]) -> list[list[str]]:
    """The cells of two columns, a line each: the chosen ones, those that the header names, or the only two.

    >>> tj.shards.file_and_owner("who.csv", [["owner", "path"], ["bob", "1.png"]], {})
    [['1.png', 'bob']]
    """
    header = rows[0] if rows else []
    words = [*map(caseless_name, header)]
    files = [header.index(chosen["file"])] if chosen.get("file") in header else _places_of(words, FILES)
    owners = [header.index(chosen["owner"])] if chosen.get("owner") in header else _places_of(words, ("owner",))
    if len(header) == 2 and len(files) + len(owners) == 1:  # the other one
        files = files or [1 - owners[0]]
        owners = owners or [1 - files[0]]
    are_two = not chosen and all(len(row) <= 2 for row in rows)
    if are_two and not files and not owners:
        return [[*row] for row in rows]
    are_named = all(header.count(name) == 1 for name in chosen.values())
    if not are_named or len(files) != 1 or len(owners) != 1:
        raise InputError(
            f"{where} must have two columns, file and owner; its first line is {short(','.join(header))}. Say which"
            f" columns are meant: {where}?file=COLUMN&owner=COLUMN"
        )
    return [[row[place] for place in (files[0], owners[0]) if place < len(row)] for row in rows[1:]]


def _places_of(words: Sequence[str], names: Sequence[str]) -> list[int]:
    """The places of the words that are among some names."""
    return [place for place, word in enumerate(words) if word in names]


def owners_of(names: Sequence[str], owners: Mapping[str, str]) -> list[Owner | None]:
    """The owner of each example, or None.

    A file is named as in the data set, or by its last part if no other file of `names` has this last part. Composed and
    decomposed letters (NFC and NFD) are equal, and so are / and the backslashes of Windows.

    Raises:
        InputError: An example with two owners.

    >>> tj.shards.owners_of(["train/1.png", "train/2.png"], {"1.png": "bob"})
    ['bob', None]
    """
    if not owners:
        return [None] * len(names)
    table = _by_normal_name(owners)
    normal = [normal_name(name) for name in names]
    times = Counter(map(posixpath.basename, normal))
    whose = []
    for name in normal:
        last = posixpath.basename(name)
        said = table.get(name, set()) | (table.get(last, set()) if times[last] == 1 else set())
        if len(said) > 1:
            raise InputError(f"{name} must have one owner; the owners give it {' and '.join(sorted(said))}")
        whose.append(next(iter(said), None))
    return whose


def _by_normal_name(owners: Mapping[str, str]) -> dict[str, set[Owner]]:
    """The owners of each file by the normal form of its name, and by other spellings that no line has itself."""
    spelled = {owner: Owner(owner) for owner in {*owners.values()}}  # few owners of many images
    table: dict[str, set[Owner]] = {}
    for name, owner in owners.items():
        table.setdefault(normal_name(name), set()).add(spelled[owner])
    written = {*table}
    for name, owner in owners.items():
        for form in other_spellings(name):
            if form not in written:
                table.setdefault(form, set()).add(spelled[owner])
    return table


def dirichlet(labels: Int[np.ndarray, "n"], shards: int, concentration: float, seed: int) -> list[Int[np.ndarray, "_"]]:
    """Imbalanced shards: each class is divided in proportions Dirichlet(concentration, ..., concentration).

    Source: Hsu et al. 2019.

    Args:
        labels: Class indices, "n".
        concentration: Small values give shards of few classes.

    Returns:
        `shards` sorted arrays of rows, some perhaps empty.

    >>> labels = np.repeat(np.arange(3), 10)
    >>> shards = tj.shards.dirichlet(labels, 2, concentration=0.1, seed=0)
    >>> sum(len(rows) for rows in shards)
    30
    """
    whole_number("shards", shards, 1)
    finite_number("concentration", concentration, 0)
    rng = np.random.default_rng(seed)
    shard = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(rng.dirichlet([concentration] * shards))[:-1] * len(rows)).astype(int)
        for s, part in enumerate(np.split(rows, cuts)):
            shard[part] = s
    return group_rows(shard, shards)


def group_rows(shard: Int[np.ndarray, "n"], shards: int) -> list[Int[np.ndarray, "_"]]:
    """The rows of each shard, sorted; shard: the shard of each row, "n".

    >>> [rows.tolist() for rows in tj.shards.group_rows(np.array([1, 0, 1]), 2)]
    [[1], [0, 2]]
    """
    return [np.flatnonzero(shard == s) for s in range(shards)]


def check_disjoint(shards: Sequence[Int[np.ndarray, "_"]], count: int) -> None:
    """Raises InputError unless every row of 0..count-1 is in exactly one shard.

    >>> tj.shards.check_disjoint([np.array([0, 2]), np.array([1])], 3)
    """
    times = np.zeros(count, int)
    for rows in shards:
        np.add.at(times, rows, 1)
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        raise InputError(f"every example must be in one shard; row {wrong[:1]} is in {times[wrong[:1]]}")

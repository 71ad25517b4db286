"""What a removal says of an index that it cannot read or write, and of other stores."""

import sqlite3

import pytest
from helpers import origin, part

from tangent_jax.core.checks import InputError
from tangent_jax.data import identifiers
from tangent_jax.features.extract import Cache
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import erase_traces, remove
from tangent_jax.store.store import Store

GONE = f"{3:064x}"  # an image of ann
STAYS = f"{6:064x}"


@pytest.fixture
def cache(tmp_path):
    """A cache whose index names an image of each of two components."""
    folder = tmp_path / "cache"
    folder.mkdir()
    with identifiers.index_in(folder):
        identifiers.keep({b"first": GONE, b"second": STAYS})
    return folder


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store")
    store.add("ann", part(1), origin(1))
    store.add("bob", part(2), origin(2))
    return store


def drop(store, cache):
    return remove(store, plan_removal(store, names=["ann"]), cache=Cache(cache))


def lines_about(lines, cache):
    return [line for line in lines if str(cache / "index.sqlite") in line]


def test_a_receipt_says_that_an_index_was_not_reached_if_it_cannot_be_written(store, cache, monkeypatch):
    opened = identifiers.open_index

    def read_only(path):
        index = opened(path)
        index.execute("pragma query_only = on")
        return index

    monkeypatch.setattr(identifiers, "open_index", read_only)
    receipt = drop(store, cache)
    assert lines_about(receipt.deleted, cache) == []
    (line,) = lines_about(receipt.not_reached, cache)
    assert line.startswith(f"in {cache}/index.sqlite: identifiers and names of removed images (the index must be a")
    assert "readonly database. End other programs that use it, or delete it" in line
    assert GONE.encode() in (cache / "index.sqlite").read_bytes()
    monkeypatch.undo()
    again = erase_traces(store, plan_removal(store, examples=[GONE]), cache=Cache(cache))
    assert lines_about(again.deleted, cache) == [f"in {cache}/index.sqlite: identifiers and names of removed images"]
    content = (cache / "index.sqlite").read_bytes()
    assert GONE.encode() not in content
    assert STAYS.encode() in content


@pytest.mark.parametrize("fault", ["damaged", "locked", "no right"])
def test_a_receipt_names_an_index_that_cannot_be_read(store, cache, monkeypatch, fault):
    index = cache / "index.sqlite"
    reason = {"damaged": "file is not a database", "locked": "database is locked", "no right": "Permission denied"}
    errors = {"locked": sqlite3.OperationalError("database is locked"), "no right": PermissionError(13, reason[fault])}
    if fault == "damaged":
        index.write_bytes(bytes(16) + index.read_bytes()[16:])
    else:

        def fail(path):
            raise errors[fault]

        monkeypatch.setattr(identifiers, "open_index", fail)
    receipt = drop(store, cache)
    assert lines_about(receipt.deleted, cache) == []
    (line,) = lines_about(receipt.not_reached, cache)
    assert line.startswith(f"{index}: ")
    assert reason[fault] in line


def test_an_index_that_is_a_cache_alone_may_fail(cache):
    """Without it, images are read."""
    (cache / "index.sqlite").write_bytes(b"x" * 5000)
    with identifiers.index_in(cache):
        identifiers.keep({b"first": GONE})
        assert identifiers.look_up([b"first"]) == [None]
    path = identifiers.index_path(cache)
    with pytest.raises(InputError, match=r"^the index must be a database that can be read and written; got: file is"):
        identifiers.kept_of(path, {GONE}.__contains__, set())
    with pytest.raises(InputError, match=r"or delete it, and repeat the removal$"):
        identifiers.forget(path, {GONE}.__contains__, set())


def test_every_other_store_is_looked_through_though_one_cannot_be_read(store, cache):
    for name in ("a", "z"):
        Store(store.root.parent / name).add("ann again", part(1), origin(1))
    Store(store.root.parent / "m").add("bob again", part(2), origin(2))
    (store.root.parent / "a" / "store.json").write_text("{")
    lines = [line for line in drop(store, cache).not_reached if "another store" in line]
    unread, holding = lines
    assert unread.startswith(f"{store.root.parent / 'a'}: another store, which cannot be read (")
    assert holding == f"{store.root.parent / 'z'}: another store, in which 1 component(s) saw removed images"

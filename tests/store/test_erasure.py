"""What a removal says of caches, of an index that it cannot read or write, and of what it does not reach."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from helpers import origin, part

from tangent_jax.core.checks import InputError
from tangent_jax.data import identifiers
from tangent_jax.features.extract import Cache
from tangent_jax.features.row_store import RowStore
from tangent_jax.io import files
from tangent_jax.store.lines import partial_of
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.receipts import Trace
from tangent_jax.store.removal import erase_cached, preview_removal, remove
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


def of_kind(kind, traces):
    return [trace for trace in traces if trace.kind == kind]


def test_receipt_says_index_was_not_reached(store, cache, monkeypatch):
    opened = identifiers.open_index

    def read_only(path):
        index = opened(path)
        index.execute("pragma query_only = on")
        return index

    monkeypatch.setattr(identifiers, "open_index", read_only)
    receipt = drop(store, cache)
    assert of_kind("index", receipt.deleted) == []
    (trace,) = of_kind("index", receipt.not_reached)
    assert trace.path == f"{cache}/index.sqlite"
    assert "readonly database. End other programs that use it, or delete it" in str(trace)
    assert GONE.encode() in (cache / "index.sqlite").read_bytes()
    monkeypatch.undo()
    again = erase_cached(store, plan_removal(store, examples=[GONE]), cache=Cache(cache))
    assert again.deleted == (Trace("index", f"{cache}/index.sqlite"),)
    content = (cache / "index.sqlite").read_bytes()
    assert GONE.encode() not in content
    assert STAYS.encode() in content


@pytest.mark.parametrize("fault", ["damaged", "locked", "no right"])
def test_receipt_names_unreadable_index(store, cache, monkeypatch, fault):
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
    assert of_kind("index", receipt.deleted) == []
    (trace,) = of_kind("index", receipt.not_reached)
    assert trace.path == str(index)
    assert reason[fault] in trace.why


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


def test_killed_parts_and_exports_are_listed(store, cache, tmp_path):
    part_ = Store(store.root.parent / "part-0-of-2" / "store")
    part_.add("ann", part(1), origin(1))
    store.release(tmp_path / "model", store.compose())
    (export,) = store.state.exports
    partial = partial_of(Path(export.path), export.result)
    partial.mkdir()
    traces = drop(store, cache).not_reached
    assert {Trace("part", str(part_.root)), Trace("unfinished export", str(partial))} <= {*traces}


@pytest.mark.parametrize("spelled", ["{}/../cache", "{}/../link"])
def test_erased_cache_is_not_listed(store, cache, spelled):
    (cache.parent / "link").symlink_to(cache)
    store.discard(["ann"])
    store.add("ann", part(1), origin(1, folders=(str(cache),)))
    assert not of_kind("run", drop(store, spelled.format(cache)).not_reached)


def test_neighbouring_stores_are_not_opened(store, cache):
    for name in ("a", "z"):
        Store(store.root.parent / name).add("ann again", part(1), origin(1))
    (store.root.parent / "a" / "store.json").write_text("{")
    listed = of_kind("store", drop(store, cache).not_reached)
    assert [trace.path for trace in listed] == [str(store.root.parent / name) for name in "az"]
    assert [*Store(store.root.parent / "z")] == ["ann again"]


# Cached rows


def rows_in(folder, *images):
    """A folder of rows of these images, as a run leaves it."""
    rows = RowStore(folder, images, (3,), np.dtype("float32"))
    rows.create()
    rows.write([*range(len(images))], np.ones((len(images), 3)))
    return folder


def there(folder, count=2):
    """Which of its rows are there."""
    return np.fromfile(folder / "rows.bin", np.float32).reshape(count, 3).any(1).tolist()


def test_only_named_cache_is_erased(tmp_path):
    run, other = tmp_path / "run", rows_in(tmp_path / "other/rows", GONE, STAYS)
    run.mkdir()
    (run / "dw.safetensors").write_bytes(b"the component")
    store = Store(tmp_path / "stores/one")
    folders = (str(other.parent), str(tmp_path / "cache"), str(run), "s3://bucket/out")
    store.add("ann", part(1), origin(1, folders=folders))
    store.release(tmp_path / "export", store.sum())
    own = rows_in(tmp_path / "cache/rows", GONE, STAYS)
    plan = plan_removal(store, examples=[GONE])
    planned = preview_removal(store, plan, Cache(own.parent))
    receipt = remove(store, plan, cache=Cache(own.parent))
    assert (there(own), there(other)) == ([False, True], [True, True])
    assert (run / "dw.safetensors").exists()
    assert receipt.deleted[-1] == Trace("rows", str(own.parent), rows=1)
    assert receipt.not_reached == (
        Trace("export", str(tmp_path / "export")),
        Trace("run", str(other.parent)),
        Trace("run", str(run)),
        Trace("run", "s3://bucket/out"),
    )
    assert planned == (receipt.deleted, receipt.not_reached)
    again = erase_cached(store, plan_removal(store, examples=[GONE]), Cache(other.parent))
    assert again.deleted == (Trace("rows", str(other.parent), rows=1),)
    assert there(other) == [False, True]


def test_every_removal_erases_rows_that_came_back(store, tmp_path):
    cache = Cache(tmp_path / "rows")
    remove(store, plan_removal(store, names=["ann"]), cache=cache)
    back = rows_in(cache.path / "back", GONE, STAYS)
    remove(store, plan_removal(store, names=["bob"]), cache=cache)
    assert there(back) == [False, False]


def test_unwritable_rows_are_not_reached(store, tmp_path, monkeypatch):
    cache = tmp_path / "rows"
    first, second = (rows_in(cache / name, GONE, STAYS) for name in ("a", "b"))
    (rows_in(cache / "c", STAYS) / "examples.txt").unlink()
    opened = files.open_plain

    def denied(path, *mode):
        if path == first / "lock":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *mode)

    monkeypatch.setattr(files, "open_plain", denied)
    receipt = drop(store, cache)
    assert (there(first), there(second)) == ([True, True], [False, True])
    assert Trace("rows", str(cache), rows=1) in receipt.deleted
    assert {*receipt.not_reached} == {
        Trace("rows", str(cache), why="Permission denied"),
        Trace("rows", str(cache), why="no list of their images, examples.txt; delete the folder"),
    }


def test_linked_or_old_rows_are_not_reached(store, tmp_path):
    cache = tmp_path / "rows"
    rows = rows_in(cache / "here", GONE, STAYS)
    (cache / "linked").symlink_to(rows)
    (cache / "old").mkdir()
    (cache / "old/examples.txt").write_text(f"{GONE}\n{STAYS}\n")
    traces = drop(store, cache).not_reached
    assert there(rows) == [False, True]
    (trace,) = of_kind("rows", traces)
    assert (trace.path, "delete it" in trace.why) == (str(cache), True)
    assert not [name for name in ("/linked", "/old") if name in trace.why]  # which may hash the images

"""A request is what components recorded; a plan that no longer fits erases nothing; a kill is completed."""

import codecs
import contextlib
import errno
import itertools
import json
import shutil
import threading
import unicodedata

import numpy as np
import pytest
from helpers import Killed, ending, origin, part
from photos import write
from run_binary import run

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of, read_owners
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.row_store import RowStore, identifiers_of
from tangent_jax.store import removal
from tangent_jax.store.apart import Shards
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.receipts import Trace, read_receipt
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import erase_cached, preview_removal, remove, retrain_all
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt
from tangent_jax.train.features import Features

JOINED = "train/a/fam\u200dily.png"
ACCENTED = "train/b/caf\u00e9.png"
OF_A = ("train/a/0.png", "train/a/1.png", JOINED)
OF_B = ("train/b/0.png", "train/b/1.png", ACCENTED)


def form(kind, text):
    return unicodedata.normalize(kind, text)


def seen(*names, first=0):
    """(identifier, name) of images of these names."""
    return tuple((f"{first + number:064x}", name) for number, name in enumerate(names))


@pytest.fixture
def store(tmp_path):
    """A store of two components, of the images of class a and of class b; their data set is not there."""
    store = Store(tmp_path / "store")
    recipe = Recipe(dataset=f"folder:{tmp_path / 'away'}")
    for number, (name, files, owners) in enumerate((("a", OF_A, "ann bob bob"), ("b", OF_B, "bob cy cy"))):
        whose = dict(zip(files, owners.split(), strict=True))
        examples = seen(*files, first=10 * number)
        store.add(name, part(number), origin(number, recipe=recipe, examples=examples, owners=whose))
    return store


# What a name means


@pytest.mark.parametrize(
    ("word", "component"),
    [(OF_A[0], "a"), (JOINED, "a"), (ACCENTED, "b"), (form("NFD", ACCENTED), "b"), (f"{11:064x}", "b")],
)
def test_image_is_found_by_identifier_or_name(store, word, component):
    plan = plan_removal(store, examples=[word])
    assert ([*plan.components], len(plan.identifiers), plan.unseen) == ([component], 1, ())
    receipt = remove(store, plan)
    assert ({*receipt.removed}, receipt.unseen) == ({component}, ())
    assert verify(store) + verify_receipt(store, receipt.path) == []


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("train/a/0.PNG", "train/a/0.png"),
        ("train\\a\\1.png", "train/a/1.png"),
        ("train/b/cafe.png", ACCENTED),
        ("0123456789", "none is near it"),
    ],
)
def test_unknown_name_lists_near_ones(store, word, near):
    with pytest.raises(InputError, match="examples must be as components recorded them; got ") as error:
        plan_removal(store, examples=[OF_A[1], word])
    assert near in str(error.value)


def test_names_may_begin_with_a_dot_and_slash(store):
    plans = [plan_removal(store, examples=[name]) for name in ("train/b/1.png", "./train/b/1.png")]
    assert plans[0].components
    assert {*plans[0].components} == {*plans[1].components}


def test_shared_name_asks_for_all(store, capsys):
    store.add("c", part(2), origin(2, examples=seen(OF_A[0], first=20)))
    assert {*plan_removal(store, examples=[OF_A[0]]).components} == {"a", "c"}
    assert "train/a/0.png names 2 images, in a, c; all are asked for" in capsys.readouterr().err
    assert {*plan_removal(store, examples=[f"{20:064x}"]).components} == {"c"}
    assert capsys.readouterr().err == ""


def test_image_of_two_owners_leaves_with_either(store):
    """A removed image must not come back: rows of its content go from all components, whoever gave them."""
    twin = ((f"{0:064x}", "twin.png"),)
    store.add("dee", part(2), origin(2, examples=twin, owners={"twin.png": "dee"}))
    for owner in ("ann", "dee"):
        assert {*plan_removal(store, owner=owner).components} == {"a", "dee"}


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE])
def test_file_of_names_is_read_of_any_system(store, tmp_path, mark):
    text = f"train/a/0.png  \r\n{form('NFD', ACCENTED)}\r\n"
    content = text.encode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-8")
    (tmp_path / "ids.txt").write_bytes(mark + content)
    text, _ = run("store", "remove", f"--store={store.root}", f"--examples={tmp_path / 'ids.txt'}", "--dry_run")
    assert [row["component"] for row in json.loads(text)["plan"]] == ["a", "b"]


@pytest.mark.parametrize("asked", [{"examples": [OF_A[0]]}, {"examples": [f"{0:064x}"]}, {"owner": "ann"}])
def test_repeated_request_removes_no_more(store, tmp_path, asked):
    remove(store, plan_removal(store, **asked))
    plan = plan_removal(store, **asked)
    (word,) = asked.get("examples", ["ann"])
    assert (plan.components, plan.unseen) == ({}, ())
    assert plan.removed == {word: store.journal.entries[-1]["time"][:10]}
    (tmp_path / "ids.txt").write_text(f"{word}\n")
    words = ["--owner=ann"] if "owner" in asked else [f"--examples={tmp_path / 'ids.txt'}"]
    text, err = run("store", "remove", f"--store={store.root}", f"--cache_dir={tmp_path / 'cache'}", *words)
    assert json.loads(text)["removed"] == []
    assert f"{word}: removed before, on {plan.removed[word]}" in err


# Names in two forms, and owners


@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("whole", [True, False])
def test_owners_are_found_of_any_system(written, stored, whole, tmp_path):
    table = tmp_path / "who.csv"
    name = ACCENTED if whole else ACCENTED.rpartition("/")[2]
    table.write_text(f"file,owner\n{form(written, name)},ann\n", "utf-8")
    assert owners_of([form(stored, ACCENTED)], read_owners(table)) == ["ann"]
    assert owners_of([form(stored, ACCENTED)], {form(written, name): "ann"}) == ["ann"]
    table.write_text(f"{form(written, name)},ann\n{form(stored, name)},bob\n", "utf-8")
    with pytest.raises(InputError, match=r"one owner of (caf|train)"):
        read_owners(table)


def test_a_table_of_windows_paths_names_owners():
    owners = {"train\\a\\0.png": "ann", ".\\1.png": "bob"}
    assert owners_of(["train/a/0.png", "train/a/1.png"], owners) == ["ann", "bob"]


def test_component_keeps_owner_forms(tmp_path):
    """A table names an image with a hidden letter, or in NFD, and the examples do not."""
    names = (JOINED, ACCENTED)
    public = (("2" * 64, "public.jpg"),)
    made = origin(0, owners={JOINED: "ann", form("NFD", ACCENTED): "bob"}, public=public)
    examples = tuple(zip(("0" * 64, "1" * 64), names, strict=True))
    kept = made.trained_on(Features(np.zeros((2, 3)), np.array([0, 1]), examples), 1.0)
    assert kept.data.public == public
    assert sorted(kept.data.owners.values()) == ["ann", "bob"]
    assert {*kept.data.owners} == {name for _, name in kept.data.examples}
    store = Store(tmp_path / "store")
    store.add("both", part(0), kept)
    assert plan_removal(store, owner="bob").identifiers == ("1" * 64,)


def test_images_without_owner_are_counted(tmp_path, capsys):
    write(tmp_path / "photographs", *OF_A, *OF_B, "test/a/x.png", "test/b/y.png")
    recipe = Recipe(dataset=f"folder:{tmp_path / 'photographs'}", kind="head", epochs=1)
    predict = recipe.predictor(2)
    train = extract(predict, open_dataset(recipe.dataset).train, Cache(tmp_path / "cache"))
    shards = Shards(predict, train, recipe, {"all": np.arange(len(train))})
    shards.provenance({"train/a/0.png": "ann"})
    assert "the owners name no owner of 5 of 6 images, such as train/a/1.png" in capsys.readouterr().err
    shards.provenance({})
    assert capsys.readouterr().err == ""


# A plan that no longer fits


@pytest.fixture
def kept(tmp_path):
    """(a store of two components, a cache with the rows of their images)."""
    store, cache = Store(tmp_path / "stores/one"), Cache(tmp_path / "cache")
    images = [identifier for number in range(2) for identifier, _ in origin(number).data.examples]
    rows = RowStore(cache.path / "key", images, (2,), np.dtype("float32"))
    rows.create()
    rows.write([*range(6)], np.ones((6, 2)))
    for number, name in enumerate("ab"):
        store.add(name, part(number), origin(number))
    return store, cache


def is_there(cache, number):
    """True if the cache has the rows of a component's images; None if some of them."""
    named = {*identifiers_of(cache.path / "key")}
    found = {identifier in named for identifier, _ in origin(number).data.examples}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("how", ["drop", "retrain"])
def test_store_that_changes_keeps_all(kept, monkeypatch, how):
    """Another process adds a component while the survivors are summed, or one is trained again."""
    store, cache = kept
    plan, sum_without = plan_removal(store, examples=["photo 0.jpg"]), removal.sum_without

    def later(*arguments):
        Store(store.root).add("c", part(2), origin(2))
        if how == "drop":
            return sum_without(*arguments)
        return removal.Retrained(part(7), origin(0, examples=origin(0).data.examples[1:]), 0.5)

    monkeypatch.setattr(removal, "sum_without" if how == "drop" else "retrain", later)
    with pytest.raises(InputError, match="Plan again"):
        remove(store, plan, how, cache=cache)
    assert is_there(cache, 0)
    assert [*Store(store.root)] == ["a", "b", "c"]
    assert Store(store.root).state.receipts == {}


def test_one_of_two_removals_wins_whole(kept, monkeypatch):
    store, cache = kept
    stores = {name: Store(store.root) for name in "ab"}
    plans = {name: plan_removal(own, names=[name]) for name, own in stores.items()}
    both, done, sum_without = threading.Barrier(2), {}, removal.sum_without

    def later(*arguments):
        summed = sum_without(*arguments)
        both.wait(10)  # both have held their plans against the store
        return summed

    def removing(name):
        try:
            done[name] = remove(stores[name], plans[name], cache=cache)
        except InputError as error:
            done[name] = error

    monkeypatch.setattr(removal, "sum_without", later)
    threads = [threading.Thread(target=removing, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (refused_,) = [name for name, result in done.items() if isinstance(result, InputError)]
    (removed,) = {"a", "b"} - {refused_}
    assert "Plan again" in str(done[refused_])
    assert (is_there(cache, "ab".index(refused_)), is_there(cache, "ab".index(removed))) == (True, False)
    store.reload()
    assert [*store] == [refused_]
    assert done[removed].deleted[-1] == Trace("rows", str(cache.path), rows=3)
    assert verify(store) + verify_receipt(store, done[removed].path) == []


@pytest.mark.parametrize("fault", [Killed, KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_interrupted_removal_is_completed(kept, tmp_path, fault):
    """The store is as before it or as after it, and no receipt claims rows that are there."""
    store, cache = kept
    plan = plan_removal(store, names=["a"])
    saved = tmp_path / "saved"
    shutil.copytree(store.root, saved / "store")
    shutil.copytree(cache.path, saved / "cache")
    for moment in itertools.count():
        for root in (store.root, cache.path):
            shutil.rmtree(root)
        shutil.copytree(saved / "store", store.root)
        shutil.copytree(saved / "cache", cache.path)
        with ending(moment, fault) as left, contextlib.suppress(Killed, KeyboardInterrupt, OSError):
            remove(Store(store.root), plan, cache=cache)
        again = Store(store.root)
        assert [*again] in (["a", "b"], ["b"])
        assert ("a" in again) == (again.state.receipts == {})
        assert trees.fingerprint(again.sum()) == (saved_sum(saved) if "a" in again else trees.fingerprint(part(1)))
        if "a" in again:
            remove(again, plan, cache=cache)
        again.settle()
        (receipt,) = (again.root / "receipts").iterdir()
        assert verify(again) + verify_receipt(again, receipt) == []
        assert trees.fingerprint(again.sum()) == trees.fingerprint(part(1))
        said, _ = read_receipt(receipt)
        if is_there(cache, 0):  # a fault of the disk, which the receipt tells
            assert Trace("rows", str(cache.path), why="No space left on device") in said.not_reached
            assert not [trace for trace in said.deleted if str(cache.path) in trace.path]
            erase_cached(again, plan_removal(again, examples=[origin(0).data.examples[0][0]]), cache)
        assert (is_there(cache, 0), is_there(cache, 1)) == (False, True)
        if left[0] >= 0:
            assert moment > 8
            return


def saved_sum(saved):
    """The fingerprint of the sum of the whole store."""
    return trees.fingerprint(Store(saved / "store").sum())


@pytest.mark.parametrize(
    "call", [erase_cached, preview_removal, remove, lambda store, plan: retrain_all(store, plan, "drop")]
)
def test_a_plan_is_of_one_store_as_it_was(kept, tmp_path, call):
    store, cache = kept
    other = Store(tmp_path / "stores/two")
    other.add("a", part(5), origin(5))
    with pytest.raises(InputError, match="got one of another store"):
        call(store, plan_removal(other, names=["a"]))
    plan = plan_removal(store, names=["a"])
    store.discard(["b"])
    with pytest.raises(InputError, match=r"plan must be of .* as it is now; got one .* older one\. Plan again"):
        call(store, plan)
    assert is_there(cache, 0)

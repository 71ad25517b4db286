"""A removal leaves nothing behind: no row of a removed image in any file that the library wrote; nothing comes back."""

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import drop, filled, origin, part
from hypothesis import given
from hypothesis import strategies as st
from photos import write
from run_binary import run

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import content_identifier
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.row_store import identifiers_of
from tangent_jax.io.checkpoints import Checkpoints
from tangent_jax.io.files import hold_lock
from tangent_jax.pretrained.load import load
from tangent_jax.privacy.mechanism import PrivacyCost, Spent, make_mechanism
from tangent_jax.solver.optimum import solve
from tangent_jax.store import removal
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.lines import Add
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.receipts import Optimum, Trace
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import Retrained, check_finite, receipt_fields, rounded_up, solve_again
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt
from tangent_jax.train.features import Features
from tangent_jax.train.objective import make_objective

PRIVATE = Spent(make_mechanism(3.0, 1e-5), 50, True)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    write(root, *(f"train/{c}/{i}.png" for c in "ab" for i in range(40)), "test/a/x.png", "test/b/y.png")
    return root


SETTINGS = {"kind": "head", "epochs": 1, "batch_size": 8, "output": "tangent"}


@pytest.fixture
def task(photographs, tmp_path):
    recipe = Recipe(**SETTINGS, dataset=f"folder:{photographs}")
    predict = recipe.predictor(2, load("builtin"))
    data = open_dataset(recipe.dataset)
    return recipe, predict, data, Cache(tmp_path / "cache")


def files_holding(root, rows):
    """The files below a folder that hold the bytes of any of the rows."""
    wanted = [np.ascontiguousarray(row).tobytes() for row in rows]
    paths = [path for path in root.rglob("*") if path.is_file()]
    return [str(path) for path in paths if any(row in path.read_bytes() for row in wanted)]


def test_cache_holds_no_removed_rows(task, tmp_path):
    """Tail inputs of two stages and decoded images; results and checkpoints of the run are listed."""
    recipe, predict, data, cache = task
    train = extract(predict, data.train, cache)
    whole = Recipe(**SETTINGS | {"kind": "everything"}).predictor(2, load("builtin"))
    images = extract(whole, data.train, cache)  # stage 0: the decoded images
    gone = [train.examples[i][0] for i in (3, 41)]
    rows = [*train.inputs[[3, 41]], *images.inputs[[3, 41]]]
    out = tmp_path / "out"
    fitted = recipe.fit(predict, train, checkpoints=Checkpoints(out / "checkpoints"))
    made = make_provenance(predict, recipe).trained_on(train, 1.0, (str(out),), run=fitted.run)
    write_component(out / "dw.safetensors", fitted.dw, {"provenance": made.to_json()})
    store = Store(tmp_path / "stores/mine")
    store.add("all", read_component(out / "dw.safetensors")[0], made)
    store.compose()
    assert len(files_holding(tmp_path, rows)) == 2
    kept = np.array(train.inputs[[0, 1, 2]])
    receipt = remove(store, plan_removal(store, examples=gone), "retrain", cache=cache)
    assert files_holding(tmp_path, rows) == []
    assert (np.asarray(extract(predict, data.train.take(np.arange(3)), cache).inputs) == kept).all()
    assert receipt.deleted[-1] == Trace("rows", str(cache.path), rows=4)
    assert receipt.not_reached == (Trace("run", str(out)), Trace("data set", recipe.dataset))
    assert (out / "checkpoints" / fitted.run).exists()
    assert verify(store) == []
    # asked for again, what was erased is computed anew, and only its chunk
    assert (np.asarray(extract(predict, data.train, cache).inputs[3]) == rows[0]).all()


@pytest.mark.parametrize("settings", [{"penalty": 0.0}, {"method": "nlft"}])
def test_non_convex_retraining_has_no_bound(task, tmp_path, settings):
    _, _, data, cache = task
    recipe = Recipe(**SETTINGS | settings | {"dataset": task[0].dataset})
    predict = recipe.predictor(2, load("builtin"))
    train = extract(predict, data.train, cache)
    store = Store(tmp_path / "store")
    store.add("all", recipe.fit(predict, train).dw, make_provenance(predict, recipe).trained_on(train, 1.0))
    receipt = remove(store, plan_removal(store, examples=[train.examples[3][0]]), "retrain", cache=cache)
    assert (receipt.distance_bounds, [*receipt.retrained]) == ({}, ["all"])


@pytest.mark.parametrize("settings", [{}, {"solver": "optimum", "penalty": 0.1}])
def test_retrained_component_names_first_cache(task, tmp_path, settings):
    _, _, data, first = task
    recipe = Recipe(**SETTINGS | settings | {"dataset": task[0].dataset})
    predict = recipe.predictor(2, load("builtin"))
    train, other = extract(predict, data.train.take(np.arange(12)), first), Cache(tmp_path / "other")
    store = Store(tmp_path / "store")
    store.add("all", recipe.fit(predict, train).dw, make_provenance(predict, recipe).trained_on(train, 1.0))
    for row, (identifier, _) in enumerate(train.examples[:2]):
        receipt = remove(store, plan_removal(store, examples=[identifier]), "retrain", cache=other)
        assert Trace("run", str(first.path)) in receipt.not_reached
        assert train.inputs.base[row].any()
        assert {str(first.path), str(other.path)} == {*store.provenance("all").training.folders}


def test_unseen_images_lose_cached_rows(task, tmp_path):
    """Test images, by identifier; the components stay."""
    recipe, predict, data, cache = task
    train, test = extract(predict, data.train, cache), extract(predict, data.test, cache)
    store = Store(tmp_path / "store")
    store.add("all", recipe.fit(predict, train).dw, make_provenance(predict, recipe).trained_on(train, 1.0))
    kept = store.path("all").read_bytes()
    for row, (identifier, _) in enumerate(test.examples[:2]):
        plan = plan_removal(store, examples=[identifier])
        assert ([*plan.components], plan.identifiers, plan.unseen) == ([], (identifier,), (identifier,))
        assert np.asarray(test.inputs[row]).any()
        receipt = remove(store, plan, cache=cache)
        with pytest.raises(InputError, match="some were removed"):
            test.inputs[row]
        assert ({*receipt.removed}, receipt.unseen) == (set(), (store.key.hide(identifier),))
        assert verify(store) + verify_receipt(store, receipt.path) == []
        assert plan_removal(store, examples=[identifier]).unseen == ()
    assert store.path("all").read_bytes() == kept
    assert all(map(store.has_forgotten, data.test.identifiers()))
    assert np.asarray(train.inputs).any(-1).all()


def test_composing_brings_no_image_back(task, tmp_path, capsys):
    recipe, predict, data, cache = task
    train, store = extract(predict, data.train, cache), Store(tmp_path / "store")
    shards = Shards(predict, train, recipe, {f"shard {s}": np.arange(s, 80, 2) for s in range(2)})
    fill(store, shards)
    identifier = train.examples[4][0]
    remove(store, plan_removal(store, examples=[identifier]), "retrain", cache=cache)
    fingerprints = {name: trees.fingerprint(store[name].dw) for name in store}
    fill(store, shards)
    assert {name: trees.fingerprint(store[name].dw) for name in store} == fingerprints  # nothing was trained again
    assert "1 images were removed from" in capsys.readouterr().err
    drop(store, "shard 1")
    fill(store, shards)
    assert [*store] == ["shard 0"]
    assert all(line["op"] != "discard" for line in store.journal.entries)
    other = Recipe(**SETTINGS, dataset=recipe.dataset, penalty=1e-3)
    fill(store, dataclasses.replace(shards, recipe=other))  # anew: no receipt
    assert [*store] == ["shard 0"]
    assert len(store.state.receipts) == 2
    store.add("a guest", jax.tree.map(np.ones_like, store["shard 0"].dw), store.provenance("shard 0"))
    with pytest.raises(InputError, match="it holds a guest, a component of others"):
        fill(store, shards)
    assert [*store] == ["a guest", "shard 0"]


def test_shown_component_stays_spent(tmp_path):
    store = Store(tmp_path)
    for s in range(2):
        store.add(f"shard {s}", part(s), origin(s, privacy=PRIVATE))
    once = store.spent()
    assert once == PrivacyCost(PRIVATE.compute_epsilon(), 1e-5, True)
    drop(store, "shard 1")  # never composed: nothing of it left the store
    assert store.spent() == once
    store.add("keeper", part(2), origin(0, privacy=PRIVATE))  # saw the same images, which so may come back
    store.compose()
    drop(store, "shard 0")
    store.add("again", part(5), origin(0, privacy=PRIVATE))
    thrice = Store(tmp_path).spent()
    store.discard(["again", "keeper"])
    twice = Store(tmp_path).spent()  # by shard 0 and the keeper, which were composed
    assert 1.3 * once.epsilon < twice.epsilon < thrice.epsilon < 2 * once.epsilon
    store.add("other", part(6), origin(3, privacy=PRIVATE))
    assert Store(tmp_path).spent().epsilon >= twice.epsilon


def test_public_images_are_found_and_stay_out(tmp_path):
    """They whitened the training of a private component: its numbers depend on them."""
    store, public = Store(tmp_path / "mine"), origin(7).data.examples
    store.add("whitened", part(0), origin(0, privacy=PRIVATE, public=public, owners={"photo 0.jpg": "ann"}))
    store.add("plain", part(1), origin(1, privacy=PRIVATE))
    Store(tmp_path / "other").add("too", part(2), origin(2, privacy=PRIVATE, public=public))
    for asked in (public[1][0], "photo 22.jpg"):
        assert public[1] in plan_removal(store, examples=[asked]).components["whitened"].rows
    store.add("open", part(5), origin(7))  # no account, and the same images
    assert plan_removal(store, names=["open"]).identifiers == ()  # another holds them
    store.discard(["open"])
    plan = plan_removal(store, examples=["photo 22.jpg"])
    assert [*plan.components] == ["whitened"]
    assert (plan.components["whitened"].left, [*plan.components["whitened"].impossible]) == (3, ["retrain", "exact"])
    with pytest.raises(InputError, match="whitened does not allow how=retrain: public images went into its training"):
        remove(store, plan, "retrain")
    receipt = remove(store, plan)
    assert Trace("store", str(tmp_path / "other")) in receipt.not_reached
    for came_back in ({"public": public}, {"examples": public}):
        with pytest.raises(InputError, match="1 were removed from this store"):
            store.add("again", part(3), origin(3, privacy=PRIVATE, **came_back))
    store.add("again", part(3), origin(3, privacy=PRIVATE, public=public[:1]))
    drop(store, "again")  # by its name: its own images go, the public ones may come back
    store.add("third", part(4), origin(4, privacy=PRIVATE, public=public[:1]))


@pytest.mark.parametrize("released", [False, True])
def test_protected_image_is_public_nowhere(tmp_path, released):
    """Parallel composition takes what the other component saw of it as paid for; public images are not."""
    store, match = Store(tmp_path), "public images must not be private; got 1 of"
    store.add("first", part(0), origin(0, privacy=PRIVATE, public=origin(7).data.examples))
    if released:
        store.compose()
        store.discard(["first"])
    for clash in ({"public": origin(0).data.examples[1:2]}, {"examples": origin(7).data.examples[2:]}):
        with pytest.raises(InputError, match=match):
            store.add("second", part(1), origin(1, privacy=PRIVATE, **clash))
    with pytest.raises(InputError, match=match):
        store.add("second", part(1), origin(1, privacy=PRIVATE, public=origin(1).data.examples[:1]))
    store.add("second", part(1), origin(1, privacy=PRIVATE, public=origin(7).data.examples))  # public in both
    store.add("open", part(2), origin(0))  # no account: nothing is claimed of both


# The store's own files


def test_store_is_not_made_among_others_files(tmp_path):
    write(tmp_path, "components/mine.png", "receipts/0123456789abcdef.json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must be a store, or an empty folder"):
        Store(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_only_files_of_its_own_are_swept(tmp_path):
    store = Store(tmp_path / "store")
    store.add("a", part(0), origin(0))
    for name in ("components/notes.txt", "factors/mine.partial", "receipts/0123456789abcdeg.json", "mine.partial"):
        (tmp_path / "store" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "store" / name).write_text("mine")
    leftover = tmp_path / "store/components" / ("0" * 16 + ".safetensors")
    leftover.write_bytes(b"of a killed writer")
    store.add("b", part(1), origin(1))
    assert not leftover.exists()
    assert len([line for line in verify(store) if "not the store's" in line]) == 4


def lost(*names):
    return lambda store: [(store.root / name).unlink() for name in names]


def leave_the_journal(store):
    lost("store.json")(store)
    for kind in ("components", "receipts"):
        shutil.rmtree(store.root / kind)


def write_unknown_line(store):
    with store.using(change=True):
        store.journal.append({"op": "anneal", "name": "a", "time": "2030-01-01T00:00:00Z"})


UPDATE = "(Update|Use the version of) tangent_jax.* nothing was changed"
HARM = {
    "no journal": (lost("journal.jsonl"), "is missing"),
    "no HEAD": (lost("HEAD"), "is missing"),
    "neither": (lost("journal.jsonl", "HEAD"), "is missing"),
    "no list and mark": (lost("journal.jsonl", "HEAD", "store.json"), "an empty folder"),
    "no key": (lost("keys.json"), "must hold the store's key; it is missing. Restore it from a backup"),
    "no mark and key": (lost("store.json", "keys.json"), "restore its store.json"),
    "no mark": (lost("store.json"), "restore its store.json"),
    "journal alone": (leave_the_journal, "it holds journal.jsonl. Choose a new folder, or restore its store.json"),
    "a later format": (
        lambda store: (store.root / "store.json").write_text('{"format": 9, "store": "x", "more": 1}'), UPDATE),
    "a later line": (write_unknown_line, UPDATE),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "match"), HARM.values(), ids=HARM)
def test_harmed_store_refuses_and_keeps_all(tmp_path, harm, match):
    store = filled(tmp_path)
    drop(store, "shard 1")
    harm(store)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=match):
        Store(tmp_path).add("back", part(1), origin(1))
    assert [path for path in before if not path.exists() or path.read_bytes() != before[path]] == []


def test_open_store_needs_its_marker(tmp_path):
    store = filled(tmp_path)
    lost("store.json")(store)
    with pytest.raises(InputError, match=r"must have store.json; it is missing. Restore it from a backup"):
        store.reload()


def test_deleted_lock_stops_before_commit(tmp_path):
    store = Store(tmp_path)
    with store.using(change=True):
        (tmp_path / "lock").unlink()
        line = Add(name="a", entry=store.write("components", part(0), origin(0)))
        with pytest.raises(InputError, match="deleted while it was held"):
            store.commit(line)
    assert [*Store(tmp_path)] == []
    Store(tmp_path).add("a", part(0), origin(0))
    assert verify(Store(tmp_path)) == []


def test_every_read_checks_its_hash(tmp_path):
    store = filled(tmp_path, 2)
    path = store.path("shard 1")
    whole = path.read_bytes()
    for at in (len(whole) - 5, 30, whole.index(b"photo")):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for read in (lambda: store["shard 1"], store.compose, lambda: drop(store, "shard 0")):
            with pytest.raises(InputError):
                read()
    path.write_bytes(whole.replace(b"photo 3", b"photo 9"))
    with pytest.raises(InputError, match=r"the provenance of .* was altered"):
        plan_removal(store, examples=["photo 3.jpg"])


def test_step_and_its_provenance_belong_together(tmp_path):
    """An edited number of steps would lower epsilon."""
    path = tmp_path / "dw.safetensors"
    write_component(path, part(0), {"provenance": origin(0, privacy=PRIVATE).to_json()})
    assert read_component(path)[1]["provenance"]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'\\"steps_paid\\": 50', b'\\"steps_paid\\": 10'))
    with pytest.raises(InputError, match=r"numbers and provenance of .* must belong together"):
        read_component(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="must belong together"):
        read_component(path)


def listed_exports(store, name):
    """The exports that the receipt of the removal of a component lists as not reached."""
    return [trace.path for trace in drop(store, name).not_reached if trace.kind == "export"]


def test_removal_lists_exports_of_its_name(tmp_path):
    store = Store(tmp_path)
    store.add("a", part(0), origin(0))
    store.release("/of a", store.sum())  # whether or not it is written afterwards
    store.add("b", part(1), origin(1))
    store.release("/of both", store.sum())
    assert listed_exports(store, "b") == ["/of both"]
    store.discard(["a"])
    store.add("a", part(2), origin(2))  # replaced: the export of the earlier one is listed, too
    assert listed_exports(Store(tmp_path), "a") == ["/of a", "/of both"]


def test_a_line_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    store, synced = Store(tmp_path), []

    def fsync(descriptor, real=os.fsync):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.add("a", part(0), origin(0))
    step = store.path("a").name
    assert [name for name in synced if name in (f"{step}.partial", "journal.jsonl", "HEAD.partial")] == [
        f"{step}.partial", "journal.jsonl", "HEAD.partial",
    ]  # fmt: skip


def test_reader_needs_no_lock(tmp_path, monkeypatch):
    Store(tmp_path / "store").add("a", part(0), origin(0))

    def read_only(path, mode):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("tangent_jax.io.files.open_plain", read_only)
        with hold_lock(tmp_path / "store/lock", shared=True) as lock:
            assert lock is None
        with pytest.raises(PermissionError), hold_lock(tmp_path / "store/lock"):
            pass


@pytest.mark.slow
def test_command_removes_a_contributor(photographs, tmp_path):
    """Whose they are is said once, when the components are made; the same for a component that nobody said it of."""
    cache, data = f"--cache_dir={tmp_path / 'cache'}", f"--dataset=folder:{photographs}"
    table, stores = tmp_path / "owners.csv", tmp_path / "stores"
    whose = {f"train/{c}/{i}.png": "bob" if i % 4 else "ann@example.org" for c in "ab" for i in range(40)}
    table.write_text("file,owner\n" + "".join(f"{name},{owner}\n" for name, owner in whose.items()))
    sharded = ("--sharding=owner", f"--owners={table}", f"--store={stores}", "--method=taft", "--epochs=1")
    line, err = run("compose", cache, data, *sharded, "--blocks=0", f"--out={tmp_path / 'out'}")
    assert (len([*stores.iterdir()]), json.loads(line)["full"]) == (1, {})  # nobody asked for a model of all owners
    assert "(for 2 components, one for each owner)" in err
    all_in_one = ("--sharding=uniform", "--shards=1", *sharded[1:])
    _, err = run("compose", cache, data, *all_in_one, "--blocks=0", f"--out={tmp_path / 'out'}")
    assert "(for one component of all images)" in err
    by_owner, together = (f"--store={next(stores.glob(pattern))}" for pattern in ("*owner-seed*", "*uniform-full-*"))
    now, err = run("store", "compose", by_owner, cache, data)
    accuracy = json.loads(line)["shards"]["2"]["taft"]
    assert [*json.loads(now)["accuracy"].values()] == [pytest.approx(accuracy, abs=1e-6)]
    assert f": {accuracy:.4f}" in err
    for store in (by_owner, together):
        line, err = run("store", "remove", store, cache, "--owner=ann@example.org", "--retrain")
        left = Store(store[8:])
        assert {whose[name] for component in left for _, name in left.provenance(component).data.examples} == {"bob"}
        assert "retrained on the 60 left" in err or [*left] == ["bob"]
        receipt = json.loads(Path(json.loads(line)["receipt"]).read_text())["predicate"]
        assert receipt["owner"] == left.key.hide("ann@example.org")
    _, err = run("store", "remove", together, "--owner=bobby", "--dry_run", code=1)
    assert "owner must be as components recorded them; got bobby, and near it are bob" in err
    ids = tmp_path / "ids.txt"
    ids.write_text("elsewhere/b/5.png\n")
    _, err = run("store", "remove", together, f"--examples={ids}", code=1)
    assert "examples must be as components recorded them; got elsewhere/b/5.png, and near it are train/b/5.png" in err
    _, err = run("store", "remove", together, "--owner=carl", "--name=all", code=1)
    assert "one of --name, --examples and --owner must be given" in err


@pytest.mark.slow
def test_later_owner_retrains_no_other(photographs, tmp_path):
    shutil.copytree(photographs, tmp_path / "photos")
    late = [tmp_path / f"photos/train/{c}/{i}.png" for c in "ab" for i in range(20, 40)]
    contents = {path: path.read_bytes() for path in late}
    for path in late:
        path.unlink()
    whose = {f"train/{c}/{i}.png": "ann" if i < 10 else "bob" if i < 20 else "cem" for c in "ab" for i in range(40)}
    (tmp_path / "who.csv").write_text("".join(f"{name},{owner}\n" for name, owner in whose.items()))
    places = [f"--{name}={tmp_path / name}" for name in ("cache_dir", "store", "out")]
    flags = [f"--dataset=folder:{tmp_path}/photos", "--sharding=owner", f"--owners={tmp_path}/who.csv", "--method=taft"]
    run("compose", *places, *flags, "--epochs=1", "--blocks=0")
    (root,) = (tmp_path / "store").iterdir()
    first = {name: (Store(root).path(name), Store(root).path(name).read_bytes()) for name in Store(root)}
    assert [*first] == ["ann", "bob"]
    for path, content in contents.items():
        path.write_bytes(content)
    run("compose", *places, *flags, "--epochs=1", "--blocks=0")
    assert [*Store(root)] == ["ann", "bob", "cem"]
    assert {name: (Store(root).path(name), Store(root).path(name).read_bytes()) for name in first} == first


@pytest.mark.slow
def test_removed_owner_returns_to_no_cache(photographs, tmp_path):
    """Nor do their test images, which no component saw; the others' components stay as they are."""
    index = tmp_path / "cache_dir" / "index.sqlite"
    time.sleep(2.1)  # the index keeps nothing about files that changed just now
    names = [f"train/{c}/{i}.png" for c in "ab" for i in range(40)] + ["test/a/x.png", "test/b/y.png"]
    whose = {name: "bert" if name.endswith(("3.png", "x.png")) else "ann" for name in names}
    (tmp_path / "who.csv").write_text("".join(f"{name},{owner}\n" for name, owner in whose.items()))
    cache, stores, owners = (
        f"--cache_dir={tmp_path}/cache_dir",
        f"--store={tmp_path}/store",
        f"--owners={tmp_path}/who.csv",
    )
    flags = [cache, stores, owners, f"--dataset=folder:{photographs}", f"--out={tmp_path}/out", "--epochs=1"]
    by_owner, by_shuffle = ["--sharding=owner", "--method=taft"], ["--shards=3", "--method=fc"]
    run("compose", *flags, *by_owner)
    run("compose", *flags, *by_shuffle)
    gone = {content_identifier((photographs / name).read_bytes()) for name in names if whose[name] == "bert"}
    assert gone <= said_in(tmp_path / "cache_dir", index)
    rows = rows_for(tmp_path / "cache_dir", gone)
    root, others = (next((tmp_path / "store").glob(p)) for p in ("*owner-seed*", "*uniform-3-*"))
    remove = ["store", "remove", f"--store={root}", cache, "--owner=bert"]
    run(*remove)
    (test,) = gone - {identifier for identifier in gone if Store(root).has_forgotten(identifier)}
    (tmp_path / "ids.txt").write_text(test)
    _, err = run(*remove[:-1], f"--examples={tmp_path / 'ids.txt'}")
    assert "1 images that no component saw: their cached rows go" in err
    assert not gone & said_in(tmp_path / "cache_dir", index)
    kept, shards = Store(root).path("ann").read_bytes(), {n: Store(others).provenance(n) for n in Store(others)}
    line, err = run("compose", *flags, *by_owner)
    assert "train inputs: 8 images were removed from a store in" in err
    assert "test inputs: 1 images were removed from a store in" in err
    assert "(for 1 components, one for each owner)" in err
    assert [*json.loads(line)["shards"]] == ["1"]
    assert Store(root).path("ann").read_bytes() == kept
    run("compose", *flags, *by_shuffle)
    left = {n: Store(others).provenance(n).data.examples for n in Store(others)}
    assert left == {n: tuple(pair for pair in shards[n].data.examples if pair[0] not in gone) for n in shards}
    assert not gone & said_in(tmp_path / "cache_dir", index)
    assert files_holding(tmp_path / "cache_dir", rows) == []
    # a command without a store knows nothing of the removal: asked for again, it erases what came back
    run("finetune", cache, flags[3], "--blocks=1", "--epochs=1", f"--out={tmp_path}/tuned")
    assert gone <= said_in(tmp_path / "cache_dir", index)
    _, dry = run(*remove, "--dry_run")
    line, err = run(*remove)
    deleted = [text for text in err.splitlines() if text.startswith("deleted")]
    assert deleted
    assert [text.replace("would delete", "deleted") for text in dry.splitlines() if "would" in text] == deleted
    assert f"bert: removed before, on {Store(root).journal.entries[-1]['time'][:10]}" in err
    assert not gone & said_in(tmp_path / "cache_dir", index)
    assert files_holding(tmp_path / "cache_dir", rows) == []
    assert json.loads(line)["removed"] == []


def rows_for(cache, identifiers):
    """The bytes of the cached rows of these images."""
    rows = []
    for folder in cache.glob("*/"):
        names = identifiers_of(folder)
        every = np.fromfile(folder / "rows.bin", np.uint8).reshape(len(names), -1)
        rows += [row for name, row in zip(names, every, strict=True) if name in identifiers]
    assert all(row.any() for row in rows)
    return rows


def said_in(cache, index):
    """The identifiers that the files of a cache and an index name."""
    with contextlib.closing(sqlite3.connect(index)) as texts:
        kept = {text for (text,) in texts.execute("select text from texts")}
    return kept.union(*map(identifiers_of, cache.glob("*/")))


def test_exact_removal_moves_uncertain_component():
    def linear(dw, x):
        return x @ dw["kernel"]

    rng, identifiers = np.random.default_rng(0), tuple((f"{i:064x}", f"{i}") for i in range(30))
    data = Features(rng.normal(size=(30, 6)).astype(np.float32), rng.integers(0, 3, 30), identifiers)
    recipe, zero = Recipe(solver="optimum", penalty=0.1, certificate=10.0), {"kernel": np.zeros((6, 3), np.float32)}
    whole = solve(linear, data, recipe.objective, start=zero, certificate=1e-4).dw
    left, said = data.take(np.arange(29)), origin(0, recipe=recipe, total_penalty=3.0)
    new = solve_again(said, recipe, linear, left, whole, "a")
    assert new.optimum.certificate <= new.optimum.certificate_before / 10 < recipe.certificate / 10
    objective = make_objective(penalty=3.0 / 29)
    never = solve(linear, left, objective, start=zero, certificate=1e-4).dw
    moved, gap = (np.linalg.norm(dw["kernel"] - never["kernel"]) for dw in (whole, new.dw))
    assert gap <= new.optimum.certificate + 1e-4 < moved


@given(st.floats(1e-300, 1e300))
def test_receipt_bound_has_one_digit(bound):
    stated = rounded_up(bound)
    assert bound <= stated <= 2 * bound
    assert stated == float(f"{stated:.0e}")


@pytest.mark.parametrize("bound", [float("inf"), float("nan"), 1.5e308])
def test_infinite_bound_is_in_no_receipt(tmp_path, monkeypatch, bound):
    """It was Infinity, which is no JSON."""
    store = Store(tmp_path / "store")
    store.add("ann", part(1), origin(1))
    store.add("bob", part(2), origin(2))
    left = origin(1, examples=origin(1).data.examples[1:])
    monkeypatch.setattr(removal, "retrain", lambda *_, **__: Retrained(part(9), left, bound))
    receipt = remove(store, plan_removal(store, examples=[origin(1).data.examples[0][0]]), "retrain")
    assert (receipt.distance_bounds, [*receipt.retrained]) == ({}, ["ann"])
    json.loads(receipt.path.read_text(), parse_constant=pytest.fail)
    assert verify_receipt(store, receipt.path) == []


@pytest.mark.parametrize("certificates", [(float("inf"), 0.1), (0.1, float("nan")), (1.5e308, 0.1)])
def test_missing_certificate_erases_nothing(certificates):
    with pytest.raises(InputError, match=r"the certificates of ann must be finite; got .* at the start\. Remove the"):
        check_finite("ann", *certificates)
    check_finite("ann", 0.1, 0.01)


def test_optimum_bound_is_rounded_up():
    exact = Optimum(total_penalty=1.25, certificate_before=0.231, certificate=0.01, passes=3, converged=True)
    new = Retrained(part(1), origin(1), None, exact)
    optima = receipt_fields("exact", {"all": new})["optima"]
    assert optima == {"all": dataclasses.replace(exact, certificate_before=0.3)}

"""Groups of shards, claims on them by processes, and stores that are filled apart and merged."""

import dataclasses
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from helpers import origin, part

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.io import files
from tangent_jax.io.files import hold_lock
from tangent_jax.pretrained.load import load
from tangent_jax.store.apart import Filling, Shards, fill
from tangent_jax.store.claims import Claims
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.recipe import recipe_of
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

SIZES = (9, 8, 16, 8, 8)  # of shards: 2, 1, 2, 1 and 1 steps of 8
GROUPS = [["0", "2"], ["1", "3"], ["4"]]


def filled(root, count):
    store = Store(root)
    for s in range(count):
        store.add(f"shard {s}", part(s), origin(s))
    return store


def drop(store, *names):
    return remove(store, plan_removal(store, names=names))


SETTINGS = {"kind": "head", "epochs": 1, "batch_size": 8, "output": "tangent"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(shards, a store that one process filled with them)."""
    folder, recipe = tmp_path_factory.mktemp("trained"), recipe_of(**SETTINGS)
    predict, digits = recipe.predictor(10, load("builtin")), open_dataset("digits")
    features = extract(predict, digits.train.take(np.arange(sum(SIZES))), Cache(folder / "cache"))
    ends = np.cumsum(SIZES)
    rows = {str(s): np.arange(end - size, end) for s, (size, end) in enumerate(zip(SIZES, ends, strict=True))}
    store = Store(folder / "store")
    shards = Shards(predict, features, recipe, rows, at_once=2)
    fill(store, shards)
    return shards, store


def fingerprints(store):
    return {name: trees.fingerprint(store[name].dw) for name in store}


def test_groups_are_of_as_many_steps_and_decided_by_the_shards_alone(trained):
    shards, _ = trained
    assert shards.groups() == GROUPS
    assert dataclasses.replace(shards, at_once=1).groups() == [[name] for name in ("0", "2", "1", "3", "4")]
    exact = dataclasses.replace(shards, recipe=recipe_of(**SETTINGS, solver="optimum"))
    assert exact.groups() == [[name] for name in shards.rows]


def test_a_group_is_trained_whole_whatever_is_missing_and_whoever_trains_it(trained, tmp_path, monkeypatch):
    shards, whole = trained
    store, groups, fit = Store(tmp_path / "store"), [], Shards.fit
    monkeypatch.setattr(Shards, "fit", lambda *args: groups.append(args[1]) or fit(*args))
    fill(store, shards, only={1})
    assert [*store] == GROUPS[1]
    store.discard(["3"])  # as if its worker had been killed before it added this one
    fill(store, shards, only={1, 2})
    fill(Store(tmp_path / "store"), shards)
    assert groups == [GROUPS[1], GROUPS[1], GROUPS[2], GROUPS[0]]
    store.reload()
    assert fingerprints(store) == fingerprints(whole)
    assert store.verify() == []
    fill(store, shards)
    assert len(groups) == 4


def test_a_component_that_replaces_a_stale_one_still_names_its_cache(trained, tmp_path):
    shards, _ = trained
    store, names = Store(tmp_path / "store"), ["0", "1"]
    shards = dataclasses.replace(shards, rows={name: shards.rows[name] for name in names})
    before = dataclasses.replace(shards, recipe=recipe_of(**SETTINGS, penalty=1e-3))
    fill(store, before)
    digits = open_dataset("digits")
    again = extract(shards.predict, digits.train.take(np.arange(sum(SIZES))), Cache(tmp_path / "cache"))
    fill(store, dataclasses.replace(shards, features=again))
    folders = {shards.features.folder, again.folder}
    assert [{*store.provenance(name).folders} for name in names] == [folders, folders]


@pytest.mark.parametrize("claim", ["0", "stale"])
def test_who_finds_a_group_claimed_waits_and_takes_what_the_other_one_added(trained, tmp_path, claim, monkeypatch):
    shards, whole = trained
    store = Store(tmp_path / "store")
    if claim == "stale":
        fill(store, dataclasses.replace(shards, recipe=recipe_of(**SETTINGS, penalty=1e-3)))
    monkeypatch.setattr(Shards, "fit", None)
    with hold_lock(Claims(store).lock(claim)):
        second = threading.Thread(target=fill, args=(Store(tmp_path / "store"), shards))
        second.start()
        second.join(0.5)
        assert second.is_alive()
        store.discard([*store])
        store.add_all(whole)
    second.join(60)
    store.reload()
    assert fingerprints(store) == fingerprints(whole)
    assert sum(line["op"] == "discard" for line in store.journal.entries) == 1
    assert sum(line["op"] == "add" for line in store.journal.entries) == len(SIZES) * (1 + (claim == "stale"))


def test_a_fill_that_a_removal_meets_names_no_removed_shard_again(trained, tmp_path):
    shards, _ = trained
    in_memory = dataclasses.replace(shards.features, inputs=np.array(shards.features.inputs), folder=None)
    shards = dataclasses.replace(shards, features=in_memory)  # a removal erases what lies in a folder
    store = Store(tmp_path / "store")
    fill(store, shards, only={0})
    filling = Filling(store, Claims(store), shards, shards.provenance({}), False)
    gone = next(iter(store))
    other = Store(store.root)
    remove(other, plan_removal(other, names=[gone]))
    with filling.hold(shards.groups(), 1):
        assert f'"{gone}"' not in filling.claims.path.read_text()
    filling.claims.path.with_name("groups.json.partial").write_text(gone)  # of a killed write
    remove(other, plan_removal(other, names=[next(iter(other))]))
    assert not [*filling.claims.folder.glob("groups.json*")]


def changed(shards, **settings):
    """The same shards with other settings."""
    return dataclasses.replace(shards, recipe=recipe_of(**{**SETTINGS, **settings}))


def test_a_run_of_other_settings_or_images_is_kept_out_until_the_first_one_ends(trained, tmp_path):
    shards, filled = trained
    store = Store(tmp_path / "store")
    with ExitStack() as first:
        fill(store, shards, until=first)
        fill(Store(store.root), shards)  # another process of the same run
        with pytest.raises(InputError, match=r"another one fills it now, with epochs 1, here 2\. Wait"):
            fill(Store(store.root), changed(shards, epochs=2))
        fewer = dataclasses.replace(shards, rows={**shards.rows, "0": shards.rows["0"][1:]})
        with pytest.raises(InputError, match=r"with other images or shards\. Wait"):
            fill(Store(store.root), fewer)
        assert fingerprints(Store(store.root)) == fingerprints(filled)
    fill(Store(store.root), changed(shards, epochs=2))
    assert fingerprints(Store(store.root)) != fingerprints(filled)


@pytest.mark.parametrize(
    ("at_once", "options", "difference"),
    [
        (1, {}, "at_once 2, here 1"),
        (2, {"factors": True}, "factors false, here true"),
        (2, {"owners": True}, 'owners "[0-9a-f]{64}", here "[0-9a-f]{64}"'),
    ],
)
def test_a_run_of_other_groups_factors_or_owners_is_kept_out(trained, tmp_path, at_once, options, difference):
    """Such runs trained the same shards twice, and left a store with factors or owners of some components alone."""
    shards, _ = trained
    store = Store(tmp_path / "store")
    if "owners" in options:
        options = {"owners": {name: "ann@there" for _, name in shards.features.examples}}
    other = dataclasses.replace(shards, at_once=at_once)
    with ExitStack() as first:
        fill(store, shards, until=first)
        with pytest.raises(InputError, match=rf"another one fills it now, with {difference}\. Wait"):
            fill(Store(store.root), other, **options, only={0})
    with ExitStack() as first:
        fill(store, other, **options, until=first)
        fill(Store(store.root), other, **options, only={0})  # a worker of the same run
        assert "ann@there" not in Claims(store).run.read_text()


@pytest.mark.parametrize("content", [None, "", "[]", '{"settings": 1}'])
def test_a_run_whose_settings_cannot_be_read_is_another_one(trained, tmp_path, content):
    shards, _ = trained
    store = Store(tmp_path / "store")
    with ExitStack() as first:
        fill(store, shards, until=first)
        path = Claims(store).run
        path.unlink()
        if content is not None:
            path.write_text(content)
        with pytest.raises(InputError, match=r"fills it now, with settings that cannot be read\. Wait until it ends"):
            fill(Store(store.root), shards)


def test_a_run_that_was_killed_keeps_nobody_out(trained, tmp_path):
    shards, _ = trained
    store = Store(tmp_path / "store")
    with ExitStack() as first:
        fill(store, changed(shards, epochs=2), until=first)
        shutil.copytree(store.root, tmp_path / "killed")  # all but its locks
    fill(Store(tmp_path / "killed"), shards)


def test_a_worker_with_a_wrong_flag_discards_nothing_of_the_others(trained, tmp_path):
    shards, _ = trained
    store = Store(tmp_path / "store")
    fill(store, shards, only={0})
    before = fingerprints(store)
    with pytest.raises(InputError, match=r"for a worker; 0 has epochs 1, here 2\. Give all"):
        fill(store, changed(shards, epochs=2), only={1})
    assert fingerprints(Store(store.root)) == before
    fill(store, shards, only={1})
    fill(store, changed(shards, epochs=2))  # not a worker: it trains all again
    assert {*store} == {*shards.rows}


def test_a_shard_is_done_running_lost_or_waiting(tmp_path):
    store = filled(tmp_path, 1)
    claims = Claims(store)
    assert claims.states() == {"shard 0": {"state": "done"}}
    claims.write_groups([["shard 0", "a"], ["b"], ["c"]])
    claims.lock(2).write_text("process 7 on there (compose.py)")  # as one that was killed leaves it
    with hold_lock(claims.lock(0)):
        states = claims.states()
    assert {name: of["state"] for name, of in states.items()} == {
        "shard 0": "done", "a": "running", "b": "waiting", "c": "lost"
    }  # fmt: skip
    assert states["a"]["process"].startswith(f"process {files.os.getpid()} on ")
    assert states["c"]["process"] == "process 7 on there (compose.py)"
    assert claims.states()["a"] == {"state": "waiting"}  # a process that ends in order leaves no name
    assert store.verify() == []


def test_no_claim_names_the_shard_of_a_removed_owner(trained, tmp_path):
    """Shards have the names of owners where each owner is one; neither a removal nor the next filling keeps them."""
    shards, whole = trained
    in_memory = dataclasses.replace(shards.features, inputs=np.array(shards.features.inputs), folder=None)
    shards = dataclasses.replace(shards, features=in_memory)  # whose cache the removal does not search
    store = Store(tmp_path / "store")
    fill(store, shards, only={0, 1})
    claims = Claims(store)
    gone = next(iter(store))
    assert f'"{gone}"' in claims.path.read_text()
    remove(store, plan_removal(store, names=[gone]))
    assert not claims.path.exists()
    assert gone not in claims.states()
    fill(store, shards)
    assert [*store] == [name for name in sorted(whole) if name != gone]
    assert f'"{gone}"' not in claims.path.read_text()


# Stores that were filled apart


def test_a_store_takes_in_another_bit_for_bit_and_again_changes_nothing(tmp_path):
    here, there = filled(tmp_path / "here", 2), Store(tmp_path / "there")
    there.add("shard 1", part(1), origin(1))
    there.add("shard 2", part(2), origin(2))
    assert here.add_all(there) == ["shard 2"]
    assert fingerprints(here) == fingerprints(filled(tmp_path / "whole", 3))
    assert here.provenance("shard 2") == there.provenance("shard 2")
    journal = here.journal.path.read_bytes()
    assert here.add_all(there) == here.add_all(here) == []
    assert here.journal.path.read_bytes() == journal
    assert here.verify() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda other: other.add("shard 0", part(5), origin(5)), "shard 0 of .* has other numbers in"),
        (lambda other: other.add("other", part(5), origin(5, anchor="0")), "anchor must be"),
        (
            lambda other: other.add("other", part(0), origin(5)),
            "other must have numbers of its own",
        ),
        (
            lambda other: drop(filled(Path(other.root), 1), "shard 0"),
            "there has removed something",
        ),
    ],
)
def test_a_store_that_cannot_be_taken_in_is_refused_in_one_line(tmp_path, change, message):
    here, there = filled(tmp_path / "here", 1), Store(tmp_path / "there")
    change(there)
    before = here.journal.path.read_bytes()
    with pytest.raises(InputError, match=message):
        here.add_all(Store(tmp_path / "there"))
    assert here.journal.path.read_bytes() == before
    assert here.verify() == []

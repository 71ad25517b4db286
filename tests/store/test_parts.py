"""Groups of shards, parts that other processes train, and stores that are filled apart and merged."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import drop, filled, origin, part

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.pretrained.load import load
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify

SIZES = (9, 8, 16, 8, 8)  # of shards: 2, 1, 2, 1 and 1 steps of 8
GROUPS = [["0", "2"], ["1", "3"], ["4"]]


SETTINGS = {"kind": "head", "epochs": 1, "batch_size": 8, "output": "tangent"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(shards, a store that one process filled with them)."""
    folder, recipe = tmp_path_factory.mktemp("trained"), Recipe(**SETTINGS)
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


def test_groups_are_decided_by_shards(trained):
    shards, _ = trained
    assert shards.groups() == GROUPS
    assert dataclasses.replace(shards, at_once=1).groups() == [[name] for name in ("0", "2", "1", "3", "4")]
    exact = dataclasses.replace(shards, recipe=Recipe(**SETTINGS, solver="optimum"))
    assert exact.groups() == [[name] for name in shards.rows]


def test_group_is_trained_whole(trained, tmp_path, monkeypatch):
    shards, whole = trained
    store, groups, fit = Store(tmp_path / "store"), [], Shards.fit
    monkeypatch.setattr(Shards, "fit", lambda *args: groups.append(args[1]) or fit(*args))
    fill(store, shards, only={1})
    assert [*store] == GROUPS[1]
    store.discard(["3"])  # as if its process had been killed before it added this one
    fill(store, shards, only={1, 2})
    fill(Store(tmp_path / "store"), shards)
    assert groups == [GROUPS[1], GROUPS[1], GROUPS[2], GROUPS[0]]
    store.reload()
    assert fingerprints(store) == fingerprints(whole)
    assert verify(store) == []
    fill(store, shards)
    assert len(groups) == 4


def test_replacement_names_the_old_cache(trained, tmp_path):
    shards, _ = trained
    store, names = Store(tmp_path / "store"), ["0", "1"]
    shards = dataclasses.replace(shards, rows={name: shards.rows[name] for name in names})
    before = dataclasses.replace(shards, recipe=Recipe(**SETTINGS, penalty=1e-3))
    fill(store, before)
    digits = open_dataset("digits")
    again = extract(shards.predict, digits.train.take(np.arange(sum(SIZES))), Cache(tmp_path / "cache"))
    fill(store, dataclasses.replace(shards, features=again))
    folders = {shards.features.folder, again.folder}
    assert [{*store.provenance(name).training.folders} for name in names] == [folders, folders]


def changed(shards, **settings):
    """The same shards with other settings."""
    return dataclasses.replace(shards, recipe=Recipe(**{**SETTINGS, **settings}))


def with_another_run(store, shards, other, monkeypatch):
    """Fills the store with the shards while another run, on another machine, fills it with others."""
    fit, others = Shards.fit, iter([other])

    def meanwhile(*given):
        for one in others:
            fill(Store(store.root), one)
        return fit(*given)

    monkeypatch.setattr(Shards, "fit", meanwhile)
    fill(store, shards)


def test_two_equal_runs_fill_one_store(trained, tmp_path, monkeypatch):
    shards, whole = trained
    store = Store(tmp_path / "store")
    with_another_run(store, shards, shards, monkeypatch)
    assert fingerprints(store) == fingerprints(whole)


def test_run_refuses_added_other_settings(trained, tmp_path, monkeypatch):
    shards, _ = trained
    other = dataclasses.replace(changed(shards, epochs=2), rows={"4": shards.rows["4"]})
    with pytest.raises(InputError, match=r"one run at a time; another one added 4, with epochs 2, here 1"):
        with_another_run(Store(tmp_path / "store"), shards, other, monkeypatch)


def test_altered_part_is_refused(trained, tmp_path):
    shards, whole = trained
    part_, store = Store(tmp_path / "part"), Store(tmp_path / "store")
    fill(store, shards)
    moved = whole["0"]
    part_.put("0", trees.scale(2, moved.dw), moved.provenance)
    with pytest.raises(InputError, match=r"0 of .* has other numbers in .* or delete it"):
        fill(store, shards, parts=[part_.root])


def test_parts_have_bits_of_one_process(trained, tmp_path):
    shards, whole = trained
    parts = [tmp_path / f"part {number}" for number in range(4)]  # more than groups: the last one is empty
    for number, part_ in enumerate(parts):
        fill(Store(part_), shards, only={number})
    store = Store(tmp_path / "store")
    fill(store, shards, only=(), parts=parts[:1])
    assert [*store] == GROUPS[0]
    fill(store, shards, only=(), parts=parts)
    assert fingerprints(store) == fingerprints(whole)
    assert verify(store) == []


def test_missing_parts_are_trained(trained, tmp_path):
    """As after kills: of a part before it added all of its components, and of the process that took over."""
    shards, whole = trained
    part_, store = Store(tmp_path / "part"), Store(tmp_path / "store")
    fill(part_, shards, only={1})
    part_.discard(["3"])
    fill(store, shards, only=(), parts=[part_.root])
    assert [*store] == ["1"]
    fill(part_, shards, only={1})
    assert [*part_] == GROUPS[1]
    fill(store, shards, parts=[part_.root])
    assert fingerprints(store) == fingerprints(whole)


@pytest.mark.parametrize(
    ("settings", "options", "difference"),
    [({"epochs": 2}, {}, "epochs 2, here 1"), ({}, {"factors": True}, "factors false, here true")],
)
def test_other_part_is_refused_by_setting(trained, tmp_path, settings, options, difference):
    shards, _ = trained
    fill(Store(tmp_path / "part"), changed(shards, **settings), only={0})
    store = Store(tmp_path / "store")
    with pytest.raises(InputError, match=rf"part must be a part of this run; 0 has {difference}\. Give all parts"):
        fill(store, shards, parts=[tmp_path / "part"], **options)
    assert not len(store)


def test_a_part_of_other_images_is_refused(trained, tmp_path):
    shards, _ = trained
    fewer = dataclasses.replace(shards, rows={**shards.rows, "0": shards.rows["0"][1:]})
    fill(Store(tmp_path / "part"), fewer, only={0})
    for other in (shards, dataclasses.replace(shards, rows={"1": shards.rows["1"]})):
        with pytest.raises(InputError, match="0 has other images or shards"):
            fill(Store(tmp_path / "store"), other, parts=[tmp_path / "part"])


# Stores that were filled apart, and copies


@pytest.mark.parametrize("is_synchronized", [False, True])
def test_copied_store_verifies(tmp_path, is_synchronized):
    """As `cp -r` makes it, or an object store that keeps no modes, no empty files and no empty folders."""
    store = filled(tmp_path / "store", 2)
    store.compose()
    remove(store, plan_removal(store, names=["shard 1"]))
    shutil.copytree(store.root, tmp_path / "copy")
    if is_synchronized:
        (tmp_path / "copy/lock").unlink()
        (tmp_path / "copy/keys.json").chmod(0o644)
    copy = Store(tmp_path / "copy")
    assert verify(copy) == []
    assert copy.identity == store.identity
    assert fingerprints(copy) == fingerprints(store)
    with pytest.raises(InputError, match="examples must not be removed ones"):
        copy.add("back", part(1), origin(1))
    copy.add("new", part(2), origin(2))
    path = next(copy.root.glob("components/*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert len(verify(copy)) == 1


def test_taking_in_twice_changes_nothing(tmp_path):
    here, there = filled(tmp_path / "here", 2), Store(tmp_path / "there")
    there.add("shard 1", part(1), origin(1))
    there.add("shard 2", part(2), origin(2))
    assert add_all(here, there) == ["shard 2"]
    assert fingerprints(here) == fingerprints(filled(tmp_path / "whole", 3))
    assert here.provenance("shard 2") == there.provenance("shard 2")
    journal = here.journal.path.read_bytes()
    assert add_all(here, there) == add_all(here, here) == []
    assert here.journal.path.read_bytes() == journal
    assert verify(here) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda other: other.add("shard 0", part(5), origin(5)), "shard 0 of .* has other numbers in"),
        (lambda other: other.add("other", part(5), origin(5, anchor="0")), "anchor must be"),
        (lambda other: other.add("other", part(0), origin(5)), "other must have numbers of its own"),
        (lambda other: drop(filled(Path(other.root), 1), "shard 0"), "there has removed something"),
    ],
)
def test_unfit_store_is_not_taken_in(tmp_path, change, message):
    here, there = filled(tmp_path / "here", 1), Store(tmp_path / "there")
    change(there)
    before = here.journal.path.read_bytes()
    with pytest.raises(InputError, match=message):
        add_all(here, Store(tmp_path / "there"))
    assert here.journal.path.read_bytes() == before
    assert verify(here) == []

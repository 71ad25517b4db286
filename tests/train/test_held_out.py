"""Held-out examples: every fifth of each class, or whole groups, and the same ones as before groups were known."""

import dataclasses

import numpy as np
import pytest

from tangent_jax.train.features import FOLDS, Features, folds_of


def features(labels, **fields):
    labels = np.asarray(labels)
    return Features(
        np.zeros((len(labels), 1)), labels, tuple((f"{i}", f"{i}.png") for i in range(len(labels))), **fields
    )


def random_case(seed):
    """(labels, groups): several images a group, some groups of two classes, classes of few groups."""
    rng = np.random.default_rng(seed)
    class_of = rng.integers(0, 6, 30)
    group = rng.integers(0, 30, 150)
    labels = np.where(rng.random(150) < 0.1, rng.integers(0, 7, 150), class_of[group])
    return labels.astype(np.int32), tuple(f"track {g}" for g in group)


@pytest.mark.parametrize("kind", ["classes", "unsigned", "floats", "rows"])
def test_every_fifth_example_is_held_out(kind):
    labels = np.random.default_rng(0).integers(0, 7, 90)
    targets = {"classes": labels.astype(np.int32), "unsigned": labels.astype(np.uint8)}
    targets |= {"floats": labels.astype(float), "rows": np.eye(7)[labels]}
    seen, want = {}, []
    for label in labels if kind in ("classes", "unsigned") else np.zeros(90, int):
        rank = seen.get(int(label), 0)
        seen[int(label)] = rank + 1
        want.append(rank % 5 == 4)
    np.testing.assert_array_equal(features(targets[kind]).held_out(), want)


@pytest.mark.parametrize("seed", range(8))
def test_no_group_is_on_both_sides(seed):
    labels, groups = random_case(seed)
    train, held = features(labels, groups=groups).hold_out()
    assert len(held) > 0
    assert {*train.groups}.isdisjoint(held.groups)
    assert {*train.targets.tolist()} == {*labels.tolist()}
    folds = folds_of(labels, groups)
    assert len({*zip(groups, folds.tolist(), strict=True)}) == len({*groups})


def test_every_fifth_group_is_held_out():
    labels = np.repeat(np.arange(3), 60)
    groups = tuple(f"{c}/{i // 6}" for c in range(3) for i in range(60))
    _, held = features(labels, groups=groups).hold_out()
    assert {*held.groups} == {f"{c}/{i}" for c in range(3) for i in (4, 9)}
    assert np.bincount(held.targets).tolist() == [12, 12, 12]


@pytest.mark.parametrize(("count", "held"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (5, [4]), (9, [4])])
def test_last_of_few_groups_is_held_out(count, held):
    groups = tuple(np.repeat(np.arange(count), 3).tolist())
    mask = features(np.zeros(3 * count, int), groups=groups).held_out()
    assert sorted({*np.array(groups)[mask].tolist()}) == held
    folds = folds_of(np.zeros(3 * count, int), groups)
    assert len({*folds.tolist()}) == min(count, FOLDS)  # each fold leaves images of the class to train on


def test_groups_of_classes_count_together():
    labels = np.arange(100) % 10
    for count in (2, 5, 10):  # owners of all classes, each of whom another class begins
        owners = tuple((i // (100 // count)) for i in range(100))
        train, held = features(labels, owners=owners).hold_out()
        assert len({*held.owners}) == max(1, count // 5)
        assert {*train.targets.tolist()} == {*held.targets.tolist()} == {*range(10)}


def test_class_within_shared_group_trains():
    labels, groups = np.array([0, 2, 0, 1]), ("a", "a", "b", "b")
    assert not features(labels, groups=groups).held_out().any()
    assert folds_of(labels, groups).tolist() == [3, 3, 4, 4]


def test_copies_stay_together():
    data = features(np.zeros(20, int))
    copied = dataclasses.replace(data, examples=tuple((f"{i % 19}", name) for i, (_, name) in enumerate(data.examples)))
    assert data.folds()[[0, 19]].tolist() == [0, 4]
    assert copied.folds()[[0, 19]].tolist() == [0, 0]
    np.testing.assert_array_equal(np.flatnonzero(copied.held_out()), [4, 9, 14])
    grouped = dataclasses.replace(copied, groups=tuple(range(20)))
    assert grouped.folds()[[0, 19]].tolist() == [0, 0]  # groups that share a copy are one


def test_owners_stay_whole_below_groups():
    labels = np.zeros(20, int)
    owners = tuple(np.repeat(["ann", "bob"], 10).tolist())
    owned = features(labels, owners=owners)
    assert {*owned.hold_out()[1].owners} == {"bob"}
    assert owned.held_out().sum() == 10
    grouped = dataclasses.replace(owned, groups=tuple(i // 2 for i in range(20)))
    np.testing.assert_array_equal(np.flatnonzero(grouped.held_out()), [8, 9, 18, 19])
    part = grouped.take(np.arange(9, 13))
    assert part.groups == (4, 5, 5, 6)

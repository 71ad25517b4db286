"""The attacks measure what they say."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tangent_jax.audit import membership
from tangent_jax.audit.attacks import calibrate
from tangent_jax.core.checks import InputError
from tangent_jax.train.features import Features
from tangent_jax.train.metrics import auc


def test_confidence_is_log_odds():
    logits = np.random.default_rng(0).normal(size=(5, 4))
    labels = np.array([0, 1, 2, 3, 0])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p = p[np.arange(5), labels]
    np.testing.assert_allclose(membership.confidence(logits, labels), np.log(p / (1 - p)), rtol=1e-12)


def test_calibration_tells_memorised_from_easy():
    rng = np.random.default_rng(0)
    difficulty, member = rng.normal(0, 5, 400), np.arange(400) < 200
    target = difficulty + 2.0 * member
    held = rng.random((16, 400)) < 0.5
    shadows = difficulty + 2.0 * held + rng.normal(0, 0.1, held.shape)
    plain = auc(target[member], target[~member])
    ratio = calibrate(target, shadows, held)
    assert auc(ratio[member], ratio[~member]) > 0.99 > 0.7 > plain


def test_shadow_that_saw_example_is_left_out():
    target, shadows, held = np.array([4.0]), np.array([[9.0], [1.0], [3.0]]), np.array([[True], [False], [False]])
    assert calibrate(target, shadows, held) == [2.0]


def examples(rng, count, mark):
    """Inputs of more numbers than there are examples, with labels by chance: a model can only memorise them."""
    names = tuple((f"{mark}{i}", f"{mark}{i}.png") for i in range(count))
    return Features(rng.normal(size=(count, 120)).astype(np.float32), rng.integers(0, 3, count), names, 0)


def linear(dw, x):
    return x @ dw["kernel"]


def memorised(features):
    """The dw whose logits are 5 at the label and 0 elsewhere, on all of the features."""
    return {"kernel": (np.linalg.pinv(features.inputs) @ (5 * np.eye(3)[features.targets])).astype(np.float32)}


def train(data, halves):
    return [
        memorised(dataclasses.replace(data, inputs=data.inputs[rows], targets=data.targets[rows])) for rows in halves
    ]


def test_attack_finds_memorised_members():
    rng = np.random.default_rng(0)
    members, others, strangers = (examples(rng, count, mark) for count, mark in ((40, "m"), (60, "o"), (40, "s")))
    models = {"memorised": memorised(members), "of strangers": memorised(strangers)}
    found = membership.membership_attack(linear, models, members, others, train, shadows=8)
    for attack in ("confidence", "likelihood ratio"):
        told = found.auc()[attack]
        assert found.scores[attack]["memorised"].shape == (80,)  # as many others as members
        assert told["memorised"] > 0.9
        assert abs(told["of strangers"] - 0.5) < 0.2
        gap, low, high = found.auc_gap("memorised", "of strangers")[attack]
        assert gap == told["memorised"] - told["of strangers"]
        assert 0 < low < gap < high
        assert found.auc_gap("memorised", "memorised")[attack] == [0.0, 0.0, 0.0]


def test_shadows_train_on_changing_halves():
    rng, asked = np.random.default_rng(0), []
    members, others = examples(rng, 9, "m"), examples(rng, 6, "o")

    def spy(data, halves):
        asked.append((data, halves))
        return train(data, halves)

    membership.membership_attack(linear, {}, members, others, spy, shadows=3)
    ((data, halves),) = asked
    assert [name[0] for name, _ in data.examples] == 6 * ["m"] + 6 * ["o"]
    at = [int(name[1:]) for name, _ in data.examples[:6]]
    np.testing.assert_array_equal(data.inputs, np.concatenate([members.inputs[at], others.inputs]))
    np.testing.assert_array_equal(data.targets, np.concatenate([members.targets[at], others.targets]))
    assert [len({*rows}) for rows in halves] == [6, 6, 6]
    assert len({tuple(rows) for rows in halves}) == 3


@pytest.mark.parametrize("known", ["both", "members", "others", "neither"])
def test_shadows_have_owners(known):
    asked = []

    def spy(data, halves):
        asked.append((data, [data.take(rows) for rows in halves]))
        return train(data, halves)

    sides = [examples(np.random.default_rng(0), count, mark) for count, mark in ((9, "m"), (6, "o"))]
    sides = [
        dataclasses.replace(side, owners=tuple(name for name, _ in side.examples), groups=tuple(range(len(side))))
        if known in ("both", which)
        else side
        for side, which in zip(sides, ("members", "others"), strict=True)
    ]
    membership.membership_attack(linear, {}, *sides, spy, shadows=2)
    ((pool, halves),) = asked
    for data in (pool, *halves):
        assert data.owners == (tuple(name for name, _ in data.examples) if known == "both" else None)
        assert (data.groups is None) == (known != "both")


def test_gap_of_two_separated_models_has_width(untyped):
    perfect = np.array([9.0, 8, 7, 6, 5, 4, 3, 2])
    scores = {"a": perfect, "b": perfect[[1, 0, 2, 3, 4, 5, 6, 7]], "c": perfect.tolist()}
    found = membership.Membership({"confidence": scores})
    assert found.auc() == {"confidence": {"a": 1.0, "b": 1.0, "c": 1.0}}
    reach = 1 - 0.025**0.25
    assert found.auc_gap("a", "b")["confidence"] == pytest.approx([0.0, -reach, reach])
    assert found.auc_gap("a", "c") == {"confidence": [0.0, 0.0, 0.0]}


def test_gap_interval_holds_truth(monkeypatch):
    monkeypatch.setattr(membership, "DRAWS", 100)
    rng, inside, shifts = np.random.default_rng(1), 0, {"strong": 6, "weak": 4.5}
    truth = stats.norm.cdf(3) - stats.norm.cdf(2.25)  # signals of variance 2
    for _ in range(40):
        shared = rng.normal(size=20)
        models = {name: shared + rng.normal(size=20) + shift * (np.arange(20) < 10) for name, shift in shifts.items()}
        low, high = membership.Membership({"confidence": models}).auc_gap("strong", "weak")["confidence"][1:]
        inside += low <= truth <= high
    assert inside >= 38


def test_scores_of_odd_number_are_refused():
    with pytest.raises(InputError, match="scores must be of n members, then of n others; got 3"):
        membership.Membership({"confidence": {"a": np.arange(3.0)}}).auc()


def test_attack_refuses_wrong_use():
    members = examples(np.random.default_rng(0), 4, "m")
    nobody = members.take(np.array([], int))
    for match, given in {
        "shadows must be a whole number >= 2": (members, train, 1),
        "members and others must hold at least one example each; got 4 and 0": (nobody, train, 2),
        "train must return 2 models; got 0": (members, lambda data, halves: [], 2),
    }.items():
        others, fit, shadows = given
        with pytest.raises(InputError, match=match):
            membership.membership_attack(linear, {}, members, others, fit, shadows=shadows)

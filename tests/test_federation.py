"""examples/federation: contributors' files in a server's store, in process; the same by Flower where it is there."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_binary import ROOT

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.models import FeatureSettings
from tangent_jax.store import Shards, fill, make_provenance
from tangent_jax.store.verification import verify

sys.path.insert(0, str(ROOT / "examples/federation"))

from tangent_federation import faults, fixed_point, private, secure
from tangent_federation.collection import Collection, accuracy, leaving_out, remove_from, who
from tangent_federation.contributor import Contribution, Contributor, file_bytes, read_bytes
from tangent_federation.settings import Request, Settings

COUNT, PARTS = 3, 60  # contributors, and the shards of which each has one
CLASSES = tj.open_dataset("digits").classes
LDA = tj.store.StatisticsRecipe(features=FeatureSettings(("h",)))
SETTINGS = {"kind": "head", "solver": "optimum", "penalty": 0.1, "passes": 3}
HEAD = tj.Recipe(**SETTINGS)
NAMES = [f"contributor {i}" for i in range(COUNT)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def people(tmp_path_factory, cache):
    homes = tmp_path_factory.mktemp("homes")
    return [Contributor(name, homes / name, "digits", (i, PARTS), cache) for i, name in enumerate(NAMES)]


def same(a, b):
    return trees.fingerprint(a) == trees.fingerprint(b)


def fresh(people, home):
    return [dataclasses.replace(own, home=home / own.name) for own in people]


@pytest.fixture
def collection(tmp_path):
    request = Request(LDA, CLASSES, most_bytes=1 << 20)
    return Collection(tj.Store(tmp_path / "store"), request, LDA.predictor(CLASSES), LDA)


def one_process(recipe, cache, count=COUNT):
    """(predictor, the shards of the contributors) in one process that has all images."""
    dataset = tj.open_dataset("digits")
    parts = tj.shards.uniform(len(dataset.train), PARTS, seed=0)[:count]
    predict = recipe.predictor(CLASSES)
    features = tj.extract(predict, dataset.train.take(np.concatenate(parts)), tj.Cache(cache))
    ends = np.cumsum([len(part) for part in parts])
    rows = {name: np.arange(end - len(part), end) for name, part, end in zip(NAMES, parts, ends, strict=True)}
    return predict, Shards(predict, features, recipe, rows, CLASSES)


def test_contributors_have_bits_of_one_process(people, collection, cache, tmp_path):
    for own in people[::-1]:  # whoever comes first
        assert collection.take(own.name, own.contribute(collection.request))
    alone = tj.Store(tmp_path / "alone")
    fill(alone, one_process(LDA, cache)[1])
    assert [*collection.store] == NAMES
    assert trees.fingerprint(collection.store.sum()) == trees.fingerprint(alone.sum())
    assert not verify(collection.store)


def test_sent_data_names_no_image(people, collection):
    sent = people[0].contribute(collection.request).component
    text = read_bytes(sent)[1]["provenance"]
    origin = json.loads(text)
    assert all(identifier == name for identifier, name in origin["data"]["examples"])
    assert origin["data"]["owners"] == {}
    assert [origin["training"][name] for name in ("folders", "recipe", "run")] == [[], None, None]
    assert str(people[0].home) not in text
    collection.take(NAMES[0], Contribution(sent))
    kept = collection.store.provenance(NAMES[0])
    assert kept.recipe == LDA.for_shard(NAMES[0])  # the server's own words


def test_other_classes_are_summed_by_name(people, collection, monkeypatch):
    """A contributor knows its own classes alone, in its own order."""
    own = people[0]
    dataset, map_ = tj.open_dataset("digits"), collection.predict
    plain = own.features(map_, CLASSES)
    relabelled = dataclasses.replace(dataset, classes=tuple(f"digit {9 - int(name)}" for name in CLASSES))
    monkeypatch.setattr(tj, "open_dataset", lambda name: relabelled)
    every = tuple(sorted([*relabelled.classes, "a letter"]))
    features = own.features(map_, every)
    assert [every[i] for i in features.targets] == [f"digit {9 - int(CLASSES[i])}" for i in plain.targets]
    with pytest.raises(InputError, match="a request for all classes here; got none for"):
        own.features(map_, CLASSES)


WIDE = tj.store.StatisticsRecipe(features=FeatureSettings(("h", "ntk"), width=64))  # two parts


@pytest.fixture(scope="module")
def ten(tmp_path_factory, cache):
    """(a request, ten contributors of two parts of features, what nine of them send, their head)."""
    homes, request = tmp_path_factory.mktemp("ten"), Request(WIDE, CLASSES, most_bytes=1 << 20)
    people = [Contributor(f"c{i}", homes / f"c{i}", "digits", (i, PARTS), cache) for i in range(10)]
    sent = {own.name: own.contribute(request) for own in people[1:]}
    nine = Collection(tj.Store(homes / "nine"), request, WIDE.predictor(CLASSES), WIDE)
    for name, files in sent.items():
        assert nine.take(name, files), nine.left_out
    return request, people[0], sent, nine


@pytest.mark.parametrize("fault", sorted({*faults.FAULTS} - {"late", "error"}))
def test_liar_changes_no_bit_of_the_nine(ten, fault, tmp_path):
    request, liar, _, nine = ten
    lie = faults.spoiled(liar, request, fault, wait=0)
    first = dataclasses.replace(nine, store=tj.Store(tmp_path / "store"), left_out={}, bytes={})
    last = dataclasses.replace(nine, left_out={}, bytes={})
    head, journal = trees.fingerprint(nine.store.statistics().solve()), len(nine.store.journal.entries)
    for own in (first, last):  # the liar comes first of all, or last
        assert not own.take(liar.name, lie)
        ((name, line),) = own.left_out.items()
        assert name == liar.name
        assert re.search("must|expected", line)
        assert "\n" not in line
        assert len(line) <= 400
    assert (len(first.store), len(first.store.journal.entries)) == (0, 0)  # a store that never saw it
    assert len(nine.store.journal.entries) == journal
    assert trees.fingerprint(nine.store.statistics().solve()) == head
    assert not verify(nine.store)
    assert first.take(liar.name, liar.contribute(request))  # the truth is taken


@pytest.mark.parametrize("answer", [10**13, [], None, "text", 1.5, [b"a", b"b"]], ids=repr)
def test_what_is_no_file_is_left_out(collection, answer):
    assert not collection.take("liar", Contribution(answer))
    assert "a file of bytes; got" in collection.left_out["liar"]


def test_wrong_labels_are_not_found(ten, tmp_path):
    """As the page says: whatever is the sum of some images passes."""
    request, liar, _, nine = ten
    sent = liar.contribute(request)
    dw, metadata = read_bytes(sent.component)
    lie = {**dw, "sums": dw["sums"][::-1], "counts": dw["counts"][::-1]}
    own = dataclasses.replace(nine, store=tj.Store(tmp_path / "store"), left_out={}, bytes={})
    assert own.take(liar.name, Contribution(file_bytes(lie, metadata)))


def test_tangent_classes_are_those_asked_for(tmp_path):
    predict, own = HEAD.predictor(CLASSES), HEAD.predictor(("!", *CLASSES[1:]))
    collection = Collection(tj.Store(tmp_path), Request(HEAD, CLASSES), predict, HEAD)
    for classes in (("!", *CLASSES[1:]), CLASSES[::-1], CLASSES[:-1]):
        origin = dataclasses.replace(make_provenance(own), classes=classes)
        dw = jax.tree.map(lambda leaf: leaf + 1, own.zeros())
        sent = Contribution(file_bytes(dw, {"provenance": origin.to_json()}))
        assert not collection.take("a", sent)
        assert "the classes asked for, in their order; got" in collection.left_out["a"]


def test_accuracy_is_by_the_names_of_classes(ten, cache, monkeypatch):
    _, _, _, nine = ten
    total, map_ = nine.store.statistics(), nine.predict
    dataset = tj.open_dataset("digits")
    test = tj.extract(map_, dataset.test, tj.Cache(cache))
    want = tj.evaluate(map_, total.of_classes(CLASSES).solve(), test)
    assert want > 0.5
    for classes in (CLASSES, ("!", *CLASSES), CLASSES[::-1]):  # a class that the test set lacks, another order
        head = total.of_classes(classes).solve()
        assert accuracy(map_, head, classes, "digits", cache) == {"accuracy": pytest.approx(want), "unknown": []}
    few = dataclasses.replace(total, counts=total.counts[:7], sums=total.sums[:7], classes=CLASSES[:7])
    few = dataclasses.replace(few, factor=few.sums.T @ (few.sums / few.counts[:, None]) + np.eye(len(few.gram)))
    said = accuracy(map_, few.solve(), few.classes, "digits", cache)
    scores = tj.outputs(map_, few.solve(), test)
    assert said["unknown"] == [*CLASSES[7:]]  # their images count as wrong
    assert said["accuracy"] == pytest.approx(np.mean(scores.argmax(1) == test.targets))
    renamed = dataclasses.replace(dataset, classes=tuple(f"other {name}" for name in CLASSES))
    monkeypatch.setattr(tj, "open_dataset", lambda name: renamed)
    assert accuracy(map_, few.solve(), few.classes, "digits", cache)["accuracy"] == 0


def test_altered_file_is_left_out(people, collection):
    sent = people[0].contribute(collection.request)
    altered = sent.component[:-1] + bytes([sent.component[-1] ^ 1])
    assert not collection.take(NAMES[0], Contribution(altered))
    assert "one was altered" in collection.left_out[NAMES[0]]
    assert len(collection.store) == 0
    assert collection.take(NAMES[0], sent)
    assert not collection.left_out
    assert not collection.take(NAMES[0], sent)  # a name is taken once
    assert "name must be new" in collection.left_out[NAMES[0]]


def test_removed_contributor_leaves_no_bit(people, collection, tmp_path):
    sent = [own.contribute(collection.request) for own in people]
    for name, files in zip(NAMES, sent, strict=True):
        collection.take(name, files)
    removed = remove_from(tmp_path / "store", NAMES[1])
    assert collection.missing(NAMES) == [NAMES[1]]
    never = dataclasses.replace(collection, store=tj.Store(tmp_path / "never"), left_out={})
    for i in (0, 2):
        never.take(NAMES[i], sent[i])
    assert [*removed.receipt.removed] == [NAMES[1]]
    assert trees.fingerprint(collection.store.sum()) == trees.fingerprint(never.store.sum())
    assert not collection.take(NAMES[1], sent[1])
    assert "examples must not be removed ones" in collection.left_out[NAMES[1]]
    with pytest.raises(InputError, match="examples must be as components recorded them; got contributor 1"):
        remove_from(tmp_path / "store", NAMES[1])


def test_contributor_goes_alone(tmp_path, capsys):
    predict = HEAD.predictor(CLASSES)
    collection = Collection(tj.Store(tmp_path / "store"), Request(HEAD, CLASSES), predict, HEAD)
    for number, name in enumerate(("clinic", "Clinic", "liar")):
        listed = 0 if name == "liar" else number  # the liar lists the image of clinic
        assert collection.take(name, made_by_hand(predict, HEAD, number, listed)), collection.left_out
    assert "liar lists images of other components, 1 of clinic" in capsys.readouterr().err
    assert not collection.take("nobody", made_by_hand(predict, HEAD, 3, None))
    assert "a list of its images; got none" in collection.left_out["nobody"]
    for name, left in (("Clinic", ["clinic", "liar"]), ("liar", ["clinic"])):
        assert [*remove_from(tmp_path / "store", name).receipt.removed] == [name]
        collection.store.reload()
        assert [*collection.store] == left
    assert not collection.take("Clinic", made_by_hand(predict, HEAD, 1))
    assert "must not be removed ones" in collection.left_out["Clinic"]


def test_image_is_removed_on_both_sides(people, collection, tmp_path):
    people = fresh(people, tmp_path)
    for own in people:
        collection.take(own.name, own.contribute(collection.request))
    image = collection.store.provenance(NAMES[2]).data.examples[4][0]
    before = collection.store.provenance(NAMES[2]).data.examples
    removed = remove_from(tmp_path / "store", image)
    assert removed.forget == {NAMES[2]: (image,)}
    assert collection.missing(NAMES) == [NAMES[2]]
    asked = dataclasses.replace(collection.request, forget=removed.forget[NAMES[2]])
    assert collection.take(NAMES[2], people[2].contribute(asked))
    assert {i for i, _ in collection.store.provenance(NAMES[2]).data.examples} == {i for i, _ in before} - {image}
    own_store = tj.Store(people[2].home / "store")
    assert own_store.state.receipts  # a receipt here too, and what is gone stays gone
    assert image not in collection.store.provenance(NAMES[2]).data.identifiers
    people[2].contribute(collection.request)
    assert image not in own_store.provenance(NAMES[2]).data.identifiers


def test_forgotten_image_enters_no_later_store(people, collection, tmp_path):
    own = dataclasses.replace(people[0], home=tmp_path / "home")
    before = own.features(collection.predict, CLASSES)
    image = before.examples[0][0]
    own.contribute(dataclasses.replace(collection.request, forget=(image,)))
    origin = tj.Store(own.home / "store").provenance(own.name)
    assert len(origin.data.examples) == len(before) - 1
    assert image not in origin.data.identifiers
    after = own.features(collection.predict, CLASSES)  # of a secure sum, or a release, too
    assert {i for i, _ in after.examples} == {i for i, _ in before.examples} - {image}


def made_by_hand(predict, recipe, number, *listed):
    """What a contributor sends: tangent weights that are not zero, and the provenance of an image of its own.

    Args:
        listed: Another image, or None, in its place.
    """
    (image,) = listed or (number,)
    dw = jax.tree.map(lambda leaf: leaf + (number + 1) / 100, predict.zeros())
    origin = make_provenance(predict, None, CLASSES)
    examples = () if image is None else ((f"{image:064x}", f"{image:064x}"),)
    origin = origin.with_data(examples=examples)
    return Contribution(file_bytes(dw, {"provenance": origin.to_json()}))


@pytest.mark.parametrize("kind", ["head", "blocks"])
def test_other_weights_are_asked_for_again(tmp_path, kind):
    """One folder, two runs: the second one is of weights that moved, where only a head is trained its head alone."""
    recipe = tj.Recipe(**SETTINGS | {"kind": kind})
    predict = recipe.predictor(CLASSES)
    moved = dataclasses.replace(predict, w=trees.add(predict.w, jax.tree.map(jnp.ones_like, predict.zeros())))
    sent = [made_by_hand(predict, recipe, i) for i in range(COUNT)]
    first = Collection(tj.Store(tmp_path / "store"), Request(recipe, CLASSES), predict, recipe)
    second = dataclasses.replace(first, predict=moved)
    for name, contribution in zip(NAMES[:2], sent, strict=False):
        assert first.take(name, contribution), first.left_out
    assert first.missing(NAMES) == NAMES[2:]
    assert second.missing(NAMES) == NAMES
    assert not second.take(NAMES[2], sent[2])
    assert f"{'head' if kind == 'head' else 'anchor'} must be " in second.left_out[NAMES[2]]
    assert second.take(NAMES[0], made_by_hand(moved, recipe, 3)), second.left_out
    assert [*second.store] == NAMES[:1]


@pytest.mark.long
def test_merged_tangents_are_one_process(people, cache, tmp_path):
    alone, people = tj.Store(tmp_path / "alone"), fresh(people, tmp_path)
    predict, shards = one_process(HEAD, cache)
    fill(alone, shards, True)
    own = Collection(tj.Store(tmp_path / "store"), Request(HEAD, CLASSES, factors=True), predict, HEAD)
    for person in people[::-1]:
        assert own.take(person.name, person.contribute(own.request)), own.left_out
    merged = [store.compose(how="inputs", penalty=HEAD.objective.penalty) for store in (own.store, alone)]
    assert same(*merged)


# Secure sums


def test_limbs_add_exactly():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(50) * 10.0 ** rng.integers(-6, 6, 50) for _ in range(7)]
    limit, exact = 1e7, np.sum(parts, 0)
    for limbs, bound in ((3, 1e-15 * np.abs(exact).max()), (2, 7 * 2**25 / 2**48)):  # 2**24: from 1e7
        total = sum(fixed_point.encode(part, limit, limbs) for part in parts)
        assert total.max() < 2**32  # of SecAgg+'s modulus
        assert np.abs(fixed_point.decode(total, limit, 7) - exact).max() <= bound
    total = sum(np.rint(fixed_point.encode(part, limit, 1)) for part in parts)
    assert np.abs(fixed_point.decode(total, limit, 7) - exact).max() <= 7 * limit / 2**23


@pytest.mark.parametrize("limbs", [1, 2, 3])
@pytest.mark.parametrize("limit", [1.0, 1024.0, 1e6, 2.0**20])
def test_the_limit_itself_crosses_a_secure_sum(limit, limbs):
    """Before, +limit was off by 1.2e-7 where the limit is a power of two."""
    x = np.array([limit, -limit, limit / 3, 0.0, np.nextafter(limit, 0)])
    assert fixed_point.encode(x, limit, limbs).max() < 2**24  # as SecAgg+ takes it
    total = sum(np.floor(fixed_point.encode(x, limit, limbs)) for _ in range(5))
    error = np.abs(fixed_point.decode(total, limit, 5) - 5 * x).max() / limit
    assert error <= (0 if limbs == 3 else 5 * 2.0 ** (2 - 24 * limbs))
    for wrong in (np.nan, np.inf, 1.1 * limit):
        with pytest.raises(InputError, match=r"numbers of at most .*; got"):
            fixed_point.encode(np.array([0.5, wrong]), limit, limbs)


def test_secure_sum_is_the_sum(people, cache):
    settings = Settings("/tmp", method="lda", secure=True, limit=1e5)
    request, map_ = Request(LDA, CLASSES), LDA.predictor(CLASSES)
    limbs = np.array([secure.limbs_of(own, request, settings) for own in people])
    summed = secure.sum_of([*limbs.mean(0)], COUNT, map_, request, settings.limit)
    plain = sum(tj.solver.make_statistics(map_, own.features(map_, CLASSES), CLASSES) for own in people)
    assert np.abs(summed.gram - plain.gram).max() <= 1e-12 * np.abs(plain.gram).max()
    assert (summed.counts == plain.of_classes(sorted(CLASSES)).counts).all()
    assert summed.source == plain.source


# Privacy


def test_noised_contributors_add_and_pay(people, tmp_path):
    settings = Settings("/tmp", privacy="local", epsilon=8.0, classes=",".join(CLASSES))
    mechanism, request = private.mechanism_of(settings), Request(LDA, CLASSES)
    map_, people = private.map_of(LDA.predictor(CLASSES)), fresh(people[:2], tmp_path)
    files = [private.release(own, request, mechanism) for own in people]
    for own, file in zip(people, files, strict=True):  # paid once, read again
        assert same(read_bytes(private.release(own, request, mechanism))[0], read_bytes(file)[0])
    assert all(json.loads(read_bytes(f)[1]["statistics"])["epsilon"] <= 8.0 for f in files)
    parts = [private.read_release(f, map_, CLASSES, mechanism) for f in files]
    exact = [
        private.contributions(map_, own.features(map_, CLASSES), CLASSES, mechanism, private.SHARES) for own in people
    ]
    plain = sum(np.array([rows.inputs[rows.targets == c].sum(0) for c in range(10)]) for _, rows, _ in exact)
    noise = (sum(parts).of_classes(CLASSES).sums - plain) / mechanism.noise_multiplier / 2**0.5
    assert 0.9 < noise.std() < 1.1  # of 960 numbers
    tree, metadata = read_bytes(files[0])
    listed = [i for own in people for i, _ in own.features(map_, CLASSES).examples]
    assert not [i for i in listed if i in str(metadata)]  # who needs no identifier is sent none
    said = json.loads(metadata["statistics"])
    # G that the server derives is the contributor's
    np.testing.assert_allclose(parts[0].tree["gram"], tree["gram"], rtol=1e-9, atol=1e-9)
    lies = {
        "numbers that are finite": ({"counts": tree["counts"] * np.nan}, said),
        "statistics of the server's features": ({}, {}),
        "fields of statistics; got list": ({}, []),
        "fields of statistics; got int": ({}, 5),
        "fields of statistics; got NoneType": ({}, None),
        "statistics of the classes asked for": ({}, {**said, "classes": said["classes"][::-1]}),
        "statistics of the classes asked": ({}, {**said, "classes": 10**13}),
        "equal counts of 1 to 1e[+]09 images": ({"counts": tree["counts"] * 1e12}, said),
        "equal counts": ({"counts": -tree["counts"]}, said),
        "sums of length .* at most; got longer ones": ({"sums": tree["sums"] + 1e200}, said),
        "sums of length": ({"sums": tree["sums"] + 20}, said),  # none of them is too long alone
        "leaves .*float64": ({"sums": np.float32(tree["sums"])}, said),
    }
    for match, (leaves, fields) in lies.items():
        left_out = {}
        with leaving_out("liar", left_out):
            spoiled = file_bytes(tree | leaves, {"statistics": json.dumps(fields)})
            parts.append(private.read_release(spoiled, map_, CLASSES, mechanism))
        assert re.search(f"expected {match}", left_out["liar"]), (match, left_out)
    assert len(parts) == 2


@pytest.mark.parametrize("privacy", ["local", "central"])
def test_class_of_one_contributor_stays(people, tmp_path, privacy):
    """Nor do its images: what a contributor sends has the names and shapes of the list."""
    listed = CLASSES[:-1]
    settings = Settings("/tmp", privacy=privacy, epsilon=8.0, classes=",".join(listed))
    own, request = fresh(people[:1], tmp_path)[0], Request(LDA, listed)
    assert own.classes(settings.classes) == ()
    map_ = private.map_of(LDA.predictor(listed))
    if privacy == "central":
        step = private.Contribution(len(listed), sum(map_.sizes), private.SHARES)
        assert len(private.read_clipped(private.clipped(own, request, 1.0), step)) == 9 * sum(map_.sizes)
        return
    mechanism = private.mechanism_of(settings)
    sent = private.answer(own, request, mechanism)
    released = private.read_release(sent["component"], map_, listed, mechanism)
    every = own.features(map_, CLASSES)
    assert released.counts.sum() == pytest.approx((every.targets != 9).sum())
    assert len(every) > (every.targets != 9).sum()
    assert json.loads(read_bytes(sent["component"])[1]["statistics"])["classes"] == [*listed]


def test_failing_private_contributor_is_silent(people, tmp_path, capsys):
    own, request = dataclasses.replace(people[0], home=tmp_path), Request(LDA, ("no class", "of digits"))
    settings = Settings("/tmp", privacy="local", classes="no class,of digits")
    assert private.answer(own, request, private.mechanism_of(settings)) == {}
    assert "an image of the classes asked for; got none" in capsys.readouterr().err


def test_contributor_moves_sum_by_clip_norm(people):
    request, map_ = Request(LDA, CLASSES), private.map_of(LDA.predictor(CLASSES))
    step = private.Contribution(len(CLASSES), sum(map_.sizes), private.SHARES)
    sums = {own.name: private.read_clipped(private.clipped(own, request, 1.0), step) for own in people}
    assert all(abs(np.linalg.norm(s) - 1) < 1e-5 for s in sums.values())  # 23 images of length 1 each
    sums["liar"] = 100 * sums[NAMES[0]]  # clipped again where noise is added
    quiet = tj.make_mechanism(100.0, 1e-3, steps=1, unit="owner")
    noised, fitted = private.release_sum(sums, map_, CLASSES, quiet, seed=0)
    plain = sum(s / max(1, np.linalg.norm(s)) for s in sums.values()).reshape(10, -1)
    noise = np.abs(noised.of_classes(CLASSES).sums - plain).max()
    assert noise < 6 * quiet.noise_multiplier
    assert fitted.info.spent.mechanism.unit == "owner"
    for number in (np.nan, np.inf, 1e30):
        spoiled = {"sums": np.full_like(step.zeros()["sums"], number)}
        with pytest.raises(InputError, match="numbers that are finite"):
            private.read_clipped(file_bytes(spoiled, {}), step)
    with pytest.raises(InputError, match=r"leaves .*float32"):
        private.read_clipped(file_bytes(jax.tree.map(np.float64, step.zeros()), {}), step)


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"method": "ridge"}, {"out": "here"}, {"secure": True, "method": "taft"}, {"merge": "inputs"}):
        with pytest.raises(InputError, match="expected"):
            Settings(**{"out": "/tmp", **wrong})
    for privacy in ("local", "central"):
        with pytest.raises(InputError, match="expected classes, a public list of names, beside privacy; got none"):
            Settings("/tmp", privacy=privacy)
    with pytest.raises(InputError, match="known settings; got \\['outt'\\]"):
        Settings.of({"out": "/tmp", "outt": 1})
    request = Request(dataclasses.replace(LDA, image_size=16), CLASSES, True, forget=("a",))
    assert Request.from_json(request.to_json()) == request


# Flower


def test_app_has_settings_and_versions_of_page():
    project = tomllib.loads((ROOT / "examples/federation/pyproject.toml").read_text())
    said = {name.replace("-", "_"): value for name, value in project["tool"]["flwr"]["app"]["config"].items()}
    assert dataclasses.asdict(Settings("/tmp")) | {"out": ""} == said
    page = (ROOT / "docs/howto/federation.md").read_text()
    assert all(pin in page for pin in project["project"]["dependencies"])


class Grid:
    """A grid on which the contributors of some nodes answer, in the way that `answers` says."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def push_messages(self, messages):
        self.asked = [message.metadata.dst_node_id for message in messages]
        return [f"message to {node}" for node in self.asked]

    def pull_messages(self, ids):
        replies = []
        for node in self.asked:
            if f"message to {node}" in ids and node in self.answers:
                replies.append(self.answers[node](f"message to {node}"))
        return replies


def reply(records=None, error=None):
    from types import SimpleNamespace as Fields

    def make(asked):
        content, metadata = Fields(config_records=records or {}), Fields(reply_to_message_id=asked)
        return Fields(
            has_error=lambda: error is not None, error=Fields(reason=error), content=content, metadata=metadata
        )

    return make


@pytest.fixture
def server(monkeypatch):
    """The class of Flower's server, in a process that looks like its own."""
    pytest.importorskip("flwr", reason="flwr is absent")
    from flwr.supercore.task_identity import TaskIdentity
    from tangent_federation.server_app import Federation

    for field in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, field, 1)
    return Federation


def test_the_server_waits_no_longer_than_it_says(people, collection, server):
    """One contributor answers, one fails, one sends nothing, one does not come: each other one is told apart."""
    sent = people[0].contribute(collection.request)
    answers = {0: reply({"answer": sent._asdict()}), 1: reply(error="out of memory"), 2: reply()}
    nodes = {"contributor 0": 0, "fails": 1, "silent": 2, "late": 3}
    federation = server(Grid(answers), None, Settings("/tmp", wait=0.5), nodes)
    federation.collect(collection, {})
    assert [*collection.store] == NAMES[:1]
    why = {"fails": "its program failed: out of memory", "silent": "it sent nothing", "late": "no answer within 0.5 s"}
    assert {name: line.split("got ")[1] for name, line in collection.left_out.items()} == why
    federation.nodes = {NAMES[0]: 0}
    federation.grid.asked = []
    federation.collect(collection, {})
    assert federation.grid.asked == []  # what is there is not asked for again


def test_one_answer_spoils_no_classes(server):
    names = {0: {"name": "a", "classes": '["1", "0"]'}, 1: {"name": "a", "classes": "[]"}, 2: {"classes": "[]"}}
    names[3] = {"name": "d", "classes": "no list"}
    grid = Grid({node: reply({"answer": answer}) for node, answer in names.items()})
    grid.get_node_ids = lambda: [*names]
    federation = server(grid, None, Settings("/tmp", wait=0.3))
    assert federation.meet() == ("0", "1")
    assert federation.nodes == {"a": 0}
    assert [*federation.left_out] == ["node 1", "node 2", "node 3"]


NOBODY = {
    "a name of up to 200 characters": [{}, {"name": 5}, {"name": ""}, {"name": "a\x1b[2J"}, {"name": "a" * 10**6}],
    "a list of the names of classes": [
        {"name": "a", "classes": text}
        for text in (None, 10**13, "null", "5", "{}", '"ab"', "[5]", '["a", [1]]', '[""]')
    ],
    "": [{"name": "a", "classes": "[" * 10**5}, {"name": "a", "classes": "no list"}],
}


@pytest.mark.parametrize("match", NOBODY)
def test_nameless_contributor_is_left_out(match):
    for answer in NOBODY[match]:
        left_out = {}
        with leaving_out("node 1", left_out):
            who(answer, "")
        assert match in left_out["node 1"], answer
        assert len(left_out["node 1"]) <= 400
    assert who({"name": "a", "classes": '["b", "c"]'}, "") == ("a", {"b", "c"})


@pytest.mark.parametrize("wrong", [10**13, b"", b"junk", 1.5, "text", None])
def test_a_release_of_junk_ends_nobody_else_s_run(people, cache, tmp_path, server, wrong):
    settings = Settings(str(tmp_path), privacy="local", wait=0.3, cache=cache, classes=",".join(CLASSES))
    request = Request(LDA, CLASSES)
    good = private.release(fresh(people[:1], tmp_path)[0], request, private.mechanism_of(settings))
    heads = []
    for own in ({0: good}, {0: good, 1: wrong}):
        grid = Grid({node: reply({"answer": {"component": content}}) for node, content in own.items()})
        nodes = {f"c{node}": node for node in own}
        federation = server(grid, None, settings, nodes)
        federation.request = request
        heads.append(trees.fingerprint(federation.release()[1]))
        assert [*federation.left_out] == [f"c{node}" for node in own if node]
    assert heads[0] == heads[1]


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    """The environment of `flwr run` beside a SuperLink of its own, which is ended with all that it started."""
    pytest.importorskip("flwr", reason="flwr is absent")
    pytest.importorskip("ray", reason="ray is absent")
    home, programs = tmp_path_factory.mktemp("flower"), Path(sys.executable).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(config)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    quiet |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(home), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **quiet, "PATH": f"{programs}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", f"{port}"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(240):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.25)
        yield environment
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def flower(environment, out, nodes, cache, **settings):
    """The content of result.json after `flwr run`."""
    settings = {"out": str(out), "cache": cache, **settings}
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    size = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=1"
    command = ["flwr", "run", str(ROOT / "examples/federation"), "local", "--stream"]
    command += ["--federation-config", size, "--run-config", words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (out / "result.json").exists(), done.stdout + done.stderr
    return json.loads((out / "result.json").read_text())


@pytest.mark.long
def test_flower_run_is_one_process(superlink, cache, tmp_path):
    said = flower(superlink, tmp_path / "out", 4, cache, faults="nan:0 silent:1")
    assert [*said["left_out"]] == ["contributor 0", "contributor 1"]
    dataset = tj.open_dataset("digits")
    map_ = LDA.predictor(CLASSES)
    features = tj.extract(map_, dataset.train, tj.Cache(cache))
    shards = dict(zip(said["names"], tj.shards.uniform(len(features), 4, seed=0), strict=True))

    def alone(*numbers):
        rows = {f"contributor {i}": shards[f"contributor {i}"] for i in numbers}
        store = tj.Store(tmp_path / f"alone {numbers}")
        fill(store, Shards(map_, features, LDA, rows, CLASSES))
        return trees.fingerprint(store.statistics().solve())

    assert said["fingerprint"] == alone(2, 3)
    again = flower(superlink, tmp_path / "out", 4, cache, remove="contributor 3")
    assert again["removed"] == ["contributor 3"]
    assert [*again["left_out"]] == ["contributor 3"]  # it has no image that was not removed
    assert again["fingerprint"] == alone(0, 1, 2)


@pytest.mark.long
def test_secagg_sums_to_the_bits(superlink, cache, tmp_path):
    secured = flower(superlink, tmp_path / "secure", 4, cache, secure=True)
    plain = flower(superlink, tmp_path / "plain", 4, cache)
    assert secured["fingerprint"] == plain["fingerprint"]
    rounded = flower(superlink, tmp_path / "rounded", 4, cache, secure=True, limbs=1, limit=1e4)
    assert rounded["fingerprint"] != plain["fingerprint"]
    assert abs(rounded["accuracy"] - plain["accuracy"]) < 0.02

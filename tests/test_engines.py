"""examples/engines: sums over a fixed tree, folded by engines with one worker or many, some of them repeated."""

import dataclasses
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from run_binary import ROOT

import tangent_jax as tj

sys.path.insert(0, str(ROOT / "examples/engines"))

import fold
import simulate
from fold import Images, Tree, same_bits

ENGINES = ROOT / "examples/engines"


@dataclasses.dataclass(frozen=True)
class Numbers(Tree):
    """Sums of a few random numbers of different sizes, whose order changes the bits of a sum."""

    shards: int = 13

    def sums(self, shard):
        return {"x": np.random.default_rng(shard).standard_normal(50) * 10.0 ** (shard % 5)}


def ones(tree, *shards):
    """An accumulator of one shard for each of these."""
    return [tree.add(tree.zero(), shard) for shard in shards]


def merged_at_random(tree, parts, seed):
    """The accumulator of these parts, merged in a random order."""
    rng = random.Random(seed)
    while len(parts) > 1:
        rng.shuffle(parts)
        parts = [tree.merge(*parts[:2]), *parts[2:]]
    return parts[0]


def test_a_block_is_the_sum_of_its_halves():
    x = [Numbers().sums(shard)["x"] for shard in range(5)]
    assert np.array_equal(fold.fold(Numbers(5))["x"], ((x[0] + x[1]) + (x[2] + x[3])) + x[4])
    assert np.array_equal(fold.fold(Numbers(3))["x"], (x[0] + x[1]) + x[2])
    assert np.array_equal(fold.fold(Numbers(1))["x"], x[0])


@pytest.mark.parametrize("shards", [1, 2, 7, 8, 13])
def test_bits_ignore_order_and_repetition(shards):
    tree = Numbers(shards)
    alone = fold.fold(tree)
    others = 0
    for seed in range(20):
        rng = random.Random(seed)
        parts = [*ones(tree, *range(shards)), tree.zero(), *ones(tree, *rng.choices(range(shards), k=4))]
        parts += [merged_at_random(tree, ones(tree, *rng.choices(range(shards), k=5)), seed) for _ in range(2)]
        merged = merged_at_random(tree, parts, seed)
        assert [*merged] == [((shards - 1).bit_length(), 0)]
        assert same_bits(tree.total(merged), alone)
        order = rng.sample(range(shards), shards)
        others += not np.array_equal(sum(tree.sums(shard)["x"] for shard in order), alone["x"])
    assert others or shards < 3  # a plain sum has other bits in another order


def test_missing_shards_ignore_order():
    tree = Numbers()
    came = [0, 1, 3, 4, 5, 6, 7, 12]
    totals = [tree.total(merged_at_random(tree, ones(tree, *came), seed)) for seed in range(10)]
    assert all(same_bits(total, totals[0]) for total in totals)
    np.testing.assert_allclose(totals[0]["x"], sum(tree.sums(shard)["x"] for shard in came), rtol=1e-9)
    with pytest.raises(ValueError, match="a shard at least"):
        tree.total(tree.zero())


def test_present_shard_is_not_computed_again():
    class Once(Numbers):
        def sums(self, shard):
            assert shard == 3
            return super().sums(shard)

    whole = merged_at_random(Numbers(), ones(Numbers(), 0, 1, 2), 0)
    assert Once().add(Once().add(whole, 3), 3).keys() == Once().add(Once().add(whole, 3), 1).keys() == {(2, 0)}


def test_in_order_one_block_a_level_waits():
    shards = 1024
    one = np.ones(1)

    def most_waiting(order):
        accumulator, most = {}, 0
        for shard in order:
            accumulator = Tree(shards).merge(accumulator, {(0, shard): {"x": one}})
            most = max(most, len(accumulator))
        assert Tree(shards).total(accumulator)["x"] == shards
        return most

    assert most_waiting(range(shards)) == most_waiting(reversed(range(shards))) == 10
    assert most_waiting(simulate.ended_at_random(shards, 16)) <= 2 * 16
    at_random = random.Random(0).sample(range(shards), shards)
    assert most_waiting(at_random) == pytest.approx(0.39 * shards, rel=0.05)


def test_simulation_has_same_bits_in_any_order(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulate.py", "--shards=21", "--features=7", "--classes=3", "--workers=4"])
    simulate.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["order"] for line in lines] == ["in order", "by workers"]
    assert len({line["bits"] for line in lines}) == 1


# Sums of images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return Images(shards=5, cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def alone(images):
    return fold.fold(images)


def test_sum_is_of_all_images_in_chunks(images, alone, monkeypatch):
    map_, digits = images.map(), tj.open_dataset("digits")
    data = tj.extract(map_, digits.train, tj.Cache(images.cache_dir))
    whole = tj.solver.make_statistics(map_, data, digits.classes)
    total = images.finish(alone)
    assert (total.classes, total.sizes, total.source) == (whole.classes, whole.sizes, whole.source)
    assert (total.counts == whole.counts).all()
    np.testing.assert_allclose(total.gram, whole.gram, rtol=1e-12, atol=1e-12 * np.abs(whole.gram).max())
    assert images.accuracy(alone) > 0.95
    monkeypatch.setattr(fold, "CHUNK", 50)
    chunked, own = images.sums(2), fold.Images.sums(dataclasses.replace(images, cache_dir=""), 2)
    assert same_bits(chunked, own)  # also if nothing is kept
    rows = tj.shards.uniform(len(digits.train), 5, 0)[2]  # the shard of compose
    assert (chunked["counts"] == np.bincount(digits.train.labels[rows], minlength=10)).all()


@pytest.mark.parametrize("method", ["exact", "lda", "ridge", "ranpac"])
def test_methods_have_the_features_of_compose(method, images, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fold.py", f"--method={method}", "--shards=40", "--seed=3", "--kill=1"])
    of_flags, workers, killed = fold.parse("")
    assert of_flags == Images(method=method, shards=40, seed=3)
    assert (workers, killed) == (2, 1)
    parts = fold.ADDITIVE[method][0]
    assert of_flags.map().parts == parts
    assert of_flags.map().width == (5000 if parts == ("relu",) else 4096)


def beam():
    pytest.importorskip("apache_beam", reason="apache-beam is absent")
    import beam_statistics

    return beam_statistics


@pytest.mark.parametrize("workers", [1, 2])
def test_beam_folds_them(images, workers):
    """A runner that delivers a shard twice, as after a worker's death, counts it once."""
    small = dataclasses.replace(images, method="lda")
    alone, options = fold.fold(small), beam().by_workers(workers)
    assert same_bits(beam().fold_by_beam(beam().Combine(small), options), alone)
    assert same_bits(beam().fold_by_beam(beam().Combine(small), options, [1, 4, 3, 2, 1, 0]), alone)


def run_example(engine, *flags):
    """The last line of an example that kills the worker of shard 3."""
    pytest.importorskip(engine, reason=f"{engine} is absent")
    script = ENGINES / {"apache_beam": "beam_statistics.py", "ray": "ray_statistics.py"}[engine]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, script, "--kill=3", *flags]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("engine", ["apache_beam", "ray"])
def test_engine_folds_despite_killed_worker(engine):
    """Also if one process computes all features again."""
    said = run_example(engine, "--shards=5", "--cache_dir=")
    assert said.pop("seconds") > 0
    assert said.pop("accuracy") > 0.95
    assert said == {"images": 898, "killed": True, "same_bits": True}

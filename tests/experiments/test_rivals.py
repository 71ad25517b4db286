"""bench rivals, session and contributors: what they train, what may be held out, and what the picture reads."""

import dataclasses
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers import assert_rel_close, normal, predictor
from photos import photographs
from run_binary import refused, run

import tangent_jax as tj
from experiments.shared.averaging import average, moved
from experiments.shared.search import folds_beside
from tangent_jax.core import trees
from tangent_jax.solver import choose_by_folds
from tangent_jax.train.features import FOLDS, folds_of


def test_fedavg_starts_from_last_mean():
    tangent, _ = predictor("blocks", 1)
    network = dataclasses.replace(tangent, method="nlft")
    x = normal(4, (12, *network.model.input_shape(network.subset.stage)))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(12))
    train = tj.Features(np.asarray(x), np.arange(12, dtype=np.int32) % 7, examples)
    recipe = tj.Recipe(method="nlft", epochs=2, batch_size=4, learning_rate=0.01)
    rows = {"ann": np.arange(8), "bob": np.arange(8, 12)}
    want = network
    for _ in range(2):
        steps = [recipe.for_shard(name).fit(want, train, part).dw for name, part in rows.items()]
        want = moved(want, tj.compose([tj.Component(dw) for dw in steps]))
    got = average(network, train, recipe, rows, 2)
    start = trees.leaves(network.w)["head/kernel"]
    assert_rel_close(got.w["head"]["kernel"] - start, want.w["head"]["kernel"] - start, 1e-4)


def test_anchor_images_are_never_held_out():
    rng, targets = np.random.default_rng(0), np.repeat(np.arange(3), 20)
    examples = tuple((f"{i:064x}", f"{i}") for i in range(60))
    session = np.arange(0, 60, 3)
    folds = folds_beside(tj.Features(np.zeros((60, 1)), targets, examples), session)
    assert (folds[session] == -1).all()
    assert (np.bincount(folds[(targets == 1) & (folds >= 0)], minlength=FOLDS) >= 2).all()
    # the images of the session tell their class and no other image does: only held-out ones could show that
    rows = rng.standard_normal((60, 5))
    rows[session] += 50 * np.eye(3, 5)[targets[session]]
    for how in ("lda", "ridge"):
        assert choose_by_folds(rows, targets, (5,), folds, (how,)).accuracy < 0.6
    assert choose_by_folds(rows, targets, (5,), folds_of(targets)).accuracy > 0.5
    groups = tuple(i // 6 for i in range(60))  # each has images of the session
    grouped = tj.Features(np.zeros((60, 1)), targets, examples, groups=groups)
    assert (folds_beside(grouped, session) == -1).all()


def test_bench_hog_tests_lda_on_hog(tmp_path, monkeypatch):
    def hog(image, **settings):
        assert image.shape == (64, 64, 3)
        assert settings["channel_axis"] == -1
        return image[::16, ::16].reshape(-1) / 255.0

    photographs(tmp_path / "photos", count=20)
    flags = [f"--dataset=folder:{tmp_path}/photos", f"--out={tmp_path}/out"]
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert "hog needs scikit-image; pip install scikit-image" in refused("bench hog", *flags)
    monkeypatch.setitem(sys.modules, "skimage", ModuleType("skimage"))
    monkeypatch.setitem(sys.modules, "skimage.feature", SimpleNamespace(hog=hog))
    row = json.loads(run("bench hog", *flags)[0])["hog"]["photos"]
    assert row["numbers"] == 48
    assert row["accuracy"] > 0.7


def test_bench_contributors_draws_results(tmp_path):
    def folder(name, result):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result))
        return f"{name.rstrip('2')}={tmp_path / name}"

    seeds = [{"exact": 0.5, "soup": 0.4}, {"exact": 0.7, "soup": 0.2}]
    compose = [{"dataset": "folder:/a/signs.zip", "full": row, "shards": {"10": row}} for row in seeds]
    fedavg = {"method": "fedavg", "blocks": 1, "contributors": 10, "mean": 0.55}
    rivals = {"rivals": {"signs": {"a": fedavg, "b": {"method": "nlft", "blocks": 12, "contributors": 1, "mean": 0.7}}}}
    exact = {"signs": {"chosen": {"exact": {"mean": 0.65}}, "shares": {"exact": [0.1]}}}
    exact["birds"] = {"chosen": {"exact": {"mean": 0.9}}, "shares": {"exact": [0.0]}}
    given = [folder("compose", compose[0]), folder("compose2", compose[1]), folder("rivals", rivals)]
    given += [folder("session", {"session": exact}), folder("hog", {"hog": {"signs": {"accuracy": 0.8}}})]
    line, _ = run("bench contributors", f"--finished={','.join(given)}", f"--out={tmp_path}/out")
    assert json.loads(line) == {
        "signs": {
            "exact": {"1": pytest.approx(0.6), "10": pytest.approx(0.6)},
            "exact, first session": {"all": 0.65},
            "HOG + LDA, no network": {"all": 0.8},
            "soup of models": {"1": pytest.approx(0.3), "10": pytest.approx(0.3)},
            "federated averaging": {"10": 0.55},
            "network, 12 blocks": {"all": 0.7},
        }
    }
    assert (tmp_path / "out/contributors.png").exists()
    refusal = refused("bench contributors", f"--finished=soup={tmp_path}", f"--out={tmp_path}/out")
    assert "contributors: --finished must be JOB=FOLDER with JOB of compose, rivals, session, hog" in refusal

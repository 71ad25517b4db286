"""bench rivals, session and contributors: what they train, what may be held out, and what the picture reads."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import assert_rel_close, normal, predictor
from run_binary import refused, run

import tangent_jax as tj
from experiments.shared.averaging import average, moved
from experiments.shared.folds import FOLDS, choose_by_folds, dual_ridge, folds_of
from tangent_jax.core import trees
from tangent_jax.models import score_rows
from tangent_jax.solver import Settings
from tangent_jax.solver.statistics import Statistics


def test_federated_averaging_starts_each_round_from_the_mean_of_the_last():
    tangent, _ = predictor("blocks", 1)
    network = dataclasses.replace(tangent, method="nlft")
    x = normal(4, (12, *network.model.input_shape(network.subset.stage)))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(12))
    train = tj.Features(np.asarray(x), np.arange(12, dtype=np.int32) % 7, examples)
    recipe = tj.store.recipe_of(method="nlft", epochs=2, batch_size=4, learning_rate=0.01)
    rows = {"ann": np.arange(8), "bob": np.arange(8, 12)}
    want = network
    for _ in range(2):
        steps = [recipe.for_shard(name).fit(want, train, part).dw for name, part in rows.items()]
        want = moved(want, tj.compose([tj.Component(dw) for dw in steps]))
    got = average(network, train, recipe, rows, 2)
    start = trees.leaves(network.w)["head/kernel"]
    assert_rel_close(got.w["head"]["kernel"] - start, want.w["head"]["kernel"] - start, 1e-4)


def test_ridge_of_gram_matrices_is_that_of_statistics():
    rng, targets = np.random.default_rng(0), np.arange(50) % 3
    rows, held = rng.standard_normal((50, 9)) + 2 + np.eye(3, 9)[targets], folds_of(np.arange(50) % 3) == 2
    z, y = rows[~held], targets[~held]
    sums = np.array([z[y == c].sum(0) for c in range(3)])
    own = Statistics(z.T @ z, sums, np.bincount(y).astype(float), ("a", "b", "c"), (9,), "")
    for shrinkage, got in zip((0.1, 1.0), dual_ridge(rows @ rows.T, 9, targets, held, (0.1, 1.0)), strict=True):
        head = own.solve(Settings("ridge", shrinkage))
        assert_rel_close(got, score_rows(head, rows[held]), 1e-5)


def test_groups_are_in_one_fold_and_those_of_an_anchor_train():
    targets = np.repeat(np.arange(3), 20)
    groups = tuple(f"{c}/{i // 2}" for c in range(3) for i in range(20))
    folds = folds_of(targets, [0, 25], groups)
    assert len({*zip(groups, folds.tolist(), strict=True)}) == 30
    assert {group for group, fold in zip(groups, folds, strict=True) if fold == FOLDS} == {"0/0", "1/2"}
    assert np.bincount(folds[targets == 2]).tolist() == [4] * FOLDS
    want = np.arange(60) % 20 % FOLDS  # without groups, and where each image is a group
    np.testing.assert_array_equal(folds_of(targets), want)
    np.testing.assert_array_equal(folds_of(targets, groups=range(60)), want)


def test_images_of_an_anchor_train_in_every_fold_and_are_never_held_out():
    rng, targets = np.random.default_rng(0), np.repeat(np.arange(3), 20)
    session = np.arange(0, 60, 3)
    folds = folds_of(targets, session)
    assert (folds[session] == FOLDS).all()
    assert (np.bincount(folds[targets == 1], minlength=FOLDS)[:FOLDS] >= 2).all()
    # the images of the session tell their class and no other image does: only held-out ones could show that
    rows = rng.standard_normal((60, 5))
    rows[session] += 50 * np.eye(3, 5)[targets[session]]
    for how in ("lda", "ridge"):
        assert choose_by_folds(how, [rows @ rows.T], 5, targets, folds).accuracy < 0.6
    assert choose_by_folds("lda", [rows @ rows.T], 5, targets, folds_of(targets)).accuracy > 0.5


def test_bench_contributors_draws_finished_results(tmp_path):
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
    given.append(folder("session", {"session": exact}))
    line, _ = run("bench contributors", f"--finished={','.join(given)}", f"--out={tmp_path}/out")
    assert json.loads(line) == {
        "signs": {
            "exact": {"1": pytest.approx(0.6), "10": pytest.approx(0.6)},
            "exact, first session": {"all": 0.65},
            "soup of models": {"1": pytest.approx(0.3), "10": pytest.approx(0.3)},
            "federated averaging": {"10": 0.55},
            "network, 12 blocks": {"all": 0.7},
        }
    }
    assert (tmp_path / "out/contributors.png").exists()
    refusal = refused("bench contributors", f"--finished=soup={tmp_path}", f"--out={tmp_path}/out")
    assert refusal.startswith("contributors: --finished must be JOB=FOLDER with JOB of compose, rivals, session")

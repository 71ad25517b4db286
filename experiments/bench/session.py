"""The anchor of a first session: how large a share of the images it should have, chosen on held-out training images.

The first session fine-tunes the network (non-linearly, its last --blocks) on a random share of the training images, and
the fine-tuned network becomes the anchor; a share of 0 leaves the pre-trained one. Everything after it composes exactly
at that anchor: exact and place, and their rivals LDA and ridge on h, RanPAC on random ReLU features. Their
statistics have all training images, those of the anchor too.

The anchor has fitted the labels of its images, so they cannot be held out: the held-out folds (five) are of the images
that are in no anchor of any share, the same for all shares, and all other images train. Each method takes the share
with the highest held-out accuracy, the smallest of equals, and for each share the shrinkage and the weights with the
greatest held-out likelihood. Finished parts are kept in runs.jsonl under --out, so a killed command resumes.

The last line of stdout: {"session": {DATASET: {SHARE: {"exact", "place", "lda", "ridge", "ranpac": {"mean", "spread",
"accuracies": on test by seed, "held_out": by seed}, "network": the fine-tuned network itself, if the share is not 0},
"chosen": the same by the chosen shares, "shares": {"exact": the chosen share by seed, ...}}}}.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import tangent_jax as tj
from experiments.shared import search
from experiments.shared.averaging import moved
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.additive import ADDITIVE, RANPAC
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Model, Reading, Training
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.data import Dataset
from tangent_jax.io.progress import check_stop
from tangent_jax.models import FeatureSettings, score_rows
from tangent_jax.solver import choose_by_folds, rows_of
from tangent_jax.solver.statistics import sums_of
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Training, search.Tabled):
    """The flags."""

    blocks: int = Recipe.blocks
    dataset: tuple[str, ...] = ("digits",)
    directions: int = 1
    feature_blocks: int | None = None
    lr: float = Recipe.learning_rate
    out: str = "out/bench_session"
    seed: tuple[str, ...] = ("0",)
    shares: tuple[str, ...] = ("0", "0.1", "0.3")
    width: int = 4096


Cell = dict[str, Any]


class Scores(NamedTuple):
    """A method's accuracy on test and on held-out images."""

    test: float
    held_out: float


def main(config: Config) -> None:
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    shares = config.numbers("shares", float)
    if not all(0 <= share < 1 for share in shares):
        raise InputError(f"--shares must be from 0 to below 1; got {','.join(config.shares)}")
    result: dict[str, dict[str, Any]] = {}
    for spec, dataset in setup.open_datasets(config).items():
        found = [measured(config, spec, dataset, seed, shares, runs) for seed in config.numbers("seed", int)]
        row: dict[str, Any] = {f"{share:g}": cells([own[share] for own in found]) for share in shares}
        best = [{name: max(shares, key=lambda s: (own[s][name].held_out, -s)) for name in ADDITIVE} for own in found]
        chosen = [{name: own[share][name] for name, share in at.items()} for own, at in zip(found, best, strict=True)]
        result[dataset.name] = row | {"chosen": cells(chosen), "shares": {m: [at[m] for at in best] for m in ADDITIVE}}
    show(config, result)
    command.finish(config, {"session": result})


def show(config: Config, result: dict[str, dict[str, Any]]) -> None:
    """Writes the table and the picture: a row for each data set and share."""
    titles = {key: "a share of " + key for row in result.values() for key in row if key not in ("chosen", "shares")}
    titles |= {"chosen": "the chosen shares"}
    table = {
        f"{name}, {titles[key]}": {m: row[key][m] for m in ADDITIVE} for name, row in result.items() for key in titles
    }
    search.show(config, table, "session", f"Anchors of a first session, {search.seeds(config)}")


def cells(of_seeds: Sequence[dict[str, Scores]]) -> dict[str, Cell]:
    """The cell of each method, from its scores by seed."""
    return {name: cell([scores[name] for scores in of_seeds]) for name in of_seeds[0]}


def cell(scores: Sequence[Scores]) -> Cell:
    """The mean, spread and values of several seeds."""
    return search.cell_of([score.test for score in scores]) | {"held_out": [score.held_out for score in scores]}


def measured(
    config: Config, spec: str, dataset: Dataset, seed: int, shares: Sequence[float], runs: Runs
) -> dict[float, dict[str, Scores]]:
    """The scores of each method for each share, with one seed."""
    recipe = setup.recipe(config, method="nlft", dataset=spec, seed=seed)
    predict = setup.predictor(recipe, dataset.classes)
    train, test = setup.train_and_measured(config, predict, dataset, on_test=True)
    order = np.random.default_rng([seed, 10]).permutation(len(train))
    sessions: dict[float, np.ndarray] = {share: np.sort(order[: round(share * len(train))]) for share in shares}
    folds = search.folds_beside(train, np.concatenate([*sessions.values()]))
    found = dict[float, dict[str, Scores]]()
    of_psi = (config.feature_blocks, config.directions, config.width)
    for share, rows in sessions.items():
        key = identity(setup.run_key(config, spec, recipe), recipe, share, shares, *of_psi)
        names = [*ADDITIVE, "network"] if len(rows) else [*ADDITIVE]
        if any(f"{key} {name} held out" not in runs.done for name in names):
            scored = at_anchor(config, predict, recipe, dataset, train, test, rows, folds)
            for name, scores in scored.items():
                runs.add(f"{key} {name}", scores.test)
                runs.add(f"{key} {name} held out", scores.held_out)
        found[share] = {n: Scores(runs.done[f"{key} {n}"], runs.done[f"{key} {n} held out"]) for n in names}
        text = ", ".join(f"{name} {scores.test:.4f} ({scores.held_out:.4f})" for name, scores in found[share].items())
        print(f"{dataset.name}, seed {seed}, share {share:g}: {text}", file=sys.stderr, flush=True)
    return found


def at_anchor(
    config: Config,
    predict: tj.Predictor,
    recipe: tj.Recipe,
    dataset: Dataset,
    train: tj.Features,
    test: tj.Features,
    rows: np.ndarray,
    folds: np.ndarray,
) -> dict[str, Scores]:
    """The scores of each method, and of the network itself, at the anchor of a first session on these images."""
    scores = dict[str, Scores]()
    dw = predict.zeros()
    if len(rows):
        with tj.show_progress(f"{dataset.name}: first session of {len(rows)}"):
            dw = recipe.fit(predict, train, rows).dw
        held = train.take(np.flatnonzero(folds >= 0))
        scores["network"] = Scores(tj.evaluate(predict, dw, test), tj.evaluate(predict, dw, held))
    anchor = tj.Pretrained(predict.model, moved(predict, dw).w, recipe.weights)
    of_all, last = ADDITIVE["exact"][0], (config.feature_blocks, config.directions, config.width)
    parts = parts_of(config, anchor, dataset, FeatureSettings(of_all, *last, recipe.seed))
    parts |= parts_of(config, anchor, dataset, FeatureSettings(("relu",), config.blocks, 1, RANPAC, recipe.seed))
    for name, (used, how) in ADDITIVE.items():
        scores[name] = scored(how, [parts[part] for part in used], train.targets, test.targets, folds)
        check_stop()
    return scores


def parts_of(
    config: Config, anchor: tj.Pretrained, dataset: Dataset, settings: FeatureSettings
) -> dict[str, np.ndarray]:
    """The features of all training and then all test images, by their parts."""
    map_ = settings.of(anchor)
    rows = []
    for split in ("train", "test"):
        data = setup.features(config, map_.predict, dataset.splits[split], f"{split} inputs")
        with tj.show_progress(f"{dataset.name}: {' and '.join(settings.parts)}, {split}") as progress:
            rows.append(rows_of(map_, data, progress=progress))
    parts = np.split(np.concatenate(rows), np.cumsum(map_.sizes)[:-1], 1)
    return dict(zip(settings.parts, parts, strict=True))


def scored(how: str, parts: list[np.ndarray], trained: np.ndarray, tested: np.ndarray, folds: np.ndarray) -> Scores:
    """The accuracy on test images, which follow the training images, by the settings that the folds of these choose."""
    n, sizes, count = len(trained), tuple(part.shape[1] for part in parts), int(max(trained.max(), tested.max())) + 1
    rows = np.concatenate(parts, 1)
    chosen = choose_by_folds(rows[:n], trained, sizes, folds, (how,))
    head = sums_of(rows[:n], trained, count, sizes).solve(chosen.settings)
    scores = np.asarray(score_rows(head, rows[n:]))
    return Scores(float(np.mean(scores.argmax(1) == tested)), chosen.accuracy)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

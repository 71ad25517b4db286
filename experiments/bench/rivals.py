"""Rivals of exact composition: the network fine-tuned on all images, and federated averaging of contributors.

nlft is the network fine-tuned non-linearly on all training images by its last --blocks (as many as the model has: all
of them). fedavg is federated averaging (McMahan et al. 2017) over --shards contributors: in each of --rounds each of
them fine-tunes the current network for some local epochs, and the network moves by the mean of their steps. Both train
by Adam, with the schedule of `finetune`.

Settings are chosen on held-out training images (a fifth of each class, or a validation split): the learning rate among
--lr; for fedavg, whose searched runs are whole ones, also the local epochs among --local_epochs. A searched run of nlft
has --search_epochs on at most --search_images images. The chosen settings train on all training images, for each
--seed, and are measured on test. Finished runs are kept in runs.jsonl under --out, and the epochs of an unfinished run
of nlft in checkpoints, so a killed command resumes.

The last line of stdout: {DATASET: {"nlft 1" or "fedavg 1": {"mean", "spread", "accuracies": one for each seed,
"chosen", "searched": how many, "tried": {a setting: its values}, "held_out": the chosen setting's accuracy on held-out
images, None if there was one alone}}}; the number is --blocks.
"""

import dataclasses
import itertools
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import search
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.flags import CACHED, MODEL, TRAINING, F, define, listed, numbers
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core import Tree, check_stop, identity, trees
from tangent_jax.data import Dataset

define(*MODEL, *CACHED, *TRAINING, "dtype", "search_epochs", "search_images", "at_once", seed=["0"], dataset=["digits"])
define(method=["nlft", "fedavg"], blocks=["1"], lr=["3e-4", "1e-3", "3e-3"], out="out/bench_rivals")
define(shards=10, rounds=8, local_epochs=["5", "20"])

FIELDS = {"nlft": ("learning_rate",), "fedavg": ("learning_rate", "epochs")}
"""The fields of a recipe that are searched; epochs of fedavg are local ones."""


def main() -> None:
    runs = Runs(command.out_folder() / "runs.jsonl")
    methods, counts = listed("method", FIELDS), numbers("blocks", int)
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for spec, dataset in setup.open_datasets().items():
        columns = [*itertools.product(methods, sorted(counts, reverse=True))]  # inputs of few blocks from those of many
        row = {
            f"{name} {blocks}": measured(dataset, name, recipes_of(name, spec, blocks), runs)
            for name, blocks in columns
        }
        table[dataset.name] = {
            f"{name} {blocks}": row[f"{name} {blocks}"] for name, blocks in itertools.product(methods, counts)
        }
    search.show(table, "rivals", f"Rivals of exact composition, {search.seeds()}")
    command.finish(
        table, flags={name: F[name].value for name in ("epochs", "search_epochs", "search_images", "shards", "rounds")}
    )


def recipes_of(name: str, spec: str, blocks: int) -> list[tj.Recipe]:
    """The recipes to search for a rival on a data set."""
    epochs = numbers("local_epochs", int) if name == "fedavg" else [F.epochs]
    fixed = {"method": "nlft", "dataset": spec, "blocks": blocks}
    grid = itertools.product(numbers("lr", float), epochs)
    return [setup.recipe(**fixed, learning_rate=rate, epochs=count) for rate, count in grid]


def measured(dataset: Dataset, name: str, recipes: Sequence[tj.Recipe], runs: Runs) -> dict[str, Any]:
    """One cell of the table: the setting with the highest accuracy on held-out images, on test, for each seed."""
    few = {"epochs": F.search_epochs} if name == "nlft" else {}
    held = [run(dataset, name, dataclasses.replace(own, **few), runs) for own in recipes] if len(recipes) > 1 else [0.0]
    best = recipes[int(np.argmax(held))]
    seeds = [dataclasses.replace(best, seed=seed) for seed in numbers("seed", int)]
    accuracies = [run(dataset, name, recipe, runs, on_test=True) for recipe in seeds]
    cell = {"mean": float(np.mean(accuracies)), "spread": float(np.std(accuracies)), "accuracies": accuracies}
    cell |= {"chosen": {field: getattr(best, field) for field in FIELDS[name]}, "searched": len(recipes)}
    cell |= {"tried": {field: sorted({getattr(own, field) for own in recipes}) for field in FIELDS[name]}}
    return {**cell, "held_out": max(held) if len(recipes) > 1 else None}


def run(dataset: Dataset, name: str, recipe: tj.Recipe, runs: Runs, on_test: bool = False) -> float:
    """The accuracy of one rival, on test or on held-out images, read or trained now."""
    own = (F.shards, F.rounds) if name == "fedavg" else () if on_test else (F.search_images,)
    key = identity(setup.run_key(recipe.dataset, recipe.weights), recipe, name, on_test, *own)
    title = f"{dataset.name} {name} {recipe.blocks}, lr {recipe.learning_rate:g}, {recipe.epochs} epochs"
    title += f", seed {recipe.seed}" if on_test else ", held out"
    if key not in runs.done:
        predict = setup.predictor(recipe, dataset.classes)
        train, test = setup.train_and_measured(predict, dataset, on_test)
        if name == "fedavg":
            predict = averaged(predict, train, recipe, title)
            dw = predict.zeros()
        else:
            if not on_test and F.search_images:
                train = train.take(np.sort(np.random.default_rng(0).permutation(len(train))[: F.search_images]))
            dw = fine_tuned(predict, train, recipe, title)
        runs.add(key, tj.evaluate(predict, dw, test))
    print(f"{title}: {runs.done[key]:.4f}", file=sys.stderr, flush=True)
    return runs.done[key]


def fine_tuned(predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe, title: str) -> Tree:
    """The step of the network fine-tuned on these images; a killed run resumes after its last saved epoch."""

    def tell(row: dict[str, Any], _: Tree) -> None:
        seconds, share = row["seconds"], row["train_accuracy"]
        text = f"epoch {row['epoch']}: loss {row['loss']:.4g}, train accuracy {share:.3f}, {seconds:.0f} s"
        print(f"{time.strftime('%H:%M')} {title}: {text}", file=sys.stderr, flush=True)

    folder = command.out_folder() / "checkpoints"
    with tj.show_progress(None):
        dw = recipe.fit(predict, train, on_step=tell, folder=folder).dw
    shutil.rmtree(folder)
    return dw


def averaged(predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe, title: str) -> tj.Predictor:
    """The network after --rounds of federated averaging: each moves it by the mean of the contributors' steps."""
    parts = tj.shards.uniform(len(train), F.shards, recipe.seed)
    rows = {f"shard {s:0{len(str(F.shards - 1))}}": part for s, part in enumerate(parts)}
    for r in range(F.rounds):
        with tj.show_progress(f"{title}, round {r + 1} of {F.rounds}"):
            steps = tj.store.Shards(predict, train, recipe, rows, at_once=F.at_once).fit()
        mean = tj.compose({name: fitted.dw for name, fitted in steps.items()})
        predict = dataclasses.replace(predict, w=trees.add(predict.w, mean))
        check_stop()
    return predict


if __name__ == "__main__":
    command.run(main)

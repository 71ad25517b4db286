"""Rivals of exact composition: the network fine-tuned on all images, and federated averaging of contributors.

nlft is the network fine-tuned non-linearly on all training images by its last --blocks (as many as the model has: all
of them). fedavg is federated averaging (McMahan et al. 2017) of each number of contributors in --shards: in each of
--rounds each of them fine-tunes the current network for some local epochs, and the network moves by the mean of their
steps. Both train by Adam, with the schedule of `finetune`.

Settings are chosen on held-out training images (a fifth of each class, or a validation split): the learning rate among
--lr; for fedavg, whose searched runs are whole ones, also the local epochs among --local_epochs. A searched run of nlft
has --search_epochs on at most --search_images images. The chosen settings train on all training images, for each
--seed, and are measured on test. Finished runs are kept in runs.jsonl under --out, and the epochs of an unfinished run
of nlft in checkpoints, so a killed command resumes.

The last line of stdout: {"rivals": {DATASET: {"nlft 1" or "fedavg 1, 10 contributors": {"method", "blocks",
"contributors": 1 for nlft, "mean", "spread", "accuracies": one for each seed, "chosen", "searched": how many, "tried":
{a setting: its values}, "held_out": the chosen setting's accuracy on held-out images, None if there was one alone}}}}.
"""

import dataclasses
import itertools
import shutil
import sys
import time
from typing import Any, NamedTuple

import numpy as np

import tangent_jax as tj
from experiments.shared import search
from experiments.shared.averaging import average, moved
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Model, Reading, Training
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Training, search.Tabled):
    """The flags."""

    at_once: int = 10
    blocks: tuple[str, ...] = ("1",)
    dataset: tuple[str, ...] = ("digits",)
    dtype: str = Recipe.dtype
    local_epochs: tuple[str, ...] = ("5", "20")
    lr: tuple[str, ...] = ("3e-4", "1e-3", "3e-3")
    method: tuple[str, ...] = ("nlft", "fedavg")
    out: str = "out/bench_rivals"
    rounds: int = 8
    search_epochs: int = 30
    search_images: int | None = None
    seed: tuple[str, ...] = ("0",)
    shards: tuple[str, ...] = ("10",)


FIELDS = {"nlft": ("learning_rate",), "fedavg": ("learning_rate", "epochs")}
"""The fields of a recipe that are searched; epochs of fedavg are local ones."""
RUN = ("epochs", "search_epochs", "search_images", "rounds", "batch_size", "loss")


class Rival(NamedTuple):
    """A rival: its method, the number of trained blocks, and of contributors (one has all images)."""

    method: str
    blocks: int
    contributors: int = 1

    @property
    def name(self) -> str:
        """The name in the table."""
        others = f", {self.contributors} contributors" if self.method == "fedavg" else ""
        return f"{self.method} {self.blocks}{others}"


def main(config: Config) -> None:
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    rivals = every_rival(config)
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for spec, dataset in setup.open_datasets(config).items():
        # many blocks first: the inputs of few are computed from those of many
        cells = {own: measured(config, dataset, spec, own, runs) for own in sorted(rivals, key=lambda own: -own.blocks)}
        table[dataset.name] = {own.name: {**own._asdict(), **cells[own]} for own in rivals}
    search.show(config, table, "rivals", f"Rivals of exact composition, {search.seeds(config)}")
    command.finish(config, {"rivals": table}, flags={name: getattr(config, name) for name in RUN})


def every_rival(config: Config) -> list[Rival]:
    """The rivals of the flags."""
    counts = {"nlft": [1], "fedavg": config.numbers("shards", int)}
    return [
        Rival(method, blocks, count)
        for method in config.listed("method", FIELDS)
        for blocks in config.numbers("blocks", int)
        for count in counts[method]
    ]


def recipes_of(config: Config, rival: Rival, spec: str) -> list[tj.Recipe]:
    """The recipes to search for a rival on a data set."""
    epochs = config.numbers("local_epochs", int) if rival.method == "fedavg" else [config.epochs]
    fixed = {"method": "nlft", "dataset": spec, "blocks": rival.blocks}
    grid = itertools.product(config.numbers("lr", float), epochs)
    return [setup.recipe(config, **fixed, learning_rate=rate, epochs=count) for rate, count in grid]


def measured(config: Config, dataset: Dataset, spec: str, rival: Rival, runs: Runs) -> dict[str, Any]:
    """One cell of the table: the setting with the highest accuracy on held-out images, on test, for each seed."""
    few = {"epochs": config.search_epochs} if rival.method == "nlft" else {}

    def accuracy(recipe: tj.Recipe, on_test: bool) -> float:
        own = recipe if on_test else dataclasses.replace(recipe, **few)
        return run(config, dataset, rival, own, runs, on_test)

    return search.choose(config, recipes_of(config, rival, spec), FIELDS[rival.method], accuracy)


def run(config: Config, dataset: Dataset, rival: Rival, recipe: tj.Recipe, runs: Runs, on_test: bool = False) -> float:
    """The accuracy of one rival, on test or on held-out images, read or trained now."""
    few = config.search_images if rival.method == "nlft" and not on_test else None
    rounds = config.rounds if rival.method == "fedavg" else 1
    key = identity(setup.run_key(config, recipe.dataset, recipe), recipe, rival, rounds, on_test, few)
    title = f"{dataset.name} {rival.name}, lr {recipe.learning_rate:g}, {recipe.epochs} epochs"
    title += f", seed {recipe.seed}" if on_test else ", held out"
    if key not in runs.done:
        predict = setup.predictor(recipe, dataset.classes)
        train, test = setup.train_and_measured(config, predict, dataset, on_test)
        if few is not None:
            train = train.take(np.sort(np.random.default_rng(0).permutation(len(train))[:few]))
        trained = averaged if rival.method == "fedavg" else fine_tuned
        runs.add(key, tj.evaluate(trained(config, predict, train, recipe, rival, title), predict.zeros(), test))
    print(f"{title}: {runs.done[key]:.4f}", file=sys.stderr, flush=True)
    return runs.done[key]


def fine_tuned(
    config: Config, predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe, _: Rival, title: str
) -> tj.Predictor:
    """The network fine-tuned on these images; a killed run resumes after its last saved epoch."""

    def tell(row: dict[str, Any], _: Tree) -> None:
        text = f"epoch {row['epoch']}: loss {row['loss']:.4g}, train accuracy {row['train_accuracy']:.3f}"
        print(f"{time.strftime('%H:%M')} {title}: {text}, {row['seconds']:.0f} s", file=sys.stderr, flush=True)

    folder = command.out_folder(config) / "checkpoints"
    with tj.show_progress(None):
        dw = recipe.fit(predict, train, on_step=tell, checkpoints=tj.Checkpoints(folder)).dw
    shutil.rmtree(folder)
    return moved(predict, dw)


def averaged(
    config: Config, predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe, rival: Rival, title: str
) -> tj.Predictor:
    """The network after --rounds of federated averaging over contributors with equally many images."""
    parts = tj.shards.uniform(len(train), rival.contributors, recipe.seed)
    digits = len(str(rival.contributors - 1))
    rows = {f"shard {s:0{digits}}": part for s, part in enumerate(parts)}
    with tj.show_progress(title):
        return average(predict, train, recipe, rows, config.rounds, config.at_once)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

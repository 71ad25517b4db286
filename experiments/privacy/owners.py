"""Accuracy of image-level and of user-level (contributor-level) privacy.

The training images are divided among this many owners: each gets one, the rest are assigned in proportions from a
seeded Dirichlet(--concentration). --out receives the division as CSV, for `private --unit=owner`. For every unit and
epsilon, held-out training images choose learning rate, clip norm and number of steps, by the mean over --seed; the
chosen setting is trained on all of train and measured on test. Delta is the same for every unit. Noise comes from
seeds, for reproducible tables, so nothing here is private, and the search is not accounted. Finished runs are saved in
runs.jsonl.

The last line of stdout: {"dataset", "sizes": {OWNERS: {"smallest", "median", "largest"}}, "searched": settings,
"table": {"example" or OWNERS: {EPSILON: {"mean", "spread", "accuracies", "chosen", "held_out"}}}}.
"""

import csv
import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.private_runs import PrivateTable, accuracies
from experiments.shared.search import cell_of, mean_and_spread
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import choice
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.data import Dataset
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PrivateTable):
    """The flags."""

    blocks: int = 0
    clip_norm: tuple[str, ...] = ("1", "30", "300")
    concentration: float = 1.0
    dataset: str = Recipe.dataset
    out: str = "out/owners"
    shards: tuple[str, ...] = ("30", "300")
    steps: tuple[str, ...] = ("5", "20", "50")
    subset: str = choice("head", "blocks", "bitfit", "layernorm")


AT_ONCE = 36  # models trained as one program


class Run(NamedTuple):
    """One training; `owners`: their number, 0 for image-level privacy."""

    owners: int
    steps: int
    epsilon: float
    clip_norm: float
    learning_rate: float
    seed: int

    def mechanism(self, delta: float) -> tj.privacy.Mechanism:
        unit = "owner" if self.owners else "example"
        return tj.make_mechanism(self.epsilon, delta, self.steps, self.clip_norm, unit=unit)


def divide(config: Config, count: int, owners: int) -> np.ndarray:
    """The owner of each of `count` images, "n": one image for each owner, the rest in Dirichlet proportions."""
    if not 2 <= owners <= count:
        raise InputError(f"--shards must be in 2..{count}, the number of images of train; got {owners}")
    rng = np.random.default_rng(owners)
    rest = rng.choice(owners, count - owners, p=rng.dirichlet(np.full(owners, config.concentration)))
    return rng.permutation(np.concatenate([np.arange(owners), rest]))


class Table:
    """The table's runs, saved, and trained together."""

    def __init__(self, config: Config, dataset: Dataset, runs: Runs) -> None:
        self.config = config
        self.dataset = dataset
        self.runs = runs
        self.recipe = setup.recipe(self.config)
        self.key = identity(
            setup.run_key(self.config, self.config.dataset, self.config),
            self.recipe,
            self.config.delta,
            self.config.concentration,
        )

    def measure(self, wanted: list[Run], *, on_test: bool) -> dict[Run, float]:
        """The accuracy of each run, on test or on held-out images."""
        keys = {run: identity(self.key, tuple(run), on_test) for run in wanted}
        missing = sorted(run for run, key in keys.items() if key not in self.runs.done)
        for _, alike in itertools.groupby(missing, lambda run: (run.owners, run.steps)):
            group = [*alike]
            for together in (group[start : start + AT_ONCE] for start in range(0, len(group), AT_ONCE)):
                for run, accuracy in zip(together, self.train(together, on_test), strict=True):
                    self.runs.add(keys[run], accuracy)
        return {run: self.runs.done[key] for run, key in keys.items()}

    def train(self, together: list[Run], on_test: bool) -> list[float]:
        """Trains the runs in one program and returns their accuracies."""
        recipes = {run.seed: dataclasses.replace(self.recipe, seed=run.seed) for run in together}
        predicts = {seed: setup.predictor(r, len(self.dataset.classes)) for seed, r in recipes.items()}
        owners = together[0].owners
        chosen = [predicts[run.seed] for run in together]
        whole = setup.features(self.config, chosen[0], self.dataset.train, "train inputs")
        if owners:
            numbers_of = divide(self.config, len(self.dataset.train), owners).tolist()
            owner_of = dict(zip(self.dataset.train.names, numbers_of, strict=True))
            whole = dataclasses.replace(whole, owners=tuple(owner_of[name] for _, name in whole.examples))
        train, measured = whole.hold_out()
        if not on_test and not len(measured):
            need = "five images" if whole.whole_groups is None else "two owners"
            raise InputError(f"a fifth of each class is held out, and no class of {self.dataset.name} has {need}")
        if on_test:
            train = whole
            measured = setup.features(self.config, chosen[0], self.dataset.test, "test inputs")
        with tj.show_progress(f"{owners or 'no'} owners, {together[0].steps} steps, {len(together)} at once"):
            return accuracies(chosen, train, measured, self.recipe.objective, together, self.config.delta)

    def fill(self, owners: int) -> dict[str, dict[str, Any]]:
        """Searches, chooses and measures; returns for every epsilon mean and spread over the seeds, and the choice."""
        epsilons, lrs, clips = (self.config.numbers(name, float) for name in ("epsilon", "lr", "clip_norm"))
        steps, seeds = (self.config.numbers(name, int) for name in ("steps", "seed"))
        grid = [Run(owners, *at, 0) for at in itertools.product(steps, epsilons, clips, lrs)]
        held = self.measure([run._replace(seed=s) for run in grid for s in seeds], on_test=False)
        scores = {run: float(np.mean([held[run._replace(seed=s)] for s in seeds])) for run in grid}
        best = [max((run for run in grid if run.epsilon == e), key=scores.__getitem__) for e in epsilons]
        final = self.measure([run._replace(seed=s) for run in best for s in seeds], on_test=True)
        cells = {}
        for run in best:
            cell = cell_of([final[run._replace(seed=s)] for s in seeds])
            chosen = {field: getattr(run, field) for field in ("steps", "clip_norm", "learning_rate")}
            print(f"{owners or 'no'} owners, epsilon {run.epsilon:g}: {mean_and_spread(cell, 4)}", file=sys.stderr)
            cells[f"{run.epsilon:g}"] = {**cell, "chosen": chosen, "held_out": scores[run]}
        return cells


def draw(config: Config, path: Path, dataset: str, cells: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Plots accuracy by epsilon for each unit of protection; `cells`: {owners or "example": {epsilon: cell}}."""
    lines = {
        "images" if unit == "example" else f"{unit} owners": [
            [cell[k] for cell in row.values()] for k in ("mean", "spread")
        ]
        for unit, row in cells.items()
    }
    epsilons = [float(epsilon) for epsilon in cells["example"]]
    axes = {"xlabel": f"epsilon (mean and spread of {len(config.seed)} seeds)", "ylabel": "test accuracy", "log": "x"}
    panel = {"x": epsilons, "lines": {name: (*line,) for name, line in lines.items()}, "ticks": epsilons, **axes}
    plots.curves(path, [panel], titles.protected(dataset, cells))


def main(config: Config) -> None:
    counts = config.numbers("shards", int)
    epsilons = config.numbers("epsilon", float)
    settings = [
        *map(len, (config.numbers("lr", float), config.numbers("clip_norm", float), config.numbers("steps", int)))
    ]
    dataset = setup.open_tested(config.dataset)
    n = len(dataset.train)
    if config.delta >= 1 / n:
        raise InputError(f"--delta must be below 1 / images = {1 / n:.2g}; got {config.delta}")
    divided = {owners: divide(config, n, owners) for owners in counts}
    out = command.out_folder(config)
    sizes = {}
    for owners, owner_of in divided.items():
        with (out / f"owners{owners}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(zip(dataset.train.names, [f"owner {owner}" for owner in owner_of], strict=True))
        held = np.bincount(owner_of)
        sizes[owners] = {"smallest": int(held.min()), "median": float(np.median(held)), "largest": int(held.max())}
    table = Table(config, dataset, Runs(out / "runs.jsonl"))
    cells = {str(owners or "example"): table.fill(owners) for owners in (0, *counts)}
    rows = [[unit, *map(mean_and_spread, row.values())] for unit, row in cells.items()]
    command.write_table(config, "owners", ["owners", *(f"epsilon {e:g}" for e in epsilons)], rows)
    draw(config, out / "owners.png", dataset.name, cells)
    searched = int(np.prod(settings))
    command.finish(config, {"dataset": dataset.name, "sizes": sizes, "searched": searched, "table": cells})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

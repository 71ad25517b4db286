"""The paper's Table 3: tangents against non-linear models under differential privacy, by epsilon and subset.

Full-batch steps of cross entropy, the paper's 50 or others; our outputs are the tangent alone. For every cell, steps,
learning rate and clip norm are searched on images held out of train (seed 0; the two best with seeds 1 and 2 too), then
PT=F at the best; the winner is trained on all of train, over --seed, and measured on test. The methods `norm` and
`public` are TAFT in coordinates whitened by the layer norm below a kernel, and by the images of --public. LoRA and
adapters (--rank) are new in any case, so PT=F is not tried for them. Models of one cell and number of steps train in
one program. Noise comes from seeds, for reproducible tables, so nothing here is
private. Finished runs are saved in runs.jsonl, the command in command.json, which `paper report
--finished=table3=FOLDER` shows.

The epsilons are those of the final runs. "with_search" is the epsilon if the runs of the search were released too; the
choice by held-out images is not private.

The last line of stdout: {DATASET: {EPSILON: {SUBSET: {METHOD: {"mean", "spread", "accuracies", "chosen"}}}},
"with_search": {EPSILON: epsilon}}.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.private_runs import PrivateTable, accuracies
from experiments.shared.search import cell_of, mean_and_spread
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.data import Dataset
from tangent_jax.models.subsets import KINDS, MADE
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PrivateTable):
    """The flags."""

    blocks: int = 1
    clip_norm: tuple[str, ...] = ("1", "30")
    dataset: tuple[str, ...] = ("digits",)
    method: tuple[str, ...] = ("nlft", "taft")
    out: str = "out/table3"
    public: str | None = None
    rank: int = Recipe.rank
    steps: tuple[str, ...] = ("50",)
    subset: tuple[str, ...] = ("blocks", "bitfit", "layernorm", "head")


METHODS = ("nlft", "taft", "norm", "public")
FINALISTS = 2  # settings tried with two more seeds: one seed's choice is mostly noise at epsilon 1
AT_ONCE = 24  # models trained as one program


class Run(NamedTuple):
    """One training of the grid."""

    epsilon: float
    steps: int
    clip_norm: float
    learning_rate: float
    reset: bool
    seed: int

    def mechanism(self, delta: float) -> tj.privacy.Mechanism:
        return tj.make_mechanism(self.epsilon, delta, self.steps, self.clip_norm)


class Cell:
    """One data set, subset and method: its runs, saved, and trained together."""

    def __init__(self, config: Config, spec: str, dataset: Dataset, subset: str, method: str, runs: Runs) -> None:
        self.config = config
        self.dataset = dataset
        self.runs = runs
        self.title = f"{dataset.name} {subset} {method}"
        self.whitening = method if method in ("norm", "public") else None
        self.recipe = setup.recipe(self.config, dataset=spec, method="taft" if self.whitening else method, kind=subset)
        key = [setup.run_key(self.config, spec, self.recipe), self.recipe, self.config.delta]
        if self.whitening:
            public = setup.public_images(config.public, dataset.train).identifiers() if config.public else []
            key += [self.whitening, public if method == "public" else []]
        self.key = identity(*key)

    def measure(self, wanted: list[Run], *, on_test: bool) -> dict[Run, float]:
        """The accuracy of each run, on test or on held-out images."""
        keys = {run: identity(self.key, tuple(run), on_test) for run in wanted}
        missing = sorted(run for run, key in keys.items() if key not in self.runs.done)
        alike = [[run for run in missing if run.steps == steps] for steps in sorted({run.steps for run in missing})]
        for together in (runs[i : i + AT_ONCE] for runs in alike for i in range(0, len(runs), AT_ONCE)):
            for run, accuracy in zip(together, self.train(together, on_test), strict=True):
                self.runs.add(keys[run], accuracy)
        return {run: self.runs.done[key] for run, key in keys.items()}

    def train(self, together: list[Run], on_test: bool) -> list[float]:
        """Trains the runs in one program and returns their accuracies."""
        anchors = sorted({(run.seed, run.reset) for run in together})
        recipes = {a: dataclasses.replace(self.recipe, seed=a[0], reset=a[1]) for a in anchors}
        predicts = {a: setup.predictor(r, len(self.dataset.classes)) for a, r in recipes.items()}
        first = predicts[anchors[0]]
        train, measured = setup.train_and_measured(self.config, first, self.dataset, on_test)
        if self.whitening == "norm":
            predicts = {a: tj.privacy.whiten(predict) for a, predict in predicts.items()}
        if self.whitening == "public":
            predicts = {
                a: setup.whitened(self.config, self.config.public, predict, train) for a, predict in predicts.items()
            }
        chosen = [predicts[run.seed, run.reset] for run in together]
        with tj.show_progress(f"{self.title} {'final' if on_test else 'search'}, {len(together)} at once"):
            return accuracies(chosen, train, measured, self.recipe.objective, together, self.config.delta)

    def fill(self) -> dict[float, dict[str, Any]]:
        """Searches, chooses and measures; returns for every epsilon mean and spread over the seeds, and the choice."""
        epsilons, clips, rates = (self.config.numbers(name, float) for name in ("epsilon", "clip_norm", "lr"))
        steps = self.config.numbers("steps", int)
        grid = [Run(e, s, c, r, False, 0) for e in epsilons for s in steps for c in clips for r in rates]
        held = self.measure(grid, on_test=False)
        ranked = {e: sorted((r for r in grid if r.epsilon == e), key=held.__getitem__, reverse=True) for e in epsilons}
        again = [run._replace(seed=s) for runs in ranked.values() for run in runs[:FINALISTS] for s in (1, 2)]
        held |= self.measure(again, on_test=False)

        def score(run: Run) -> float:
            return sum(held[run._replace(seed=s)] for s in (0, 1, 2)) / 3

        best = {e: max(runs[:FINALISTS], key=score) for e, runs in ranked.items()}
        scores = {e: score(run) for e, run in best.items()}
        if self.recipe.kind not in ("head", *MADE):  # their trained leaves are new in any case
            held |= self.measure([run._replace(reset=True) for run in best.values()], on_test=False)
            best = {e: max((run, run._replace(reset=True)), key=held.__getitem__) for e, run in best.items()}
        final = [run._replace(seed=s) for run in best.values() for s in self.config.numbers("seed", int)]
        accuracy_of = self.measure(final, on_test=True)
        table = {}
        for epsilon, run in best.items():
            cell = cell_of([accuracy_of[run._replace(seed=s)] for s in self.config.numbers("seed", int)])
            chosen = {field: getattr(run, field) for field in ("steps", "clip_norm", "learning_rate", "reset")}
            table[epsilon] = {**cell, "chosen": chosen, "held_out": scores[epsilon]}
            print(f"{self.title} epsilon {epsilon:g}: {mean_and_spread(cell, 4)}", chosen, file=sys.stderr)
        return table


def main(config: Config) -> None:
    epsilons, clips, rates = (config.numbers(name, float) for name in ("epsilon", "clip_norm", "lr"))
    config.listed("subset", KINDS)
    methods = config.listed("method", METHODS)
    steps = config.numbers("steps", int)
    if "taft" not in methods and (len(methods) > 1 or methods == ["nlft"]):
        raise InputError(f"--method must have taft, or be norm or public alone; got {','.join(methods)}")
    if ("public" in methods) != (config.public is not None):
        raise InputError(f"--public and --method=public must be given together; got --method={','.join(methods)}")
    mechanisms = {(e, s): tj.make_mechanism(e, config.delta, s, clips[0]) for e in epsilons for s in steps}
    sets = setup.open_datasets(config)
    for dataset in sets.values():
        n = len(dataset.train)
        if config.delta >= 1 / n:
            raise InputError(f"--delta must be below 1 / images = {1 / n:.2g} of {dataset.name}; got {config.delta}")
        if config.public:
            setup.public_images(config.public, dataset.train)
    out = command.out_folder(config)
    runs = Runs(out / "runs.jsonl")
    result: dict[str, Any] = {}
    for spec, dataset in sets.items():
        cells = {(s, m): Cell(config, spec, dataset, s, m, runs).fill() for s in config.subset for m in methods}
        row = {f"{e:g}": {s: {m: cells[s, m][e] for m in methods} for s in config.subset} for e in epsilons}
        result[dataset.name] = row
    write_table(config, result)
    draw(out / "table3.png", result, epsilons)
    searched = len(steps) * len(clips) * len(rates) + 2 * FINALISTS + 1
    with_search = {}
    for epsilon in epsilons:  # more steps have more noise each, at the same cost
        sigma = float(mechanisms[epsilon, steps[0]].noise_multiplier)
        with_search[f"{epsilon:g}"] = tj.privacy.epsilon_of(sigma, steps[0] * (1 + searched), config.delta)
    flags = [flag for flag in sys.argv[1:] if not flag.startswith("--out=")]
    line = ["python", "-m", "experiments.paper", "table3", *flags]
    (out / "command.json").write_text(json.dumps({"command": line}) + "\n")
    command.finish(config, {**result, "with_search": with_search})


def write_table(config: Config, result: dict[str, Any]) -> None:
    """Writes table3.md: a row per data set and epsilon; cells are mean ± spread, the best method in bold."""
    rows = []
    for dataset, by_epsilon in result.items():
        for epsilon, row in by_epsilon.items():
            cells = []
            for pair in row.values():
                best = max(cell["mean"] for cell in pair.values())
                texts = {m: mean_and_spread(cell) for m, cell in pair.items()}
                cells += [f"**{text}**" if pair[m]["mean"] == best else text for m, text in texts.items()]
            rows.append([dataset, epsilon, *cells])
    columns = [f"{s}, {m.upper()}" for s in config.subset for m in config.method]
    command.write_table(config, "table3", ["data set", "epsilon", *columns], rows)


def draw(path: Path, result: dict[str, Any], epsilons: list[float]) -> None:
    """Plots accuracy against epsilon: a panel for each subset and data set, a line for each method."""
    panels = []
    for subset in next(iter(next(iter(result.values())).values())):
        for dataset, rows in result.items():
            by_epsilon = [row[subset] for row in rows.values()]
            lines = {
                method: (
                    [cells[method]["mean"] for cells in by_epsilon],
                    [cells[method]["spread"] for cells in by_epsilon],
                )
                for method in by_epsilon[0]
            }
            axes = {"title": f"{subset}, {dataset}", "ylabel": "test accuracy", "log": "x", "ticks": epsilons}
            panels.append({"x": epsilons, "lines": lines, "xlabel": "epsilon", **axes})
    plots.curves(path, panels, titles.tangent_above(result))


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

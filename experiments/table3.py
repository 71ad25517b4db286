"""The paper's Table 3: tangents against non-linear models under differential privacy, by epsilon and subset.

50 full-batch steps of cross entropy; ours answers with the tangent alone. For every cell, learning rate and clip norm
are searched on images held out of train (seed 0; the two best with seeds 1 and 2 too), then PT=F at the best; what
wins is trained on all of train, over --seeds, and measured on test. Models that differ in epsilon, learning rate or
seed are trained as one program. Noise comes of seeds, so that the table can be made again: nothing here is private.
Finished runs are kept in runs.jsonl.

The epsilons are the final runs' own. What the search would add, were its runs released too, is given under
"with_search"; the held-out images choose without noise, and are not protected from that choice.

The last line of stdout: {DATASET: {EPSILON: {SUBSET: {METHOD: {"mean", "spread", "accuracies", "chosen"}}}},
"with_search": {EPSILON: epsilon}}.
"""

import dataclasses
import itertools
import json
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import binary, common, pictures
from experiments.common import Choice
from experiments.runs import Runs, numbers
from tangent_jax import weights
from tangent_jax.checks import require
from tangent_jax.data.cache import TailInputs
from tangent_jax.data.sources import Dataset, open_dataset
from tangent_jax.fit import State, accuracy
from tangent_jax.many import stacked
from tangent_jax.notation import Tree
from tangent_jax.predict import Predictor
from tangent_jax.privacy import PrivateSettings, epsilon_of, noise_key, noisy_mean
from tangent_jax.privacy.train import MOMENTUM, descend, micro_batches, sample
from tangent_jax.progress import progress_bar

DATASETS = flags.DEFINE_list("datasets", ["digits"], "Data sets, as finetune's --dataset, separated by commas.")
EPSILONS = flags.DEFINE_list("epsilons", ["1", "3", "8"], "Privacy budgets.")
DELTA = flags.DEFINE_float("delta", 1e-5, "Failure probability of each, below 1 / images.")
SUBSETS = flags.DEFINE_list("subsets", list(common.PRIVATE_KINDS), "Of full, bitfit, layernorm, fc.")
RATES = flags.DEFINE_list(
    "lrs", ["0.006", "0.02", "0.06", "0.2"], "Learning rates searched, in units of 1 / clip norm."
)
CLIPS = flags.DEFINE_list("clip_norms", ["1", "30"], "Clip norms searched.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds of the final runs (0, 1, ...), of head and noise.", lower_bound=1)
OUT = flags.DEFINE_string("out", "out/table3", "Folder for result.json, table3.md, table3.png and runs.jsonl.")
flags.set_default(common.EPOCHS, 50)
flags.set_default(common.LOSS, "ce")
flags.set_default(common.OUTPUT, "tangent")

METHODS = ("nlft", "taft")
FINALISTS = 2  # searched settings that are tried with two more seeds: one seed's choice is mostly noise at epsilon 1


class Run(NamedTuple):
    """One training of the grid."""

    epsilon: float
    clip_norm: float
    learning_rate: float
    reset: bool
    seed: int


def settings_of(epsilon: float, clip_norm: float) -> PrivateSettings:
    return PrivateSettings(epsilon, DELTA.value, common.EPOCHS.value, clip_norm, loss=common.LOSS.value)


@partial(jax.jit, static_argnames="settings", donate_argnames="states")
def step_many(
    predict: Predictor,
    heads: Tree,
    states: State,
    scales: tuple[jax.Array, jax.Array],
    keys: jax.Array,
    data: tuple[jax.Array, ...],
    count: int,
    settings: PrivateSettings,
) -> State:
    """One private step of every model: own head, noise multiplier, learning rate and key; the images shared."""

    def step(head: Tree, state: State, sigma: jax.Array, rate: jax.Array, key: jax.Array) -> State:
        mine = dataclasses.replace(predict, w={**predict.w, "head": head})
        total = micro_batches(mine, state.dw, *data, len(data[2]), settings=settings)
        gradient = jax.lax.optimization_barrier(noisy_mean(total, sigma, count, key))
        return descend(state, gradient, settings.clip_norm, rate)

    return jax.vmap(step)(heads, states, *scales, keys)


class Cell:
    """One data set, subset and method: its runs, kept and trained together where they can be."""

    def __init__(self, pretrained: weights.Pretrained, dataset: Dataset, subset: str, method: str, runs: Runs) -> None:
        self.pretrained, self.dataset, self.runs = pretrained, dataset, runs
        self.choice = Choice(method, common.PRIVATE_KINDS[subset])
        self.title = f"{dataset.name} {subset} {method}"
        labels = [dataset.splits["train"].names, dataset.splits["train"].labels.tolist()]
        decisive = [flag.value for flag in (common.EPOCHS, common.LOSS, common.OUTPUT, common.IMAGE_SIZE, DELTA)]
        self.decisive = [pretrained.source, *decisive, dataset.name, zlib.crc32(json.dumps(labels).encode())]

    def measure(self, wanted: list[Run], search: bool) -> list[float]:
        """The accuracy of each run, on held-out images while searching, else on test."""
        keys = [json.dumps([*self.decisive, *self.choice[:3], *run, search]) for run in wanted]
        missing = [run for run, key in zip(wanted, keys, strict=True) if self.runs.get(key) is None]

        def program(run: Run) -> tuple[Any, ...]:  # a reset anchor is its seed's own
            return run.clip_norm, run.reset, run.seed if run.reset else 0

        for _, group in itertools.groupby(sorted(missing, key=program), program):
            together = list(group)
            for run, found in zip(together, self.train(together, search), strict=True):
                self.runs.add(json.dumps([*self.decisive, *self.choice[:3], *run, search]), found)
        return [self.runs.done[key] for key in keys]

    def data(self, task: common.Task, search: bool) -> tuple[TailInputs, TailInputs]:
        train_set = task.inputs(self.dataset.splits["train"], "train inputs")
        if not search:
            return train_set, task.inputs(common.test_split(self.dataset), "test inputs")
        if {"validation", "test"} <= {*self.dataset.splits}:
            return train_set, task.inputs(self.dataset.splits["validation"], "validation inputs")
        return common.hold_out(train_set)

    def train(self, together: list[Run], search: bool) -> list[float]:
        """Runs of one clip norm and anchor, as one program."""
        choice = self.choice._replace(reset=together[0].reset)
        classes = len(self.dataset.classes)
        tasks = {run.seed: common.prepare(self.pretrained, classes, choice, run.seed) for run in together}
        task = tasks[together[0].seed]
        train_set, measured = self.data(task, search)
        settings = settings_of(3.0, together[0].clip_norm)  # of its budget nothing is read: the noise is in `scales`
        zeros, count = task.subset.zeros(task.predict.w), len(train_set.labels)
        states = stacked(State(zeros, MOMENTUM.init(zeros)), len(together))
        heads = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(tasks[run.seed].predict.w["head"] for run in together)
        )
        sigmas = [settings_of(run.epsilon, run.clip_norm).noise_multiplier for run in together]
        scales = jnp.array(sigmas, jnp.float32), jnp.array([run.learning_rate for run in together], jnp.float32)
        inputs, labels = jnp.asarray(train_set.inputs), jnp.asarray(train_set.labels, jnp.int32)
        data = (inputs, labels, *map(jnp.asarray, sample(count, settings, 0, 0)))
        words = "search" if search else "final"
        with progress_bar(f"{self.title} {words}, {len(together)} at once", settings.steps, "step") as bar:
            for step in range(settings.steps):
                keys = jnp.stack([noise_key(run.seed, step) for run in together])
                states = step_many(task.predict, heads, states, scales, keys, data, count, settings)
                jax.block_until_ready(states)
                bar.update()
        found = []
        for i, run in enumerate(together):
            dw = jax.tree.map(lambda leaf, i=i: leaf[i], states.dw)
            found.append(accuracy(tasks[run.seed].predict, dw, measured.inputs, measured.labels))
        return found


def cell(one: Cell) -> dict[float, dict[str, Any]]:
    """Searches, chooses and measures: for every epsilon, mean and spread over the seeds, and what was chosen."""
    epsilons, clips, rates = (numbers("table3", n, f.value, float) for n, f in FLAGS.items())
    grid = [Run(e, c, r, False, 0) for e in epsilons for c in clips for r in rates]
    held = dict(zip(grid, one.measure(grid, search=True), strict=True))

    ranked = {e: sorted((r for r in grid if r.epsilon == e), key=held.__getitem__, reverse=True) for e in epsilons}
    again = [run._replace(seed=s) for runs in ranked.values() for run in runs[:FINALISTS] for s in (1, 2)]
    held |= dict(zip(again, one.measure(again, search=True), strict=True))

    def score(run: Run) -> float:
        return sum(held[run._replace(seed=s)] for s in (0, 1, 2)) / 3

    best = {e: max(runs[:FINALISTS], key=score) for e, runs in ranked.items()}
    scores = {e: score(run) for e, run in best.items()}
    if one.choice.kind != "head":  # PT=F draws the head alone anew, and the head is always new
        fresh = [run._replace(reset=True) for run in best.values()]
        held |= dict(zip(fresh, one.measure(fresh, search=True), strict=True))
        best = {e: max((run, run._replace(reset=True)), key=held.__getitem__) for e, run in best.items()}
    final = [run._replace(seed=s) for run in best.values() for s in range(SEEDS.value)]
    found = dict(zip(final, one.measure(final, search=False), strict=True))
    table = {}
    for epsilon, run in best.items():
        mine = [found[run._replace(seed=s)] for s in range(SEEDS.value)]
        chosen = {"clip_norm": run.clip_norm, "learning_rate": run.learning_rate, "reset": run.reset}
        table[epsilon] = {"mean": float(np.mean(mine)), "spread": float(np.std(mine)), "accuracies": mine}
        table[epsilon] |= {"chosen": chosen, "held_out": scores[epsilon]}
        print(f"{one.title} epsilon {epsilon:g}: {np.mean(mine):.4f} ± {np.std(mine):.4f}", chosen, file=sys.stderr)
    return table


FLAGS = {"epsilons": EPSILONS, "clip_norms": CLIPS, "lrs": RATES}


def main() -> None:
    epsilons, clips, rates = (numbers("table3", n, f.value, float) for n, f in FLAGS.items())
    unknown = set(SUBSETS.value) - set(common.PRIVATE_KINDS)
    require(not unknown, "table3", f"--subsets of {', '.join(common.PRIVATE_KINDS)}", ", ".join(unknown))
    for epsilon in epsilons:
        settings_of(epsilon, clips[0])
    pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
    sets = [open_dataset(spec) for spec in DATASETS.value]
    for dataset in sets:
        n = len(dataset.splits["train"])
        require(DELTA.value < 1 / n, "table3", f"--delta below 1 / images = {1 / n:.2g} of {dataset.name}", DELTA.value)
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    runs = Runs(out / "runs.jsonl")
    result: dict[str, Any] = {}
    for dataset in sets:
        cells = {(s, m): cell(Cell(pretrained, dataset, s, m, runs)) for s in SUBSETS.value for m in METHODS}
        result[dataset.name] = {
            f"{e:g}": {s: {m: cells[s, m][e] for m in METHODS} for s in SUBSETS.value} for e in epsilons
        }
    markdown = as_markdown(result)
    (out / "table3.md").write_text(markdown)
    draw(out / "table3.png", result, epsilons)
    print(markdown)
    searched = len(clips) * len(rates) + 2 * FINALISTS + 1
    binary.finish(out, {**result, "with_search": {f"{e:g}": with_search(e, searched) for e in epsilons}})


def with_search(epsilon: float, searched: int) -> float:
    """The epsilon of a final run and of all that its cell searched, were they all released."""
    settings = settings_of(epsilon, 1.0)
    return epsilon_of(settings.noise_multiplier, settings.steps * (1 + searched), settings.delta)


def as_markdown(result: dict[str, Any]) -> str:
    """A row per data set and epsilon; a cell is mean ± spread over the seeds, the better of two in bold."""
    names = [f"{s}, {m.upper()}" for s in SUBSETS.value for m in METHODS]
    lines = [f"| data set | epsilon | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for dataset, rows in result.items():
        for epsilon, row in rows.items():
            cells = []
            for pair in row.values():
                best = max(pair[m]["mean"] for m in METHODS)
                texts = {m: f"{pair[m]['mean']:.3f} ± {pair[m]['spread']:.3f}" for m in METHODS}
                cells += [f"**{texts[m]}**" if pair[m]["mean"] == best else texts[m] for m in METHODS]
            lines.append(f"| {dataset} | {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path, result: dict[str, Any], epsilons: list[float]) -> None:
    """Accuracy against epsilon: a panel per data set, a colour per subset, NLFT dashed."""
    panels = []
    for dataset, rows in result.items():
        lines = {}
        for method, suffix in (("taft", ""), ("nlft", ", NLFT")):
            for subset in SUBSETS.value:
                mine = [rows[f"{e:g}"][subset][method] for e in epsilons]
                lines[subset + suffix] = ([m["mean"] for m in mine], [m["spread"] for m in mine])
        axes = {"xlabel": f"epsilon, {dataset}", "ylabel": "test accuracy", "log": "x", "ticks": epsilons}
        panels.append({"x": epsilons, "lines": lines, **axes})
    pictures.curves(path, panels, "Utility against privacy: TAFT solid, NLFT dashed")


if __name__ == "__main__":
    binary.run(main)

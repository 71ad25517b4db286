"""The paper's Table 1: FC, NLFT-n and TAFT-n on given data sets, settings chosen on a validation split.

For each method, learning rate, reset (PT) and class token (CLS) are searched on images held out of train,
with --search_epochs; the best is trained on all of train, over --seeds, and measured on test. Every run is
kept in runs.jsonl under --out and not repeated by the same command.
"""

import dataclasses
import itertools
import json
import sys
import zlib
from pathlib import Path

import numpy as np
from absl import flags

from experiments import binary, common, pictures
from experiments.common import Choice
from experiments.runs import Runs, numbers
from tangent_jax import weights
from tangent_jax.data.sources import Dataset, open_dataset

DATASETS = flags.DEFINE_list("datasets", ["digits"], "Data sets, as finetune's --dataset, separated by commas.")
BLOCKS = flags.DEFINE_list("blocks", ["1", "7"], "Numbers of last blocks; those beyond the model's depth are left out.")
RATES = flags.DEFINE_list("lrs", ["1e-3", "1e-4"], "Learning rates searched.")
SEARCH_EPOCHS = flags.DEFINE_integer("search_epochs", 30, "Epochs of each searched run.", lower_bound=1)
ALL_CHOICES = flags.DEFINE_bool("search_anchor", True, "Search PT and CLS too, not only the learning rate.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds of the final runs (0, 1, ...); the search uses 0.", lower_bound=1)
OUT = flags.DEFINE_string("out", "out/table1", "Folder for result.json, table1.md, table1.png and runs.jsonl.")


def candidates(method: str, blocks: int) -> list[Choice]:
    """What is searched for one column of the table."""
    rates = numbers("table1", "lrs", RATES.value, float)
    anchors = (
        list(itertools.product((False, True), repeat=2)) if ALL_CHOICES.value and method != "fc" else [(False, False)]
    )
    return [Choice(method, "blocks", blocks, reset, token, rate) for (reset, token) in anchors for rate in rates]


def name_of(method: str, blocks: int) -> str:
    return "FC" if method == "fc" else f"{method.upper()}-{blocks}"


def main() -> None:
    pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    runs = Runs(out / "runs.jsonl")
    sets = [open_dataset(spec) for spec in DATASETS.value]
    depths = [blocks for blocks in numbers("table1", "blocks", BLOCKS.value, int) if blocks <= pretrained.config.depth]
    columns: list[tuple[str, int]] = [
        ("fc", 0),
        *((method, blocks) for blocks in depths for method in ("nlft", "taft")),
    ]
    names = [name_of(*column) for column in columns]
    table: dict[str, dict[str, dict]] = {}
    for dataset in sets:
        # The longest tail first: a shorter one's inputs are computed from its cache, not from the images.
        cells = {name_of(*column): measure(pretrained, dataset, *column, runs) for column in reversed(columns)}
        table[dataset.name] = {name: cells[name] for name in names}
    markdown = as_markdown(table)
    (out / "table1.md").write_text(markdown)
    series = {name: [(table[d.name][name]["mean"], table[d.name][name]["spread"]) for d in sets] for name in names}
    pictures.bars(out / "table1.png", [d.name for d in sets], series, f"Fine-tuning, {SEEDS.value} seeds")
    print(markdown)
    binary.finish(out, table)


def measure(pretrained: weights.Pretrained, dataset: Dataset, method: str, blocks: int, runs: Runs) -> dict:
    """Searches on validation, trains on train, measures on test: one cell of the table."""
    searched = candidates(method, blocks)
    several = len(searched) > 1
    validated = [one_run(pretrained, dataset, c, 0, runs, search=True) for c in searched] if several else [0.0]
    best = searched[int(np.argmax(validated))]
    accuracies = [one_run(pretrained, dataset, best, seed, runs, search=False) for seed in range(SEEDS.value)]
    print(
        f"{dataset.name} {name_of(method, blocks)}: {np.mean(accuracies):.4f} ± {np.std(accuracies):.4f}",
        file=sys.stderr,
    )
    return {
        "mean": float(np.mean(accuracies)),
        "spread": float(np.std(accuracies)),
        "accuracies": accuracies,
        "chosen": best._asdict(),
        "validation": max(validated) if several else None,
        "searched": len(searched),
    }


def one_run(
    pretrained: weights.Pretrained, dataset: Dataset, choice: Choice, seed: int, runs: Runs, *, search: bool
) -> float:
    """Accuracy of one training, on validation while searching, else on test."""
    settings = common.settings_of(choice.learning_rate)
    if search:
        settings = dataclasses.replace(settings, epochs=SEARCH_EPOCHS.value)
    train_split = dataset.splits["train"]
    data = [dataset.name, zlib.crc32(json.dumps([train_split.names, train_split.labels.tolist()]).encode())]
    decisive = (common.DTYPE, common.CACHE_DTYPE, common.IMAGE_SIZE, common.LINEARIZATION, common.OUTPUT)
    flags_used = [flag.value for flag in decisive]
    key = json.dumps([pretrained.source, *flags_used, *data, *choice, seed, search, dataclasses.astuple(settings)])
    known = runs.get(key)
    if known is not None:
        return known
    task = common.prepare(pretrained, len(dataset.classes), choice, seed)
    title = f"{dataset.name} {name_of(choice.method, choice.blocks)}"
    train_set = task.inputs(train_split, f"{title} train inputs")
    if not search:
        measured = task.inputs(common.test_split(dataset), f"{title} test inputs")
    elif "validation" in dataset.splits and "test" in dataset.splits:
        measured = task.inputs(dataset.splits["validation"], f"{title} validation inputs")
    else:
        train_set, measured = common.hold_out(train_set)
    fitted = common.train(
        task, train_set, settings, seed, evaluation=measured, title=f"{title} lr {choice.learning_rate:g} seed {seed}"
    )
    runs.add(key, fitted.history[-1]["test_accuracy"])
    return fitted.history[-1]["test_accuracy"]


def as_markdown(table: dict[str, dict[str, dict]]) -> str:
    """Rows are data sets; a cell is mean +- spread over the seeds."""
    names = list(next(iter(table.values())))
    lines = ["| data set | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for dataset, row in table.items():
        lines.append(
            f"| {dataset} | " + " | ".join(f"{row[n]['mean']:.3f} ± {row[n]['spread']:.3f}" for n in names) + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    binary.run(main)

"""Everything in two minutes, offline: fine-tune three ways, train shards apart, add them, take one out."""

import sys
from pathlib import Path

import numpy as np
from absl import flags

from experiments import binary, common, pictures
from experiments.common import Choice, Task
from tangent_jax import compose, trees, weights
from tangent_jax.data import shards
from tangent_jax.data.cache import TailInputs
from tangent_jax.data.sources import open_dataset
from tangent_jax.fit import accuracy

DATASET = flags.DEFINE_string("dataset", "digits", "A data set, as finetune's --dataset.")
SHARDS = flags.DEFINE_integer("shards", 5, "Shards trained apart.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the head, the shards and the order of examples.")
OUT = flags.DEFINE_string("out", "out/quickstart", "Folder for result.json and quickstart.png.")

RATE = 3e-3  # of Adam, for all three methods
METHODS = {"FC": Choice("fc"), "NLFT-1": Choice("nlft"), "TAFT-1": Choice("taft")}
EXPLAINED = {"FC": "the head alone", "NLFT-1": "the last block, non-linear", "TAFT-1": "the last block's tangent"}


def train(task: Task, train_set: TailInputs, title: str) -> trees.Tree:
    return common.train(task, train_set, common.settings_of(RATE), SEED.value, title=title).dw


def main() -> None:
    pretrained, dataset = weights.load(common.WEIGHTS.value), open_dataset(DATASET.value)
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    tasks = {
        name: common.prepare(pretrained, len(dataset.classes), choice, SEED.value) for name, choice in METHODS.items()
    }
    train_sets = {name: task.inputs(dataset.splits["train"], "train inputs") for name, task in tasks.items()}
    test_sets = {name: task.inputs(common.test_split(dataset), "test inputs") for name, task in tasks.items()}

    def test(name: str, dw: trees.Tree) -> float:
        return accuracy(tasks[name].predict, dw, test_sets[name].inputs, test_sets[name].labels)

    rows = [(name, EXPLAINED[name], test(name, train(task, train_sets[name], name))) for name, task in tasks.items()]
    task, whole = tasks["TAFT-1"], train_sets["TAFT-1"]
    split = shards.uniform(len(whole.labels), SHARDS.value, SEED.value)
    parts = {f"shard {s + 1}": whole.take(rows) for s, rows in enumerate(split)}
    components = {name: train(task, part, name) for name, part in parts.items()}
    alone = [test("TAFT-1", dw) for dw in components.values()]
    composed = compose.mean(components)
    gone = f"shard {SHARDS.value}"
    kept = {name: dw for name, dw in components.items() if name != gone}
    survivors = compose.mean(kept)
    never = compose.mean({name: train(task, parts[name], f"{name} again") for name in kept})
    exact = trees.fingerprint(survivors) == trees.fingerprint(never)
    n = SHARDS.value
    rows += [
        ("one shard", f"mean of {n} tangents, each trained on 1/{n} of the images", float(np.mean(alone))),
        (f"{n} added", "their average: one model, the cost of one", test("TAFT-1", composed)),
        (f"{n - 1} left", f"{gone} taken out, nothing trained again", test("TAFT-1", survivors)),
    ]
    width = max(len(text) for _, text, _ in rows)
    print(f"\n{dataset.name}: {len(whole.labels)} train, {len(test_sets['FC'].labels)} test images\n")
    print("\n".join(f"  {name:<10} {text:<{width}}  {value:6.1%}" for name, text, value in rows))
    same = "bit for bit the model" if exact else "NOT the model"
    print(f"\n  What is left after the removal is {same} that the other {n - 1} shards alone give.\n")
    pictures.steps(out / "quickstart.png", [(name, value) for name, _, value in rows], f"{dataset.name}: test accuracy")
    binary.finish(
        out, {"accuracy": {name: value for name, _, value in rows}, "removal_is_exact": exact, "seed": SEED.value}
    )
    if not exact:
        sys.exit(1)


if __name__ == "__main__":
    binary.run(main)

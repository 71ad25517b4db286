"""Trains a pre-trained ViT's step under differential privacy, and says what it spent.

With no --seed the noise comes from the operating system's entropy, and the ledger in --out is written before every
step: the same command again goes on, or reads its result, and spends nothing twice. With --seed the result says that it
is not private. The last line of stdout: {"method", "subset", "dataset", "accuracy", "epsilon": spent, "delta",
"noise_multiplier", "clip_norm", "steps": taken, "steps_paid", "sampling_rate", "neighbouring", "private", ...}.
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from absl import flags
from safetensors.flax import save_file

from experiments import binary, common, pictures
from tangent_jax import trees, weights
from tangent_jax.checks import require
from tangent_jax.data import shards
from tangent_jax.data.cache import TailInputs
from tangent_jax.data.sources import open_dataset
from tangent_jax.files import write_whole
from tangent_jax.privacy import PrivateSettings, fit_private
from tangent_jax.provenance import make_provenance

DATASET = flags.DEFINE_string("dataset", "digits", "A data set, as finetune's --dataset.")
METHOD = flags.DEFINE_enum("method", "taft", ["taft", "nlft"], "Tangent (J.dw alone) or non-linear.")
SUBSET = flags.DEFINE_enum(
    "subset",
    "full",
    list(common.PRIVATE_KINDS),
    "What trains: whole blocks, their biases, layer norms; the head.",
)
BLOCKS = flags.DEFINE_integer("blocks", 1, "How many of the last blocks are trained.", lower_bound=1)
EPSILON = flags.DEFINE_float("epsilon", 3.0, "Privacy budget, for adding or removing one image.")
DELTA = flags.DEFINE_float("delta", 1e-5, "Its failure probability, below 1 / images.")
CLIP = flags.DEFINE_float("clip_norm", 1.0, "L2 norm to which an image's gradient is clipped.")
RATE = flags.DEFINE_float("lr", 0.03, "Learning rate, in units of 1 / clip_norm.", lower_bound=0.0)
SAMPLING = flags.DEFINE_enum(
    "sampling", "full", ["full", "poisson"], "All images at every step, or Poisson samples of expected --batch_size."
)
PART = flags.DEFINE_string("part", None, "I/K: only images whose content hashes to part I of K (I from 0).")
RESET = flags.DEFINE_bool("reset", False, "Re-initialise the trained blocks, norm and head before linearising (PT=F).")
SEED = flags.DEFINE_integer("seed", None, "Repeats noise and samples: NOT private. Unset: the system's entropy.")
HEAD_SEED = flags.DEFINE_integer("head_seed", 0, "Seed of the new head and of what is reset; public.")
OUT = flags.DEFINE_string(
    "out", "out/private", "Folder for ledger.json, result.json, curves.png, dw.safetensors, provenance.json."
)
flags.set_default(common.EPOCHS, 50)
flags.set_default(common.LOSS, "ce")
flags.set_default(common.PENALTY, 0.0)
flags.set_default(common.OUTPUT, "tangent")


def settings_of(examples: int) -> PrivateSettings:
    """The budget that the flags name, and how it is spent."""
    rate = 1.0 if SAMPLING.value == "full" else min(1.0, common.BATCH.value / examples)
    steps = max(1, round(common.EPOCHS.value / rate))
    budget = (EPSILON.value, DELTA.value, steps, CLIP.value, RATE.value)
    return PrivateSettings(*budget, rate, common.LOSS.value, common.PENALTY.value)


def part_of(train_set: TailInputs, part: str | None) -> TailInputs:
    """The images of one part by content hash: whose part an image is does not depend on the others."""
    if part is None:
        return train_set
    index, _, count = part.partition("/")
    good = index.isdecimal() and count.isdecimal() and int(index) < int(count)
    require(good, "private", "--part=I/K with 0 <= I < K", part)
    return train_set.take(shards.by_identifier([i for i, _ in train_set.examples], int(count))[int(index)])


def main() -> None:
    pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
    dataset = open_dataset(DATASET.value)
    choice = common.Choice(METHOD.value, common.PRIVATE_KINDS[SUBSET.value], BLOCKS.value, RESET.value)
    choice = choice._replace(learning_rate=RATE.value)
    n = len(dataset.splits["train"])
    settings = settings_of(n)  # before any long work
    require(DELTA.value < 1 / n, "private", f"--delta below 1 / images = {1 / n:.2g}", DELTA.value)
    task = common.prepare(pretrained, len(dataset.classes), choice, HEAD_SEED.value)
    train_set = part_of(task.inputs(dataset.splits["train"], "train inputs"), PART.value)
    test_set = task.inputs(common.test_split(dataset), "test inputs")
    settings = settings_of(len(train_set.labels))
    print(
        f"{dataset.name}: {len(train_set.labels)} train; {task.subset.name}: {task.subset.size:,} numbers; "
        f"{settings.steps} steps, noise multiplier {settings.noise_multiplier:.4f}",
        file=sys.stderr,
    )
    out = Path(OUT.value)
    zeros = task.subset.zeros(task.predict.w)
    fitted = fit_private(
        task.predict,
        zeros,
        train_set.inputs,
        train_set.labels,
        settings,
        seed=SEED.value,
        folder=out,
        evaluation=(test_set.inputs, test_set.labels),
        progress=f"{METHOD.value} {SUBSET.value} epsilon {EPSILON.value:g}",
    )
    save_file(trees.leaves(fitted.dw), out / "dw.safetensors", {"subset": task.subset.name})
    spent = fitted.spent.to_json()
    recipe = common.recipe(task, DATASET.value, choice, settings, HEAD_SEED.value, []) | {"part": PART.value}
    made = make_provenance(
        task.model.config, task.model.params, task.subset, train_set.examples, recipe, fitted.seconds, METHOD.value
    )
    write_whole(out / "provenance.json", dataclasses.replace(made, privacy=spent).to_json())
    told = [row for row in fitted.history if "test_accuracy" in row]
    title = f"{METHOD.value} {task.subset.name} on {dataset.name}, epsilon {spent['epsilon']:.3g}"
    panel = {"x": [row["step"] for row in told], "lines": {"test": [row["test_accuracy"] for row in told]}}
    pictures.curves(out / "curves.png", [{**panel, "xlabel": "step", "ylabel": "accuracy"}], title)
    result = {
        "method": METHOD.value,
        "subset": SUBSET.value,
        "dataset": dataset.name,
        "accuracy": told[-1]["test_accuracy"],
        **{name: spent[name] for name in ("epsilon", "delta", "noise_multiplier")},
        "clip_norm": settings.clip_norm,
        "steps": fitted.steps,
        "steps_paid": spent["steps"],
        **{name: spent[name] for name in ("sampling_rate", "neighbouring", "private")},
        "learning_rate": RATE.value,
        "examples": len(train_set.labels),
        "trainable_parameters": task.subset.size,
        "train_seconds": round(fitted.seconds, 3),
    }
    if not spent["private"]:
        print("a fixed seed drew the noise: this result is NOT private", file=sys.stderr)
    binary.finish(out, result, history=np.array(told).tolist())


if __name__ == "__main__":
    binary.run(main)

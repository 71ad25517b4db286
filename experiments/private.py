"""Trains the tangent weights of a pre-trained ViT under differential privacy, and prints the budget that it spent.

With no --seed the noise comes from the operating system's entropy, and the ledger in --out is written before every
step: the same command again goes on, or reads its result, and spends nothing twice. With --seed the result is marked as
not private. The last line of stdout: {"method", "subset", "dataset", "accuracy", "epsilon": spent, "delta",
"noise_multiplier", "clip_norm", "steps": taken, "steps_paid", "sampling_rate", "neighbouring", "private", ...}.
"""

import dataclasses
import sys
from collections import Counter

from absl import flags

import tangent_jax as tj
from experiments.shared import command, plan, plots, setup
from experiments.shared.flags import CACHED, COMPUTE, JOB, MODEL, PRIVATE, PRIVATE_KINDS, SEEDS, F, define
from tangent_jax.core import require
from tangent_jax.core.files import fingerprint
from tangent_jax.privacy.mechanism import NEIGHBOURING

define(*MODEL, *CACHED, *COMPUTE, *JOB, "dataset", "reset", "delta", "public", **PRIVATE)
define("batch_size", "head", method=["taft", "nlft"], blocks=1, epochs=50, lr=0.03, out="out/private")
flags.DEFINE_enum(
    "subset", "full", list(PRIVATE_KINDS), "Trained leaves: whole blocks, their biases, layer norms; the head."
)
flags.DEFINE_float("epsilon", 3.0, "Privacy budget, for adding or removing one image.")
flags.DEFINE_float("clip_norm", 1.0, "L2 norm to which an image's gradient is clipped; --lr is in units of 1 / it.")
flags.DEFINE_enum(
    "sampling", "full", ["full", "poisson"], "All images at every step, or Poisson samples of expected --batch_size."
)
flags.DEFINE_string("part", None, "I/K: only images whose content hashes to part I of K (I from 0).")
flags.DEFINE_integer("seed", None, "Repeats noise and samples: NOT private. Unset: entropy.", 0, SEEDS)
flags.DEFINE_integer("head_seed", 0, "Seed of the new head and of reset blocks; public.", 0, SEEDS)


def mechanism_of(examples: int) -> tj.Mechanism:
    """The mechanism that the flags name."""
    rate = 1.0 if F.sampling == "full" else min(1.0, F.batch_size / examples)
    with tj.show_progress(f"noise for epsilon {F.epsilon:g}"):
        return tj.make_mechanism(F.epsilon, F.delta, max(1, round(F.epochs / rate)), F.clip_norm, rate)


def part_of(train: tj.Features, part: str | None) -> tj.Features:
    """The images of one part by content identifier: the part of an image does not depend on the others."""
    if part is None:
        return train
    index, _, count = part.partition("/")
    good = index.isdecimal() and count.isdecimal() and int(index) < int(count)
    require(good, "private", "--part=I/K with 0 <= I < K", part)
    rows = tj.shards.by_identifier([i for i, _ in train.examples], int(count))[int(index)]
    require(len(rows) >= 2, "private", "two images or more in --part", f"{len(rows)} in {part}")
    return train.take(rows)


def main() -> None:
    dataset = setup.open_dataset(F.dataset)
    n = len(dataset.train)
    mechanism = mechanism_of(n)  # before any long work
    require(F.delta < 1 / n, "private", f"--delta below 1 / images = {1 / n:.2g}", F.delta)
    public = setup.public_images(dataset.train) if F.public else None
    recipe = setup.recipe(kind=PRIVATE_KINDS[F.subset], seed=F.head_seed)
    if F.plan:
        return plan.show(recipe, dataset, mechanism)
    predict = setup.predictor(recipe, dataset.classes)
    train = part_of(setup.features(predict, dataset.train, "train inputs"), F.part)
    test = setup.features(predict, dataset.test, "test inputs")
    mechanism, trained = mechanism_of(len(train)), setup.whitened(predict, train)
    subset, how = predict.subset, f"{mechanism.steps} steps, noise multiplier {mechanism.noise_multiplier:.4f}"
    print(f"{dataset.name}: {len(train)} train; {subset.name}: {subset.size:,} numbers; {how}", file=sys.stderr)
    out, every = command.out_folder(), max(1, mechanism.steps // 10)
    measure = tj.Measure(trained, test, every=every, last=mechanism.steps)
    settings = {"optimizer": tj.momentum(F.lr), "seed": F.seed, "folder": out}
    with tj.show_progress(f"{F.method} {F.subset} epsilon {F.epsilon:g}"):
        fitted = tj.fit_private(trained, train, recipe.objective(), mechanism=mechanism, on_step=measure, **settings)
    spent, epsilon, dw = fitted.spent, fitted.spent.compute_epsilon(), tj.unwhitened(trained, fitted.dw)
    known = fingerprint("".join(public.identifiers()).encode()) if public else ""
    folders = (str(out.absolute()),)
    origin = tj.make_provenance(predict, recipe, dataset.classes)
    origin = origin.trained(train, fitted.seconds, folders, privacy=spent, run=fitted.run, public=known)
    tj.write_component(out / "dw.safetensors", dw, {"provenance": origin.to_json()})
    measured = [row for row in fitted.history if "test_accuracy" in row]
    title = f"{F.method} {subset.name} on {dataset.name}, epsilon {epsilon:.3g}"
    panel = {"x": [row["step"] for row in measured], "lines": {"test": [row["test_accuracy"] for row in measured]}}
    plots.curves(out / "curves.png", [{**panel, "xlabel": "step", "ylabel": "accuracy"}], title)
    copies = Counter(identifier for identifier, _ in train.examples).most_common(1)[0][1]
    if copies > 1:
        print(f"an image is there {copies} times: epsilon protects one copy, not all", file=sys.stderr)
    if not spent.private:
        print("a fixed seed drew the noise: this result is NOT private", file=sys.stderr)
    result = {
        "method": F.method,
        "subset": F.subset,
        "dataset": dataset.name,
        "accuracy": tj.evaluate(predict, dw, test),
        "epsilon": epsilon,
        "neighbouring": NEIGHBOURING,
        **dataclasses.asdict(spent.mechanism),
        "private": spent.private,
        "steps": fitted.steps,
        "steps_paid": spent.steps_paid,
        "learning_rate": F.lr,
        "examples": len(train),
        "public": {"dataset": F.public, "examples": len(public), "fingerprint": known} if public else None,
        "trainable_parameters": subset.size,
        "train_seconds": round(fitted.seconds, 3),
        "copies": copies,
        "non_finite": fitted.non_finite,
        "run": fitted.run,
    }
    command.finish(result, history=measured)


if __name__ == "__main__":
    command.run(main, processes=True)

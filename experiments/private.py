"""Trains the tangent weights of a pre-trained ViT under differential privacy, and prints the budget that it spent.

With no --seed the noise comes from the operating system's entropy, and the ledger in --out is written before every
step: the same command again goes on, or reads its result, and spends nothing twice. With --seed the result is marked as
not private. The last line of stdout: {"method", "subset", "dataset", "accuracy", "epsilon": spent, "delta",
"noise_multiplier", "clip_norm", "steps": taken, "steps_paid", "sampling_rate", "unit", "neighbouring", "private", ...}.
"""

import dataclasses
import sys
from collections import Counter

from absl import flags

import tangent_jax as tj
from experiments.shared import command, plan, plots, setup
from experiments.shared.flags import CACHED, COMPUTE, JOB, MODEL, PRIVATE, PRIVATE_KINDS, SEEDS, F, define
from tangent_jax.core import identity, require
from tangent_jax.data.sources import Dataset
from tangent_jax.privacy.mechanism import NEIGHBOURING

define(*MODEL, *CACHED, *COMPUTE, *JOB, "dataset", "reset", "delta", **PRIVATE)
define("batch_size", "head", "owners", method=["taft", "nlft"], blocks=1, epochs=50, lr=0.03, out="out/private")
flags.DEFINE_enum(
    "subset", "full", list(PRIVATE_KINDS), "Trained leaves: whole blocks, their biases, layer norms; the head."
)
flags.DEFINE_float("epsilon", 3.0, "Privacy budget, for adding or removing one unit.")
flags.DEFINE_enum(
    "unit", "example", list(NEIGHBOURING), "Protected is each image, or each owner of --owners with all their images."
)
flags.DEFINE_float("clip_norm", 1.0, "L2 norm to which a unit's gradient is clipped; --lr is in units of 1 / it.")
flags.DEFINE_enum(
    "sampling", "full", ["full", "poisson"], "All units at every step, or Poisson samples of expected --batch_size."
)
flags.DEFINE_string("part", None, "I/K: only images whose content (or owner) hashes to part I of K (I from 0).")
flags.DEFINE_integer("seed", None, "Repeats noise and samples: NOT private. Unset: entropy.", 0, SEEDS)
flags.DEFINE_integer("head_seed", 0, "Seed of the new head and of reset blocks; public.", 0, SEEDS)


def mechanism_of(units: int) -> tj.Mechanism:
    """The mechanism that the flags name, for so many images or owners, a number that is public."""
    rate = 1.0 if F.sampling == "full" else min(1.0, F.batch_size / units)
    with tj.show_progress(f"noise for epsilon {F.epsilon:g}"):
        return tj.make_mechanism(F.epsilon, F.delta, max(1, round(F.epochs / rate)), F.clip_norm, rate, F.unit)


def owners_of(dataset: Dataset) -> dict[str, str]:
    """The owner of each training image by its name, where owners are protected; none otherwise."""
    is_owner = F.unit == "owner"
    require(is_owner == bool(F.owners), "private", "--unit=owner with --owners=CSV", "one of the two")
    if not is_owner:
        return {}
    whose = dict(zip(dataset.train.names, tj.shards.every_owner(dataset.train.names, F.owners), strict=True))
    names = [name for examples in dataset.splits.values() for name in examples.names]
    said = tj.shards.read_owners(F.owners)
    idle = sorted({*[*said.values()][1:]} - {*tj.shards.owners_of(names, said)})  # the first line may be a header
    require(not idle, "private", f"owners of an image of {dataset.name}", f"{idle[:1]} without one")
    return whose


def part_of(train: tj.Features, part: str | None) -> tj.Features:
    """The images of one part by content identifier or by owner: a unit's part does not depend on the others."""
    if part is None:
        return train
    index, _, count = part.partition("/")
    good = index.isdecimal() and count.isdecimal() and int(index) < int(count)
    require(good, "private", "--part=I/K with 0 <= I < K", part)
    identifiers = [i for i, _ in train.examples] if train.owners is None else [*map(identity, train.owners)]
    rows = tj.shards.by_identifier(identifiers, int(count))[int(index)]
    require(len(rows) >= 2, "private", "two images or more in --part", f"{len(rows)} in {part}")
    return train.take(rows)


def main() -> None:
    dataset = setup.open_dataset(F.dataset)
    owners = owners_of(dataset)
    n, protected = (len({*owners.values()}), "owners") if owners else (len(dataset.train), "images")
    mechanism = mechanism_of(n)  # before any long work
    require(F.delta < 1 / n, "private", f"--delta below 1 / {protected} = {1 / n:.2g}", F.delta)
    recipe = setup.recipe(kind=PRIVATE_KINDS[F.subset], seed=F.head_seed)
    if F.plan:
        require(not owners, "private", "--plan with --unit=example", "owner", "Its micro-batches are the owners'")
        return plan.show(recipe, dataset, mechanism)
    predict = setup.predictor(recipe, dataset.classes)
    train = setup.features(predict, dataset.train, "train inputs")
    if owners:
        train = dataclasses.replace(train, owners=tuple(owners[name] for _, name in train.examples))
    train = part_of(train, F.part)
    test = setup.features(predict, dataset.test, "test inputs")
    mechanism = mechanism_of(len({*train.owners} if train.owners else train))
    subset, how = predict.subset, f"{mechanism.steps} steps, noise multiplier {mechanism.noise_multiplier:.4f}"
    print(f"{dataset.name}: {len(train)} train; {subset.name}: {subset.size:,} numbers; {how}", file=sys.stderr)
    out, every = command.out_folder(), max(1, mechanism.steps // 10)
    measure = tj.Measure(predict, test, every=every, last=mechanism.steps)
    settings = {"optimizer": tj.momentum(F.lr), "seed": F.seed, "folder": out}
    with tj.show_progress(f"{F.method} {F.subset} epsilon {F.epsilon:g}"):
        fitted = tj.fit_private(predict, train, recipe.objective(), mechanism=mechanism, on_step=measure, **settings)
    spent, epsilon = fitted.spent, fitted.spent.compute_epsilon()
    folders = (str(out.absolute()),)
    origin = dataclasses.replace(tj.make_provenance(predict, recipe, dataset.classes), owners=owners)
    origin = origin.trained(train, fitted.seconds, folders, privacy=spent, run=fitted.run)
    tj.write_component(out / "dw.safetensors", fitted.dw, {"provenance": origin.to_json()})
    measured = [row for row in fitted.history if "test_accuracy" in row]
    title = f"{F.method} {subset.name} on {dataset.name}, epsilon {epsilon:.3g}"
    panel = {"x": [row["step"] for row in measured], "lines": {"test": [row["test_accuracy"] for row in measured]}}
    plots.curves(out / "curves.png", [{**panel, "xlabel": "step", "ylabel": "accuracy"}], title)
    copies = Counter(identifier for identifier, _ in train.examples).most_common(1)[0][1]
    if copies > 1 and not owners:
        print(f"an image is there {copies} times: epsilon protects one copy, not all", file=sys.stderr)
    if not spent.private:
        print("a fixed seed drew the noise: this result is NOT private", file=sys.stderr)
    result = {
        "method": F.method,
        "subset": F.subset,
        "dataset": dataset.name,
        "accuracy": tj.evaluate(predict, fitted.dw, test),
        "epsilon": epsilon,
        "neighbouring": NEIGHBOURING[spent.mechanism.unit],
        **dataclasses.asdict(spent.mechanism),
        "private": spent.private,
        "steps": fitted.steps,
        "steps_paid": spent.steps_paid,
        "learning_rate": F.lr,
        "examples": len(train),
        "owners": len({*train.owners}) if train.owners else None,
        "trainable_parameters": subset.size,
        "train_seconds": round(fitted.seconds, 3),
        "copies": copies,
        "non_finite": fitted.non_finite,
        "run": fitted.run,
    }
    command.finish(result, history=measured)


if __name__ == "__main__":
    command.run(main, processes=True)

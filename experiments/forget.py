"""What removing data costs, and whether it removes (the paper's Figure 1, and a membership-inference test).

The last line of stdout: {"curve": {"removed": shards removed, "taft": mean accuracy over the orders, "sisa_mean",
"sisa_vote"}, "inference_passes": {...}, "retraining": {"shard_seconds", "paragon_seconds", "speedup", "shards":
accuracy after each shard is retrained on what is left of it, "paragon": retrained from scratch on the same data,
"distance_bound"}, "membership": {attack: {model: AUC}}, "removal": {"bitwise", "receipt_verified"}}.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from experiments import binary, membership, pictures, sharded
from experiments.sharded import Problem, key_of, train_apart
from tangent_jax import compose, store, trees
from tangent_jax.data import shards
from tangent_jax.fit import Fitted, accuracy, distance_bound, logits
from tangent_jax.notation import Tree

SHARDS = flags.DEFINE_integer("shards", 50, "Shards trained apart.", lower_bound=2)
ORDERS = flags.DEFINE_integer("orders", 20, "Random orders of removal averaged.", lower_bound=1)
FRACTION = flags.DEFINE_float(
    "fraction",
    0.5,
    "Fraction of the images removed, spread over all shards, for retraining and membership.",
    0.01,
    0.99,
)
SHADOWS = flags.DEFINE_integer("shadows", 16, "Shadow models of the membership attack.", lower_bound=2)
OUT = flags.DEFINE_string("out", "out/forget", "Folder for result.json, forget.png and the store that shards leave.")


def main() -> None:
    problem = Problem(("taft", "nlft"))
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    divided = problem.divide(SHARDS.value)
    kept_in, components = problem.components("taft", divided, f"{SHARDS.value}")
    _, nonlinear = problem.components("nlft", divided, f"{SHARDS.value}")
    curve, spread = dropping(problem, components, nonlinear)
    removal = drop_in_a_store(kept_in, components, out / "store")
    retraining, models, gone = retrain(problem, divided, components)
    attacks = infer(problem, models, gone)
    removed = curve["removed"]
    lines = {
        n: (curve[k], spread[k])
        for n, k in (("TAFT", "taft"), ("SISA, mean", "sisa_mean"), ("SISA, vote", "sisa_vote"))
    }
    panel = {"x": removed, "lines": lines, "xlabel": f"shards removed, of {len(divided)}", "ylabel": "test accuracy"}
    roc = {name: [attacks[attack][name] for attack in attacks] for name in attacks["confidence"]}
    pictures.curves(out / "forget.png", [panel], f"Removal on {problem.dataset.name}, {ORDERS.value} orders")
    groups = {name: [(value, 0.0) for value in values] for name, values in roc.items()}
    pictures.bars(out / "membership.png", list(attacks), groups, "Membership inference", "AUC of the attack")
    passes = {"taft": 1, "sisa": len(divided)}
    result = {"curve": curve, "inference_passes": passes, "retraining": retraining, "membership": attacks}
    binary.finish(out, {**result, "removal": removal}, spread=spread)


def dropping(problem: Problem, components: dict[str, Tree], nonlinear: dict[str, Tree]) -> tuple[dict, dict]:
    """Mean and spread of the accuracy after k shards are dropped, over random orders."""

    def outputs(method: str, trained: dict[str, Tree]) -> np.ndarray:
        test = problem.test[method]
        return np.stack([logits(problem.tasks[method].predict, dw, test.inputs) for dw in trained.values()])

    tangent, sisa = outputs("taft", components), outputs("nlft", nonlinear)  # "s n c"
    labels, count = problem.test["taft"].labels, len(components)
    votes = np.eye(sisa.shape[-1])[sisa.argmax(-1)]
    removed = sorted({*range(0, count, max(1, count // 10)), count // 2, count - 1})
    found: dict[str, list] = {"taft": [], "sisa_mean": [], "sisa_vote": []}
    for order in range(ORDERS.value):
        ranked = np.random.default_rng([sharded.SEED.value, order]).permutation(count)
        for name, values, tie in (("taft", tangent, 0.0), ("sisa_mean", sisa, 0.0), ("sisa_vote", votes, 1e-6)):
            # the composed model's logits are the mean of its components' logits: it is linear in dw
            means = [values[ranked[k:]].mean(0) + (tie * sisa[ranked[k:]].mean(0) if tie else 0) for k in removed]
            found[name].append([float(np.mean(m.argmax(-1) == labels)) for m in means])
    return (
        {"removed": removed, **{name: np.mean(runs, 0).tolist() for name, runs in found.items()}},
        {name: np.std(runs, 0).tolist() for name, runs in found.items()},
    )


def drop_in_a_store(source: store.Store, components: dict[str, Tree], where: Path) -> dict[str, Any]:
    """Half of the shards leave a copy of the store, with a receipt; what is left is compared bit for bit."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(source.root, where)
    copy = store.Store(where)
    names = sorted(components)
    gone = names[1::2]
    receipt_id, receipt = copy.remove(gone)
    never = compose.mean({name: components[name] for name in names if name not in gone})
    wrong = copy.verify() + copy.verify_receipt(where / f"receipts/{receipt_id}.json")
    for line in wrong:
        print(line, file=sys.stderr)
    bitwise = receipt["composed_after"] == trees.fingerprint(never)
    return {"removed": len(gone), "bitwise": bitwise, "receipt_verified": not wrong}


def retrain(
    problem: Problem, divided: dict[str, np.ndarray], components: dict[str, Tree]
) -> tuple[dict, dict, np.ndarray]:
    """Every shard on what is left of it, against one model from scratch on the same images.

    Returns what it cost and gave, the models by name, and the rows that were removed.
    """
    task, inputs, settings = problem.tasks["taft"], problem.train["taft"], problem.settings["taft"]
    n, rng = len(inputs.labels), np.random.default_rng([sharded.SEED.value, 2])
    gone = np.sort(rng.permutation(n)[: round(FRACTION.value * n)])
    left = {name: np.setdiff1d(rows, gone) for name, rows in divided.items()}
    left = {name: rows for name, rows in left.items() if len(rows)}
    retrained = train_apart(
        task, inputs, list(left.values()), settings, [key_of(name) for name in left], "shards, on what is left"
    )
    whole = np.setdiff1d(np.arange(n), gone)
    paragon = train_apart(task, inputs, [whole], settings, [key_of("all")], "paragon")[0]
    # the time of one request: the first shard again, now compiled, against the paragon, its compilation taken off
    name, rows = next(iter(left.items()))
    alone = [train_apart(task, inputs, [rows], settings, [key_of(name)], None)[0] for _ in range(3)]
    seconds = float(np.median([steady(one) for one in alone]))
    _, full = problem.components("taft", {"all": np.arange(n)}, "full")
    models = {
        "before": compose.mean(components),
        "after": compose.mean({name: one.dw for name, one in zip(left, retrained, strict=True)}),
        "paragon": paragon.dw,
        "full, before": full["all"],
    }
    test = problem.test["taft"]
    score = {name: accuracy(task.predict, dw, test.inputs, test.labels) for name, dw in models.items()}
    bounds = [
        distance_bound(task.predict, one.dw, inputs.inputs[rows], inputs.labels[rows], settings)
        for rows, one in zip(left.values(), retrained, strict=True)
    ]
    sizes = [float(np.sqrt(trees.squared_norm(one.dw))) for one in retrained]
    retraining = {
        "fraction_removed": FRACTION.value,
        "shard_seconds": seconds,
        "paragon_seconds": steady(paragon),
        "speedup": steady(paragon) / seconds,
        "shards": score["after"],
        "paragon": score["paragon"],
        "before": score["before"],
        "distance_bound": float(np.median(bounds)),
        "step_norm": float(np.median(sizes)),
    }
    return retraining, models, gone


def steady(fitted: Fitted) -> float:
    """Training time with every epoch at the median's pace: without what was compiled in the first."""
    return float(np.median([row["seconds"] for row in fitted.history])) * len(fitted.history)


def infer(problem: Problem, models: dict[str, Tree], gone: np.ndarray) -> dict[str, dict[str, float]]:
    """AUC of telling removed images from never-seen test images, by attack and model."""
    task, settings = problem.tasks["taft"], problem.settings["taft"]
    train, test = problem.train["taft"], problem.test["taft"]
    rng = np.random.default_rng([sharded.SEED.value, 3])
    size = min(len(gone), len(test.labels))
    members, others = rng.permutation(gone)[:size], rng.permutation(len(test.labels))[:size]
    pool = np.concatenate([np.asarray(train.inputs[np.sort(members)]), np.asarray(test.inputs[np.sort(others)])])
    labels = np.concatenate([train.labels[np.sort(members)], test.labels[np.sort(others)]])
    halves = shards.uniform(len(pool), 2, sharded.SEED.value)
    halves = [np.sort(rng.permutation(len(pool))[: len(halves[0])]) for _ in range(SHADOWS.value)]
    held = np.stack([np.isin(np.arange(len(pool)), half) for half in halves])
    everyone = train._replace(inputs=pool, labels=labels)
    trained = train_apart(
        task, everyone, halves, settings, [key_of(f"shadow {i}") for i in range(len(halves))], "shadows"
    )

    def score(dw: Tree) -> np.ndarray:
        return membership.confidence(logits(task.predict, dw, pool), labels)

    shadows = np.stack([score(one.dw) for one in trained])
    found: dict[str, dict[str, float]] = {"confidence": {}, "likelihood ratio": {}}
    for name, dw in models.items():
        plain = score(dw)
        for attack, values in (
            ("confidence", plain),
            ("likelihood ratio", membership.calibrated(plain, shadows, held)),
        ):
            found[attack][name] = membership.auc(values[:size], values[size:])
    return found


if __name__ == "__main__":
    binary.run(main)

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

import tangent_jax as tj
from experiments import binary, common, pictures
from experiments.common import F
from experiments.sharded import Method
from tangent_jax.core import Tree, trees
from tangent_jax.privacy import membership

common.define("shards", "orders", out="out/forget")
flags.DEFINE_float(
    "fraction", 0.5, "Fraction of the images removed, over all shards, for retraining and membership.", 0.01, 0.99
)
flags.DEFINE_integer("shadows", 16, "Shadow models of the membership attack.", lower_bound=2)


def main() -> None:
    taft, nlft = Method("taft"), Method("nlft")
    divided = taft.divide(F.shards)
    store, nonlinear = (method.store(divided, f"{F.shards}") for method in (taft, nlft))
    curve, spread = dropping(taft, store, nlft.outputs(nonlinear))
    removal = drop_in_a_store(store, binary.out_folder() / "store")
    retraining, models, gone = retrain(taft, divided, store)
    attacks = infer(taft, models, gone)
    names = {"TAFT": "taft", "SISA, mean": "sisa_mean", "SISA, vote": "sisa_vote"}
    lines = {name: (curve[k], spread[k]) for name, k in names.items()}
    axes = {"xlabel": f"shards removed, of {len(divided)}", "ylabel": "test accuracy"}
    panel = {"x": curve["removed"], "lines": lines, **axes}
    pictures.curves(binary.out_folder() / "forget.png", [panel], f"Removal on {taft.dataset.name}, {F.orders} orders")
    groups = {model: [(attacks[attack][model], 0.0) for attack in attacks] for model in models}
    path = binary.out_folder() / "membership.png"
    pictures.bars(path, list(attacks), groups, "Membership inference", "AUC of the attack")
    passes = {"taft": 1, "sisa": len(divided)}
    result = {"curve": curve, "inference_passes": passes, "retraining": retraining, "membership": attacks}
    binary.finish({**result, "removal": removal}, spread=spread)


def dropping(method: Method, store: tj.Store, sisa: np.ndarray) -> tuple[dict, dict]:
    """Mean and spread of the accuracy after k shards are dropped, over random orders; sisa: logits "s n c"."""
    tangent, labels, count = method.outputs(store), method.test.labels, len(store)
    votes = np.eye(sisa.shape[-1])[sisa.argmax(-1)]
    removed = sorted({*range(0, count, max(1, count // 10)), count // 2, count - 1})
    runs: dict[str, list] = {"taft": [], "sisa_mean": [], "sisa_vote": []}
    for order in range(F.orders):
        ranked = np.random.default_rng([F.seed, order]).permutation(count)
        for name, values, tie in (("taft", tangent, 0.0), ("sisa_mean", sisa, 0.0), ("sisa_vote", votes, 1e-6)):
            # the composed model's logits are the mean of its components' logits: it is linear in dw
            means = [values[ranked[k:]].mean(0) + (tie * sisa[ranked[k:]].mean(0) if tie else 0) for k in removed]
            runs[name].append([float(np.mean(m.argmax(-1) == labels)) for m in means])
    means = {name: np.mean(accuracies, 0).tolist() for name, accuracies in runs.items()}
    return {"removed": removed, **means}, {name: np.std(accuracies, 0).tolist() for name, accuracies in runs.items()}


def drop_in_a_store(source: tj.Store, where: Path) -> dict[str, Any]:
    """Half of the shards leave a copy of the store, with a receipt; what is left is compared bit for bit."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(source.root, where)
    copy, gone = tj.Store(where), [*source][1::2]
    receipt_id, receipt = copy.remove(gone)
    never = tj.compose({name: source[name] for name in source if name not in gone})
    wrong = copy.verify() + copy.verify_receipt(where / f"receipts/{receipt_id}.json")
    for line in wrong:
        print(line, file=sys.stderr)
    bitwise = receipt["composed_after"] == trees.fingerprint(never)
    return {"removed": len(gone), "bitwise": bitwise, "receipt_verified": not wrong}


def retrain(method: Method, divided: dict[str, np.ndarray], store: tj.Store) -> tuple[dict, dict, np.ndarray]:
    """Every shard on what is left of it, against one model from scratch on the same images.

    Returns what it cost and gave, the models by name, and the rows that were removed.
    """
    n, rng = len(method.train.labels), np.random.default_rng([F.seed, 2])
    gone = np.sort(rng.permutation(n)[: round(F.fraction * n)])
    left = {name: np.setdiff1d(rows, gone) for name, rows in divided.items()}
    left = {name: rows for name, rows in left.items() if len(rows)}
    retrained = method.fit(left, "shards, on what is left")
    (paragon,) = method.fit({"all": np.setdiff1d(np.arange(n), gone)}, "paragon")
    # the time of one request: the first shard again, now compiled, against the paragon, its compilation taken off
    first = dict([next(iter(left.items()))])
    seconds = float(np.median([steady(method.fit(first, None)[0]) for _ in range(3)]))
    after = tj.compose({name: fitted.dw for name, fitted in zip(left, retrained, strict=True)})
    models = {"before": tj.compose(store), "after": after, "paragon": paragon.dw, "full, before": method.full()}
    score = {name: method.accuracy(dw) for name, dw in models.items()}
    bounds = [
        tj.distance_bound(method.predict, fitted.dw, method.train.batches(rows=rows), method.recipe.objective())
        for rows, fitted in zip(left.values(), retrained, strict=True)
    ]
    sizes = [float(np.sqrt(trees.squared_norm(fitted.dw))) for fitted in retrained]
    retraining = {
        "fraction_removed": F.fraction,
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


def steady(fitted: tj.Fitted) -> float:
    """Training time with every epoch at the median's pace: without what was compiled in the first."""
    return float(np.median([row["seconds"] for row in fitted.history])) * len(fitted.history)


def infer(method: Method, models: dict[str, Tree], gone: np.ndarray) -> dict[str, dict[str, float]]:
    """AUC of telling removed images from never-seen test images, by attack and model."""
    train, test, rng = method.train, method.test, np.random.default_rng([F.seed, 3])
    size = min(len(gone), len(test.labels))
    members, others = rng.permutation(gone)[:size], rng.permutation(len(test.labels))[:size]
    pool = np.concatenate([np.asarray(train.inputs[np.sort(members)]), np.asarray(test.inputs[np.sort(others)])])
    labels = np.concatenate([train.labels[np.sort(members)], test.labels[np.sort(others)]])
    half = -(-len(pool) // 2)
    halves = [np.sort(rng.permutation(len(pool))[:half]) for _ in range(F.shadows)]
    held = np.stack([np.isin(np.arange(len(pool)), rows) for rows in halves])
    everyone = train._replace(inputs=pool, labels=labels)
    shadow_models = method.fit({f"shadow {i}": rows for i, rows in enumerate(halves)}, "shadows", everyone)

    def score(dw: Tree) -> np.ndarray:
        return membership.confidence(tj.logits(method.predict, dw, pool), labels)

    shadows = np.stack([score(one.dw) for one in shadow_models])
    plain = {name: score(dw) for name, dw in models.items()}
    ratio = {name: membership.calibrated(values, shadows, held) for name, values in plain.items()}
    attacks = {"confidence": plain, "likelihood ratio": ratio}
    return {
        attack: {name: membership.auc(values[:size], values[size:]) for name, values in scores.items()}
        for attack, scores in attacks.items()
    }


if __name__ == "__main__":
    binary.run(main)

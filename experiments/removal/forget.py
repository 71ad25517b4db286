"""The cost and the success of removing data (the paper's Figure 1, and a membership-inference test).

The last line of stdout: {"curve": {"removed": shards removed, "taft": mean accuracy over the orders, "sisa_mean",
"sisa_vote"}, "inference_passes": {...}, "retraining": {"shard_seconds", "paragon_seconds", "speedup", "shards":
accuracy after each shard is retrained on its remaining images, "paragon": retrained from scratch on the same data,
"distance_bound"}, "membership": {attack: {model: AUC}}, "removal": {"bitwise", "receipt_verified"}}.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.sharded import attack_removed, outputs_of
from experiments.shared.table import TABLE
from experiments.shared.timing import steady
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Sharded, Training
from tangent_jax.commands.shared.shards import Method, make_method
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.store.verification import verify, verify_receipt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sharded, Training):
    """The flags."""

    lr: float = 3e-3
    out: str = "out/forget"
    repeats: int = 20
    shadows: int = 16
    shards: int = 50
    store: str = "out/stores"


FRACTION = 0.5  # share of the images, over all shards, removed for retraining and membership


def main(config: Config) -> None:
    if config.penalty <= 0:
        raise InputError(f"--penalty must be above 0, for the distance bound; got {config.penalty:g}")
    taft = make_method(config, "taft")
    nlft = make_method(config, "nlft")
    divided = taft.divide(config.shards)
    store, nonlinear = (method.store(divided, f"{config.shards}") for method in (taft, nlft))
    curve, spread = dropping(config, taft, store, outputs_of(nlft, nonlinear))
    with tempfile.TemporaryDirectory(dir=command.out_folder(config)) as folder:
        removal = drop_in_a_store(store, Path(folder))
    retraining, models, gone = retrain(config, taft, divided, store)
    auc = attack_removed(taft, models, gone, config.shadows, config.seed).auc()
    draw(config, taft.dataset.name, len(divided), curve, spread, auc)
    passes = {"taft": 1, "sisa": len(divided)}
    result = {"curve": curve, "inference_passes": passes, "retraining": retraining, "membership": auc}
    command.finish(config, {**result, "removal": removal}, spread=spread)


def draw(config: Config, dataset: str, count: int, curve: dict, spread: dict, auc: dict[str, dict[str, float]]) -> None:
    """Plots the accuracy as shards are dropped, and the attacks' success on removed images."""
    removed = curve["removed"]
    names = ("taft", "sisa_mean", "sisa_vote")
    axes = {
        "xlabel": f"shards removed, of {count} (mean and spread of {config.repeats} orders)",
        "ylabel": "test accuracy",
    }
    lines = {name: (curve[name], spread[name]) for name in names}
    half = removed.index(count // 2)
    title = titles.forgotten(dataset, removed[half], count, {name: curve[name] for name in names}, half)
    plots.curves(command.out_folder(config) / "forget.png", [{"x": removed, "lines": lines, **axes}], title)
    groups = {attack: {model: (value, 0.0) for model, value in row.items()} for attack, row in auc.items()}
    title = titles.attacked(f"{dataset}, removed images", auc)
    plots.dots(command.out_folder(config) / "membership.png", groups, title, "AUC of the attack", (0.5, "chance"))


def dropping(config: Config, method: Method, store: tj.Store, sisa: np.ndarray) -> tuple[dict, dict]:
    """Mean and spread of the accuracy after k shards are dropped, over random orders; sisa: outputs "s n c"."""
    tangent = outputs_of(method, store)
    labels = method.test.targets
    count = len(store)
    votes = np.eye(sisa.shape[-1])[sisa.argmax(-1)]
    removed = sorted({*range(0, count, max(1, count // 10)), count // 2, count - 1})
    runs: dict[str, list] = {"taft": [], "sisa_mean": [], "sisa_vote": []}
    for order in range(config.repeats):
        ranked = np.random.default_rng([config.seed, order]).permutation(count)
        for name, values, tie in (("taft", tangent, 0.0), ("sisa_mean", sisa, 0.0), ("sisa_vote", votes, 1e-6)):
            # linear in dw: the composed model's outputs are the mean of its components'
            means = [values[ranked[k:]].mean(0) + (tie * sisa[ranked[k:]].mean(0) if tie else 0) for k in removed]
            runs[name].append([float(np.mean(m.argmax(-1) == labels)) for m in means])
    means = {name: np.mean(accuracies, 0).tolist() for name, accuracies in runs.items()}
    return {"removed": removed, **means}, {name: np.std(accuracies, 0).tolist() for name, accuracies in runs.items()}


def drop_in_a_store(source: tj.Store, where: Path) -> dict[str, Any]:
    """Removes half of the shards from a copy of the store, with a receipt, and compares the others bit for bit.

    The images stay in the caches, for the original.
    """
    copy = tj.Store(where)
    gone = [*source][1::2]
    for name in source:
        copy.add(name, source[name].dw, source.provenance(name).with_training(folders=()))
    receipt = tj.store.remove(copy, tj.store.plan_removal(copy, names=gone), cache=tj.Cache(where / "cache"))
    never = tj.compose({name: source[name] for name in source if name not in gone})
    wrong = verify(copy) + verify_receipt(copy, receipt.path)
    for line in wrong:
        print(line, file=sys.stderr)
    bitwise = receipt.composed_after == trees.fingerprint(never)
    return {"removed": len(gone), "bitwise": bitwise, "receipt_verified": not wrong}


def retrain(
    config: Config, method: Method, divided: dict[str, np.ndarray], store: tj.Store
) -> tuple[dict, dict, np.ndarray]:
    """Retrains every shard on its remaining images, against one model from scratch on the same images.

    Returns costs and accuracies, the models by name, and the removed rows.
    """
    n = len(method.train)
    rng = np.random.default_rng([config.seed, 2])
    gone = np.sort(rng.permutation(n)[: round(FRACTION * n)])
    remaining = {name: np.setdiff1d(rows, gone) for name, rows in divided.items()}
    left = {name: rows for name, rows in remaining.items() if len(rows)}
    retrained = method.fit(left, "shards, on their remaining images")
    (paragon,) = method.fit({"all": np.setdiff1d(np.arange(n), gone)}, "paragon")
    # the time of one request: the first shard again, compiled, against the paragon without compilation
    first = dict([next(iter(left.items()))])
    seconds = float(np.median([steady(method.fit(first, None)[0]) for _ in range(3)]))
    after = tj.compose([tj.Component(fitted.dw) for fitted in retrained])
    models = {"before": tj.compose(store), "after": after, "paragon": paragon.dw, "full, before": method.full()}
    score = {name: method.accuracy(dw) for name, dw in models.items()}
    bounds = [
        tj.solver.distance_bound(method.predict, fitted.dw, method.train.batches(rows=rows), method.recipe.objective)
        for rows, fitted in zip(left.values(), retrained, strict=True)
    ]
    sizes = [float(np.sqrt(trees.squared_norm(fitted.dw))) for fitted in retrained]
    retraining = {
        "fraction_removed": FRACTION,
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


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

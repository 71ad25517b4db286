"""Exact removal of single images: warm-started solves from the optimum, to a certificate.

For each of --removed (a count, or a fraction of the images below 1): the passes from the old optimum to that of the
remaining images, Lambda unchanged; the distance to an independent cold solve; accuracies; a membership attack on the
removed images, on the warm model against the cold. For comparison Adam's model is retrained without one image. The
operator's command is `store remove --exact`.

The last line of stdout: {"cold": {"passes", "certificate", "accuracy", "seconds"}, "removed": {"1": {"passes",
"certificate_before", "certificate", "gap", "bound", "accuracy", "accuracy_cold", "passes_cold", "seconds"}, ...},
"membership": {fraction: {attack: [AUC warm - cold, low, high]}}, "adam_seconds", "speedup"}.
"""

import dataclasses
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.sharded import attack_removed
from experiments.shared.table import TABLE
from experiments.shared.timing import steady
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Single, Training
from tangent_jax.commands.shared.shards import Method, make_method
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Single, Training):
    """The flags."""

    at_once: int = 10
    certificate: float = Recipe.certificate
    lr: float = 3e-3
    out: str = "out/remove"
    passes: int = 200
    penalty: float = 0.1
    removed: tuple[str, ...] = ("1", "0.01", "0.1")
    shadows: int = 16


def main(config: Config) -> None:
    if config.penalty <= 0:
        raise InputError(f"--penalty must be above 0, for a certificate; got {config.penalty:g}")
    method = make_method(config, "taft", solver="optimum")
    n = len(method.train)
    rng = np.random.default_rng([config.seed, 2])
    sizes = [round(count if count >= 1 else count * n) for count in config.numbers("removed", float)]
    if not all(1 <= size < n for size in sizes):
        raise InputError(f"--removed must be 1 to {n - 1} images; got {','.join(config.removed)}")
    order = rng.permutation(n)
    table = {}
    attacks = {}
    with tj.show_progress("cold, of all images"):
        whole = method.recipe.fit(method.predict, method.train)
    for size in sizes:
        row, warm, cold = without(method, whole, order[:size])
        table[f"{size}"] = row
        print(f"{size} removed: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), file=sys.stderr)
        if size >= 10:
            models = {"before": whole.dw, "warm": warm.dw, "cold": cold.dw}
            attack = attack_removed(method, models, order[:size], config.shadows, config.seed)
            attacks[f"{size}"] = {
                "auc": attack.auc(),
                "advantage": attack.auc_gap("warm", "cold", seed=[config.seed, 4]),
            }
    draw(config, method.dataset.name, n, table)
    accuracy = method.accuracy(whole.dw)
    cold = {
        "passes": whole.steps,
        "certificate": whole.info.certificate,
        "accuracy": accuracy,
        "seconds": whole.seconds,
    }
    result = {"cold": cold, "removed": table, "membership": attacks}
    adam = setup.recipe(config, method="taft", penalty=1e-5)
    with tj.show_progress("Adam, one image less"):
        seconds = steady(adam.fit(method.predict, method.train, np.sort(order[1:])))
    result |= {"adam_seconds": seconds, "speedup": seconds / next(iter(table.values()))["seconds"]}
    command.finish(config, result)


def draw(config: Config, dataset: str, count: int, table: dict[str, dict[str, Any]]) -> None:
    """Plots the passes of each removal from the old optimum, and those of a solve from zero."""
    starts = {"passes": "from the old optimum", "passes_cold": "from zero"}
    groups = {
        f"{size} of {count} images removed": {start: (row[k], 0.0) for k, start in starts.items()}
        for size, row in table.items()
    }
    label = f"passes over the data to within {config.certificate:g} of the optimum"
    plots.dots(command.out_folder(config) / "remove.png", groups, titles.warmed(dataset, table), label)


def without(method: Method, whole: tj.Fitted, gone: np.ndarray) -> tuple[dict[str, Any], tj.Fitted, tj.Fitted]:
    """Returns (the row for removing the rows `gone`, the warm solution, the cold one)."""
    example_weights = np.ones(len(method.train))
    example_weights[gone] = 0
    with tj.show_progress(f"warm, without {len(gone)}"):
        warm = method.recipe.fit(method.predict, method.train, start=whole, example_weights=example_weights)
    with tj.show_progress(f"cold, without {len(gone)}"):
        cold = method.recipe.fit(method.predict, method.train, example_weights=example_weights)
    gap = jnp.sqrt(trees.squared_norm(trees.plus(warm.dw, trees.scale(-1.0, cold.dw))))
    row = {"passes": warm.steps, "passes_cold": cold.steps, "certificate_before": warm.history[0]["certificate"]}
    row |= {
        "certificate": warm.info.certificate,
        "gap": float(gap),
        "bound": float(warm.info.certificate or 0) + float(cold.info.certificate or 0),
    }
    row |= {"accuracy": method.accuracy(warm.dw), "accuracy_cold": method.accuracy(cold.dw), "seconds": warm.seconds}
    return row, warm, cold


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

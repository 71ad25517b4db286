"""The influence of each component (--by=component) or training image (--by=kernel or solver; report.html).

Where groups are known (?group=), --by=kernel leaves the group of an image out with it for all but its influence.
The last line of stdout, by example: {"accuracy", "penalty": chosen by leave-one-out, "leave_one_out_accuracy",
"residual", "loo_max_error", "flipped_auc"}; by --by=solver {"accuracy", "leave_one_out_accuracy", "penalty",
"images", "certificate": the largest, relative to "largest_change", "loo_max_error": of --resolved images that are
solved again cold, likewise relative, "seconds", "passes": the mean}. By component: {"accuracy": of all, "without":
{component: accuracy of the others' mean}, "components": counts, "movement": L2 distance by which the last component to
come moves the mean, by count, "relative": over the mean's norm}.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree

import tangent_jax as tj
from experiments.report import pages
from experiments.shared import plots, titles
from experiments.shared.left_out import Leaving
from experiments.shared.sharded import outputs_of
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Sharded, choice, only_with
from tangent_jax.commands.shared.shards import Method, make_method
from tangent_jax.core.checks import InputError
from tangent_jax.data import Examples
from tangent_jax.io.progress import progress_bar, shown
from tangent_jax.linear.gram import Rows
from tangent_jax.store.recipe import Recipe
from tangent_jax.train.features import numbered


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sharded):
    """The flags."""

    batch_size: int = Recipe.batch_size
    by: str = choice("component", "kernel", "solver")
    certificate: float = 0.01
    epochs: int = Recipe.epochs
    flip: float = 0.0
    images: int | None = None
    loss: str = Recipe.loss
    lr: float = 3e-3
    out: str = "out/influence"
    penalty: tuple[str, ...] = ("1e-3", "1e-2", "0.1", "1")
    repeats: int = 20
    resolved: int = 20
    shards: int = 50
    store: str = "out/stores"
    needs = (
        only_with("flip", by="kernel")
        | only_with("resolved", by=("kernel", "solver"))
        | only_with("images", "certificate", by="solver")
    )


def main(config: Config) -> None:
    {"component": by_component, "kernel": by_kernel, "solver": by_solver}[config.by](config)


def own_penalty(config: Config) -> float:
    """The single penalty of --penalty; by default the Recipe's, with --by=component alone: it certifies no change."""
    if not config.gave("penalty") and config.by != "component":
        raise InputError(
            f"--penalty must be given with --by={config.by}; got none. Try 0.1, or the choice of --by=kernel on fewer "
            "images"
        )
    values = config.positive("penalty") if config.gave("penalty") else [float(tj.Recipe().objective.penalty)]
    if len(values) != 1:
        raise InputError(
            f"--penalty must be one number beside --by=component or solver; got {','.join(config.penalty)}"
        )
    return values[0]


def by_component(config: Config) -> None:
    """Measures the accuracy without each component, and how far the last component moves the mean."""
    method = make_method(config, "taft", penalty=own_penalty(config))
    store = method.store(method.divide(config.shards), f"{config.shards}")
    outputs = outputs_of(method, store)
    labels = method.test.targets
    total = outputs.sum(0)
    whole = float(np.mean(total.argmax(-1) == labels))
    # the model is linear in dw, so the mean of outputs is the output of the mean
    without = {n: float(np.mean((total - o).argmax(-1) == labels)) for n, o in zip(store, outputs, strict=True)}
    components = np.stack([ravel_pytree(store[name].dw)[0] for name in store]).astype(np.float64)
    moved, relative = movements(config, components @ components.T)
    counts = list(range(2, len(store) + 1))
    lines = {"moved": (moved.mean(0).tolist(), moved.std(0).tolist())}
    left: dict[str, Any] = {
        "x": counts,
        "lines": lines,
        "xlabel": f"components added (spread of {config.repeats} orders)",
    }
    left |= {"ylabel": "L2 by which the\nlast moves the mean"}
    left |= {"log": "xy", "ticks": [count for count in (2, 5, 10, 20, 50, 100, 200, 500) if count in counts]}
    change = {"without one": sorted(value - whole for value in without.values())}
    right = {"x": range(1, len(store) + 1), "lines": change, "xlabel": "component that is left out, by its effect"}
    panels = [left, {**right, "ylabel": "change of test\naccuracy without it"}]
    title = titles.moved(method.dataset.name, change["without one"], relative.mean(0))
    plots.curves(command.out_folder(config) / "influence.png", panels, title)
    result = {"accuracy": whole, "without": without, "components": counts, "movement": moved.mean(0).tolist()}
    command.finish(config, {**result, "relative": relative.mean(0).tolist()})


def movements(config: Config, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|mean of k - mean of k - 1| for k = 2, 3, ..., "orders k", and the same relative to |mean of k|.

    mean_k - mean_{k-1} = (dw_k - mean_{k-1}) / k, whose norm the inner products `gram` give.
    """
    moved, relative = np.empty((2, config.repeats, len(gram) - 1))
    for order in range(config.repeats):
        ranked = np.random.default_rng([config.seed, order]).permutation(len(gram))
        g = gram[np.ix_(ranked, ranked)]
        for k in range(2, len(g) + 1):
            before = g[: k - 1, : k - 1].mean()
            distance = max(g[k - 1, k - 1] - 2 * g[k - 1, : k - 1].mean() + before, 0.0) ** 0.5 / k
            moved[order, k - 2], relative[order, k - 2] = distance, distance / g[:k, :k].mean() ** 0.5
    return moved, relative


def by_kernel(config: Config) -> None:
    """Measures the exact influence of every training image, by the tangent kernel."""
    penalties = config.positive("penalty")
    method = make_method(config, "taft")
    train = method.train
    test = method.test
    with tj.show_progress("kernel"):
        kernel = tj.solver.make_kernel(method.predict, train, method.recipe.objective, progress=shown)
    solution, tried = kernel.choose(penalties)
    penalty = solution.total_penalty / len(train)
    with tj.show_progress("test images"):
        rows = tj.solver.jacobian_rows(method.predict, test.inputs, shown)
        cross = rows.gram(kernel.rows, shown)
    logits = solution.predict(rows, cross)
    accuracy = float(np.mean(logits.argmax(-1) == test.targets))
    print(f"penalty {penalty:g}: test accuracy {accuracy:.4f}", file=sys.stderr)
    result: dict[str, Any] = {"accuracy": accuracy, "penalty": penalty, "residual": solution.residual}
    result |= {"leave_one_out_accuracy": solution.score(), "loo_max_error": resolved(config, solution)}
    result |= {"flipped_auc": flipped(config, kernel, penalty) if config.flip else None}
    draw(config, tried, method.dataset.name)
    outputs = (solution.left_out(), solution.outputs(), logits)
    arrays = of_kernel(solution, cross, logits, Measure(test.targets, kernel.centers.max()))
    report(config, method, train, arrays, outputs, result, tried=tried)


def of_kernel(
    solution: tj.solver.KernelSolution, cross: np.ndarray, logits: np.ndarray, measure: "Measure"
) -> dict[str, np.ndarray]:
    """The changes of each measure of the test images' logits "m c" when each training image is removed."""
    moved = solution.changes(cross).transpose(2, 0, 1)  # n m c
    before = measure(logits)
    after = [measure(logits + change) for change in moved]
    return {name: np.stack([values[name] - before[name] for values in after]) for name in before}


def by_solver(config: Config) -> None:
    """Measures the influence of training images (all, or --images) by solving without each, from the optimum."""
    began = time.perf_counter()
    penalty = own_penalty(config)
    if setup.open_dataset(config.dataset).train.groups is not None:
        raise InputError(
            f"--by={config.by} leaves out one image while others of its group train, and --dataset has groups:"
            " pass --by=kernel"
        )
    method = make_method(config, "taft", penalty=penalty)
    objective = method.recipe.objective
    classes = len(method.dataset.classes)
    stated = objective.loss.quadratic(np.arange(1), classes)
    if stated is None:
        raise InputError(f"--loss must be a square loss with --by=solver; got {config.loss}")
    if not 1e-6 <= config.certificate <= 1:
        raise InputError(f"--certificate must be in 1e-6..1; got {config.certificate}")
    order = np.random.default_rng([config.seed, 5]).permutation(len(method.train))
    rows = np.sort(order[: config.images or len(order)])
    leaving = Leaving(method, Measure(method.test.targets, float(stated[0].max())), config.at_once)
    left_out = leaving.each(command.out_folder(config), config.certificate, rows)
    seconds = time.perf_counter() - began
    arrays = left_out.arrays
    whole = tj.outputs(method.predict, left_out.base.dw, method.train.inputs)[rows]
    logits = tj.outputs(method.predict, left_out.base.dw, method.test.inputs).astype(np.float64)
    largest = max(left_out.largest, float((arrays["change"] - arrays["certificate"]).max()))
    result: dict[str, Any] = {"accuracy": float(np.mean(logits.argmax(-1) == method.test.targets))}
    right = arrays["own"].argmax(-1) == method.train.targets[rows]
    result |= {"leave_one_out_accuracy": float(right.mean()), "penalty": float(objective.penalty), "images": len(rows)}
    result |= {"certificate": float(arrays["certificate"].max()) / largest, "largest_change": largest}
    result |= {"loo_max_error": leaving.again(left_out, config.resolved), "passes": float(arrays["passes"].mean())}
    result |= {"seconds": seconds}
    report(config, method, method.train.take(rows), arrays, (arrays["own"], whole, logits), result)


def report(config: Config, 
    method: Method, train: tj.Features, arrays: dict[str, np.ndarray], outputs: Sequence[np.ndarray],
    result: dict[str, Any], **more: Any,
) -> None:  # fmt: skip
    """Writes report.html and the result; outputs: of training images without and with them, and of the test images."""
    left_out, whole, logits = outputs
    own = margin(left_out, train.targets)
    margins = margin(logits, method.test.targets)
    tested = method.dataset.train if method.is_held_out else method.dataset.test
    images = {"train": seen(method.dataset.train, train), "test": seen(tested, method.test)}
    predicted = {"train": left_out.argmax(-1), "test": logits.argmax(-1)}
    findings = pages.Findings(method.dataset.classes, own, arrays["loss"], arrays["margin"], margins)
    pages.write(command.out_folder(config) / "report.html", pages.Page(findings, images, predicted), result)
    changed = (own - margin(whole, train.targets)).tolist()
    each = {"names": [name for _, name in train.examples], "margin": own.tolist(), "margin_change": changed}
    command.finish(config, result, examples={**each, "test_loss_change": arrays["loss"].tolist()}, **more)


def seen(examples: Examples, features: tj.Features) -> Examples:
    """The images of the features, in order."""
    at = {name: i for i, name in enumerate(examples.names)}
    return examples.take(np.array([at[name] for _, name in features.examples]))


def margin(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The label's logit minus the largest other one, "n", from logits "n c"; below 0 for wrong predictions."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return logits[rows, labels] - others.max(-1)


@dataclasses.dataclass(frozen=True)
class Measure:
    """The margin of each test image, "m", and their mean rescaled square loss, alpha 1, of logits "m c"; kappa."""

    labels: np.ndarray
    kappa: float

    def __call__(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        loss = np.asarray(np.mean((logits - self.kappa * np.eye(logits.shape[-1])[self.labels]) ** 2))
        return {"margin": margin(logits, self.labels), "loss": loss}


def resolved(config: Config, solution: tj.solver.KernelSolution) -> float | None:
    """The largest difference of left-out logits from those of a new solve without the image, or without its group."""
    kernel, (n, c) = solution.kernel, solution.a.shape
    chosen = np.random.default_rng([config.seed, 5]).permutation(n)[: config.resolved]
    errors = []
    left_out = solution.left_out()
    groups = np.arange(n) if kernel.groups is None else numbered(kernel.groups)
    with tj.show_progress("solved again without one"), progress_bar(len(chosen), "image") as bar:
        for i in chosen:
            row = kernel.rows.take(slice(i, i + 1))
            again = refit(solution, np.flatnonzero(groups != groups[i]), row, kernel.k[i * c : (i + 1) * c])
            errors.append(float(np.abs(again[0] - left_out[i]).max()))
            bar.update()
    return max(errors, default=None)


def refit(solution: tj.solver.KernelSolution, left: np.ndarray, rows: Rows, cross: np.ndarray) -> np.ndarray:
    """The outputs "m c" of other examples, of rows of J and their kernel, by solving again on the examples `left`."""
    kernel, c = solution.kernel, solution.a.shape[1]
    flat = (left[:, None] * c + np.arange(c)).ravel()
    m = kernel.k[np.ix_(flat, flat)]
    m[np.diag_indices_from(m)] += (solution.total_penalty / kernel.precision).ravel()[flat]
    right = (kernel.centers - kernel.rows.outputs).ravel()[flat]
    a = scipy.linalg.solve(m, right, assume_a="pos", overwrite_a=True, check_finite=False)
    return rows.outputs + (cross[:, flat] @ a).reshape(rows.shape)


def flipped(config: Config, kernel: tj.solver.Kernel, penalty: float) -> float:
    """The AUC of detecting flipped labels by their leave-one-out margin."""
    rng = np.random.default_rng([config.seed, 6])
    n, classes = kernel.centers.shape
    wrong = rng.permutation(n)[: round(config.flip * n)]
    labels = kernel.targets.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
    if not len(wrong):
        raise InputError(f"--flip must flip an image at least; got {config.flip}")
    centers = kernel.centers.max() * np.eye(classes)[labels]
    noisy = dataclasses.replace(kernel, targets=labels, centers=centers).solve(penalty)
    doubt = -margin(noisy.left_out(), labels)
    return tj.metrics.auc(doubt[wrong], np.delete(doubt, wrong))


def draw(config: Config, tried: list[dict[str, float]], name: str) -> None:
    """Plots the leave-one-out accuracy by penalty."""
    panel = {"x": [row["penalty"] for row in tried], "lines": {"leave-one-out": [row["score"] for row in tried]}}
    panel |= {"xlabel": "penalty", "ylabel": "leave-one-out accuracy", "log": "x"}
    plots.curves(command.out_folder(config) / "penalties.png", [panel], titles.penalised(name, tried))


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

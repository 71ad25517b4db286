"""What each component does to the whole (--by=component), or each training image (--by=example, report.html).

The last line of stdout, by example: {"accuracy", "penalty": chosen by leave-one-out, "residual", "loo_max_error",
"flipped_auc", "lds_exact", "lds_first_order", "lds_leverage", "lds_projection"}. By component: {"accuracy": of all,
"without": {component: accuracy of the others' mean}, "components": counts, "movement": L2 distance by which the last
component to come moves the mean, by count, "relative": over the mean's norm}.
"""

from typing import Any

import numpy as np
from absl import flags
from jax.flatten_util import ravel_pytree

from experiments import binary, by_example, common, pictures
from experiments.common import F
from experiments.sharded import Method

common.define("shards", "orders", out="out/influence")
flags.adopt_module_key_flags(by_example)
flags.DEFINE_enum("by", "component", ["component", "example"], "Whose influence.")


def main() -> None:
    by_example.run() if F.by == "example" else by_component()


def by_component() -> None:
    """Accuracy without each component, and how far its coming moves the mean."""
    method = Method("taft")
    store = method.store(method.divide(F.shards), f"{F.shards}")
    outputs, labels = method.outputs(store), method.test.labels
    total = outputs.sum(0)
    whole = float(np.mean(total.argmax(-1) == labels))
    # the mean of the others' logits is the logits of the others' mean: the model is linear in dw
    without = {n: float(np.mean((total - o).argmax(-1) == labels)) for n, o in zip(store, outputs, strict=True)}
    steps = np.stack([ravel_pytree(store[name])[0] for name in store]).astype(np.float64)
    moved, relative = movements(steps @ steps.T)
    counts = list(range(2, len(store) + 1))
    lines = {"moved by the last to come": (moved.mean(0).tolist(), moved.std(0).tolist())}
    left: dict[str, Any] = {"x": counts, "lines": lines, "xlabel": "components", "ylabel": "L2 in weight space"}
    left |= {"log": "xy", "ticks": [count for count in (2, 5, 10, 20, 50, 100, 200, 500) if count in counts]}
    change = {"without one": sorted(value - whole for value in without.values())}
    right = {"x": range(1, len(store) + 1), "lines": change, "xlabel": "component, ranked"}
    panels = [left, {**right, "ylabel": "change of test accuracy"}]
    title = f"Influence of a component on {method.dataset.name}"
    pictures.curves(binary.out_folder() / "influence.png", panels, title)
    result = {"accuracy": whole, "without": without, "components": counts, "movement": moved.mean(0).tolist()}
    binary.finish({**result, "relative": relative.mean(0).tolist()})


def movements(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|mean of k - mean of k - 1| for k = 2, 3, ..., "orders k", and the same over |mean of k|.

    mean_k - mean_{k-1} = (dw_k - mean_{k-1}) / k, whose norm the inner products `gram` give.
    """
    moved, relative = np.empty((2, F.orders, len(gram) - 1))
    for order in range(F.orders):
        ranked = np.random.default_rng([F.seed, order]).permutation(len(gram))
        g = gram[np.ix_(ranked, ranked)]
        for k in range(2, len(g) + 1):
            before = g[: k - 1, : k - 1].mean()
            step = max(g[k - 1, k - 1] - 2 * g[k - 1, : k - 1].mean() + before, 0.0) ** 0.5 / k
            moved[order, k - 2], relative[order, k - 2] = step, step / g[:k, :k].mean() ** 0.5
    return moved, relative


if __name__ == "__main__":
    binary.run(main)

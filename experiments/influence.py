"""What each component does to the whole: accuracy without it, and how far its coming moves the mean.

The last line of stdout: {"accuracy": of all, "without": {component: accuracy of the others' mean}, "components":
counts, "movement": L2 distance by which the last component to come moves the mean, by count, "relative": over the
mean's norm}.
"""

from pathlib import Path

import jax
import numpy as np
from absl import flags

from experiments import binary, pictures, sharded
from experiments.sharded import Problem
from tangent_jax.fit import logits

SHARDS = flags.DEFINE_integer("shards", 50, "Shards trained apart.", lower_bound=2)
ORDERS = flags.DEFINE_integer("orders", 20, "Random orders of coming averaged.", lower_bound=1)
OUT = flags.DEFINE_string("out", "out/influence", "Folder for result.json and influence.png.")


def main() -> None:
    problem = Problem(("taft",))
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    _, components = problem.components("taft", problem.divide(SHARDS.value), f"{SHARDS.value}")
    test, names = problem.test["taft"], sorted(components)
    outputs = np.stack([logits(problem.tasks["taft"].predict, components[n], test.inputs) for n in names])
    total = outputs.sum(0)
    whole = float(np.mean(total.argmax(-1) == test.labels))
    # the mean of the others' logits is the logits of the others' mean: the model is linear in dw
    without = {n: float(np.mean((total - o).argmax(-1) == test.labels)) for n, o in zip(names, outputs, strict=True)}
    flat = np.stack([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(components[n])]) for n in names])
    gram = flat.astype(np.float64) @ flat.astype(np.float64).T
    moved, relative = movements(gram)
    counts = list(range(2, len(names) + 1))
    lines = {"moved by the last to come": (moved.mean(0).tolist(), moved.std(0).tolist())}
    change = sorted(value - whole for value in without.values())
    panels = [
        {
            "x": counts,
            "lines": lines,
            "xlabel": "components",
            "ylabel": "L2 in weight space",
            "log": "xy",
        },
        {
            "x": range(1, len(names) + 1),
            "lines": {"without one": change},
            "xlabel": "component, ranked",
            "ylabel": "change of test accuracy",
        },
    ]
    pictures.curves(out / "influence.png", panels, f"Influence of a component on {problem.dataset.name}")
    result = {"accuracy": whole, "without": without, "components": counts, "movement": moved.mean(0).tolist()}
    binary.finish(out, {**result, "relative": relative.mean(0).tolist()})


def movements(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|mean of k - mean of k - 1| for k = 2, 3, ..., "orders k", and the same over |mean of k|.

    mean_k - mean_{k-1} = (dw_k - mean_{k-1}) / k, whose norm the inner products `gram` give.
    """
    moved, relative = [], []
    for order in range(ORDERS.value):
        ranked = np.random.default_rng([sharded.SEED.value, order]).permutation(len(gram))
        g = gram[np.ix_(ranked, ranked)]
        rows = []
        for k in range(2, len(g) + 1):
            before = g[: k - 1, : k - 1].mean()
            step = max(g[k - 1, k - 1] - 2 * g[k - 1, : k - 1].mean() + before, 0.0) ** 0.5 / k
            rows.append((step, step / g[:k, :k].mean() ** 0.5))
        moved.append([step for step, _ in rows])
        relative.append([share for _, share in rows])
    return np.array(moved), np.array(relative)


if __name__ == "__main__":
    binary.run(main)

"""Models trained apart on shards, added: TAFT against model soup and the head alone (the paper's Table 2).

The last line of stdout: {"shards": {"10": {"taft": accuracy of the composition, "soup": ..., "fc": ..., "greedy":
greedy soup, "taft_single": mean accuracy of the single shards, ...}, ...}, "full": {"taft": one model on all data,
...}}.
"""

import sys
from pathlib import Path

import numpy as np
from absl import flags

from experiments import binary, pictures
from experiments.sharded import DATASET, Problem
from tangent_jax import compose
from tangent_jax.checks import refusal, require
from tangent_jax.fit import accuracy
from tangent_jax.notation import Tree

SHARDS = flags.DEFINE_list("shards", ["10", "25", "50"], "Numbers of shards.")
METHODS = flags.DEFINE_list("methods", ["taft", "soup", "fc"], "Of taft, soup (non-linear models averaged), fc.")
OUT = flags.DEFINE_string("out", "out/compose", "Folder for result.json, compose.md and compose.png.")

TRAINED = {"taft": "taft", "soup": "nlft", "fc": "fc"}


def main() -> None:
    try:
        counts = [int(count) for count in SHARDS.value]
    except ValueError as error:
        raise refusal("compose", "--shards as numbers separated by commas", ",".join(SHARDS.value)) from error
    for name in METHODS.value:
        require(name in TRAINED, "compose", f"--methods of {', '.join(TRAINED)}", name)
    problem = Problem(tuple(TRAINED[name] for name in METHODS.value))
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    held_out = problem.dataset.splits.get("validation")

    def test(method: str, dw: Tree) -> float:
        data = problem.test[method]
        return accuracy(problem.tasks[method].predict, dw, data.inputs, data.labels)

    def validate(method: str, dw: Tree) -> float:
        """On validation images where the data set has some besides its test split, else on the training images."""
        apart = held_out is not None and "test" in problem.dataset.splits
        data = problem.tasks[method].inputs(held_out, "validation inputs") if apart else problem.train[method]  # pyright: ignore
        return accuracy(problem.tasks[method].predict, dw, data.inputs, data.labels)

    table: dict[str, dict[str, float]] = {}
    for count in counts:
        divided, row = problem.divide(count), {}
        for name in METHODS.value:
            method = TRAINED[name]
            _, components = problem.components(method, divided, f"{count}")
            row[name] = test(method, compose.mean(components))
            row[f"{name}_single"] = float(np.mean([test(method, dw) for dw in components.values()]))
            if name == "soup":
                kept = compose.greedy_soup(components, lambda dw, method=method: validate(method, dw))
                row["greedy"] = test(method, compose.mean({n: components[n] for n in kept}))
        table[f"{count}"] = row
        print(f"{count} shards: " + ", ".join(f"{k} {v:.4f}" for k, v in row.items()), file=sys.stderr)
    everything = {"all": np.arange(len(problem.labels))}
    full = {}
    for name in METHODS.value:
        _, components = problem.components(TRAINED[name], everything, "full")
        full[name] = test(TRAINED[name], components["all"])
    columns = list(table[f"{counts[0]}"])
    lines = ["| shards | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {c} | " + " | ".join(f"{row[k]:.3f}" for k in columns) + " |" for c, row in table.items()]
    lines += ["| full data | " + " | ".join(f"{full[k]:.3f}" if k in full else "" for k in columns) + " |"]
    (out / "compose.md").write_text("\n".join(lines) + "\n")
    series = {k: [table[f"{c}"][k] for c in counts] for k in columns if not k.endswith("_single")}
    series |= {f"{name}, full data": [full[name]] * len(counts) for name in METHODS.value}
    panel = {"x": counts, "lines": series, "xlabel": "shards composed", "ylabel": "test accuracy"}
    pictures.curves(out / "compose.png", [panel], f"Composition on {problem.dataset.name}")
    print("\n".join(lines))
    binary.finish(out, {"shards": table, "full": full}, dataset=DATASET.value)


if __name__ == "__main__":
    binary.run(main)

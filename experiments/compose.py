"""Models trained apart on shards, added: TAFT against model soup and the head alone (the paper's Table 2).

The last line of stdout: {"shards": {"10": {"taft": accuracy of the composition, "soup": ..., "fc": ..., "greedy":
greedy soup, "taft_single": mean accuracy of the single shards, ...}, ...}, "full": {"taft": one model on all data,
...}}.
"""

import sys

import numpy as np
from absl import flags

import tangent_jax as tj
from experiments import binary, common, pictures
from experiments.common import F
from experiments.sharded import Method

flags.DEFINE_list("shards", ["10", "25", "50"], "Numbers of shards.")
flags.DEFINE_list("methods", ["taft", "soup", "fc"], "Of taft, soup (non-linear models averaged), fc.")
common.define(out="out/compose")

TRAINED = {"taft": "taft", "soup": "nlft", "fc": "fc"}


def main() -> None:
    counts = common.numbers("shards", int)
    common.listed("methods", TRAINED)
    methods = {name: Method(TRAINED[name]) for name in F.methods}
    first = methods[F.methods[0]]
    table: dict[str, dict[str, float]] = {}
    for count in counts:
        divided, row = first.divide(count), {}
        for name, method in methods.items():
            store = method.store(divided, f"{count}")
            row[name] = method.accuracy(tj.compose(store))
            row[f"{name}_single"] = float(np.mean([method.accuracy(store[part]) for part in store]))
            if name == "soup":
                row["greedy"] = greedy(method, store)
        table[f"{count}"] = row
        print(f"{count} shards: " + ", ".join(f"{k} {v:.4f}" for k, v in row.items()), file=sys.stderr)
    full = {name: method.accuracy(method.full()) for name, method in methods.items()}
    columns = list(table[f"{counts[0]}"])
    lines = ["| shards | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {c} | " + " | ".join(f"{row[k]:.3f}" for k in columns) + " |" for c, row in table.items()]
    lines += ["| full data | " + " | ".join(f"{full[k]:.3f}" if k in full else "" for k in columns) + " |"]
    (binary.out_folder() / "compose.md").write_text("\n".join(lines) + "\n")
    series = {k: [table[f"{c}"][k] for c in counts] for k in columns if not k.endswith("_single")}
    series |= {f"{name}, full data": [full[name]] * len(counts) for name in F.methods}
    panel = {"x": counts, "lines": series, "xlabel": "shards composed", "ylabel": "test accuracy"}
    pictures.curves(binary.out_folder() / "compose.png", [panel], f"Composition on {first.dataset.name}")
    print("\n".join(lines))
    binary.finish({"shards": table, "full": full}, dataset=F.dataset)


def greedy(method: Method, store: tj.Store) -> float:
    """The greedy soup's accuracy, chosen on validation images where there are some besides test, else on train."""
    splits, on = method.dataset.splits, method.train
    if {"validation", "test"} <= {*splits}:
        on = common.features(method.predict, splits["validation"], "validation inputs")
    chosen = tj.greedy_soup(store, lambda dw: method.accuracy(dw, on))
    return method.accuracy(tj.compose({name: store[name] for name in chosen}))


if __name__ == "__main__":
    binary.run(main)

"""The paper's Table 1: FC, NLFT-n and TAFT-n on given data sets, settings chosen on a validation split.

For each method, learning rate, reset (PT) and class token (CLS) are searched on held-out training images, with
--search_epochs. The best setting is trained on all of train, over the seeds of --seed, and measured on test. Every run
is saved in runs.jsonl under --out, and the same command does not repeat it.
"""

import dataclasses
import itertools
import sys

import tangent_jax as tj
from experiments.shared import search
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Compute, Model
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, search.Searched, Compute):
    """The flags."""

    batch_size: int = Recipe.batch_size
    blocks: tuple[str, ...] = ("1", "7")
    certificate: float = Recipe.certificate
    epochs: int = Recipe.epochs
    loss: str = Recipe.loss
    method: tuple[str, ...] = ("fc", "nlft", "taft")
    out: str = "out/table1"
    passes: int = Recipe.passes
    penalty: tuple[str, ...] = ("1e-3", "1e-2", "0.1")
    search_anchor: bool = True
    solver: tuple[str, ...] = ("adam",)


NAMES = {"adam": "TAFT", "optimum": "OPTIMUM"}


def candidates(config: Config, method: str, blocks: int, solver: str = "adam") -> list[tj.Recipe]:
    """The recipes of a column of the table: learning rates, or penalties of the optimum."""
    tokens = (False, True) if search.has_class_token(config) else (False,)
    searched = config.search_anchor and method != "fc"
    anchors = itertools.product((False, True), tokens) if searched else [(False, False)]
    name, values = ("learning_rate", "lr") if solver == "adam" else ("penalty", "penalty")
    fixed = {"method": method, "blocks": blocks, "solver": solver}
    return [
        setup.recipe(config, **fixed, reset=reset, new_class_token=token, **{name: value})
        for reset, token in anchors
        for value in config.numbers(values, float)
    ]


def main(config: Config) -> None:
    depth = setup.pretrained(config).model.stages - 2
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    sets = setup.open_datasets(config)
    solvers = config.listed("solver", tj.store.SOLVERS)
    methods = config.listed("method", ("fc", "nlft", "taft"))
    columns: dict[str, tuple] = {"FC": ("fc", 0)} if "fc" in methods else {}
    counts = config.numbers("blocks", int)
    deeper = [blocks for blocks in counts if blocks > depth]
    if deeper:
        print(f"the model has {depth} blocks: {deeper} left out", file=sys.stderr)
    for blocks in (blocks for blocks in counts if blocks <= depth):
        columns |= {f"NLFT-{blocks}": ("nlft", blocks)} if "nlft" in methods else {}
        if "taft" in methods:
            columns |= {f"{NAMES[solver]}-{blocks}": ("taft", blocks, solver) for solver in solvers}
    if not columns:
        raise InputError(f"--blocks must be at most {depth}, the model's number; got {','.join(config.blocks)}")
    table: dict[str, dict[str, dict]] = {}
    for spec, dataset in sets.items():
        # The longest tail first: the inputs of shorter ones are computed from its cache, not from the images.
        row = {
            name: search.measure(config, spec, dataset, name, candidates(config, *columns[name]), runs)
            for name in reversed(columns)
        }
        table[dataset.name] = {name: row[name] for name in columns}
    search.show(config, table, "table1", f"Fine-tuning, {search.seeds(config)}")
    command.finish(config, table | ({"gaps": gaps(table)} if "optimum" in solvers else {}))


def gaps(table: dict[str, dict[str, dict]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean accuracies: Adam's minus the optimum's (optimisation), the optimum's minus non-linear (linearisation)."""
    differences: dict[str, dict[str, dict[str, float]]] = {}
    for name, row in table.items():
        for column in [c for c in row if c.startswith("OPTIMUM-")]:
            mean = row[column]["mean"]
            blocks = column.removeprefix("OPTIMUM-")
            gap = {"linearisation": mean - row[f"NLFT-{blocks}"]["mean"]} if f"NLFT-{blocks}" in row else {}
            gap |= {"optimisation": row[f"TAFT-{blocks}"]["mean"] - mean} if f"TAFT-{blocks}" in row else {}
            differences.setdefault(name, {})[blocks] = gap
    return differences


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

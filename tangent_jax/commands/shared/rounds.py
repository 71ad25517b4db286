"""Rounds of composition at a moving anchor, for `compose` and `store remove`."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared import command, plots, setup
from tangent_jax.commands.shared.flags import F
from tangent_jax.commands.shared.removing import read_asked
from tangent_jax.commands.shared.shards import Method, is_by_owner
from tangent_jax.core import require

ROUNDS = {"solver": "optimum", "penalty": 0.1, "passes": 12}
"""The default settings of a tangent's rounds; the output is the total."""


def recipe_of(method: str) -> dict[str, Any]:
    """The fields of a recipe that differ between rounds and one composition."""
    rank = {"rank": int(F.rank[0])}
    if method == "nlft":
        return {"solver": "adam", **rank}
    rate = {"learning_rate": float(F.lr[0])}
    return {"output": "total", **rank, **rate} | {name: value for name, value in ROUNDS.items() if not F[name].present}


def check_flags(additive: set[str]) -> None:
    """Raises InputError for flags that do not fit rounds, before any long work."""
    sums, do = sorted(additive & {*F.method}), "Compose them without --rounds"
    require(not sums, "flags", "--method of components that train, beside --rounds", ",".join(sums), do)
    require(len(F.merge) == 1, "flags", "one --merge beside --rounds", ",".join(F.merge))
    for name in ("lr", "rank") + ("merge_penalty",) * F["merge_penalty"].present:
        require(len(F[name].value) == 1, "flags", f"one --{name} beside --rounds", ",".join(F[name].value))
    total = not F["output"].present or F.output == "total"
    require(total, "flags", "--output=total beside --rounds: the anchor holds what was learned", F.output)
    require(
        F.left == 1 and not F.farm and not F.worker, "flags", "--rounds of all components, in one process", "others"
    )
    require(F.head != "named", "flags", "one head for all components beside --rounds", "--head=named")


def compose(methods: Mapping[str, Method]) -> None:
    """Runs --rounds for each number of shards and each method, and shows the network's accuracy after each."""
    table: dict[str, dict[str, list[float]]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for count in next(iter(methods.values())).counts():
        table[f"{count}"], facts[f"{count}"] = {}, {}
        for name, method in methods.items():
            first = method.recipe.first_predictor(method.dataset.classes, setup.pretrained(method.recipe.weights))
            rounds = run(method, first, count)
            table[f"{count}"][name] = accuracies(method, first, rounds, f"{count} shards, {name}")
            facts[f"{count}"][name] = {"sizes": [r.size for r in rounds], "losses": [r.loss for r in rounds]}
    columns = [f"{name}, {count}" for count in table for name in table[count]]
    lines = [values for row in table.values() for values in row.values()]
    rows = [[f"{i + 1}", *(f"{v[i]:.3f}" if i < len(v) else "" for v in lines)] for i in range(F.rounds)]
    text = command.markdown(["round", *columns], rows)
    (command.out_folder() / "rounds.md").write_text(text)
    print(text)
    x = list(range(1, F.rounds + 1))
    padded = {name: [*v, *[v[-1]] * (F.rounds - len(v))] for name, v in zip(columns, lines, strict=True)}
    panel = {"x": x, "lines": padded, "xlabel": "round", "ylabel": "test accuracy of the network"}
    dataset = next(iter(methods.values())).dataset.name
    plots.curves(command.out_folder() / "rounds.png", [panel], f"{dataset}: the anchor moves {F.rounds} times")
    settings = {name: method.recipe.objective().penalty for name, method in methods.items()}
    command.finish({"rounds": table}, dataset=F.dataset, steps=facts, penalties=settings)


def run(method: Method, first: tj.Predictor, count: int) -> list[tj.solver.Round]:
    """The rounds of a method's components from the first anchor, read or trained now, in stores below one folder."""
    folder = method.path("rounds" if is_by_owner() else f"{count}-rounds")  # owners come and go
    print(f"rounds: {folder}", file=sys.stderr)
    non_linear = method.recipe.method == "nlft"
    penalty = float(F.merge_penalty[0]) if F["merge_penalty"].present else None
    options: Any = {"merge": "mean" if non_linear else F.merge[0], "penalty": penalty}
    options |= {"owners": tj.shards.read_owners(F.owners) if F.owners else None}
    shards = dataclasses.replace(method.shards(method.divide(count)), predict=first)
    return tj.store.fill_rounds(folder, shards, F.rounds, **options)


def accuracies(method: Method, first: tj.Predictor, rounds: list[tj.solver.Round], title: str) -> list[float]:
    """The accuracy of the network f_{w + total} at the anchor after each round."""
    values = [tj.evaluate(tj.solver.network(first), each.total, method.test) for each in rounds]
    print(f"{title}: " + ", ".join(f"{value:.4f}" for value in values), file=sys.stderr)
    return values


def remove(folder: Path) -> dict[str, Any]:
    """Removes images from the rounds in a folder, and repeats the rounds from the first that saw them."""
    asked = f"--examples or --owner, with --retrain or --exact, without --dry_run, of the rounds in {folder}"
    fits = bool(F.examples) + bool(F.owner) == 1 and F.retrain + F.exact == 1 and not F.name and not F.dry_run
    do = "The components of one round alone leave by --store=ROUND, and stay in the anchors after it"
    require(fits, "store remove", asked, "other flags", do)
    given: dict[str, Any] = {"owner": F.owner} if F.owner else {"examples": read_asked()}
    given |= {"owners": tj.shards.read_owners(F.owners)} if F.owners else {}
    how = "exact" if F.exact else "retrain"
    receipts = tj.store.remove_rounds(folder, **given, how=how, cache=tj.Cache(F.cache_dir), weights=F.weights)
    for receipt in receipts:
        print(f"removed; receipt: {receipt.path}", file=sys.stderr)
    rounds = [[*store] for store in tj.store.round_stores(folder)]
    return {"receipts": [str(receipt.path) for receipt in receipts], "rounds": len(rounds), "components": rounds}

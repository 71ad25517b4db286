"""Composes models that were trained apart on shards: TAFT, model soup, the head alone, LoRA, adapters, statistics.

--method lists the methods: taft, soup (non-linear models averaged), fc, lora, adapter, tangent_lora, tangent_adapter;
and, composed exactly by sums of statistics, place (LDA on features and tokens' means over cells), exact (and tangent
features), lda and ridge (on frozen features), ranpac (random ReLU features). A store keeps the
components of each method. Settings of statistics are chosen on held-out images, or with --settings=leave_one_out on the
training images.
With several --lr or --rank, held-out images choose each method's, by the accuracy of its composition at the largest
number of shards; with a single --lr the soup uses --lr_nlft. --preset=paper sets several flags.
--shard=I/N trains one part of the components, as on another machine (docs/howto/clusters.md).

The last line of stdout: {"shards": {"10": {"taft": accuracy of the composition, "soup": ..., "fc": ..., "greedy":
greedy soup, "taft_single": mean accuracy of the single shards, ...}, ...}, "full": {"taft": one model on all data,
...; none of --sharding=owner}, "methods": {"taft": {"numbers": trained, "bytes": of a component, "chosen": settings,
"searched": how many, "tried": {a setting: its values}}}, "test_images": their number}; numbers and bytes of statistics
are those of many images, few have less; of statistics also "held_out", the accuracy by which settings were chosen; for
exact also "feature_blocks", and with --feature_blocks=auto "depths": {blocks: the negative log-likelihood by which they
were chosen}.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import additive, command, parts, setup
from tangent_jax.commands.shared.additive import ADDITIVE, Summed, make_additive
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Optimum, Training, only_with
from tangent_jax.commands.shared.shards import Method, make_method, shard_counts
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.solver import MappedOnce
from tangent_jax.store.recipe import Recipe

TRAINED = {
    "taft": ("taft", "blocks"),
    "soup": ("nlft", "blocks"),
    "fc": ("fc", "blocks"),
    "lora": ("nlft", "lora"),
    "adapter": ("nlft", "adapter"),
    "tangent_lora": ("taft", "lora"),
    "tangent_adapter": ("taft", "adapter"),
}
"""The recipe of each method's components: its method and kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Summed, Training, Optimum):
    """Models or statistics of several shards."""

    head: str = Recipe.head
    head_scale: float = Recipe.head_scale
    leave_out_anchor_images: bool = False
    lr: tuple[str, ...] = ("3e-3",)
    merge: tuple[str, ...] = ("mean",)
    merge_penalty: tuple[str, ...] = ("1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "0.1", "1")
    method: tuple[str, ...] = ("taft", "soup", "fc")
    out: str = "out/compose"
    preset: str | None = None
    rank: tuple[str, ...] = ("8",)
    shard: str | None = None
    shards: tuple[str, ...] = ("10", "25", "50")
    store: str = "out/stores"
    needs = (
        only_with("directions", "feature_blocks", method="exact")
        | only_with("width", method=("exact", "place"))
        | only_with("settings", method=(*ADDITIVE,))
        | only_with("loss", "penalty", "epochs", "batch_size", method=(*TRAINED,))
        | only_with("head", "head_scale", "lr", "output", "solver", method=(*TRAINED,))
    )


def main(config: Config) -> None:
    check_flags(config)
    part = None if config.shard is None else config.part_in("shard")
    most = max(shard_counts(config))
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    settings = {name: searched(config, name, most, runs) for name in config.method if name in TRAINED}
    methods = {name: make(config, name, **settings[name]["chosen"]) for name in settings}
    once: dict[tuple, MappedOnce] = {}
    sums = {name: make_additive(config, name, once) for name in config.method if name in ADDITIVE}
    every: dict[str, Method] = {**methods, **sums}
    first = next(iter(every.values()))
    is_by_owner = first.division.is_by_owner
    counts = [len(first.divide(0))] if is_by_owner else shard_counts(config)  # owners with an image that can be read
    shards = {count: first.divide(count) for count in counts}
    if part is not None:
        return parts.train_part(part, work(config, every, shards))
    table: dict[str, dict[str, float]] = {}
    penalties: dict[str, float] = {}
    for count, divided in shards.items():
        row = {name: method.accuracy_of(divided, title_of(config, method, count)) for name, method in sums.items()}
        for name, method in methods.items():
            row |= composed(config, name, method, count, divided, penalties)
        table[f"{count}"] = row
        print(f"{count} shards: " + ", ".join(f"{k} {v:.4f}" for k, v in row.items()), file=sys.stderr)
    full: dict[str, float] = {}
    if not is_by_owner:
        full |= {name: method.accuracy_of(method.whole(), "full") for name, method in sums.items()}
        full |= {name: method.accuracy(method.full()) for name, method in methods.items()}
    write_table(config, table, full)
    for name, method in methods.items():
        zeros = method.predict.zeros()
        settings[name] |= {
            "numbers": method.predict.subset.size,
            "bytes": sum(x.nbytes for x in trees.leaves(zeros).values()),
        }
    settings |= {name: method.facts() for name, method in sums.items()}
    result = {"shards": table, "full": full, "methods": settings, "test_images": len(first.test.targets)}
    command.finish(config, result, dataset=config.dataset, merge_penalties=penalties)


def write_table(config: Config, table: Mapping[str, Mapping[str, float]], full: Mapping[str, float]) -> None:
    """Writes compose.md, and prints it."""
    columns = list(next(iter(table.values())))
    rows = [*table.items()]
    if full:
        rows.append(("full data", full))
    lines = [[title, *(f"{row[k]:.3f}" if k in row else "" for k in columns)] for title, row in rows]
    command.write_table(config, "compose", ["shards", *columns], lines)


def composed(
    config: Config, name: str, method: Method, count: int, divided: dict[str, np.ndarray], penalties: dict[str, float]
) -> dict[str, float]:
    """The accuracies of a method's components: composed by each merge, and alone; chosen ridges go to `penalties`."""
    store = method.store(divided, title_of(config, method, count), with_factors(config, method))
    components = method.components(store)
    row = {name: method.accuracy(tj.compose(components))}
    for how in merges_of(config, method):
        options = {}
        if how in tj.store.WEIGHTED:
            options["penalty"] = chosen_penalty(config, method, count, store, how)
            penalties[f"{count}, {how}"] = options["penalty"]
        row[f"{name}_{how}"] = method.accuracy(tj.merge(components, how, **options))
    row[f"{name}_single"] = float(np.mean([method.accuracy(components[part].dw) for part in components]))
    if name == "soup":
        row["greedy"] = greedy(config, method, store)
    return row


def check_flags(config: Config) -> None:
    """Raises InputError for incompatible flags, before any long work."""
    methods = config.listed("method", [*TRAINED, *ADDITIVE])
    config.positive("merge_penalty")
    merges = config.listed("merge", tj.store.MERGES)
    written = {"method": ",".join(methods), "merge": ",".join(merges)}
    if {*merges} != {"mean"} and "taft" not in methods:
        raise InputError(f"--merge={written['merge']} needs taft in --method; got {written['method']}")
    if config.gave("merge_penalty") and {*merges}.isdisjoint(tj.store.WEIGHTED):
        weighted = ", ".join(tj.store.WEIGHTED)
        raise InputError(f"--merge_penalty has an effect only with --merge of {weighted}; got {written['merge']}")
    config.positive("lr")
    additive.check_flags(config, methods)
    ranked = [name for name, (_, kind) in TRAINED.items() if kind != "blocks"]
    if config.gave("rank") and {*methods}.isdisjoint(ranked):
        raise InputError(f"--rank has an effect only with --method of {', '.join(ranked)}; got {written['method']}")
    config.numbers("rank", int)
    nonlinear = [name for name in methods if name in TRAINED and TRAINED[name][0] == "nlft"]
    if config.solver == "optimum" and nonlinear:
        raise InputError(f"--solver=optimum needs --method of tangents and heads; got {', '.join(nonlinear)}")


def work(config: Config, methods: dict[str, Method], shards: dict[int, dict[str, np.ndarray]]) -> list[parts.Work]:
    """The stores that the composition reads, of which --shard trains a part beforehand."""
    stores = []
    for count, divided in shards.items():
        for method in methods.values():
            weighs = with_factors(config, method)
            title = title_of(config, method, count)
            stores.append(parts.Work(method, divided, title, weighs))
            if weighs and len(config.merge_penalty) > 1 and validation(config, method) is None:
                held = method.held_out()
                stores.append(parts.Work(held, held.divide(count), title, True))
    for name, method in methods.items():
        if not method.division.is_by_owner and name not in ADDITIVE:  # whose features of all shards are kept
            stores.append(parts.Work(method, method.whole(), "full"))
    return stores


def merges_of(config: Config, method: Method) -> list[str]:
    """The merges of a method's components, besides the mean."""
    return [how for how in config.merge if how != "mean"] if method.name == "taft" else []


def with_factors(config: Config, method: Method) -> bool:
    """True if a merge of a method's components needs their factors."""
    return not {*merges_of(config, method)}.isdisjoint(tj.store.WEIGHTED)


def title_of(config: Config, method: Method, count: int) -> str:
    """The title of the store of a method's components; of owners without their number, so that one may be added."""
    words = [] if method.division.is_by_owner else [f"{count}"]
    if with_factors(config, method):
        words.append("factors")
    return "-".join(words)


def make(config: Config, name: str, **changes: Any) -> Method:
    """A method by its name in TRAINED."""
    method, kind = TRAINED[name]
    return make_method(config, method, name if kind != "blocks" else None, kind=kind, **changes)


def searched(config: Config, name: str, count: int, runs: Runs) -> dict[str, Any]:
    """By held-out images: {"chosen": fields of a recipe, "searched": number of settings, "tried": values by field}."""
    rates = config.numbers("lr", float)
    if len(rates) == 1 and TRAINED[name][0] == "nlft":
        rates = [config.lr_nlft]
    grid: list[dict[str, Any]] = [{"learning_rate": rate} for rate in rates]
    if TRAINED[name][1] != "blocks":
        grid = [{**fields, "rank": rank} for fields in grid for rank in config.numbers("rank", int)]
    tried = {field: sorted({fields[field] for fields in grid}) for field in grid[0]}
    if len(grid) == 1:
        return {"chosen": grid[0], "searched": 0, "tried": tried}
    accuracies = {}
    for i, changes in enumerate(grid):
        method = make(config, name, **changes).held_out()
        rows = method.divide(count)
        key = identity(setup.run_key(config, config.dataset, config), method.recipe, config.held_out, [*rows.values()])
        if key not in runs.done:
            if config.shard is not None:
                raise InputError(
                    "--shard needs settings that were searched before, and none were. Give one --lr and one --rank"
                )
            fitted = method.fit(rows, f"{method.dataset.name} {name}, setting {i + 1} of {len(grid)}")
            runs.add(key, method.accuracy(tj.compose([tj.Component(fit.dw) for fit in fitted])))
        accuracies[i] = runs.done[key]
    best = max(accuracies, key=lambda i: accuracies[i])
    print(f"{name}: " + ", ".join(f"{grid[i]} {value:.4f}" for i, value in accuracies.items()), file=sys.stderr)
    return {"chosen": grid[best], "searched": len(grid), "tried": tried}


def chosen_penalty(config: Config, method: Method, count: int, store: tj.Store, how: str) -> float:
    """The ridge of a merge, among --merge_penalty, by the likelihood (at its best temperature) of held-out labels.

    Validation images choose if there are some besides test. Otherwise components train on four fifths of the training
    images, and the rest choose.
    """
    penalties = config.numbers("merge_penalty", float)
    on = validation(config, method)
    if len(penalties) == 1:
        return penalties[0]
    if on is None:
        title, method = title_of(config, method, count), method.held_out()
        store = method.store(method.divide(count), title, factors=True)
        on = method.test
    tried = {}
    components = method.components(store)
    with tj.show_progress(f"{count} shards, {how}"):
        merger = tj.store.Merger(components, how)
    for penalty in penalties:
        logits = tj.outputs(method.predict, merger.at(penalty), on.inputs)
        tried[penalty] = tj.solver.fitted_beta(logits, None, on.targets)[1]
    print(f"{count} shards, {how}: " + ", ".join(f"{p:g} {v:.4f}" for p, v in tried.items()), file=sys.stderr)
    return min(tried, key=lambda p: (tried[p], -p))


def validation(config: Config, method: Method) -> tj.Features | None:
    """The features of the validation images, if there are some besides test."""
    images = setup.validation_images(method.dataset)
    if config.held_out or images is None:
        return None
    return setup.features(config, method.predict, images, "validation inputs")


def greedy(config: Config, method: Method, store: tj.Store) -> float:
    """The greedy soup's accuracy; chosen on validation images if there are some besides test, else on train."""
    on = validation(config, method) or method.train
    components = method.components(store)
    chosen = tj.store.greedy_soup(components, lambda dw: method.accuracy(dw, on))
    return method.accuracy(tj.compose({name: components[name] for name in chosen}))


if __name__ == "__main__":
    command.run(main, Config, processes=True)

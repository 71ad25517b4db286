"""Manages a store of components: adds, merges, lists, composes, removes, verifies and exports them.

tangent-jax store COMMAND --store=DIR, where COMMAND is one of

add      a component from a folder that finetune wrote (--source, --name)
merge    adds the components of the store --source, one atomic step each; repeated, it adds missing ones
list     lists the components: data set, owners, number of examples, date
compose  composes all components by their mean, or by --merge with the factors that they were added with.
         With --dataset it prints the accuracy on its test images of the components' classes (of statistics, solved
         with --settings)
remove   removes components by --name, or all that saw the --examples in a file or an image of --owner. --retrain puts
         each back, trained without them; --exact moves each solved one (finetune --solver=optimum) to the optimum on
         its remaining data
verify   checks every file against its hash; with --receipt, checks a removal
export   exports the composed model to --to in --format: anchor and tangent weights under timm's names (safetensors), or
         a program that runs without this library (stablehlo, onnx of --opset; docs/howto/serve.md). --merge is as in
         compose.
         Statistics are exported as features and a head, solved with --settings (safetensors, stablehlo, onnx). For
         components with different heads, --head names the component whose head is used with the composed body, or
         is union: one head over all classes. With --dataset the model card states the accuracy on its test images

Each command prints its plan on stderr first; remove --dry_run stops there. The last line of stdout is always the result
as one JSON object.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.settings import Cached, choice
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.names import composed_name
from tangent_jax.core.notation import Tree
from tangent_jax.exports import FORMATS
from tangent_jax.io.paths import is_url, passing_copy
from tangent_jax.io.records import plain
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.store.receipts import Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Cached):
    """A store, and the flags of its commands (READ)."""

    dataset: str | None = None
    dry_run: bool = False
    exact: bool = False
    examples: str | None = None
    format: str = choice(*FORMATS)
    head: str | None = None
    merge: str = "mean"
    merge_penalty: float = 0.001
    name: tuple[str, ...] = ()
    opset: int | None = None
    owner: str | None = None
    receipt: str | None = None
    retrain: bool = False
    same_classes: tuple[str, ...] = ()
    settings: str = "lda,0.3"
    source: str | None = None
    store: str = "out/store"
    to: str | None = None
    weights: str | None = None


def main(config: Config, command: str) -> None:
    for name in sorted(set().union(*READ.values()) - READ[command]):
        if config.gave(name):
            readers = ", ".join(other for other in READ if name in READ[other])
            raise InputError(f"--{name} has an effect only with {readers}; got it with {command}. Leave it out")
    path = config.path("store")
    if command not in ("add", "merge"):
        setup.check_store(path, "Pass --store=DIR, or add a component first")
    if command == "merge" and not (config.source and tj.store.is_store(config.path("source"))):
        raise InputError(f"--source must be a store; got {config.source or 'none'}")
    if command == "add":
        with component_file(config):  # refused before a store is made
            pass
    result = COMMANDS[command](config, tj.Store(path))
    print(json.dumps(result))
    if result.get("wrong"):
        sys.exit(codes.FAILED)


@contextmanager
def component_file(config: Config) -> Iterator[Path]:
    """Yields the file of the component in --source, or a copy of it from a URL; without the flag that of finetune."""
    names = ("dw.safetensors", "factors.safetensors")
    with passing_copy(config.source or "out/finetune", names) as folder:
        path = folder / "dw.safetensors"
        if not path.exists():
            raise InputError(
                f"--source must be a folder with dw.safetensors; {folder} has none. Run finetune with --out"
            )
        yield path


def add(config: Config, store: tj.Store) -> dict[str, Any]:
    """Adds the component in --source, and its factors if there are any, by --name or the folder's name."""
    if len(config.name) > 1:
        raise InputError(f"--name must be one name; got {','.join(config.name)}")
    with component_file(config) as path:
        dw, metadata = tj.store.read_component(path)
        if "provenance" not in metadata:
            raise InputError(f"{path} must be a component with its provenance; it states none. Run finetune")
        origin = tj.store.Provenance.from_json(metadata["provenance"], f"the provenance in {path}")
        factors = path.with_name("factors.safetensors")
        folder = PurePath(config.source or "").name if is_url(config.source or "") else path.parent.resolve().name
        name = composed_name(config.name[0] if config.name else folder)  # macOS may spell a folder's name in NFD
        store.add(name, dw, origin, tj.store.read_factors(factors) if factors.exists() else None)
    return {"added": name, "fingerprint": store.state.components[name].weights}


def merge(config: Config, store: tj.Store) -> dict[str, Any]:
    """Adds the components of --source that the store lacks."""
    return {"added": tj.store.add_all(store, tj.Store(config.path("source"))), "components": len(store)}


def listing(config: Config, store: tj.Store) -> dict[str, Any]:
    added = store.state.added
    table = []
    for name in store:
        origin = store.provenance(name)
        spent = origin.training.privacy
        row = {
            "name": name,
            "method": origin.method,
            "examples": len(origin.data.examples),
            "leaves": len(origin.subset),
            "classes": origin.config.get("classes"),
            "epsilon": epsilon_of(spent),
            "unit": spent and spent.mechanism.unit,
            "train_seconds": round(origin.training.seconds, 1),
            "added": added[name],
            "fingerprint": store.state.components[name].weights[:12],
        }
        table.append(row)
    tabulate(table)
    return {"components": table, "receipts": len(store.state.receipts)}


def check_not_empty(store: tj.Store) -> None:
    """Raises InputError for a store without a component."""
    if not len(store):
        raise InputError(f"--store must have a component at least; {store.root} has none")


def epsilon_of(spent: tj.privacy.Spent | None) -> float | str | None:
    """The epsilon of a component, or the words "not private" if a seed drew the noise."""
    if spent is None:
        return None
    return round(spent.compute_epsilon(), 6) if spent.private else "not private"


def tabulate(rows: list[dict[str, Any]]) -> None:
    """Prints the rows in columns under their keys."""
    if not rows:
        return
    texts = [list(rows[0]), *([("-" if v is None else visible(str(v))) for v in row.values()] for row in rows)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(texts[0]))]
    for text in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip())


def compose(config: Config, store: tj.Store) -> dict[str, Any]:
    check_not_empty(store)
    if config.gave("settings") and not config.dataset:
        raise InputError("--settings has an effect only with --dataset in compose, which composes the sums; got none")
    if config.dataset and store.has_own_heads:
        raise InputError(
            "--dataset needs components of one head; these have heads of their own. Export them with --head and "
            "--dataset"
        )
    dw = store.compose(how=config.merge, penalty=config.merge_penalty)
    cost = store.spent()
    if store.has_own_heads:
        print("components with heads of their own: their bodies are composed, without heads", file=sys.stderr)
    if cost is not None:
        stated = f"epsilon {cost.epsilon:.4g} at delta {cost.delta:g}, {cost.neighbouring}"
        print(f"together: {stated if cost.private else 'NOT private: a seed drew the noise'}", file=sys.stderr)
    spent = None if cost is None else dataclasses.asdict(cost)
    result = {
        "composed": len(store),
        "merge": merge_of(config, store),
        "fingerprint": trees.fingerprint(dw),
        "privacy": spent,
    }
    return result | ({"accuracy": measured(config, *composed(config, store))} if config.dataset else {})


def merge_of(config: Config, store: tj.Store) -> str:
    """How components are composed: statistics are summed, whatever --merge is."""
    return "sum" if store.provenance(next(iter(store))).features else config.merge


def planned(config: Config, store: tj.Store) -> tj.store.RemovalPlan:
    """The removal plan of the flags."""
    if len([flag for flag in REQUEST if getattr(config, flag)]) != 1:
        raise InputError("one of --name, --examples and --owner must be given; got several or none")
    if config.name and (config.retrain or config.exact):
        raise InputError(
            "--retrain and --exact need --examples or --owner; got --name, which drops the components. Name the images "
            "in a file"
        )
    if config.retrain and config.exact:
        raise InputError("--retrain or --exact must be given; got both")
    if config.examples:
        return tj.store.plan_removal(store, examples=setup.read_words("examples", config.examples))
    return tj.store.plan_removal(store, names=config.name, owner=config.owner or None)


def describe(config: Config, plan: tj.store.RemovalPlan, how: str) -> list[dict[str, Any]]:
    """Prints plan and cost on stderr; with --dry_run also why other ways fail. Returns the plan."""
    described = []
    for name, holding in plan.components.items():
        asked = len(holding.rows)
        others = holding.left
        seconds = holding.seconds.get(how, 0.0)
        way = how if others else "drop"
        described.append({"component": name, "how": way, "asked": asked, "left": others, "seconds": round(seconds, 1)})
        after = {
            "drop": f"dropped, the {others} others with them (--retrain keeps those)" if others else "dropped",
            "retrain": f"retrained on the {others} left, about {seconds:.1f} s of training without compiling",
            "exact": f"moved to the optimum of the {others} left, about {seconds:.1f} s of training",
        }
        share = "" if config.name else f"{asked} of its {asked + others} examples asked for; "
        print(f"{name}: {share}{after[way]}", file=sys.stderr)
        if config.dry_run and not config.name:
            for other, reason in holding.impossible.items():
                print(f"{name}: not --{other}: {reason}", file=sys.stderr)
    for line in plan.anchors:
        print(f"NOT removed: {line}", file=sys.stderr)
    if plan.unseen:
        print(f"{len(plan.unseen)} images that no component saw: their cached rows go, if any", file=sys.stderr)
    for word, day in plan.removed.items():
        print(f"{visible(word)}: removed before, on {day}; its cached rows are searched again", file=sys.stderr)
    return described


def remove(config: Config, store: tj.Store) -> dict[str, Any]:
    if not config.dry_run:
        store.settle()  # left by a killed removal
    plan = planned(config, store)
    how = "exact" if config.exact else "retrain" if config.retrain else "drop"
    cache = tj.Cache(config.cache_dir)
    result = {"dry_run": config.dry_run, "plan": describe(config, plan, how), "removed_before": plan.removed}
    result |= {"unseen": len(plan.unseen)}
    if config.dry_run or not (plan.components or plan.unseen):
        act = tj.store.preview_removal if config.dry_run else tj.store.erase_cached
        traces = act(store, plan, cache)
        tell("would delete" if config.dry_run else "deleted", *traces)
        return result | {"removed": [], "anchors": plan.anchors, **plain_traces(traces.deleted, traces.not_reached)}
    receipt = tj.store.remove(store, plan, how, cache=cache, weights=config.weights)
    tell("deleted", receipt.deleted, receipt.not_reached)
    for name, optimum in receipt.optima.items():
        if not optimum.converged:
            reached = f"certificate {optimum.certificate:.3g} after {optimum.passes} passes"
            print(f"NOT converged: {name}, {reached}; drop or retrain it where that is too far", file=sys.stderr)
    print(f"removed; receipt: {receipt.path}", file=sys.stderr)
    result |= {"removed": sorted(receipt.removed), "retrained": sorted(receipt.retrained), "anchors": receipt.anchors}
    result |= plain_traces(receipt.deleted, receipt.not_reached)
    if receipt.optima:
        for field in ("certificate_before", "certificate", "passes"):  # the farthest of several
            result[field] = max(getattr(optimum, field) for optimum in receipt.optima.values())
    return result | {"composed_after": receipt.composed_after, "receipt": str(receipt.path)}


def tell(what: str, deleted: Iterable[Trace], not_reached: Iterable[Trace]) -> None:
    """Prints each deletion, and each known place that was not reached, on stderr."""
    for trace in deleted:
        print(f"{what} {trace}", file=sys.stderr)
    for trace in not_reached:
        print(f"NOT reached: {trace}", file=sys.stderr)


def plain_traces(deleted: Iterable[Trace], not_reached: Iterable[Trace]) -> dict[str, Any]:
    """The traces as JSON has them."""
    return {"deleted": [*map(plain, deleted)], "not_reached": [*map(plain, not_reached)]}


def verify(config: Config, store: tj.Store) -> dict[str, Any]:
    wrong = tj.store.verify(store)
    if config.receipt:
        wrong += tj.store.verify_receipt(store, config.path("receipt"))
    for line in wrong:
        print(line, file=sys.stderr)
    return {"verified": not wrong, "wrong": wrong, "components": len(store), "receipt": config.receipt}


def export_all(config: Config, store: tj.Store) -> dict[str, Any]:
    if not config.to:
        raise InputError("--to=FOLDER must be given; got none")
    check_not_empty(store)
    names = [*store]
    to = str(config.path("to").absolute())
    if config.head not in (*names, "union") and (config.head is not None or store.has_own_heads):
        raise InputError(f"--head must be one of the components, or union; got {config.head or 'none'}")
    if Path(to).exists():
        raise InputError(f"--to must be a folder that does not exist yet; got {to}")
    tj.exports.check_format(config.format, config.opset)
    predict, classes, dw = composed(config, store)
    accuracy = measured(config, predict, classes, dw)
    released = store.release(to, dw)
    if [*store] != names:
        raise InputError(f"the store {store.root} was changed while it was exported. Try again")
    cost = store.spent()
    fingerprint = trees.fingerprint(dw)
    spent = None if cost is None else dataclasses.asdict(cost)
    removed = {"examples": len(store.state.forgotten), "receipts": store.state.receipts}
    sources = {
        "fingerprint": fingerprint,
        "privacy": spent,
        "merge": merge_of(config, store),
        "removals": removed,
        "accuracy": accuracy,
    }
    tj.export(to, predict, dw, {**sources, **released}, config.format, classes, config.opset)
    return {"exported": config.to, "format": config.format, "fingerprint": fingerprint, "components": names}


def measured(config: Config, predict: ComponentPredictor, classes: tuple[str, ...], dw: Tree) -> dict[str, float]:
    """{data set: accuracy on its test images of the composed classes} for --dataset; {} without one."""
    if not config.dataset:
        return {}
    name, test = setup.test_features(config, config.dataset, predict, classes)
    accuracy = tj.evaluate(predict, dw, test)
    print(f"test accuracy on {name}, {len(test)} images: {accuracy:.4f}", file=sys.stderr)
    return {name: accuracy}


def composed(config: Config, store: tj.Store) -> tuple[ComponentPredictor, tuple[str, ...], Tree]:
    """(predictor, classes, tangent weights) of all components, composed by --merge and --head."""
    if config.head == "union":
        joined = tj.join(store, same_classes=config.same_classes, weights=config.weights)
        dw = tj.merge(joined.components, config.merge, config.merge_penalty)
        return joined.predict, joined.classes, dw
    name = config.head or min(store)
    origin = store.provenance(name)
    if origin.features is not None:
        total = store.statistics()
        if not config.gave("settings"):
            print(f"solved with the default --settings={config.settings}, which no image chose", file=sys.stderr)
        head = total.solve(setup.settings_of(config.settings))
        return tj.store.predictor_of(origin, name, config.weights), total.classes, head
    if config.gave("settings"):
        raise InputError("--settings has an effect only on statistics; the store has tangent weights")
    dw = store.sum(config.merge, config.merge_penalty)
    if config.head and "head" in store[name].dw:
        dw = {**dw, "head": store[name].dw["head"]}
    return tj.store.predictor_of(origin, name, config.weights), origin.classes, dw


REQUEST = {"name", "examples", "owner"}
"""The flags that say what is removed."""
MERGED = {"merge", "merge_penalty", "dataset", "settings", "cache_dir", "weights"}
"""The flags of a composed model."""
READ = {
    "add": {"source", "name"},
    "merge": {"source"},
    "list": set(),
    "compose": MERGED,
    "remove": REQUEST | {"retrain", "exact", "dry_run", "cache_dir", "weights"},
    "verify": {"receipt"},
    "export": MERGED | {"head", "same_classes", "to", "format", "opset"},
}
"""The flags of each command besides --store."""
COMMANDS = {
    "add": add,
    "merge": merge,
    "list": listing,
    "compose": compose,
    "remove": remove,
    "verify": verify,
    "export": export_all,
}

if __name__ == "__main__":
    command.run(main, Config, commands=READ)

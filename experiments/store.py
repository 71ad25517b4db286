"""The operator's tool: python -m experiments.store COMMAND --store=DIR, where COMMAND is one of

add      a component from a folder that finetune wrote (--source, --name)
list     the components: whose data, how much, when
compose  the mean of all components, or by --merge weighted by the factors that they were added with; kept in the store
remove   components by --names, or all that saw the --examples of a file; --retrain puts each back without them, --exact
         moves each that was solved (finetune --solver=optimum) to the optimum of what is left of its data
verify   every file against its hash; with --receipt, whether a removal stands
export   the composed model to --to: anchor and step under timm's names
convert  a store of version 0.1 to this version's format, in place

What it does is said on stderr before it is done (--dry_run: and not done). --json prints JSON instead of a table; the
last line of stdout is the result as one JSON object in either case.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np
from absl import flags

import tangent_jax as tj
from experiments.shared import command
from experiments.shared.flags import F, define
from tangent_jax.components import version_0_1
from tangent_jax.components.merge import MERGES
from tangent_jax.core import require, trees
from tangent_jax.core.files import expanded
from tangent_jax.core.records import read_lines

define("cache_dir", weights=None)
flags.DEFINE_string("store", "out/store", "Folder of the store.")
flags.DEFINE_string("source", "out/finetune", "add: folder with dw.safetensors.")
flags.DEFINE_string("name", None, "add: the component's name; unset: the folder's.")
flags.DEFINE_list("names", [], "remove: components, separated by commas.")
flags.DEFINE_string("examples", None, "remove: a file of content identifiers or image names, one a line.")
flags.DEFINE_bool("retrain", False, "remove: train each component again on what is left of its data.")
flags.DEFINE_bool("exact", False, "remove: move each solved component to its optimum without them, certified.")
flags.DEFINE_enum("merge", "mean", MERGES, "compose: how the components weigh.")
flags.DEFINE_float("merge_penalty", 1e-3, "compose: of --merge, the ridge of each example.", lower_bound=1e-12)
flags.DEFINE_bool("dry_run", False, "remove: say what would be done, and what it costs; do nothing.")
flags.DEFINE_string("receipt", None, "verify: a receipt, to be checked too.")
flags.DEFINE_string("to", None, "export: a folder that does not exist yet.")
flags.DEFINE_bool("json", False, "JSON instead of a table.")


def main(command: str) -> None:
    path = expanded("store", F.store)
    known = command == "add" or (path / "HEAD").exists() or (path / "store.json").exists()
    require(known, "store", "a store", f"{path}, which is none", "Pass --store=DIR, or add a component first")
    result = COMMANDS[command](version_0_1.convert(path) if command == "convert" else tj.Store(path))
    if F.json:
        print(json.dumps(result, indent=1))
    print(json.dumps(result))
    if result.get("wrong"):
        sys.exit(1)


def add(store: tj.Store) -> dict[str, Any]:
    folder = expanded("store add", F.source)
    path, name = folder / "dw.safetensors", F.name or folder.resolve().name
    require(path.exists(), "store add", f"dw.safetensors in {folder}", "no such file", "Run finetune with --out")
    dw, metadata = tj.read_step(path)
    require("provenance" in metadata, "store add", f"a step with provenance in {path}", "none", "Run finetune")
    origin = tj.Provenance.from_json(metadata["provenance"], f"the provenance in {path}")
    own = folder / "factors.safetensors"
    store.add(name, dw, origin, tj.read_factors(own) if own.exists() else None)
    return {"added": name, "weights": store.state.components[name]["weights"]}


def listing(store: tj.Store) -> dict[str, Any]:
    added: dict[str, str] = {}
    for line in store.journal.entries:
        names = [line["name"]] if line["op"] == "add" else line.get("added", ())
        added |= dict.fromkeys(names, line["time"])
    table = []
    for name in store:
        origin = store.provenance(name)
        row = {"name": name, "method": origin.method, "examples": len(origin.examples), "leaves": len(origin.subset)}
        row |= {"epsilon": epsilon_of(origin.spent)}
        row |= {"train_seconds": round(origin.seconds, 1), "added": added[name]}
        table.append(row | {"weights": store.state.components[name]["weights"][:12]})
    tabulate(table)
    return {"components": table, "compositions": len(store.state.composed), "receipts": len(store.state.receipts)}


def epsilon_of(spent: tj.Spent | None) -> float | str | None:
    """What a component spent; of one whose noise a seed drew, that it is not private."""
    if spent is None:
        return None
    return round(spent.mechanism.epsilon, 6) if spent.private else "not private"


def tabulate(rows: list[dict[str, Any]]) -> None:
    """The rows under their keys, in columns, unless --json."""
    if F.json or not rows:
        return
    texts = [list(rows[0]), *([("-" if value is None else str(value)) for value in row.values()] for row in rows)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(texts[0]))]
    for text in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip())


def compose(store: tj.Store) -> dict[str, Any]:
    require(len(store), "store compose", "at least one component", f"none in {store.root}")
    dw, spent = store.compose(how=F.merge, penalty=F.merge_penalty), store.spent([*store])
    if spent is not None:
        stated = f"epsilon {spent['epsilon']:.4g} at delta {spent['delta']:g}"
        print(f"together: {stated if spent['private'] else 'NOT private: a seed drew the noise'}", file=sys.stderr)
    return {"composed": len(store), "merge": F.merge, "weights": trees.fingerprint(dw), "privacy": spent}


def remove(store: tj.Store) -> dict[str, Any]:
    one = bool(F.names) != bool(F.examples)
    require(one, "store remove", "--names or --examples, one of them", "both or none")
    do, again = "Name the images in a file, --examples; else the components are dropped", F.retrain or F.exact
    require(not (F.names and again), "store remove", "--examples with --retrain or --exact", "--names", do)
    require(not (F.retrain and F.exact), "store remove", "--retrain or --exact", "both")
    asked, unknown, affected = [], [], {name: [] for name in F.names}
    if F.examples:
        path = expanded("store remove", F.examples)
        require(path.exists(), "store remove", "a file of examples", f"{path}, which does not exist")
        asked = read_lines("store remove", path)
        affected, unknown = store.holding(asked)
    origins = {name: store.provenance(name) for name in affected}
    plan = describe(store, origins, affected, unknown)
    if F.dry_run or not affected:
        return {"plan": plan, "unknown": unknown, "removed": []}
    retrained = {}
    for name, origin in origins.items() if again else ():
        do = "Drop it; train anew"
        require(origin.privacy is None, "store remove", "components without privacy to --retrain", name, do)
        start = jax.tree.map(np.array, store[name]) if F.exact else None
        new = tj.retrain(
            origin, set(affected[name]), name, tj.Cache(F.cache_dir), F.weights, start, store.has_factors(name)
        )
        retrained |= {} if new is None else {name: new}
    going = store.going(origins, asked)
    traces = tj.erase_traces(
        store, {name: going & origin.identifiers for name, origin in origins.items()}, [F.cache_dir]
    )
    receipt_id, receipt = store.remove(list(affected), asked=asked, retrained=retrained, traces=traces)
    path = store.root / "receipts" / f"{receipt_id}.json"
    for line in traces.deleted:
        print(f"deleted {line}", file=sys.stderr)
    for line in (*traces.not_reached, *receipt["exported_before"]):
        print(f"NOT reached: {line}", file=sys.stderr)
    print(f"removed; receipt: {path}", file=sys.stderr)
    result = {"plan": plan, "unknown": unknown, "removed": sorted(affected), "retrained": sorted(retrained)}
    result |= {"deleted": traces.deleted, "not_reached": traces.not_reached}
    if receipt["optima"]:  # of several components, the farthest
        for field in ("certificate_before", "certificate", "passes"):
            result[field] = max(one[field] for one in receipt["optima"].values())
    return result | {"composed_after": receipt["composed_after"], "receipt": str(path)}


def describe(
    store: tj.Store, origins: dict[str, tj.Provenance], affected: dict[str, list[str]], unknown: list[str]
) -> list[dict]:
    """What will be done and what it costs, said on stderr; copies of an example in several components are told."""
    plan, places = [], {}
    for name, origin in origins.items():
        left = len(origin.examples) - len(affected[name]) if affected[name] else 0
        again = F.retrain or F.exact
        seconds = origin.seconds * left / max(len(origin.examples), 1) if again else 0.0
        plan.append({"component": name, "asked": len(affected[name]), "left": left, "seconds": round(seconds, 1)})
        how = "moved to the optimum of" if F.exact else "trained again on"
        then = (
            f"{how} the {left} left, {'at most' if F.exact else 'about'} {seconds:.1f} s"
            if again and left
            else "dropped"
        )
        of = f"{len(affected[name])} of its {len(origin.examples)} examples asked for; " if affected[name] else ""
        print(f"{name}: {of}{then}", file=sys.stderr)
        for identifier, image in origin.examples:
            if identifier in affected[name]:
                places.setdefault(identifier, []).append(f"{image} in {name}")
    for identifier, found in places.items():
        if len(found) > 1:
            print(f"copies of {identifier[:12]}: {', '.join(found)}", file=sys.stderr)
    for example in unknown:
        before = " now: it was removed before" if store.state.has_forgotten(example) else ""
        print(f"{example}: no component saw it{before}", file=sys.stderr)
    return plan


def verify(store: tj.Store) -> dict[str, Any]:
    wrong = store.verify()
    if F.receipt:
        wrong += store.verify_receipt(expanded("store verify", F.receipt))
    for line in wrong:
        print(line, file=sys.stderr)
    return {"verified": not wrong, "wrong": wrong, "components": len(store), "receipt": F.receipt}


def export_all(store: tj.Store) -> dict[str, Any]:
    require(F.to, "store export", "--to=FOLDER", "none")
    require(len(store), "store export", "at least one component", f"none in {store.root}")
    names, to = [*store], expanded("store export", F.to)
    require(not to.exists(), "store export", "a folder that does not exist yet in --to", to)
    parts = {name: dataclasses.asdict(store.provenance(name)) for name in names}
    predict = tj.predictor_of(store.provenance(names[0]), names[0], F.weights)
    dw = store.release(to.absolute())
    require(
        [*store] == names, "store export", "a store that nothing changes meanwhile", "one that changed", "Try again"
    )
    weights = trees.fingerprint(dw)
    tj.export(to, predict, dw, {"weights": weights, "mean_of": parts})
    return {"exported": F.to, "weights": weights, "components": names}


def converted(store: tj.Store) -> dict[str, Any]:
    return {"converted": len(store), "store": str(store.root)}


COMMANDS = {
    "add": add,
    "list": listing,
    "compose": compose,
    "remove": remove,
    "verify": verify,
    "export": export_all,
    "convert": converted,
}

if __name__ == "__main__":
    command.run(main, commands=COMMANDS)

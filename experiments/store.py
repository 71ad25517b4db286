"""The operator's tool: python -m experiments.store COMMAND --store=DIR, where COMMAND is one of

add      a component from a folder that finetune wrote (--source, --name)
list     the components: whose data, how much, when
compose  the mean of all components, kept in the store
remove   components by --names, or all that saw the --examples of a file; --retrain puts each back without them
verify   every file against its hash; with --receipt, whether a removal stands
export   the composed model to --to: anchor and step under timm's names

What it does is said on stderr before it is done (--dry_run: and not done). --json prints JSON instead of a table; the
last line of stdout is the result as one JSON object in either case.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from safetensors.numpy import load_file

from experiments import binary, common
from experiments.sharded import key_from, train_apart
from tangent_jax import trees, weights
from tangent_jax.checks import require
from tangent_jax.data.sources import open_dataset
from tangent_jax.exports import export
from tangent_jax.fit import Settings, distance_bound
from tangent_jax.notation import Tree
from tangent_jax.provenance import Provenance, check_same, make_provenance
from tangent_jax.store import Store

STORE = flags.DEFINE_string("store", "out/store", "Folder of the store.")
SOURCE = flags.DEFINE_string("source", "out/finetune", "add: folder with dw.safetensors and provenance.json.")
NAME = flags.DEFINE_string("name", None, "add: the component's name; unset: the folder's.")
NAMES = flags.DEFINE_list("names", [], "remove: components, separated by commas.")
EXAMPLES = flags.DEFINE_string("examples", None, "remove: a file of content identifiers or image names, one a line.")
RETRAIN = flags.DEFINE_bool("retrain", False, "remove: train each component again on what is left of its data.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "remove: say what would be done, and what it costs; do nothing.")
RECEIPT = flags.DEFINE_string("receipt", None, "verify: a receipt, to be checked too.")
TO = flags.DEFINE_string("to", None, "export: a folder that does not exist yet.")
JSON = flags.DEFINE_bool("json", False, "JSON instead of a table.")


def main(command: str) -> None:
    path = Path(STORE.value).expanduser()
    known = command == "add" or (path / "HEAD").exists()
    require(known, "store", "a store", f"{path}, which is none", "Pass --store=DIR, or add a component first")
    store = Store(path)
    result = COMMANDS[command](store)
    if JSON.value:
        print(json.dumps(result, indent=1))
    print(json.dumps(result))
    if result.get("wrong"):
        sys.exit(1)


def add(store: Store) -> dict[str, Any]:
    folder = Path(SOURCE.value)
    for name in ("dw.safetensors", "provenance.json"):
        require((folder / name).exists(), "store add", f"{name} in {folder}", "no such file", "Run finetune with --out")
    name = NAME.value or folder.resolve().name
    dw = trees.nest(load_file(folder / "dw.safetensors"))
    store.add(name, dw, Provenance.from_json((folder / "provenance.json").read_text()))
    return {"added": name, "weights": store.components[name]["weights"]}


def listing(store: Store) -> dict[str, Any]:
    rows = []
    for line in store.journal.entries:
        names = [line["name"]] if line["op"] == "add" else list(line.get("added", ()))
        rows += [(name, line["time"]) for name in names]
    added = dict(rows)
    table = []
    for name in sorted(store.components):
        origin = store.provenance(name)
        table.append(
            {
                "name": name,
                "method": origin.method,
                "examples": len(origin.examples),
                "leaves": len(origin.subset),
                "epsilon": origin.privacy and round(origin.privacy["epsilon"], 6),
                "train_seconds": round(origin.seconds, 1),
                "added": added[name],
                "weights": store.components[name]["weights"][:12],
            }
        )
    tabulate(table)
    return {"components": table, "compositions": len(store.composed), "receipts": len(store.receipts)}


def tabulate(rows: list[dict[str, Any]]) -> None:
    """The rows under their keys, in columns, unless --json."""
    if JSON.value or not rows:
        return
    texts = [list(rows[0]), *([("-" if value is None else str(value)) for value in row.values()] for row in rows)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(texts[0]))]
    for text in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip())


def compose(store: Store) -> dict[str, Any]:
    require(store.components, "store compose", "at least one component", f"none in {store.root}")
    dw = store.compose()
    spent = store.spent(sorted(store.components))
    if spent is not None:
        print(f"together: epsilon {spent['epsilon']:.4g} at delta {spent['delta']:g}", file=sys.stderr)
    return {"composed": len(store.components), "weights": trees.fingerprint(dw), "privacy": spent}


def remove(store: Store) -> dict[str, Any]:
    one = bool(NAMES.value) != bool(EXAMPLES.value)
    require(one, "store remove", "--names or --examples, one of them", "both or none")
    asked: list[str] = []
    affected: dict[str, list[str]] = {name: [] for name in NAMES.value}
    unknown: list[str] = []
    if EXAMPLES.value:
        path = Path(EXAMPLES.value)
        require(path.exists(), "store remove", "a file of examples", f"{path}, which does not exist")
        asked = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        affected, unknown = store.holding(asked)
    origins = {name: store.provenance(name) for name in affected}
    plan = describe(origins, affected, unknown)
    if DRY_RUN.value or not affected:
        return {"plan": plan, "unknown": unknown, "removed": []}
    retrained, bounds = {}, {}
    for name, origin in origins.items() if RETRAIN.value else ():
        private = origin.privacy is not None
        require(not private, "store remove", "components without privacy to --retrain", name, "Drop it; train anew")
        made = retrain(origin, set(affected[name]), name)
        if made is not None:
            retrained[name], bounds[name] = made
    receipt_id, receipt = store.remove(list(affected), asked=asked, retrained=retrained, distance_bounds=bounds)
    path = store.root / "receipts" / f"{receipt_id}.json"
    print(f"removed; receipt: {path}", file=sys.stderr)
    return {
        "plan": plan,
        "unknown": unknown,
        "removed": sorted(affected),
        "retrained": sorted(retrained),
        "composed_after": receipt["composed_after"],
        "receipt": str(path),
    }


def describe(origins: dict[str, Provenance], affected: dict[str, list[str]], unknown: list[str]) -> list[dict]:
    """What will be done and what it costs, said on stderr; copies of an example in several components are told."""
    plan = []
    for name, origin in origins.items():
        left = len(origin.examples) - len(affected[name]) if affected[name] else 0
        seconds = origin.seconds * left / max(len(origin.examples), 1) if RETRAIN.value else 0.0
        plan.append({"component": name, "asked": len(affected[name]), "left": left, "seconds": round(seconds, 1)})
        then = f"trained again on the {left} left, about {seconds:.1f} s" if RETRAIN.value and left else "dropped"
        of = f"{len(affected[name])} of its {len(origin.examples)} examples asked for; " if affected[name] else ""
        print(f"{name}: {of}{then}", file=sys.stderr)
    places: dict[str, list[str]] = {}
    for name, origin in origins.items():
        for identifier, image in origin.examples:
            if identifier in affected[name]:
                places.setdefault(identifier, []).append(f"{image} in {name}")
    for identifier, found in places.items():
        if len(found) > 1:
            print(f"copies of {identifier[:12]}: {', '.join(found)}", file=sys.stderr)
    for example in unknown:
        print(f"{example}: no component saw it", file=sys.stderr)
    return plan


def task_of(origin: Provenance, name: str) -> common.Task:
    """The anchor that the component's recipe names; --weights says where its file is now."""
    recipe = origin.recipe
    for flag in ("image_size", "dtype", "cache_dtype", "output"):
        setattr(flags.FLAGS, flag, recipe[flag])
    source = common.WEIGHTS.value if common.WEIGHTS.present else recipe["weights"]
    choice = common.Choice(**recipe["choice"])
    task = common.prepare(weights.load(source), origin.config["classes"], choice, recipe["seed"])
    config, w = task.model.config, task.model.params
    check_same(f"store, {name}", origin, make_provenance(config, w, task.subset, (), {}, 0.0, origin.method))
    return task


def retrain(origin: Provenance, gone: set[str], name: str) -> tuple[tuple[Tree, Provenance], float] | None:
    """The component trained again from its recipe without the examples `gone`; None where nothing is left."""
    task, recipe = task_of(origin, name), origin.recipe
    everything = task.inputs(open_dataset(recipe["dataset"]).splits["train"], f"{name}: train inputs")
    wanted = {pair for pair in origin.examples if pair[0] not in gone}
    rows = np.array([i for i, pair in enumerate(everything.examples) if pair in wanted], int)
    expected = f"the {len(wanted)} examples left of {name} in {recipe['dataset']}"
    require(len(rows) == len(wanted), "store remove", expected, len(rows))
    if not len(rows):
        return None
    settings = Settings(**{**recipe["settings"], "decay_at": tuple(recipe["settings"]["decay_at"])})
    one = train_apart(task, everything, [rows], settings, [key_from(recipe["key"])], f"{name}: training again")[0]
    left = everything.take(rows)
    provenance = dataclasses.replace(origin, examples=left.examples, seconds=one.seconds)
    bound = distance_bound(task.predict, one.dw, left.inputs, left.labels, settings)
    return (one.dw, provenance), bound


def verify(store: Store) -> dict[str, Any]:
    wrong = store.verify()
    if RECEIPT.value:
        require(Path(RECEIPT.value).exists(), "store verify", "a receipt", f"{RECEIPT.value}, which does not exist")
        wrong += store.verify_receipt(RECEIPT.value)
    for line in wrong:
        print(line, file=sys.stderr)
    return {"verified": not wrong, "wrong": wrong, "components": len(store.components), "receipt": RECEIPT.value}


def export_all(store: Store) -> dict[str, Any]:
    to = str(TO.value or "")
    require(to, "store export", "--to=FOLDER", "none")
    require(store.components, "store export", "at least one component", f"none in {store.root}")
    names = sorted(store.components)
    origin = store.provenance(names[0])
    task = task_of(origin, names[0])
    dw = store.compose()
    parts = {name: dataclasses.asdict(store.provenance(name)) for name in names}
    found = trees.fingerprint(dw)
    export(to, task.model, dw, {"weights": found, "mean_of": parts})
    store.exported(to, found)
    return {"exported": to, "weights": found, "components": names}


COMMANDS = {
    "add": add,
    "list": listing,
    "compose": compose,
    "remove": remove,
    "verify": verify,
    "export": export_all,
}

if __name__ == "__main__":
    binary.run(main, commands=COMMANDS)

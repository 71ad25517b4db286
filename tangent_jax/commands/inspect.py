"""Writes a store as pages for a browser, and with --examples or --owner the page of a removal request.

index.html in --out shows components and their owners, privacy cost, similarity, compositions, removals with the check
of their receipts, and all events; with --dataset also the accuracy with and without each component. Each removal has a
page with its receipt in words. request.html answers a removal request: the components that hold the images, the cost of
each way of removal, and its command. Pages need no network and run no scripts. The store does not change.

record.md, also on stdout, is the page for the file of a request: who asked, what was found, what was erased, what is
not reached and until when, the model before and after, how to check it. The backups on it are those of the list
STORE.backups.toml beside the store (docs/howto/removal_request.md).

The last line of stdout: {"components", "removals", "verified": true if every file and receipt matches the journal,
"wrong": a line for each that does not (exit code 1), "accuracy": with --dataset {"tasks", "whole": the accuracy of each
task with all components, "without": {component: without it}}, "seconds", "page", "request": its page, "record": its
record}.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.report import requests
from tangent_jax.commands.report.backups import read_backups
from tangent_jax.commands.report.inspector import Inspection
from tangent_jax.commands.report.record import record_page
from tangent_jax.commands.report.rendering import write_page
from tangent_jax.commands.shared import codes, command
from tangent_jax.commands.shared.accuracies import Accuracies, tasks_of
from tangent_jax.commands.shared.flags import CACHED, F, define, path_of
from tangent_jax.commands.shared.removing import searched_cache
from tangent_jax.commands.shared.stores import check_store
from tangent_jax.core.checks import InputError, visible
from tangent_jax.data import Owner
from tangent_jax.io.files import write_whole
from tangent_jax.io.progress import progress_bar

define(*CACHED, weights=None, dataset=[], out="out/inspect")
define("store", "trust", "examples", "owner", "owners", "rehearse")


def main() -> None:
    began = time.perf_counter()
    path = path_of("store")
    check_store(path, "Compose and store add make stores")
    request = asked()
    store = tj.Store(path, trust=F.trust)
    plan = request and request.plan(store, tj.shards.read_owners(F.owners) if F.owners else None)
    backups = read_backups(store.root)
    seen = Inspection(store)
    accuracies = measured(seen)
    out = command.out_folder()
    values: dict[str, Any] = {"seen": seen, "version": tj.__version__, "asked": request is not None}
    for removal in seen.removals:
        write_page(out / removal.page, "receipt.html", removal=removal, **values)
    if request is not None and plan is not None:
        answer = answered(seen, request, plan, accuracies, out)
        again = ["tangent-jax", "inspect", *flags_of(request, out), f"--out={out}"]
        text = record_page(seen, request, plan, answer["ways"], answer["preview"], backups, again)
        write_whole(out / "record.md", text, private=True)
        print(text)
        requests.check_known(seen, request, plan)
        write_page(out / "request.html", "request.html", **answer, **values)
    with_each = with_and_without(seen, accuracies)
    write_page(out / "index.html", "index.html", accuracy=with_each, **values)
    for line in seen.wrong:
        print(line, file=sys.stderr)
    result: dict[str, Any] = {"components": len(store), "removals": len(seen.removals), "verified": not seen.wrong}
    result |= {"wrong": seen.wrong, "accuracy": with_each}
    result |= {"seconds": time.perf_counter() - began, "page": str(out / "index.html")}
    pages = {"request": "request.html", "record": "record.md"}
    command.finish(result | {name: str(out / page) if request else None for name, page in pages.items()})
    if seen.wrong:
        sys.exit(codes.FAILED)


def asked() -> requests.Request | None:
    """The removal request in the flags, or None."""
    if F.examples is not None and F.owner is not None:
        raise InputError("--examples or --owner must be given; got both")
    if F.owners is not None and not F.owner:
        raise InputError("--owners needs --owner; got none")
    if F.rehearse and not (F.examples or F.owner):
        raise InputError("--rehearse needs --examples or --owner; got neither")
    if F.owner is not None:
        return requests.Request(owner=Owner(F.owner), spelling=F.owner)
    return None if F.examples is None else requests.read_request(path_of("examples"))


def measured(seen: Inspection) -> Accuracies | None:
    """The accuracies on the flags' test data; None without test data, or if a component is damaged."""
    if not F.dataset or not seen.components:
        return None
    if len(seen.whole) < len(seen.components):
        print("a component is damaged: no accuracy is measured", file=sys.stderr)
        return None
    return Accuracies(seen.store, tasks_of(seen.store, F.dataset, F.weights))


def with_and_without(seen: Inspection, accuracies: Accuracies | None) -> dict[str, Any] | None:
    """The accuracy of each task with all components, and by component without it."""
    if accuracies is None:
        return None
    without = {}
    with tj.show_progress("accuracy without one"), progress_bar(len(seen.components), "component") as bar:
        for component in seen.components:
            without[component.name] = accuracies([component.name])
            bar.update()
    return {"tasks": [task.name for task in accuracies.tasks], "whole": accuracies.whole, "without": without}


def answered(
    seen: Inspection, request: requests.Request, plan: tj.store.RemovalPlan, accuracies: Accuracies | None, out: Path
) -> dict[str, Any]:
    """The values of a request's page; identifiers of requested images are written to a file for the command."""
    if request.files:
        write_whole(out / "request.txt", "".join(f"{identifier}\n" for identifier in request.asked), private=True)
    names = {image for holding in plan.components.values() for _, image in holding.rows}
    names |= {name for _, name in plan.unseen}
    if names:
        write_whole(out / "images.txt", "".join(f"{visible(name)}\n" for name in sorted(names)), private=True)
    where = searched_cache()
    rehearse = partial(tj.store.rehearse, seen.store, plan, cache=where, weights=F.weights) if F.rehearse else None
    ways = requests.ways_of(plan, requests.commands_of(flags_of(request, out)), accuracies, rehearse)
    images, reasons = requests.asked_images(seen, request, plan)
    answer = {"request": request, "plan": plan, "ways": ways, "images": images, "reasons": reasons}
    answer |= {"unknown": requests.unknown(seen, request, plan), "preview": requests.preview_of(seen, plan, where)}
    tasks = [task.name for task in accuracies.tasks] if accuracies else []
    answer |= {"tasks": tasks, "whole": accuracies.whole if accuracies else [], "shown": requests.SHOWN}
    of_statistics = any(component.origin and component.origin.features for component in seen.components)
    return answer | {"of_statistics": of_statistics}


def flags_of(request: requests.Request, out: Path) -> list[str]:
    """The flags by which other commands mean this request; of images, the file of their identifiers."""
    cache = F["cache_dir"]
    given = {"store": str(path_of("store").absolute()), "owners": F.owners, "weights": F.weights}
    given["cache_dir"] = None if cache.value == cache.default else cache.value
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    if request.owner is not None:
        return [*flags, f"--owner={F.owner}"]
    return [*flags, f"--examples={out / 'request.txt' if request.files else F.examples}"]


if __name__ == "__main__":
    command.run(main)

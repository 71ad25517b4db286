"""Writes a store as pages for a browser, and with --examples or --owner the page of a removal request.

index.html in --out shows components and their owners, privacy cost, similarity, compositions, removals with the check
of their receipts, and all events; with --dataset also the accuracy with and without each component. Each removal has a
page with its receipt in words. request.html answers a removal request: the components that hold the images, the cost of
each way of removal, and its command. Pages need no network and run no scripts. The store does not change.

The last line of stdout: {"components", "removals", "verified": true if every file and receipt matches the journal,
"wrong": a line for each that does not (exit code 1), "seconds", "page", "request": its page}.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.report import requests
from tangent_jax.commands.report.inspector import Inspection
from tangent_jax.commands.report.rendering import write_page
from tangent_jax.commands.shared import codes, command
from tangent_jax.commands.shared.accuracies import Accuracies, tasks_of
from tangent_jax.commands.shared.flags import CACHED, F, define
from tangent_jax.core.checks import require
from tangent_jax.data import Owner
from tangent_jax.io.files import expand_path, write_whole
from tangent_jax.io.progress import progress_bar

define(*CACHED, weights=None, dataset=[], out="out/inspect")
define("store", "trust", "examples", "owner", "owners", "rehearse")


def main() -> None:
    began, path = time.perf_counter(), expand_path(F.store)
    do = "Pass --store=DIR; compose and store add make stores"
    require(tj.store.is_store(path), "inspect", "a store", f"{path}, which is none", do)
    request = asked()
    store = tj.Store(path, trust=F.trust)
    plan = request and request.plan(store, tj.shards.read_owners(F.owners) if F.owners else None)
    seen = Inspection(store)
    if request is not None and plan is not None:
        requests.check_known(seen, request, plan)
    accuracies = measured(seen)
    out = command.out_folder()
    values: dict[str, Any] = {"seen": seen, "version": tj.__version__, "asked": request is not None}
    for removal in seen.removals:
        write_page(out / removal.page, "receipt.html", removal=removal, **values)
    if request is not None and plan is not None:
        answer = answered(seen, request, plan, accuracies, out)
        write_page(out / "request.html", "request.html", **answer, **values)
    write_page(out / "index.html", "index.html", accuracy=with_and_without(seen, accuracies), **values)
    for line in seen.wrong:
        print(line, file=sys.stderr)
    result: dict[str, Any] = {"components": len(store), "removals": len(seen.removals), "verified": not seen.wrong}
    result |= {"wrong": seen.wrong, "seconds": time.perf_counter() - began, "page": str(out / "index.html")}
    command.finish(result | {"request": str(out / "request.html") if request else None})
    if seen.wrong:
        sys.exit(codes.FAILED)


def asked() -> requests.Request | None:
    """The removal request in the flags, or None."""
    require(F.examples is None or F.owner is None, "inspect", "--examples or --owner", "both")
    require(F.owners is None or F.owner, "inspect", "--owner with --owners", "none")
    require(F.examples or F.owner or not F.rehearse, "inspect", "--examples or --owner with --rehearse", "neither")
    if F.owner is not None:
        return requests.Request(owner=Owner(F.owner))
    return None if F.examples is None else requests.read_request(expand_path(F.examples))


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
    file = out / "request.txt" if request.files else F.examples
    if request.files:
        write_whole(out / "request.txt", "".join(f"{identifier}\n" for identifier in request.asked))
    cache = F["cache_dir"]
    given = {"store": str(seen.store.root), "owners": F.owners, "weights": F.weights}
    given["cache_dir"] = None if cache.value == cache.default else ",".join(cache.value)
    where = tj.Cache(F.cache_dir)
    rehearse = partial(tj.store.rehearse, seen.store, plan, cache=where, weights=F.weights) if F.rehearse else None
    ways = requests.ways_of(plan, requests.commands_of(request, file, given), accuracies, rehearse)
    images, reasons = requests.asked_images(seen, request, plan)
    answer = {"request": request, "plan": plan, "ways": ways, "images": images, "reasons": reasons}
    answer |= {"unknown": requests.unknown(seen, request, plan), "beyond": requests.beyond_reach(seen, plan, where)}
    tasks = [task.name for task in accuracies.tasks] if accuracies else []
    return answer | {"tasks": tasks, "whole": accuracies.whole if accuracies else [], "shown": requests.SHOWN}


if __name__ == "__main__":
    command.run(main)

"""Writes a store as a page for a browser.

index.html in --out shows components, owners, privacy cost, removals with the check of their receipts, and exports; with
--dataset also the accuracy with and without each component. The page needs no network and runs no scripts. The store
does not change.

The last line of stdout: {"components", "removals", "verified": true if every file and receipt matches the journal,
"wrong": a line for each that does not (exit code 1), "accuracy": with --dataset {"tasks", "whole": the accuracy of each
task with all components, "without": {component: without it}}, "seconds", "page"}.
"""

import dataclasses
import sys
import time
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.report.inspector import Inspection
from tangent_jax.commands.report.rendering import write_page
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.accuracies import Accuracies, tasks_of
from tangent_jax.commands.shared.settings import Reading, Results
from tangent_jax.io.progress import progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Reading, Results):
    """A store, and test data of its components."""

    dataset: tuple[str, ...] = ()
    out: str = "out/inspect"
    store: str = "out/store"
    weights: str | None = None


def main(config: Config) -> None:
    began = time.perf_counter()
    path = config.path("store")
    setup.check_store(path, "Compose and store add make stores")
    store = tj.Store(path)
    seen = Inspection(store)
    accuracy = with_and_without(seen, measured(config, seen))
    page = command.out_folder(config) / "index.html"
    write_page(page, "index.html", seen=seen, version=tj.__version__, accuracy=accuracy)
    for line in seen.wrong:
        print(line, file=sys.stderr)
    result: dict[str, Any] = {"components": len(store), "removals": len(seen.removals), "verified": not seen.wrong}
    result |= {"wrong": seen.wrong, "accuracy": accuracy}
    command.finish(config, result | {"seconds": time.perf_counter() - began, "page": str(page)})
    if seen.wrong:
        sys.exit(codes.FAILED)


def measured(config: Config, seen: Inspection) -> Accuracies | None:
    """The accuracies on the flags' test data; None without test data, or if a component is damaged."""
    if not config.dataset or not seen.components:
        return None
    if len(seen.whole) < len(seen.components):
        print("a component is damaged: no accuracy is measured", file=sys.stderr)
        return None
    return Accuracies(seen.store, tasks_of(config, seen.store, config.dataset, config.weights))


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


if __name__ == "__main__":
    command.run(main, Config)

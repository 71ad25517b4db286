"""Writes a store as a page for a browser.

index.html in --out shows components, owners, privacy cost, removals with the check of their receipts, and exports; with
--dataset also the accuracy with and without each component. The page needs no network and runs no scripts. The store
does not change.

The last line of stdout: {"components", "removals", "verified": true if every file and receipt matches the journal,
"wrong": a line for each that does not (exit code 1), "accuracy": with --dataset {"dataset", "whole": the accuracy of
the mean of all components on its test images, "without": {component: without it}}, "seconds", "page"}.
"""

import dataclasses
import sys
import time
from typing import Any

import jax

import tangent_jax as tj
from tangent_jax.commands.report.inspector import Inspection
from tangent_jax.commands.report.rendering import write_page
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.settings import Reading, Results
from tangent_jax.core.checks import InputError
from tangent_jax.io.progress import progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Reading, Results):
    """A store, and test data of its components."""

    dataset: str | None = None
    out: str = "out/inspect"
    store: str = "out/store"
    weights: str | None = None


def main(config: Config) -> None:
    began = time.perf_counter()
    path = config.path("store")
    setup.check_store(path, "Compose and store add make stores")
    store = tj.Store(path)
    seen = Inspection(store)
    accuracy = with_and_without(config, seen)
    page = command.out_folder(config) / "index.html"
    write_page(page, "index.html", seen=seen, version=tj.__version__, accuracy=accuracy)
    for line in seen.wrong:
        print(line, file=sys.stderr)
    result: dict[str, Any] = {"components": len(store), "removals": len(seen.removals), "verified": not seen.wrong}
    result |= {"wrong": seen.wrong, "accuracy": accuracy}
    command.finish(config, result | {"seconds": time.perf_counter() - began, "page": str(page)})
    if seen.wrong:
        sys.exit(codes.FAILED)


def with_and_without(config: Config, seen: Inspection) -> dict[str, Any] | None:
    """The accuracy on --dataset of all components, and without each; None without it, or with a damaged component.

        mean without s = mean + (mean - dw_s) / (k - 1)

    So each component is read once. It differs from the mean of the survivors by rounding.
    """
    store, count = seen.store, len(seen.store)
    if not config.dataset or not count:
        return None
    if any(component.damage for component in seen.components):
        print("a component is damaged: no accuracy is measured", file=sys.stderr)
        return None
    first, origin = next(iter(seen.origins.items()))
    if origin.features is not None or store.has_own_heads:
        raise InputError(
            "--dataset needs tangent weights with one head; the components are statistics, or have heads of their own. "
            "Leave it out"
        )
    predict = tj.store.predictor_of(origin, first, config.weights)
    name, test = setup.test_features(config, config.dataset, predict, origin.classes)
    mean = tj.compose(store)
    without = {}
    with tj.show_progress("accuracy without one"), progress_bar(count, "component") as bar:
        for gone in store if count > 1 else ():
            rest = jax.tree.map(lambda leaf, own: leaf + (leaf - own) / (count - 1), mean, store.read_tree(gone))
            without[gone] = tj.evaluate(predict, rest, test)
            bar.update()
    return {"dataset": name, "whole": tj.evaluate(predict, mean, test), "without": without}


if __name__ == "__main__":
    command.run(main, Config)

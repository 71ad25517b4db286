"""Faults and lies of a contributor, for trials and tests: `--run-config 'faults="nan:0 anchor:1 halved_g:2 silent:3"'`.

    nan       its numbers hold a NaN                anchor    it computed at another anchor, or other features
    large     its file is larger than is taken      silent    it answers without a file
    late      it answers after the server has stopped waiting                             error    its program fails
    cut, nothing    half of its file, an empty file

LIES change the numbers of statistics, and SAYS the provenance beside them, of a file that is otherwise whole.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from tangent_federation.contributor import Contribution, Contributor, file_bytes, read_bytes
from tangent_federation.settings import Request, check
from tangent_jax.core.notation import Tree
from tangent_jax.models import FeatureSettings
from tangent_jax.solver.leaves import as_tree, with_gram
from tangent_jax.solver.statistics import from_tree


def times(name: str, factor: float) -> Callable[[Tree], Tree]:
    """A lie: the leaf of this name times a factor."""
    return lambda tree: {**tree, name: tree[name] * factor}


def of_gram(lie: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """A lie about G, of a contributor that sends G however few its images are."""
    return lambda tree: lie(with_gram(tree))


def of_features(tree: Tree, places: np.ndarray) -> Tree:
    """The statistics of the features at these places alone, in this order."""
    whole = from_tree(tree, (), (tree["sums"].shape[1],), "")
    return as_tree(whole.gram[np.ix_(places, places)], whole.sums[:, places], whole.counts)


def not_a_number(tree: Tree) -> Tree:
    """The leaves with NaN in the place of the first number."""
    leaves, structure = jax.tree.flatten(tree)
    leaves[0].reshape(-1)[0] = np.nan
    return jax.tree.unflatten(structure, leaves)


def no_square(tree: Tree) -> Tree:
    """The leaves with a G of the same diagonal that has a negative direction."""
    gram = tree["gram"].copy()
    gram[1] = tree["counts"].sum() / 2
    return {**tree, "gram": gram}


def stretched(tree: Tree) -> Tree:
    """The leaves with sums as long as those of equal images."""
    parts = np.round(np.square(tree["sums"][tree["counts"] == 1][:1]).sum())
    lengths = np.linalg.norm(tree["sums"], axis=1) / parts**0.5
    return {**tree, "sums": tree["sums"] * (tree["counts"] / lengths)[:, None]}


LIES: dict[str, Callable[[Tree], Tree]] = {
    "nan": not_a_number,
    "negated_g": of_gram(times("gram", -1.0)),
    "halved_g": of_gram(times("gram", 0.5)),
    "no_square": of_gram(no_square),
    "halved_root": times("root", 0.5),
    "cut_root": lambda tree: {**tree, "root": tree["root"][:-1]},
    "other_sums": lambda tree: {**tree, "sums": tree["sums"] * (-1.0) ** np.arange(tree["sums"].shape[1])},
    "more_counts": lambda tree: {**tree, "counts": tree["counts"] + 1},
    "halved_counts": times("counts", 0.5),
    "negative_counts": times("counts", -1.0),
    "no_counts": times("counts", 0.0),
    "huge_sums": times("sums", 1e200),
    "long_sums": times("sums", 10.0),
    "stretched_sums": stretched,
    "all_zero": lambda tree: jax.tree.map(np.zeros_like, tree),
    "f32": lambda tree: jax.tree.map(np.float32, tree),
    "fewer_features": lambda tree: of_features(tree, np.arange(tree["sums"].shape[1] - 1)),
    "swapped_parts": lambda tree: of_features(tree, np.arange(tree["sums"].shape[1])[::-1]),
    "no_gram": lambda tree: {name: leaf for name, leaf in tree.items() if name not in ("gram", "root")},
}
"""The numbers that are sent, of those that are right."""

SAYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "extra_class": lambda said: {**said, "classes": ["!", *said["classes"][1:]]},
    "permuted_classes": lambda said: {**said, "classes": said["classes"][::-1]},
    "one_class_twice": lambda said: {**said, "classes": [said["classes"][1], *said["classes"][1:]]},
    "no_images": lambda said: {**said, "data": {**said["data"], "examples": []}},
    "fewer_images": lambda said: {**said, "data": {**said["data"], "examples": said["data"]["examples"][1:]}},
    "other_dtype": lambda said: {**said, "features": {**said["features"], "dtype": "bfloat16"}},
    "other_seed": lambda said: {**said, "features": {**said["features"], "seed": 1}},
    "tangent": lambda said: {**said, "features": None, "method": "taft"},
    "a_list": lambda said: [],
    "a_number": lambda said: 10**13,
    "null": lambda said: None,
}
"""The provenance that is sent, of the fields that are right."""

FAULTS = ("anchor", "large", "silent", "late", "error", "cut", "nothing", *LIES, *SAYS)


def fault_of(faults: str, number: int) -> str:
    """The fault of the contributor of this number; "" for none."""
    said = dict(reversed(word.split(":", 1)) for word in faults.split())
    check({*said.values()} <= {*FAULTS}, f"faults of {', '.join(FAULTS)}", faults)
    return said.get(f"{number}", "")


def spoiled(own: Contributor, request: Request, fault: str, wait: float) -> Contribution | None:
    """The answer of a contributor with this fault."""
    check(fault != "error", "no fault", fault)
    if fault == "silent":
        return None
    if fault == "late":
        time.sleep(wait + 5)
    if fault == "anchor":
        other = request.recipe
        if isinstance(other, tj.Recipe):
            other = dataclasses.replace(other, seed=other.seed + 1)
        else:
            other = dataclasses.replace(other, features=FeatureSettings(("relu",), width=64))
        request, own = dataclasses.replace(request, recipe=other), dataclasses.replace(own, home=own.home / "other")
    sent = own.contribute(request)
    component = sent.component
    if fault in LIES or fault in SAYS:
        dw, metadata = read_bytes(component)
        said = SAYS.get(fault, dict)(json.loads(metadata["provenance"]))
        component = file_bytes(LIES.get(fault, dict)(dw), {"provenance": json.dumps(said)})
    if fault == "large":
        component = component.ljust(request.most_bytes + 1, b"\0")
    if fault in ("cut", "nothing"):
        component = component[: len(component) // 2 if fault == "cut" else 0]
    return sent._replace(component=component)

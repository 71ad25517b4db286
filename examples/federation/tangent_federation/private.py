"""Private statistics of a federation: noise that each contributor adds, or that protects each contributor as a whole.

    local     each contributor releases noised statistics of its images (`tj.privacy.release_statistics`): nothing else
              leaves it, no name of a class and no error's text either, and the server need not be trusted
    central   each contributor sends s = sum_i g_i, of length at most C; the server releases sum_s s + sigma C N(0, I)
              once, so that (epsilon, delta) holds for one contributor more or less, with all its images

The classes are a public list of the server's settings. A contributor leaves out images of other classes.

The central release is one step of `tj.fit_private` on the linear loss <s, dw>, whose examples are the contributors:
with its ledger and account. The server sees each s, so it must be trusted with them.
"""

import dataclasses
import json
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import tangent_jax as tj
from tangent_federation.contributor import Contributor, file_bytes, read_bytes
from tangent_federation.settings import Request, Settings, check
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.models import FeatureMap
from tangent_jax.privacy import Contribution, check_public, contributions, on_sphere, release_statistics
from tangent_jax.privacy.statistics import ADDED, OBJECTIVE
from tangent_jax.solver import Statistics

SHARES = (0.0, 1.0, 0.0)  # class sums alone: G of a few contributors' images drowns in noise
MOST = 1e9  # images of a contributor; and a number of a clipped sum, whose square f32 holds


def mechanism_of(settings: Settings) -> tj.privacy.Mechanism:
    """The mechanism of one release."""
    unit = "owner" if settings.privacy == "central" else "example"
    return tj.make_mechanism(settings.epsilon, settings.delta, steps=1, unit=unit)


def map_of(predict: FeatureMap, public: str = "", cache: str = "") -> FeatureMap:
    """The feature map whose rows have length 1, whitened by public images of a data set; "": by its last layer norm."""
    if not public:
        return on_sphere(predict)
    dataset = tj.open_dataset(public)
    split = dataset.splits.get("train", next(iter(dataset.splits.values())))
    images = tj.extract(predict, split, tj.Cache(cache))
    return on_sphere(predict, images, images.take(np.zeros(0, int)))


def check_not_public(public: str, features: tj.Features) -> None:
    """Raises InputError where an image of a contributor is public, too: noise would not hide it."""
    if public:
        known = {i for part in tj.open_dataset(public).splits.values() for i in part.identifiers()}
        check_public(known, {i for i, _ in features.examples})


# Local: a contributor adds noise


def answer(own: Contributor, request: Request, mechanism: tj.privacy.Mechanism) -> dict[str, bytes]:
    """The fields of a contributor's answer; none where the release fails, whose cause is printed here alone."""
    try:
        return {"component": release(own, request, mechanism)}
    except Exception:  # its text, which Flower would send, may name images and classes
        traceback.print_exc()
        return {}


def release(own: Contributor, request: Request, mechanism: tj.privacy.Mechanism) -> bytes:
    """The file of a contributor's noised statistics; its ledger, in its home, pays once, and the file is kept."""
    map_ = map_of(own.at_anchor(request), request.public, own.cache)
    features = own.features(map_, request.classes, only=True)
    check_not_public(request.public, features)
    folder = own.home / "private"
    noised, fitted = release_statistics(
        map_, features, request.classes, mechanism=mechanism, shares=SHARES, ledger=tj.Ledger(folder)
    )
    said = {
        "classes": noised.classes,
        "sizes": noised.sizes,
        "source": noised.source,
        "epsilon": fitted.info.spent.compute_epsilon(),
    }
    return file_bytes(noised.tree, {"statistics": json.dumps(said)})


def read_release(
    content: bytes, map_: FeatureMap, classes: tuple[str, ...], mechanism: tj.privacy.Mechanism
) -> Statistics:
    """The statistics of a file of `release`, whose G and counts follow from the number of images n.

    Raises:
        InputError: Other features or classes, numbers that are not finite, and sums longer than n images and their
            noise have.
    """
    tree, metadata = read_bytes(content)
    said = json.loads(metadata.get("statistics", "{}"))
    check(isinstance(said, dict), "fields of statistics", type(said).__name__)
    check(said.get("source") == map_.identity, "statistics of the server's features", "of others")
    check(said.get("classes") == sorted(classes), "statistics of the classes asked for", "of others")
    wanted = shapes_of(empty(map_, classes).tree)
    check(shapes_of(tree) == wanted, f"leaves {wanted}", shapes_of(tree))
    check(all(np.isfinite(leaf).all() for leaf in trees.leaves(tree).values()), "numbers that are finite", "NaN")
    counts, sums, k = tree["counts"], tree["sums"], sum(map_.sizes)
    n, noise = counts.sum(), mechanism.noise_multiplier * mechanism.clip_norm
    good = 1 <= n <= MOST and np.ptp(counts) <= 1e-9 * n
    check(good, f"equal counts of 1 to {MOST:g} images", f"{counts.min():g} to {counts.max():g}")
    most = n + noise * (sums.size**0.5 + 10)  # noise of d numbers is longer than d^0.5 + 10 once in e^50 releases
    check(
        np.abs(sums).max() <= most and np.linalg.norm(sums) <= most, f"sums of length {most:g} at most", "longer ones"
    )
    gram = n / k * np.eye(k) + np.outer(sums.sum(0), sums.sum(0)) / n
    return Statistics(gram, sums, counts, tuple(sorted(classes)), map_.sizes, map_.identity)


def shapes_of(tree: Tree) -> dict[str, str]:
    """The shape and dtype of each leaf."""
    return {path: f"{leaf.dtype}{leaf.shape}" for path, leaf in trees.leaves(tree).items()}


def empty(map_: FeatureMap, classes: tuple[str, ...]) -> Statistics:
    """The statistics of no example."""
    k, c = sum(map_.sizes), len(classes)
    zeros = np.zeros((k, k)), np.zeros((c, k)), np.zeros(c)
    return Statistics(*zeros, tuple(sorted(classes)), map_.sizes, map_.identity)


# Central: the server adds noise to the sum over contributors


def clipped(own: Contributor, request: Request, clip_norm: float) -> bytes:
    """The file of a contributor's sum over its images, of length at most `clip_norm`."""
    map_ = map_of(own.at_anchor(request), request.public, own.cache)
    features = own.features(map_, request.classes, only=True)
    check_not_public(request.public, features)
    probe = tj.make_mechanism(1.0, 1e-5, steps=1)  # of no release: its features alone are taken
    step, rows, _ = contributions(map_, features, request.classes, probe, SHARES)
    total = gradient_sum(step, jnp.asarray(rows.inputs), jnp.asarray(rows.targets))
    length = float(trees.norm(total))
    shrunk = jax.tree.map(lambda leaf: np.asarray(leaf * min(1.0, clip_norm / max(length, 1e-12))), total)
    return file_bytes(shrunk, {})


@jax.jit
def gradient_sum(step: Contribution, u: Array, targets: Array) -> Tree:
    """sum_i g_i of rows u "n k"."""
    return jax.grad(lambda dw: jnp.take_along_axis(step(dw, u), targets[:, None], 1).sum())(step.zeros())


def read_clipped(content: bytes, step: Contribution) -> np.ndarray:
    """The numbers of a file of `clipped`, "m"; InputError for other leaves, NaN or infinity."""
    tree, _ = read_bytes(content)
    wanted = shapes_of(step.zeros())
    check(shapes_of(tree) == wanted, f"leaves {wanted}", shapes_of(tree))
    flat = np.concatenate([np.asarray(leaf).ravel() for leaf in trees.leaves(tree).values()])
    check(np.isfinite(flat).all() and np.abs(flat).max() <= MOST, "numbers that are finite", "NaN or infinity")
    return flat


def inner(dw: Tree, x: Array) -> Array:
    """<s, dw>, "b 1", of contributors' sums s "b m": its gradient in dw is s."""
    return (x @ dw["sum"])[:, None]


def release_sum(
    sums: dict[str, np.ndarray],
    map_: FeatureMap,
    classes: tuple[str, ...],
    mechanism: tj.privacy.Mechanism,
    folder: Path | None = None,
    seed: int | None = None,
) -> tuple[Statistics, tj.Fitted]:
    """(noised statistics of all contributors, the run with its account) of their sums "m" by name, released once.

    Guarantees:
        (epsilon, delta) for one contributor more or less, whose sum is clipped here again to C.
    """
    names = sorted(sums)
    x, step = np.array([sums[name] for name in names]), Contribution(len(classes), sum(map_.sizes), SHARES)
    data = tj.Batches(x, np.zeros(len(names), np.int32), owners=names)
    start = {"sum": jnp.zeros(x.shape[1])}
    settings = {"objective": OBJECTIVE, "optimizer": ADDED, "start": start}
    ledger = None if folder is None else tj.Ledger(folder)
    fitted = tj.fit_private(inner, data, mechanism=mechanism, ledger=ledger, seed=seed, **settings)
    leaves = trees.leaves(step.zeros())
    cuts = np.cumsum([leaf.size for leaf in leaves.values()])[:-1]
    parts = np.split(np.asarray(fitted.dw["sum"]), cuts)
    whole = {path: part.reshape(leaf.shape) for (path, leaf), part in zip(leaves.items(), parts, strict=True)}
    rows = tj.Features(x, np.zeros(len(names), np.int32), tuple((name, name) for name in names), owners=tuple(names))
    return step.statistics(dataclasses.replace(fitted, dw=whole), map_, rows, classes), fitted

"""Private statistics: one release of noised G, B and counts, as one private step of a loss that is linear in them.

    u = (z - mean) R / |(z - mean) R|          an image's features at length 1, in coordinates whitened by public images
    g = (a tri(u u^T), b e_y u^T, c e_y)       a^2 + b^2 + c^2 = 1, so that |g| = 1
    S = sum_i g_i + sigma N(0, I),    G = tri^-1(S_1) / a,   B = S_2 / b,   counts = S_3 / c

tri(A) holds the diagonal of A, and sqrt 2 times what is above it: |tri(u u^T)| = |u|^2. So 1 is the joint sensitivity,
in L2, of the triangle of G, B and the counts, for one image more or less; of an owner the sum over all images is
clipped. One Gaussian mechanism releases all three, and its epsilon is exact. As g is the gradient of the loss <g, dw>,
whatever dw is, the release is one step of `fit_private`: with its ledger, units, discrete noise and audits.

Source: sufficient statistics perturbation with a ridge that the noise sets, as AdaSSP (Wang 2018, "Revisiting
differentially private linear regression"), which divides epsilon among three releases. Here one mechanism has it all.
"""

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.core import Tree, require
from tangent_jax.core.boundary import public, public_class
from tangent_jax.models.anchor import check_classes
from tangent_jax.models.features import Features
from tangent_jax.models.ntk import FeatureMap, rows_of
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.public import check_public, inverse_root
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.statistics import Settings, Statistics
from tangent_jax.train.losses import Loss
from tangent_jax.train.objective import Objective
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import as_labels

SHARES = (0.5, 0.83, 0.25)  # of G, B and the counts in g, before they are brought to length 1
SETTINGS = Settings("ridge", 1.0, 1.0)  # chosen on gtsrb43 and mnist10 (docs/privacy.md)
ADDED = optax.identity()  # the step is the noised mean itself


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Picked(Loss):
    """The output of an example's class: a loss that is linear in the outputs."""

    def __call__(self, outputs: Array, targets: Array) -> Array:
        return jnp.take_along_axis(outputs, targets[:, None], 1)[:, 0]

    def check(self, function: str, targets: Any, classes: int | None) -> None:
        as_labels(function, targets, classes)


OBJECTIVE = Objective(Picked())


@public_class
@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["classes", "size"])
@dataclasses.dataclass(frozen=True)
class Contribution:
    """(dw, u "b k") -> <g_c, dw> for each class c, "b c": a predictor whose gradients are contributions.

    `classes`: how many; `size`: k.
    """

    classes: int
    size: int

    def zeros(self) -> Tree:
        """The tree of S: {"gram": "k(k+1)/2", "sums": "c k", "counts": "c"}, f32."""
        c, k = self.classes, self.size
        return {"gram": jnp.zeros(k * (k + 1) // 2), "sums": jnp.zeros((c, k)), "counts": jnp.zeros(c)}

    def __call__(self, dw: Tree, u: Array) -> Array:
        a, b, c = np.array(SHARES) / np.linalg.norm(SHARES)
        i, j, scale = triangle(self.size)
        of_gram = (u[:, i] * u[:, j] * scale) @ dw["gram"]
        return a * of_gram[:, None] + b * u @ dw["sums"].T + c * dw["counts"]

    def statistics(self, total: Tree, map_: FeatureMap, classes: Sequence[str]) -> Statistics:
        """The statistics of a noised sum S of contributions."""
        names = check_classes("release_statistics", classes)
        a, b, c = np.array(SHARES) / np.linalg.norm(SHARES)
        i, j, scale = triangle(self.size)
        flat, sums, counts = (np.asarray(total[name], np.float64) for name in ("gram", "sums", "counts"))
        gram = np.zeros((self.size, self.size))
        gram[i, j] = flat / scale / a
        gram[j, i] = gram[i, j]
        whole = Statistics(gram, sums / b, counts / c, names, map_.sizes, map_.identity)
        return whole.of_classes(sorted(names))


def triangle(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, scale) of the numbers of a symmetric matrix "k k" on and above its diagonal."""
    i, j = np.triu_indices(k)
    return i, j, np.where(i == j, 1, 2**0.5).astype(np.float32)


@public
def on_sphere(map_: FeatureMap, public: Features | None, private: Features) -> FeatureMap:
    """The map whose rows have length 1, in coordinates whitened by public images; with none of them, as they point.

    Args:       map_: of `feature_map`; public: its features of images whose inputs may be known to all, or None;
                private: those whose statistics will be released, to see that none of them is public.
    Guarantees: reads nothing of the private images but their content identifiers; labels of no image.
    Raises:     InputError for no public image, or one that is private too, by its content.
    """
    require(map_.root is None, "on_sphere", "a map whose rows are not whitened", "one whose rows are")
    k = sum(map_.sizes)
    if public is None:
        return dataclasses.replace(map_, center=jnp.zeros(k), root=jnp.eye(k))
    require(len(public), "on_sphere", "a public image at least", "none")
    check_public("on_sphere", *([identifier for identifier, _ in part.examples] for part in (public, private)))
    rows = rows_of(map_, public).astype(np.float64)
    center = rows.mean(0)
    root = inverse_root(np.cov(rows.T, bias=True)[None])[0]
    return dataclasses.replace(map_, center=jnp.asarray(center, jnp.float32), root=jnp.asarray(root, jnp.float32))


@public
def release_statistics(
    map_: FeatureMap,
    data: Features,
    classes: Sequence[str],
    *,
    mechanism: Mechanism,
    seed: int | None = None,
    folder: str | os.PathLike | None = None,
) -> tuple[Statistics, Fitted]:
    """Noised statistics of examples, released once; `denoised(...).solve(SETTINGS)` is the head.

    Args:       map_: of `on_sphere`; data: its features, with `owners` where these are the mechanism's unit; classes:
                the names that targets index, which are public; mechanism: of one step; seed, folder: as `fit_private`.
    Returns:    (Statistics, Fitted): the account is `spent`.
    Guarantees: (epsilon, delta)-differentially private, for adding or removing one unit, as the mechanism says; the
                ledger pays before noise is drawn. Statistics of several owners add; each has spent its own.
    Raises:     InputError for a mechanism of more steps, a map whose rows are not of length 1, and as `fit_private`.
    """
    step, rows = contributions(map_, data, classes, mechanism)
    fitted = fit_private(step, rows, OBJECTIVE, mechanism=mechanism, optimizer=ADDED, seed=seed, folder=folder)
    return released(step, fitted, map_, rows, classes), fitted


def contributions(
    map_: FeatureMap, data: Features, classes: Sequence[str], mechanism: Mechanism
) -> tuple[Contribution, Features]:
    """(the predictor, its features u) of which a private step makes the release."""
    require(map_.root is not None, "release_statistics", "a map of on_sphere", "one whose rows have any length")
    require(mechanism.steps == 1, "release_statistics", "a mechanism of one step", mechanism.steps)
    as_labels("release_statistics", data.targets, len(classes))
    return Contribution(len(classes), sum(map_.sizes)), dataclasses.replace(data, inputs=rows_of(map_, data))


def released(
    step: Contribution, fitted: Fitted, map_: FeatureMap, rows: Features, classes: Sequence[str]
) -> Statistics:
    """The statistics of the step that was taken: dw is the noised sum over C n, both public."""
    assert fitted.spent is not None
    mechanism = fitted.spent.mechanism
    units = len({*rows.owners}) if mechanism.unit == "owner" and rows.owners else len(rows)
    scale = float(mechanism.clip_norm) * mechanism.expected(units)
    return step.statistics(jax.tree.map(lambda leaf: scale * np.asarray(leaf, np.float64), fitted.dw), map_, classes)


@public
def denoised(noised: Statistics) -> Statistics:
    """The nearest statistics that a ridge can be solved for: negative variances of noise, and counts, do not count.

    What is computed of released values alone is as private as they are.
    """
    counts = np.maximum(noised.counts, 1.0)
    n, mean = counts.sum(), noised.sums.sum(0) / counts.sum()
    values, vectors = np.linalg.eigh(noised.gram - n * np.outer(mean, mean))
    spread = (vectors * np.maximum(values, 0)) @ vectors.T
    return dataclasses.replace(noised, gram=spread + n * np.outer(mean, mean), counts=counts)

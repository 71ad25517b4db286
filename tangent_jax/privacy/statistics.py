"""Private sufficient statistics: one noisy release of class sums, and optionally of G and counts.

    u = z R / |z R|                            an image's features at length 1; R: of the layer norm that gives h, or of
                                               public images, with z - mean instead of z (public.py)
    g = (a tri(u u^T), b e_y u^T, c e_y)       shares a^2 + b^2 + c^2 = 1, so that |g| = 1
    S = sum_i g_i + sigma N(0, I),    G = tri^-1(S_1) / a,   B = S_2 / b,   counts = S_3 / c

tri(A) holds the diagonal of A, and sqrt 2 times the entries above it, so that |tri(u u^T)| = |u|^2. So the joint L2
sensitivity of the triangle of G, of B and of the counts is 1 for adding or removing one image; an owner's sum over all
images is clipped. One Gaussian mechanism releases them together, with an exact epsilon. g is the gradient of the loss
<g, dw> at any dw, so the release is one step of `fit_private`, with its ledger, units, discrete noise and audits.

A statistic with share 0 is not released. Noise on G has a spectral norm of sigma sqrt(2 k) / a, larger than G of a few
thousand images. Instead whitening gives G: in whitened coordinates it is about n / k I.

Source: sufficient statistics perturbation, as AdaSSP (Wang 2018, "Revisiting differentially private linear
regression"), which splits epsilon over three releases and has no public images. Class means shrink as in James and
Stein 1961.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Integer

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.names import check_classes
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.linear.tangent import ByAutodiff
from tangent_jax.models.ntk import FeatureMap
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.public import check_images, inverse_root, moment_of_norm
from tangent_jax.privacy.train import Ledger, Private, fit_private
from tangent_jax.solver.mapped import checked_rows, rows_of
from tangent_jax.solver.statistics import Settings, Statistics
from tangent_jax.train.features import Features
from tangent_jax.train.losses import Loss
from tangent_jax.train.objective import Objective
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import as_labels

SHARES = (0.2, 0.98, 0.0)  # of G, B and the counts; chosen on held-out images of other data sets (docs/benchmarks.md)
SETTINGS = Settings("lda", 10.0)
LEAST = 0.02  # the smallest share of the class means that shrinking keeps
ADDED = optax.identity()  # the step is the noisy mean itself


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Picked(Loss):
    """The output of an example's own class: a loss that is linear in the outputs."""

    def __call__(self, outputs: Float[Array, "b c"], targets: Integer[Array | np.ndarray, "b"]) -> Float[Array, "b"]:
        return jnp.take_along_axis(outputs, targets[:, None], 1)[:, 0]

    def check(self, targets: Any, classes: int | None) -> None:
        as_labels(targets, classes)


OBJECTIVE = Objective(Picked())


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["classes", "size", "shares"])
@dataclasses.dataclass(frozen=True)
class Contribution(ByAutodiff):
    """(dw, u "b k") -> <g_c, dw> for each class c, "b c": the predictor whose gradients are the contributions g.

    Attributes:
        classes: Their number.
        size: k.
        shares: The shares of G, B and the counts, 0 for one that is not released.

    >>> tj.privacy.Contribution(classes=3, size=6).zeros()["sums"].shape
    (3, 6)
    """

    classes: int
    size: int
    shares: tuple[float, float, float] = SHARES

    def __post_init__(self) -> None:
        whole_number("classes", self.classes, 1)
        whole_number("size", self.size, 1)
        object.__setattr__(self, "shares", tuple(map(float, self.shares)))  # jit needs them hashable
        are_numbers = len(self.shares) == 3 and all(0 <= share < np.inf for share in self.shares)
        if not are_numbers or self.shares[1] <= 0:
            raise InputError(f"shares must be of G, B and the counts, 0 or more, that of B above 0; got {self.shares}")

    @property
    def scales(self) -> np.ndarray:
        """a, b and c."""
        return np.array(self.shares) / np.linalg.norm(self.shares)

    def zeros(self) -> Tree:
        """The tree of S: {"gram": "k(k+1)/2", "sums": "c k", "counts": "c"}, f32, without those of share 0."""
        c, k = self.classes, self.size
        shapes = {"gram": (k * (k + 1) // 2,), "sums": (c, k), "counts": (c,)}
        return {name: jnp.zeros(shape) for (name, shape), a in zip(shapes.items(), self.shares, strict=True) if a}

    def __call__(self, dw: Tree, u: Array) -> Array:
        a, b, c = self.scales
        outputs = b * u @ dw["sums"].T
        if a:
            i, j, scale = triangle(self.size)
            outputs += a * ((u[:, i] * u[:, j] * scale) @ dw["gram"])[:, None]
        return outputs + c * dw["counts"] if c else outputs

    def statistics(
        self, fitted: Fitted[Private], map_: FeatureMap, rows: Features, classes: Sequence[str]
    ) -> Statistics:
        """The statistics of the step: its dw is the noisy sum S over C n, both public.

        Statistics that were not released are replaced: equal counts, and a G with equal spread in all directions around
        the class means.
        """
        mechanism = fitted.info.spent.mechanism
        of_owners = mechanism.unit == "owner" and rows.owners is not None
        units = float(mechanism.expected_size(len({*(rows.owners or ())}) if of_owners else len(rows)))
        names, (a, b, c), k = check_classes(classes), self.scales, self.size
        scale = float(mechanism.clip_norm) * units
        leaves = {name: scale * np.asarray(leaf, np.float64) for name, leaf in fitted.dw.items()}
        sums = leaves["sums"] / b
        counts = leaves["counts"] / c if c else np.full(len(names), units / len(names))
        if a:
            i, j, root = triangle(k)
            gram = np.zeros((k, k))
            gram[i, j] = leaves["gram"] / root / a
            gram[j, i] = gram[i, j]
        else:
            gram = units / k * np.eye(k) + units * np.outer(*[sums.sum(0) / units] * 2)
        whole = Statistics(gram, sums, counts, names, map_.sizes, map_.identity)
        return whole.of_classes(sorted(names))

    def head(self, noised: Statistics, classes: Sequence[str], mechanism: Mechanism) -> Tree:
        """The head of noisy statistics (`Statistics.solve`), in the order of `classes`."""
        deviation = float(mechanism.noise_multiplier) * float(mechanism.clip_norm) / float(self.scales[1])
        return denoise(noised, deviation).of_classes(classes).solve(SETTINGS)


def triangle(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, scale) of the numbers of a symmetric matrix "k k" on and above its diagonal."""
    i, j = np.triu_indices(k)
    return i, j, np.where(i == j, 1, 2**0.5).astype(np.float32)


def on_sphere(
    map_: FeatureMap, public: Features | None = None, private: Features | None = None, *, whiten: bool = True
) -> FeatureMap:
    """The feature map with rows of length 1, in whitened coordinates.

    Args:
        map_: By `feature_map`.
        public: Its features of public images, which whiten all parts, or None: h is whitened by the layer norm that
            gives it.
        private: Its features of the images whose statistics will be released, to check that none of them is public,
            needed beside `public` only.
        whiten: False to whiten nothing.

    Guarantees:
        Reads the content identifiers of private images and nothing else of them; reads no labels.

    Edge cases:
        Where no layer norm gives h, public images alone can whiten.

    Raises:
        InputError: No public image, one whose features are not finite, or an image that is public and private.

    >>> unit = tj.privacy.on_sphere(demo.map, demo.test, demo.train)
    >>> float(np.linalg.norm(tj.solver.rows_of(unit, demo.train)[0]))
    1.000
    """
    if map_.root is not None:
        raise InputError("rows of map_ must not be whitened; got a map whose rows are")
    if public is None or not whiten:
        norm = getattr(map_.predict.model, "input_norms", {}).get("head/kernel") if whiten else None
        roots = [jnp.eye(size) for size in map_.sizes]
        if norm is not None and "h" in map_.parts:
            roots[map_.parts.index("h")] = inverse_root(moment_of_norm(map_.w, norm))[0]
        return dataclasses.replace(map_, center=jnp.zeros(sum(map_.sizes)), root=jax.scipy.linalg.block_diag(*roots))
    check_images(public, private)
    rows = checked_rows(map_, public).astype(np.float64)
    center = rows.mean(0)
    root = inverse_root(np.cov(rows.T, bias=True).astype(np.float32)[None])[0]
    return dataclasses.replace(map_, center=jnp.asarray(center, jnp.float32), root=root)


def release_statistics(
    map_: FeatureMap,
    data: Features,
    classes: Sequence[str],
    *,
    mechanism: Mechanism,
    shares: tuple[float, float, float] = SHARES,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: Progress = silent,
) -> tuple[Statistics, Fitted[Private]]:
    """Releases noisy statistics of examples, once; `Contribution.head` solves for the head.

    Args:
        map_: By `on_sphere`.
        data: Its features, with `owners` if these are the mechanism's unit.
        classes: The names that targets index, which are public.
        mechanism: The mechanism of one step.
        shares: The shares of G, B and the counts.
        seed, ledger, progress: As `fit_private`.

    Returns:
        (Statistics, Fitted), with the privacy account in `info.spent`.

    Guarantees:
        (epsilon, delta)-differentially private for adding or removing one unit; the ledger pays before noise is drawn.
        Statistics of several owners add; each owner has their own account.

    Raises:
        InputError: A mechanism of more steps, a map whose rows do not have length 1, and as `fit_private`.

    >>> unit, mechanism = tj.privacy.on_sphere(demo.map, demo.test, demo.train), tj.make_mechanism(8.0, 1e-2, steps=1)
    >>> noisy, fitted = tj.privacy.release_statistics(unit, demo.train, ["a", "b", "c"], mechanism=mechanism, seed=0)
    >>> noisy.sums.shape, round(fitted.info.spent.compute_epsilon(), 1)
    ((3, 6), 8.0)
    """
    step, rows, settings = contributions(map_, data, classes, mechanism, shares, progress)
    fitted = fit_private(step, rows, mechanism=mechanism, seed=seed, ledger=ledger, **settings)
    return step.statistics(fitted, map_, rows, classes), fitted


def contributions(
    map_: FeatureMap,
    data: Features,
    classes: Sequence[str],
    mechanism: Mechanism,
    shares: Any = SHARES,
    progress: Progress = silent,
) -> tuple[Contribution, Features, dict[str, Any]]:
    """(predictor, features u, {"objective", "optimizer"}) with which `fit_private` or `fit_audited` make the release.

    >>> unit, mechanism = tj.privacy.on_sphere(demo.map, demo.test, demo.train), tj.make_mechanism(8.0, 1e-2, steps=1)
    >>> predict, u, options = tj.privacy.contributions(unit, demo.train, ["a", "b", "c"], mechanism)
    >>> u.inputs.shape, sorted(options)
    ((24, 6), ['objective', 'optimizer'])
    """
    if map_.root is None:
        raise InputError("map_ must be a map of on_sphere; got one whose rows have any length")
    if mechanism.steps != 1:
        raise InputError(f"steps of the mechanism must be 1; got {mechanism.steps}")
    as_labels(data.targets, len(classes))
    step = Contribution(len(classes), sum(map_.sizes), shares)
    settings = {"objective": OBJECTIVE, "optimizer": ADDED}
    return step, dataclasses.replace(data, inputs=rows_of(map_, data, progress=progress)), settings


def denoise(noised: Statistics, deviation: float) -> Statistics:
    """The statistics that a head is solved from: shrunk class means, and no negative variance.

        m_c -> m + r (m_c - m),    r = 1 - (the expected square of noise) / (that of m_c - m)

    Args:
        deviation: The standard deviation of the noise of B, sigma C / b. The result is post-processing of released
            values, and equally private.

    Edge cases:
        Without noise all stays the same, except counts below 1.

    Raises:
        InputError: Numbers that are not finite.

    >>> calm = tj.privacy.denoise(demo.statistics, deviation=0.5)
    >>> calm.counts.tolist()
    [8.0, 8.0, 8.0]
    """
    if not all(np.isfinite(leaf).all() for leaf in (noised.gram, noised.sums, noised.counts)):
        raise InputError("statistics must be finite; got NaN or infinity")
    counts = np.maximum(noised.counts, 1.0)
    n, mean = counts.sum(), noised.sums.sum(0) / counts.sum()
    apart = noised.sums / counts[:, None] - mean
    noise = len(mean) * deviation**2 * np.mean(1 / counts**2) * (1 - 1 / len(counts))
    rest = max(LEAST, 1 - noise / max(np.square(apart).sum(1).mean(), np.finfo(np.float64).tiny))
    means = mean + rest * apart
    values, vectors = np.linalg.eigh(noised.gram - n * np.outer(mean, mean))
    spread = (vectors * np.maximum(values, 0)) @ vectors.T
    sums = counts[:, None] * means
    return dataclasses.replace(noised, factor=spread + sums.T @ means, sums=sums, counts=counts)

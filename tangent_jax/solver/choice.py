"""Settings of a head, chosen by the likelihood of held-out labels: the way, the shrinkage, and a weight of each part.

A part of the features that tells nothing of the labels gets the weight 0. The statistics are those of the other images,
so that stores need no further sums, and their system is formed once (dual.py).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Integer

from tangent_jax.core.checks import InputError, of_shape, one_of
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.solver.dual import Dual, Products, Solver, make_dual
from tangent_jax.solver.mapped import check_rows
from tangent_jax.solver.posterior import fitted_beta
from tangent_jax.solver.statistics import (
    NEVER,
    NOT_OF_IMAGES,
    WAYS,
    Settings,
    Statistics,
    Sums,
    sums_of,
)

SHRINKAGES = (1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""The shrinkages that are tried."""
WEIGHTS = (0.0, 0.0625, 0.25, 1.0)
"""The weights of a part that are tried, where features have several parts."""
BLOCK = 1024  # rows whose products are formed at once
KEPT = 4096  # of more rows they are formed again for each setting


class Chosen(NamedTuple):
    """The settings with the greatest likelihood of held-out labels at the best temperature.

    Attributes:
        loss: The mean negative log-likelihood.
        accuracy: The accuracy of the same labels.
        tried: The number of settings tried.

    >>> rows = tj.solver.rows_of(demo.map, demo.test)
    >>> tj.solver.choose_settings(demo.statistics, rows, demo.test.targets).settings.how
    'lda'
    """

    settings: Settings
    loss: float
    accuracy: float
    tried: int


class Systems(NamedTuple):
    """The systems of all settings of one way on the same statistics: the dual form of the spread, each feature's scale.

    Attributes:
        counts: The counts of all classes, "c".
    """

    how: str
    dual: Dual
    scale: Float64[np.ndarray, "k"]
    sums: Sums
    counts: Float64[np.ndarray, "c"]

    def products(self, rows: np.ndarray) -> Products:
        """What `scores` and `left_out` need of rows, for any settings."""
        return self.dual.products((rows - self.sums.mean) * self.scale)

    def solver(self, settings: Settings) -> Solver:
        """The system of these settings."""
        return self.dual.at(settings.weights_of(self.dual.sizes), settings.shrinkage)

    def scores(self, settings: Settings, rows: Products) -> Float64[np.ndarray, "n c"]:
        """The scores of rows by the head that `Statistics.solve` gives."""
        present, _, counts, _ = self.sums
        n, solver = counts.sum(), self.solver(settings)
        products = solver.with_means(rows)
        scores = np.full((len(products), len(self.counts)), NEVER)
        if self.how == "ridge":
            scores[:, present] = counts / n + counts * products
        else:
            scores[:, present] = n * (products - 0.5 * np.diag(solver.with_means(self.dual.of_m)))
        return scores

    def left_out(self, settings: Settings, rows: Iterable[Products], targets: np.ndarray) -> Float64[np.ndarray, "n c"]:
        """The scores of each example of the statistics by the head of all others, in closed form.

            ridge   y - (y - f(x)) / (1 - h),   h = 1/n + u^T A^-1 u,  u = z - mean      A: the matrix of the system
            LDA     A' = A - a u u^T,  m' = m - u / (n_c - 1),  u = z - m,  a = n_c / (n_c - 1)

        Source: Hastie, Tibshirani and Friedman 2009, section 7.10 (ridge); LDA by Sherman and Morrison (`without`).

        Args:
            rows: Those of all examples, block by block.
            targets: Their classes.

        Guarantees:
            The scores of solving without the example, with the penalty and the scales of all examples; those of LDA
            but for a number that all classes of an example share.

        Edge cases:
            The class of a single example is never chosen for it. With fewer examples than features their relative
            error is about 1e-8 over the shrinkage.
        """
        present, _, counts, _ = self.sums
        n, solver = counts.sum(), self.solver(settings)
        of_means, place = solver.with_means(self.dual.of_m), np.zeros(len(self.counts), int)
        place[present] = np.arange(len(present))
        scores, end = np.full((len(targets), len(self.counts)), NEVER), 0
        for block in rows:
            squares, products = solver.squares(block), solver.with_means(block)
            start, end = end, end + len(squares)
            y = place[targets[start:end]]
            if self.how == "ridge":
                hot, f = np.eye(len(present))[y], counts / n + counts * products
                scores[start:end, present] = hot - (hot - f) / (1 - 1 / n - squares)[:, None]
            else:
                scores[start:end, present] = without(y, squares, products, of_means, counts)
        alone = self.counts[targets] == 1
        scores[alone, targets[alone]] = NEVER
        return scores

    def blocks(self, rows: np.ndarray) -> Iterator[Products]:
        """The products of rows, block by block."""
        for start in range(0, len(rows), BLOCK):
            yield self.products(rows[start : start + BLOCK])


def make_systems(statistics: Statistics, how: str) -> Systems:
    """The systems of all settings of a way; InputError for what no examples sum to."""
    one_of("how", how, WAYS)
    sums = statistics.of_present()
    spread, allowed = statistics.spread(how, sums), statistics.allowed
    scale = statistics.scales(np.diag(spread) + allowed)
    spread *= scale[:, None] * scale
    firsts = np.cumsum([0, *statistics.sizes[:-1]])
    dual = make_dual(spread, statistics.sizes, sums.apart * scale, (allowed * scale**2)[firsts])
    if dual is None:
        statistics.system(Settings(how))  # of components: raises, and names the one that no images give
        raise InputError(NOT_OF_IMAGES)
    return Systems(how, dual, scale, sums, statistics.counts)


def check_examples(statistics: Statistics, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The targets as indices of classes; InputError for rows that are not finite "n k" of as many examples."""
    return check_rows(rows, targets, statistics.sums.shape[1], len(statistics.classes))


def check_left_out(statistics: Statistics, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The targets as indices of classes; InputError for other examples than those of the statistics."""
    targets = check_examples(statistics, rows, targets)
    if not np.array_equal(np.bincount(targets, minlength=len(statistics.classes)), statistics.counts):
        raise InputError(
            "targets must be of the examples of these statistics; got other numbers of examples by class."
            " Pass the rows and targets that the statistics were made of."
        )
    return targets


def without(
    y: Integer[np.ndarray, "b"],
    squares: Float64[np.ndarray, "b"],
    products: Float64[np.ndarray, "b c"],
    of_means: Float64[np.ndarray, "c c"],
    counts: Float64[np.ndarray, "c"],
) -> Float64[np.ndarray, "b c"]:
    """The LDA scores of examples z of classes y by all others, of z A^-1 z, z A^-1 m and m A^-1 m of class means m."""
    n, own, rows = counts.sum(), counts[y], np.arange(len(y))
    some = own > 1  # a class of one example: the spread stays, u = 0
    a, less = (np.divide(over, own - 1, out=np.zeros(len(y)), where=some) for over in (own, np.ones(len(y))))
    r = squares - products[rows, y]  # u A^-1 z, where u = z - m_y
    q = r - products[rows, y] + of_means[y, y]  # u A^-1 u
    t = products - of_means[y]  # u A^-1 m
    grown = a / (1 - a * q)  # A'^-1 = A^-1 + grown A^-1 u u^T A^-1
    new = np.diag(of_means) + grown[:, None] * t**2
    cross = products + grown[:, None] * t * r[:, None]
    along = t[rows, y] / (1 - a * q)
    cross[rows, y] -= less * r / (1 - a * q)
    new[rows, y] += less**2 * q / (1 - a * q) - 2 * less * along
    return (n - 1) * (cross - 0.5 * new)


@promotes
def choose_settings(
    train: Statistics,
    rows: np.ndarray,
    targets: np.ndarray,
    ways: Sequence[str] = ("lda",),
    left_out: bool = False,
    progress: Progress = silent,
) -> Chosen:
    """The settings with the greatest likelihood of the labels of held-out images; see `search` for what is tried.

    Images whose label no head can give do not take part: held-out images of a class without training images, and with
    `left_out` the only image of a class.

    Args:
        rows, targets: Features "n k" and indices "n" among `train.classes`, of held-out images; or, with `left_out`, of
            the images of `train`, each scored by the head of all others.
        ways: The ways of `Settings.how`.

    Raises:
        InputError: No way, no row, or no row whose label can be given, and rows and targets of other shapes, or not
            finite.

    >>> rows = tj.solver.rows_of(demo.map, demo.test)
    >>> tj.solver.choose_settings(demo.statistics, rows, demo.test.targets, ways=("lda", "ridge")).tried
    14
    """
    targets = check_left_out(train, rows, targets) if left_out else check_examples(train, rows, targets)
    can_be_given = train.counts[targets] > left_out
    systems = {how: make_systems(train, how) for how in checked_ways(ways)} if can_be_given.any() else {}
    kept = {how: [*system.blocks(rows)] for how, system in systems.items() if len(rows) <= KEPT}

    def scores(settings: Settings) -> np.ndarray:
        system = systems[settings.how]
        own = kept.get(settings.how) or system.blocks(rows)
        if left_out:
            return system.left_out(settings, own, targets)[can_be_given]
        return np.concatenate([system.scores(settings, block) for block in own])[can_be_given]

    return search(scores, targets[can_be_given], ways, len(train.sizes), progress)


@promotes
def choose_by_folds(
    rows: np.ndarray,
    targets: np.ndarray,
    sizes: tuple[int, ...],
    folds: Integer[np.ndarray, "n"],
    ways: Sequence[str] = ("lda",),
    progress: Progress = silent,
) -> Chosen:
    """The settings with the greatest likelihood of the labels of all folds, each scored by the head of all others.

    Images whose class has none outside their fold do not take part.

    Args:
        rows, targets: Features "n k" and class indices "n".
        sizes: The sizes of the parts of the features.
        folds: The folds of each image, whole numbers from 0 (`Features.folds`); images of fold -1 always train.

    Raises:
        InputError: As `choose_settings`, and for folds of another number or kind.

    >>> rows, folds = tj.solver.rows_of(demo.map, demo.train), np.arange(24) // 3 % 4
    >>> tj.solver.choose_by_folds(rows, demo.train.targets, demo.map.sizes, folds).accuracy
    0.917
    """
    count = int(np.max(targets, initial=0)) + 1
    targets = check_rows(rows, targets, sum(sizes), count)
    folds = of_shape("folds", np.asarray(folds), (len(targets),))
    if folds.dtype.kind not in "iu" or folds.min() < -1:
        raise InputError(f"folds must be whole numbers >= -1; got {folds.dtype}, {folds.min()} at least")
    systems: list[dict[str, tuple[Systems, Products]]] = []
    held: list[np.ndarray] = []
    for fold in np.unique(folds[folds >= 0]):
        own = sums_of(rows[folds != fold], targets[folds != fold], count, sizes)
        at = np.flatnonzero((folds == fold) & (own.counts[targets] > 0))
        if len(at):
            made = {how: make_systems(own, how) for how in checked_ways(ways)}
            systems.append({how: (system, system.products(rows[at])) for how, system in made.items()})
            held.append(at)

    def scores(settings: Settings) -> np.ndarray:
        return np.concatenate([own.scores(settings, of) for own, of in (every[settings.how] for every in systems)])

    given = np.concatenate([targets[at] for at in held]) if held else targets[:0]
    return search(scores, given, ways, len(sizes), progress)


def checked_ways(ways: Sequence[str]) -> Sequence[str]:
    """The same ways of `Settings.how`; InputError for none."""
    if not len(ways):
        raise InputError(f"ways must be at least one of {', '.join(WAYS)}; got none")
    return ways


def search(
    scores: Callable[[Settings], Float64[np.ndarray, "n c"]],
    targets: Integer[np.ndarray, "n"],
    ways: Sequence[str],
    parts: int,
    progress: Progress = silent,
) -> Chosen:
    """The settings whose scores give the targets the greatest likelihood.

    For each way, all SHRINKAGES at equal weights of the parts; then, part by part, WEIGHTS, each with the shrinkages
    next to the best, until no other weight of one part is better (coordinate descent).

    Raises:
        InputError: No target.
    """
    if not len(targets):
        raise InputError(
            "settings must be chosen on images of classes with another image that trains; got none. Give the settings"
        )
    tried: dict[Settings, tuple[float, float]] = {}
    with progress(total=None, unit="setting") as bar:

        def loss(settings: Settings) -> float:
            if settings not in tried:
                of_settings = scores(settings)
                accuracy = float(np.mean(of_settings.argmax(1) == targets))
                found = fitted_beta(of_settings, None, targets)[1]
                tried[settings] = found if np.isfinite(found) else np.inf, accuracy
                bar.update()
            return tried[settings][0]

        for how in checked_ways(ways):
            weights = (1.0,) * parts if parts > 1 else ()
            descend(loss, min((Settings(how, shrinkage, weights) for shrinkage in SHRINKAGES), key=loss))
    best = min(tried, key=lambda settings: tried[settings][0])
    return Chosen(best, *tried[best], len(tried))


def descend(loss: Callable[[Settings], float], settings: Settings) -> Settings:
    """The settings that coordinate descent over the parts' weights reaches."""
    before = None
    while settings != before:
        before = settings
        for part, weight in itertools.product(range(len(settings.weights)), WEIGHTS):
            weights = [*settings.weights]
            weights[part] = weight
            if any(weights):
                relative = tuple(own / max(weights) for own in weights)  # only their ratios count
                settings = min(settings, walk(loss, settings._replace(weights=relative)), key=loss)
    return settings


def walk(loss: Callable[[Settings], float], settings: Settings) -> Settings:
    """The settings with the best shrinkage downhill from theirs, one of SHRINKAGES at a time."""
    line = [settings._replace(shrinkage=shrinkage) for shrinkage in SHRINKAGES]
    at, before = SHRINKAGES.index(settings.shrinkage), None
    while at != before:
        before = at
        at = min(range(max(0, at - 1), min(len(line), at + 2)), key=lambda i: loss(line[i]))
    return line[at]

"""A pool of images; every model trains on its own random half, so that membership is an independent coin flip.

Images of the training and test splits differ by more than membership. In the pool, members and others are of one kind,
every image is a member of some models, and each model can be attacked with all others as shadows.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.settings import Reading
from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Parts
from tangent_jax.io.progress import shown
from tangent_jax.store.recipe import Recipe

OWNERS = 30  # owners drawn without a table
FEWEST = 10  # images of a request
LEAVING = 4  # passes without one image: 95 % of its change on digits, whose ranks correlate by 0.996 with the optimum's
EXACTLY = 1e-9  # a certificate that no pass meets
PAIRS = 8  # pairs of models of complementary halves, which find candidates for the vulnerable images


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooled(Reading):
    """The pool of a data set, and the owner of a request."""

    dataset: str = Recipe.dataset
    seed: int = Recipe.seed
    at_once: int = 8
    owners: str | None = None
    concentration: float = 0.5


@dataclasses.dataclass(frozen=True)
class Pool:
    """The pool and the settings of its models.

    Attributes:
        data: Each image of the data set once; those at the rows `canaries` have a wrong label.
        penalty: The penalty of the whole pool (Lambda is the recipe's for half of it).
        certificate, passes: Those of each optimum.
        at_once: Concurrent solves.
    """

    predict: Any
    data: tj.Features
    canaries: np.ndarray
    penalty: float
    certificate: float
    passes: int
    at_once: int

    def __len__(self) -> int:
        """The number of images."""
        return len(self.data)

    @property
    def objective(self) -> tj.Objective:
        """The rescaled square loss with the penalty."""
        return tj.make_objective("rsl", penalty=self.penalty)

    def first(self, present: np.ndarray, start: Any = None, certificate: float | None = None) -> tj.Fitted:
        """The optimum of example weights "n", whose factors serve the others; from zero without a start."""
        settings: dict[str, Any] = {"certificate": certificate or self.certificate, "passes": self.passes}
        weighed = {"example_weights": np.asarray(present, float)}
        return tj.solve(self.predict, self.data, self.objective, start=start, **weighed, **settings, progress=shown)

    def solve(
        self, start: Any, present: np.ndarray, certificate: float | None = None, rows: np.ndarray | None = None
    ) -> Iterator[tj.Fitted]:
        """Yields the optimum of each row of example weights "k n", from one start or each from its own.

        Args:
            rows: The images that count, with one weight each in `present`; Lambda is that of their number.
        """
        data = self.data if rows is None else self.data.take(rows)
        settings: dict[str, Any] = {"certificate": certificate or self.certificate, "passes": self.passes}
        settings |= {"example_weights": np.asarray(present, float), "at_once": self.at_once}
        return tj.solver.solve_many(self.predict, data, self.objective, start=start, **settings, progress=shown)

    def signals(self, models: Iterable[tj.Fitted]) -> np.ndarray:
        """The rescaled confidence of each model in the label of every image, "k n"."""
        outputs = (tj.outputs(self.predict, model.dw, self.data.inputs, 256) for model in models)
        return np.stack([tj.audit.confidence(logits, self.data.targets) for logits in outputs])


def read_pool(config: Pooled, recipe: tj.Recipe, canaries: int) -> Pool:
    """The pool of all splits of --dataset; --seed chooses this many labels to make wrong."""
    dataset = setup.open_dataset(config.dataset)
    predict = setup.predictor(recipe, dataset.classes)
    read = [setup.features(config, predict, part, f"{name} inputs") for name, part in dataset.splits.items()]
    examples = tuple(example for part in read for example in part.examples)
    targets = np.concatenate([part.targets for part in read])
    joined = tj.Features(Parts([part.inputs for part in read]), targets, examples)
    # a duplicate would stay when its twin is removed
    first = np.sort(np.unique([identifier for identifier, _ in examples], return_index=True)[1])
    n = len(first)
    rng = np.random.default_rng([config.seed, 11])
    most = n // 10
    if canaries > most:
        raise InputError(f"--removed must be at most {most}, a tenth of {n} images; got {canaries}")
    data = joined.take(first)
    rows = np.sort(rng.choice(n, canaries, replace=False))
    labels = data.targets.copy()
    labels[rows] = (labels[rows] + rng.integers(1, len(dataset.classes), canaries)) % len(dataset.classes)
    data = dataclasses.replace(data, inputs=np.asarray(data.inputs), targets=labels)
    return Pool(predict, data, rows, recipe.penalty / 2, recipe.certificate, recipe.passes, config.at_once)


def requests(config: Pooled, pool: Pool, classes: Sequence[str], count: int) -> dict[str, np.ndarray]:
    """The rows of each request for removal, by its name; count: of "random". (`vulnerable` finds one more.)"""
    sound = np.setdiff1d(np.arange(len(pool)), pool.canaries)
    return {
        "random": np.sort(np.random.default_rng([config.seed, 12]).choice(sound, count, replace=False)),
        "canaries": pool.canaries,
        "class": np.setdiff1d(of_class(pool, classes), pool.canaries),
        "owner": of_owner(config, pool),
    }


def of_class(pool: Pool, classes: Sequence[str]) -> np.ndarray:
    """The rows of the largest class."""
    largest = int(np.bincount(pool.data.targets, minlength=len(classes)).argmax())
    rows = np.flatnonzero(pool.data.targets == largest)
    if len(rows) < FEWEST:
        raise InputError(f"the largest class must have {FEWEST} images; {classes[largest]} has {len(rows)}")
    return rows


def of_owner(config: Pooled, pool: Pool) -> np.ndarray:
    """The rows of the owner with most images: from --owners, or of OWNERS drawn by Dirichlet(--concentration)."""
    if config.owners:
        whose = tj.shards.owners_of([name for _, name in pool.data.examples], tj.shards.read_owners(config.owners))
        named = sorted({owner for owner in whose if owner is not None})
        if not named:
            raise InputError(f"--owners must name an image of {config.dataset}; {config.owners} names none")
        divided = [np.flatnonzero([owner == name for owner in whose]) for name in named]
    else:
        divided = tj.shards.dirichlet(pool.data.targets, OWNERS, config.concentration, config.seed)
    rows = max(divided, key=len)
    if not FEWEST <= len(rows) <= len(pool) // 2:
        raise InputError(f"the largest owner must have {FEWEST} to {len(pool) // 2} images; got {len(rows)}")
    return rows


def vulnerable(config: Pooled, pool: Pool, base: tj.Fitted, count: int) -> dict[str, np.ndarray]:
    """{"vulnerable": the rows of the images whose own outputs change most when they leave the whole pool's optimum}.

    The candidates are twice as many: those whose confidence differs most between PAIRS models with them and as many
    without them, with other coins than the attacked models'. Each is then left out, in LEAVING passes.
    """
    coins = np.random.default_rng([config.seed, 13]).random((PAIRS, len(pool))) < 0.5
    signals = pool.signals(pool.solve(base, np.concatenate([coins, ~coins])))
    gap = np.where(coins, signals[:PAIRS], signals[PAIRS:]) - np.where(coins, signals[PAIRS:], signals[:PAIRS])
    sound = np.setdiff1d(np.arange(len(pool)), pool.canaries)
    candidates = sound[np.argsort(-gap.mean(0)[sound])[: 2 * count]]
    whole = pool.first(np.ones(len(pool)), base, pool.certificate / 3)
    quick = dataclasses.replace(pool, passes=LEAVING)
    changes = []
    for row, solved in zip(
        candidates, quick.solve(whole, ~np.eye(len(pool), dtype=bool)[candidates], EXACTLY), strict=True
    ):
        x = pool.data.inputs[[row]]
        before, after = (tj.outputs(pool.predict, dw, x) for dw in (whole.dw, solved.dw))
        changes.append(float(np.linalg.norm(before - after)))
    return {"vulnerable": np.sort(candidates[np.argsort(changes)[-count:]])}


def coins(seed: int, count: int, images: int) -> np.ndarray:
    """Coins, "k n", which decide whether each of `count` models trains on each image; by --seed."""
    return np.random.default_rng([seed, 14]).random((count, images)) < 0.5


def at_zero(start: tj.Fitted) -> tj.Fitted:
    """The start at dw = 0, without factors, which depend on the solved images."""
    return dataclasses.replace(start, dw=jax.tree.map(lambda leaf: 0 * leaf, start.dw), info=None)

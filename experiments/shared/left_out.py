"""Leave-one-out solves: every training image left out in turn, from the optimum on all; saved in resumable chunks."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared.parts import is_saved, saved
from tangent_jax.commands.shared.shards import Method
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar, shown
from tangent_jax.solver.optimum import certificate_of

Measure = Callable[[np.ndarray], dict[str, np.ndarray]]
"""Outputs of the test images, "m c", -> measured values, by name."""

CHUNK = 32  # images in one file
PROBED, PROBE_PASSES = 63, 15  # images whose solves show the size of changes, before all are solved
OF_BASE = 0.05  # the optimum's share of the allowed certificate


class Without:
    """Rows of example weights, "k n", each without some of the n examples; `gone`: those left out in each row."""

    def __init__(self, n: int, gone: Sequence[Any]) -> None:
        self.n = n
        self.gone = gone

    def __len__(self) -> int:
        return len(self.gone)

    def __iter__(self) -> Iterator[np.ndarray]:
        for rows in self.gone:
            v = np.ones(self.n)
            v[rows] = 0
            yield v


class LeftOut(NamedTuple):
    """The results of leave-one-out solves.

    Attributes:
        base: The optimum on all images.
        target: The requested certificate.
        largest: A lower bound of the largest |dw_i - dw|.
        rows: The images left out, and by name their arrays, as by `Leaving.arrays`.
    """

    base: tj.Fitted
    target: float
    largest: float
    rows: np.ndarray
    arrays: dict[str, np.ndarray]


class Leaving:
    """A method's problem, and the values to measure when an image is left out."""

    def __init__(self, method: Method, measure: Measure, at_once: int) -> None:
        self.predict = method.predict
        self.train = method.train
        self.test = method.test
        self.objective = method.recipe.objective
        self.measure = measure
        self.at_once = at_once

    def solve(self, gone: Sequence[Any], start: tj.Fitted, **settings: Any) -> Iterator[tj.Fitted]:
        """The optimum without each of `gone`."""
        settings |= {"example_weights": Without(len(self.train), gone), "start": start, "at_once": self.at_once}
        return tj.solver.solve_many(self.predict, self.train, self.objective, **settings, progress=shown)

    def each(self, folder: Path, fraction: float, rows: np.ndarray) -> LeftOut:
        """Leaves out each of these images, certified to a fraction of the largest change."""
        with tj.show_progress("the optimum"):
            rough = tj.solve(
                self.predict, self.train, self.objective, checkpoints=tj.Checkpoints(folder / "optimum"), progress=shown
            )
        with tj.show_progress("how large a change is"):
            outputs = jnp.asarray(tj.outputs(self.predict, rough.dw, self.train.inputs))
            losses = self.objective.losses(outputs, jnp.asarray(self.train.targets))
            probed = np.argsort(-np.asarray(losses))[:PROBED]
            whole, *without = self.solve([[], *probed], rough, certificate=None, passes=PROBE_PASSES)
            changes = [distance(each.dw, whole.dw) - bound_of(each, whole) for each in without]
            largest = max(changes)
            if largest <= 0:
                raise InputError(
                    f"the largest change without one image must exceed its certificate; got {largest:.3g} above it. "
                    "Give a larger --penalty"
                )
            [base] = self.solve([[]], whole, certificate=OF_BASE * fraction * largest)
        target = (1 - OF_BASE) * fraction * largest
        key = identity(rough.run, self.test.examples, self.test.targets, fraction, rows)
        return LeftOut(base, target, largest, rows, self.saved(base, target, rows, (folder / "parts", key)))

    def saved(self, base: tj.Fitted, target: float, rows: np.ndarray, place: tuple[Path, str]) -> dict[str, np.ndarray]:
        """The arrays of these images: read, or solved and written, chunk by chunk; place: folder and key of the run."""
        folder, key = place
        chunks = {identity(key, i): rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)}
        missing = [row for chunk_key, chunk in chunks.items() if not is_saved(folder, chunk_key) for row in chunk]
        solved = self.solve(missing, base, certificate=target)

        def compute(chunk: np.ndarray) -> dict[str, np.ndarray]:
            return self.arrays(base, chunk, list(islice(solved, len(chunk))))

        parts = [saved(folder, chunk_key, "without each image", compute, chunk) for chunk_key, chunk in chunks.items()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def arrays(self, base: tj.Fitted, rows: np.ndarray, solved: list[tj.Fitted]) -> dict[str, np.ndarray]:
        """The arrays of images and the optima without them.

        `own`: their outputs without them, "k c"; the change of each measure; |dw_i - dw| as `change`; `certificate`,
        `passes`.
        """
        steps = stacked([trees.along(each.dw, -1.0, base.dw) for each in solved])
        changes = changes_of(self.predict, self.test.inputs, steps)
        logits = tj.outputs(self.predict, base.dw, self.test.inputs).astype(np.float64)
        before = self.measure(logits)
        after = [self.measure(logits + change) for change in changes]
        images = self.train.take(rows)
        changes_of_own = np.einsum("kkc->kc", changes_of(self.predict, images.inputs, steps))
        outputs = tj.outputs(self.predict, base.dw, images.inputs) + changes_of_own
        return {
            "own": outputs.astype(np.float64),
            **{name: np.stack([values[name] - before[name] for values in after]) for name in before},
            "change": np.array([distance(each.dw, base.dw) for each in solved]),
            "certificate": np.array([bound_of(each, base) for each in solved]),
            "passes": np.array([float(each.steps) for each in solved]),
        }

    def again(self, left_out: LeftOut, count: int) -> float | None:
        """The largest difference of the own outputs of the first `count` images from those of a cold `solve` each.

        It is relative to the largest change of such outputs; None for no images.
        """
        own = left_out.arrays["own"]
        rows = left_out.rows
        changed = own - tj.outputs(self.predict, left_out.base.dw, self.train.inputs[rows])
        errors = []
        with tj.show_progress("solved again, cold"), progress_bar(min(count, len(rows)), "image") as bar:
            for i, outputs in zip(rows[:count], own, strict=False):
                [weights] = Without(len(self.train), [i])
                options = {"example_weights": weights, "certificate": left_out.target}
                with tj.show_progress(None):
                    cold = tj.solve(self.predict, self.train, self.objective, **options)
                alone = tj.outputs(self.predict, cold.dw, self.train.inputs[i : i + 1])[0]
                errors.append(np.abs(alone - outputs).max())
                bar.update()
        return float(max(errors) / np.abs(changed).max()) if errors else None


@jax.default_matmul_precision("highest")
def changes_of(predict: tj.Predictor, inputs: Any, steps: Tree) -> np.ndarray:
    """J q of every step "k ...", "k n c": by jvp, so that rounding is relative to J q, not to the outputs."""
    return tj.outputs(Partial(_changes, predict), steps, inputs).transpose(1, 0, 2)


def _changes(predict: tj.Predictor, steps: Tree, x: Array) -> Array:
    """J q of several steps, "b k c"; predict: affine in dw."""

    def change(q: Tree) -> Array:
        return jax.jvp(lambda dw: predict(dw, x), (predict.zeros(),), (q,))[1]

    return jax.vmap(change, 0, 1)(steps)


def stacked(steps: list[Tree]) -> Tree:
    """The steps as one tree with k as the first axis of each leaf."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


def distance(a: Tree, b: Tree) -> float:
    """|a - b|."""
    return float(trees.norm(trees.along(a, -1.0, b)))


def bound_of(a: tj.Fitted, b: tj.Fitted) -> float:
    """A bound on the error of |a.dw - b.dw|; infinity without both certificates."""
    first = certificate_of(a)
    second = certificate_of(b)
    return np.inf if first is None or second is None else first + second

"""Private runs that differ only in numbers, which share one program.

Their noise comes from seeds, so that the results are NOT private.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import tangent_jax as tj
from experiments.shared.search import Tabled
from tangent_jax.commands.shared.settings import Compute, Model, Reading
from tangent_jax.io.progress import shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateTable(Model, Reading, Compute, Tabled):
    """A table of private runs by epsilon, whose settings are searched."""

    delta: float = 1e-5
    epsilon: tuple[str, ...] = ("1", "3", "8")
    loss: str = "ce"
    lr: tuple[str, ...] = ("0.006", "0.02", "0.06", "0.2")
    output: str = "tangent"
    penalty: float = 0.0


class PrivateRun(Protocol):
    """One run of a table: the settings in which it differs from others."""

    @property
    def seed(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    def mechanism(self, delta: float) -> tj.privacy.Mechanism:
        """The mechanism of the run."""
        ...


def accuracies(
    predicts: Sequence[tj.Predictor],
    train: tj.Features,
    measured: tj.Features,
    objective: tj.Objective,
    runs: Sequence[PrivateRun],
    delta: float,
) -> list[float]:
    """The accuracy on `measured` of each run, by its predictor, trained on `train`."""
    measures = []
    for predict, run in zip(predicts, runs, strict=True):
        fitted = tj.fit_private(
            predict,
            train,
            objective,
            mechanism=run.mechanism(delta),
            optimizer=tj.privacy.momentum(run.learning_rate),
            seed=run.seed,
            progress=shown,
        )
        measures.append(tj.evaluate(predict, fitted.dw, measured))
    return measures

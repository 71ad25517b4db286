"""Private runs that differ only in numbers, which share one program.

Their noise comes from seeds, so that the results are NOT private.
"""

from collections.abc import Sequence
from typing import Protocol

import tangent_jax as tj
from tangent_jax.io.progress import shown


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

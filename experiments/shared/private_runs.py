"""Private runs that differ only in numbers, trained in one program and evaluated."""

from collections.abc import Sequence
from typing import Protocol

import tangent_jax as tj
from experiments.shared.private_many import fit_private_many
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
    trained = fit_private_many(
        predicts,
        train,
        objective,
        mechanisms=[run.mechanism(delta) for run in runs],
        optimizers=[tj.privacy.momentum(run.learning_rate) for run in runs],
        seeds=[run.seed for run in runs],
        progress=shown,
    )
    return [tj.evaluate(predict, fitted.dw, measured) for predict, fitted in zip(predicts, trained, strict=True)]

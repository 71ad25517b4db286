"""The ways to train tangent weights: Adam for some epochs, or the solver of the optimum."""

import dataclasses
from typing import Any

import numpy as np
from jax import Array

from tangent_jax.io.log import current_log
from tangent_jax.io.progress import shown
from tangent_jax.io.records import Tagged
from tangent_jax.solver.optimum import Solved, solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.features import Features
from tangent_jax.train.fit import compile_fit, fit
from tangent_jax.train.objective import Objective
from tangent_jax.train.optimizers import Optimizer, adam, project
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import Predict


@dataclasses.dataclass(frozen=True)
class Adam(Tagged):
    """Training by `adam`; `radius`: the bound of projected descent, None for no bound.

    >>> tj.Recipe(trainer=tj.store.Adam(0.1, epochs=5)).fit(demo.predict, demo.train).steps
    5
    """

    learning_rate: float = 1e-3
    epochs: int = 30
    batch_size: int = 32
    radius: float | None = None

    def __post_init__(self) -> None:
        self.optimizer()

    def optimizer(self) -> Optimizer:
        """Adam, projected to a ball if a radius is given."""
        optimizer = adam(self.learning_rate)
        return optimizer if self.radius is None else project(optimizer, self.radius)

    def batches(self, features: Features, key: Array, rows: np.ndarray | None = None) -> Batches:
        """The features, or `rows` of them, in the order of the key."""
        return features.batches(key, rows=rows, batch_size=self.batch_size)

    def fit(
        self,
        predict: Predict,
        features: Features,
        objective: Objective,
        key: Array,
        rows: np.ndarray | None = None,
        **options: Any,
    ) -> Fitted:
        """Trains dw from zero on the features, or on `rows` of them, in the order of the key; options as `fit`."""
        data = self.batches(features, key, rows)
        settings: Any = {"log": current_log(), "progress": shown} | options
        return fit(predict, data, objective, **self.program(), epochs=self.epochs, **settings)

    def compile(self, predict: Predict, features: Features, objective: Objective, key: Array) -> None:
        """Compiles what `fit` with checkpoints runs on features of these shapes."""
        compile_fit(predict, self.batches(features, key), objective, **self.program(), has_checkpoints=True)

    def program(self) -> dict[str, Any]:
        """The arguments of `fit` that decide its program."""
        return {"optimizer": self.optimizer(), "metrics": {"train_accuracy": accuracy}}


@dataclasses.dataclass(frozen=True)
class Optimum(Tagged):
    """The optimum by `tj.solve`, to a `certificate` or in `passes`, whichever comes first.

    >>> recipe = tj.Recipe(objective=tj.make_objective("mse", 0.1), trainer=tj.store.Optimum())
    >>> recipe.fit(demo.predict, demo.train).info.converged
    True
    """

    certificate: float = 0.01
    passes: int = 100

    def fit(
        self,
        predict: Predict,
        features: Features,
        objective: Objective,
        key: Array | None = None,
        rows: np.ndarray | None = None,
        **options: Any,
    ) -> Fitted[Solved]:
        """Solves on the features, or on `rows` of them, from zero or a `start`; options as `solve`."""
        data = features if rows is None else features.take(rows)
        certificate = self.certificate if objective.penalty > 0 else None
        bounds: Any = {"certificate": certificate, "passes": self.passes}
        return solve(predict, data, objective, **bounds, log=current_log(), progress=shown, **options)

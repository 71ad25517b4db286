"""Measurements of models trained apart: their outputs, and membership attacks on them."""

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared.shards import Method
from tangent_jax.core.notation import Tree


def outputs_of(method: Method, store: tj.Store) -> np.ndarray:
    """The outputs of every component of a store on the test images, "s n c"."""
    return np.stack([tj.outputs(method.predict, store[name].dw, method.test.inputs) for name in store])


def attack_removed(
    method: Method, models: dict[str, Tree], gone: np.ndarray, shadows: int, seed: int
) -> tj.audit.Membership:
    """Membership attacks on models, for the training images at rows `gone` against as many test images."""

    def train(data: tj.Features, halves: list[np.ndarray]) -> list[Tree]:
        rows = {f"shadow {i}": half for i, half in enumerate(halves)}
        return [fitted.dw for fitted in method.fit(rows, "shadows", data)]

    members = method.train.take(np.sort(gone))
    return tj.audit.membership_attack(
        method.predict, models, members, method.test, train, shadows=shadows, seed=[seed, 3]
    )

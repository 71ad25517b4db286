"""Folds of images beside those of an anchor, which has fitted their labels."""

import numpy as np

import tangent_jax as tj
from tangent_jax.train.features import folds_of, numbered


def folds_beside(train: tj.Features, training: np.ndarray) -> np.ndarray:
    """The fold of each example, "n"; -1 for those at `training` and others of their groups, which always train."""
    groups = numbered(train.whole_groups or range(len(train)))
    left = np.flatnonzero(~np.isin(groups, groups[training]))
    folds = np.full(len(train), -1)
    folds[left] = folds_of(train.targets[left], groups[left].tolist())
    return folds

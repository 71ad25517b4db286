"""Federated averaging (McMahan et al. 2017): contributors fine-tune a network, which moves by the mean of their steps.

w_{r+1} = w_r + 1/K sum_k dw_k,    dw_k: contributor k's step from w_r on their own images
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import check_stop


def average(
    predict: tj.Predictor,
    train: tj.Features,
    recipe: tj.Recipe,
    rows: Mapping[str, np.ndarray],
    rounds: int,
    at_once: int = 10,
) -> tj.Predictor:
    """The network after some rounds; each contributor takes the recipe's epochs in a round, in the same order in each.

    Args:
        predict: The network, non-linear.
        rows: The rows of the training images of each contributor.
        at_once: As in `Shards`.
    """
    for _ in range(rounds):
        steps = tj.store.Shards(predict, train, recipe, rows, at_once=at_once).fit()
        predict = moved(predict, tj.compose([tj.Component(fitted.dw) for fitted in steps.values()]))
        check_stop()
    return predict


def moved(predict: tj.Predictor, dw: Tree) -> tj.Predictor:
    """The predictor at w + dw."""
    return dataclasses.replace(predict, w=trees.add(predict.w, dw))

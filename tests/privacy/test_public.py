"""Public images: whitened coordinates, the same mechanism in them, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, assert_sums_are_vmapped_ones, private_task, tree_normal

from tangent_jax.core import InputError, trees
from tangent_jax.models.features import Features
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.public import DAMPING, unwhitened, whitened
from tangent_jax.train.losses import CrossEntropy


def of(x, name):
    """Features of these inputs, whose contents are named."""
    x = np.asarray(x)
    examples = tuple((f"{name} {i}", f"{name}{i}.png") for i in range(len(x)))
    return Features(x, np.zeros(len(x), np.int32), examples)


@functools.cache
def task(*arguments, **options):
    predict, dw, x, y = private_task(*arguments, **options)
    public = of(jnp.flip(x, 0)[:5] * 0.7, "public")
    own = whitened(predict, public, of(x, "private"))
    return predict, own, tree_normal(5, own.zeros()), x, y


def test_it(x64):
    for kind, blocks in (("head", 1), ("blocks", 1)):
        predict, own, v, x, y = task(kind, blocks)
        assert_rel_close(own(v, x), predict(unwhitened(own, v), x))
        assert_sums_are_vmapped_ones(own, v, x, y)
        v0 = own.zeros()
        assert_rel_close(own(v0, x), predict(predict.zeros(), x))

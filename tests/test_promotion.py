"""The library computes under JAX's standard promotion where a program has set a stricter one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import images, normal, predictor

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import compose
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import feature_map
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.kernel import make_kernel
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.mapped import make_statistics
from tangent_jax.solver.optimum import solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import evaluate, outputs
from tangent_jax.train.features import Features
from tangent_jax.train.fit import fit
from tangent_jax.train.objective import make_objective

BLOCK, _ = predictor("blocks", 1, 1)
PREDICT, _ = predictor("head", 1, 1)
X, TOKENS = (np.asarray(normal(1, (20, *p.model.input_shape(p.subset.stage)))) for p in (PREDICT, BLOCK))
Y = np.arange(20, dtype=np.int32) % 7
DATA = Batches(X, Y, jax.random.key(0), batch_size=8)
OBJECTIVE = make_objective("ce", 0.1)


def statistics():
    map_ = feature_map(Pretrained(PREDICT.model, PREDICT.w, "test"), ("h", "ntk", "place"), width=16)
    shape = PREDICT.model.input_shape(map_.predict.subset.stage)
    inputs = np.asarray(jax.random.normal(jax.random.key(2), (20, *shape)))
    features = Features(inputs, Y, tuple((str(i), str(i)) for i in range(20)))
    return outputs(map_, make_statistics(map_, features, [f"class {i}" for i in range(7)]).solve(), features)


def solved_apart():
    data, square = Batches(X, Y, batch_size=8), make_objective("rsl", 0.1)
    start = solve(PREDICT, data, square, certificate=None, passes=3)
    return list(solve_many(PREDICT, data, square, example_weights=[np.ones(20)], start=start, passes=3))


ROADS = {
    "fit": lambda: evaluate(PREDICT, fit(PREDICT, DATA, OBJECTIVE, optimizer=optax.adamw(1e-3), epochs=1).dw, DATA),
    "fit_private": lambda: fit_private(PREDICT, Batches(X, Y), mechanism=Mechanism(1.0, 1.0, 2, 1e-3), seed=0),
    "solve": lambda: solve(PREDICT, Batches(X, Y, batch_size=8), OBJECTIVE, certificate=None, passes=3),
    "solve_many": solved_apart,
    "make_kernel": lambda: make_kernel(PREDICT, Batches(X, Y)).solve(0.1),
    "statistics": statistics,
    "compose": lambda: compose([Component(PREDICT.zeros()), Component(PREDICT.zeros())]),
    "clipped_sum": lambda: clipped_sum(
        BLOCK, BLOCK.zeros(), TOKENS, Y, np.ones(20), loss=OBJECTIVE.loss, clip_norm=1.0
    ),
    "apply": lambda: PREDICT.model.apply(PREDICT.w, images(2), 0),
    "linearize": lambda: linearize(lambda w, x: w * x, jnp.ones(3))(jnp.ones(3), np.arange(3)),
    "a gradient of one's own": lambda: jax.grad(lambda dw: jnp.sum(BLOCK(dw, TOKENS) ** 2))(BLOCK.zeros()),
}


@pytest.mark.parametrize("road", ROADS)
def test_main_functions_run_under_strict(road):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        ROADS[road]()

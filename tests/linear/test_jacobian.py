"""J of a batch, however it is held, and its rows as inputs and signals, against J multiplied out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import flat, private_case
from helpers import assert_rel_close, in_long

from tangent_jax.core import trees
from tangent_jax.linear.jacobian import Fresh, keep

pytestmark = pytest.mark.usefixtures("x64")
HELD = {"fresh": lambda fresh, zero: fresh, "kept": keep}


def of_steps(tree):
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)], 1)


@jax.jit
def products(jacobian, dw, u, steps):
    """At dw: the outputs, the product with dw, the transposed of u, the outputs at 0; all steps' product and back."""
    at = jacobian.at(dw)
    times = jax.vmap(at.mv, out_axes=2)
    changes = times(steps)
    back = jax.linear_transpose(times, steps)(changes)[0]
    at_zero = jacobian.at(jax.tree.map(jnp.zeros_like, dw)).outputs
    return at.outputs, at.mv(dw), at.vjp(u), at_zero, changes, back


@pytest.mark.parametrize("held", HELD)
def test_each_form_gives_same_products(held):
    predict, dw, x, _, j, f = private_case("blocks", 1, classes=3)
    rows = np.array([4, 0, 2])
    jacobian = HELD[held](Fresh(predict, x, rows), jax.tree.map(jnp.zeros_like, dw))
    j, f, u = j[rows], f[rows], np.random.default_rng(0).standard_normal((3, 3))
    steps = jax.tree.map(lambda leaf: np.stack([leaf, -2 * leaf**2, leaf**3]), jax.tree.map(np.asarray, dw))
    outputs, along, transposed, at_zero, changes, back = products(jacobian, dw, jnp.asarray(u), steps)
    assert_rel_close(outputs, f + j @ flat(dw))
    assert_rel_close(along, j @ flat(dw))
    assert_rel_close(flat(transposed), np.einsum("bcp,bc->p", j, u))
    assert_rel_close(at_zero, f)
    assert_rel_close(changes, np.einsum("bcp,kp->bck", j, of_steps(steps)))
    assert_rel_close(of_steps(back), np.einsum("bcp,bck->kp", j, changes))


@jax.jit
def multiplied_out(predict, dw, x, u):
    """Each leaf's rows of the cotangents u "k b c", "b k p"."""
    k, got = len(u), []
    rows = predict.probe(dw, x, at_zero=True).rows(u)
    for path, like in trees.leaves(dw).items():
        leaf = rows.get(path)
        if leaf is None:
            value = jnp.zeros((len(x), k, like.size))
        elif leaf.layout is None:
            value = leaf.s
        else:
            blocks_of = jnp.einsum("bthi,bktho->bkhio", leaf.x, leaf.s)
            value = jax.vmap(jax.vmap(lambda a, leaf=leaf, like=like: leaf.layout.kernel(a, like.shape)))(blocks_of)
        got.append(jnp.reshape(value, (len(x), k, -1)))
    return jnp.concatenate(got, 2)


@pytest.mark.parametrize(("kind", "blocks", "k"), [("blocks", 2, 2), *in_long(("blocks", 1, 1), ("everything", 0, 2))])
def test_rows_are_inputs_times_signals(kind, blocks, k):
    predict, dw, x, _, j, _ = private_case(kind, blocks)
    u = np.random.default_rng(1).standard_normal((k, *j.shape[:2]))
    assert_rel_close(multiplied_out(predict, dw, x, jnp.asarray(u)), np.einsum("bcp,kbc->bkp", j, u))


def test_signals_are_those_of_the_gradient():
    """As private clipping needs them: the outputs are those at dw, and `at_zero` those at 0."""
    predict, dw, x, _, j, f = private_case("blocks", 1)
    for at_zero, want in ((False, f + j @ flat(dw)), (True, f)):
        outputs = jax.jit(lambda p, dw, x, at_zero=at_zero: p.probe(dw, x, at_zero=at_zero).outputs)(predict, dw, x)
        assert_rel_close(outputs, jnp.asarray(want))

"""J against dense rows, jax.jvp and jax.vjp, for the closed form, automatic differentiation and any function."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, in_long, normal, private_task, tree_normal

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError

QUICK = ["closed form", "autodiff", "function", *in_long("nonlinear")]


def task(kind):
    """(predict, dw, x, other inputs of another number)."""
    if kind == "function":
        dw = {"kernel": normal(1, (4, 3)), "bias": normal(2, (3,))}
        return lambda dw, x: jnp.tanh(x @ dw["kernel"]) + dw["bias"], dw, normal(3, (5, 4)), normal(4, (2, 4))
    options = {"linearization": "autodiff"} if kind == "autodiff" else {}
    method = "nlft" if kind == "nonlinear" else "taft"
    predict, dw, x, _ = private_task("blocks", 1, method=method, **options)
    return predict, dw, x[:4], x[4:]


norms, gram, factors = (jax.jit(f) for f in (tj.Jacobian.norms, tj.Jacobian.gram, tj.Jacobian.factors))


def jacobian(predict, dw, x):
    return jax.jit(lambda dw, x: tj.jacobian(predict, dw, x))(dw, x)


def dense(predict, dw, x):
    """The rows of J, "b c p"."""
    rows = jax.jit(jax.jacobian(lambda dw: predict(dw, x)))(dw)
    return jnp.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in trees.leaves(rows).values()], 2)


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in trees.leaves(tree).values()])


@pytest.mark.parametrize("kind", QUICK)
def test_the_products_are_those_of_jvp_and_vjp(x64, kind):
    predict, dw, x, _ = task(kind)
    J, v = tj.jacobian(predict, dw, x), tree_normal(5, dw)
    u = normal(6, J.outputs.shape)
    outputs, change = jax.jit(lambda dw, v: jax.jvp(lambda dw: predict(dw, x), (dw,), (v,)))(dw, v)
    assert_rel_close(J.outputs, outputs)
    assert_rel_close(J.mv(v), change)
    assert_rel_close(J.vjp(u), jax.jit(lambda dw, u: jax.vjp(lambda dw: predict(dw, x), dw)[1](u)[0])(dw, u))
    assert_rel_close(jnp.vdot(J.mv(v), u), jnp.vdot(flat(v), flat(J.vjp(u))))


@pytest.mark.parametrize("kind", QUICK)
def test_steps_multiply_together(x64, kind):
    predict, dw, x, _ = task(kind)
    J, steps = tj.jacobian(predict, dw, x), [tree_normal(5 + i, dw) for i in range(3)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
    assert_rel_close(J.mv(together), jnp.stack([J.mv(v) for v in steps]))
    us = normal(9, (3, *J.outputs.shape))
    assert_rel_close(J.vjp(us), jax.tree.map(lambda *leaves: jnp.stack(leaves), *[J.vjp(u) for u in us]))


@pytest.mark.parametrize("kind", QUICK)
def test_norms_gram_and_factors_are_dense_rows(x64, kind):
    predict, dw, x, other = task(kind)
    J, rows = jacobian(predict, dw, x), np.asarray(dense(predict, dw, x))
    u = normal(6, J.outputs.shape)
    assert_rel_close(norms(J), np.linalg.norm(rows, axis=2))
    assert_rel_close(norms(J, u), np.linalg.norm(np.einsum("bc,bcp->bp", u, rows), axis=1))
    assert_rel_close(norms(J, jnp.stack([u, 2 * u + 1])), jnp.stack([norms(J, u), norms(J, 2 * u + 1)]))
    assert_rel_close(gram(J), np.einsum("bcp,dep->bcde", rows, rows))
    theirs = jacobian(predict, dw, other)
    assert_rel_close(gram(J, theirs), np.einsum("bcp,dep->bcde", rows, dense(predict, dw, other)))
    squares = np.zeros(J.outputs.shape)
    for leaf in factors(J).values():
        row = leaf.s if leaf.x is None else np.einsum("bthi,bctho->bchio", leaf.x, leaf.s)
        squares += np.square(row.reshape(*row.shape[:2], -1)).sum(2)
    assert_rel_close(squares, np.square(rows).sum(2))


def test_few_tokens_have_the_same_gram(x64):
    """The paper's stage reads all tokens of the last block but one; the head reads one."""
    predict, dw, x, _ = private_task("head", 0)
    rows = np.asarray(dense(predict, dw, x))
    assert_rel_close(gram(jacobian(predict, dw, x)), np.einsum("bcp,dep->bcde", rows, rows))


def test_jit_takes_and_returns_it(x64):
    predict, dw, x, _ = private_task("head", 1)
    J = jax.jit(tj.jacobian)(predict, dw, x)
    assert_rel_close(norms(J), tj.jacobian(predict, dw, x).norms())


def test_slope_norms_are_those_of_clipping(x64):
    predict, dw, x, y = private_task("blocks", 1)
    J = jacobian(predict, dw, x)
    slope = jax.grad(lambda f: jnp.sum(tj.losses.CrossEntropy()(f, y)))(J.outputs)
    settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 1.0}
    clipped = jax.jit(tj.privacy.clipped_sum)(predict, dw, x, y, jnp.ones(len(x)), **settings)
    assert_rel_close(norms(J, slope), clipped.norms)


@pytest.mark.parametrize("kind", ["closed form", "function"])
def test_lineax_multiplies_and_solves_with_it(x64, kind):
    lineax = pytest.importorskip("lineax", reason="the extra lineax is not installed")
    predict, dw, x, _ = task(kind)
    J, v = tj.jacobian(predict, dw, x), tree_normal(5, dw)
    operator = J.as_lineax()
    assert isinstance(operator, lineax.AbstractLinearOperator)
    assert_rel_close(operator.mv(v), J.mv(v))
    assert_rel_close(operator.T.mv(J.outputs), J.vjp(J.outputs))
    normal_equations = operator.T @ operator + lineax.IdentityLinearOperator(operator.in_structure())
    tagged = lineax.TaggedLinearOperator(normal_equations, lineax.positive_semidefinite_tag)
    right = J.vjp(J.outputs)
    solved = lineax.linear_solve(tagged, right, lineax.CG(rtol=1e-12, atol=1e-12)).value
    rows = dense(predict, dw, x).reshape(-1, len(flat(dw)))
    want = jnp.linalg.solve(rows.T @ rows + jnp.eye(rows.shape[1]), flat(right))
    np.testing.assert_allclose(flat(solved), want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda J, dw: J.mv({"bias": dw["bias"]}), "v must have the leaves and shapes of dw, .*; got no leaf kernel"),
        (
            lambda J, dw: J.mv({**dw, "bias": dw["bias"][:2]}),
            r"got the shape \(2,\) at bias, which has \(3,\) in dw",
        ),
        (
            lambda J, dw: J.mv({"bias": jnp.ones((7, 2)), "kernel": jnp.ones((7, 4, 3))}),
            r"got the shape \(7, 2\) at bias, which has \(3,\) in dw",
        ),
        (lambda J, dw: J.mv({**dw, "gain": dw["bias"]}), "got a leaf gain, which dw lacks"),
        (
            lambda J, dw: J.mv({"bias": jnp.ones((7, 3)), "kernel": jnp.ones((8, 4, 3))}),
            "got another kind of tree, or first axes of different lengths",
        ),
        (lambda J, dw: J.vjp(J.outputs[:2]), r"u must have the shape \(5, 3\) of the outputs"),
        (lambda J, dw: J.vjp(dw), r"u must have the shape \(5, 3\) of the outputs, or \(k, 5, 3\); got a dict"),
        (lambda J, dw: J.norms(J.outputs[:2]), r"u must have the shape \(5, 3\) of the outputs, .*; got \(2, 3\)"),
        (lambda J, dw: tj.jacobian(lambda dw, x: dw["bias"], dw, J.x), r"of shape \(5, c\); got \(3,\)"),
        (
            lambda J, dw: tj.jacobian(lambda dw, x: (J.outputs, dw), dw, J.x),
            "predict must return one array of outputs, .*; got tuple",
        ),
        (lambda J, dw: tj.jacobian(J.predict, dw, {"pixels": J.x}), "x must be one array, .*; got a dict"),
    ],
)
def test_wrong_shapes_are_refused(call, match, untyped):
    predict, dw, x, _ = task("function")
    with pytest.raises(InputError, match=match):
        call(tj.jacobian(predict, dw, x), dw)


class Net(nn.Module):
    """A linen network with batch norm."""

    @nn.compact
    def __call__(self, x, training):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not training)(nn.Dense(8)(x)))


def test_coupled_rows_are_refused(x64):
    x, net = normal(3, (5, 4)), Net()
    variables = net.init(jax.random.key(0), x, False)

    def apply(dw, x, training):
        outputs, _ = net.apply({**variables, "params": dw}, x, training, mutable=["batch_stats"])
        return outputs

    def predict(dw, x):
        return apply(dw, x, training=True)

    dw = variables["params"]
    J, u = tj.jacobian(predict, dw, x), normal(6, (5, 3))
    assert_rel_close(J.vjp(u), jax.vjp(lambda dw: predict(dw, x), dw)[1](u)[0])
    for rows in (J.norms, J.gram, J.factors, lambda: jax.jit(tj.Jacobian.norms)(J)):
        with pytest.raises(InputError, match=r"treat each example alone, .* sums over the examples\. Use no"):
            rows()
    evaluated = tj.jacobian(lambda dw, x: apply(dw, x, training=False), dw, x)
    assert_rel_close(evaluated.norms(), jnp.linalg.norm(dense(evaluated.predict, dw, x), axis=2))


@pytest.mark.parametrize(
    ("meet", "refused"),
    [
        (lambda z: z - z.mean(0), True),
        (lambda z: z / jnp.max(z), True),
        (lambda z: jax.nn.softmax(z @ z.T) @ z, True),
        (lambda z: z + jnp.roll(z, 1, 0), False),  # not seen, as it sums nothing
        (lambda z: z.reshape((1, 3) if len(z) == 1 else (5, 3)), False),  # takes 1 and 5 examples only: not checked
        (lambda z: jax.lax.map(jnp.tanh, z, batch_size=2), False),
        (lambda z: jnp.stack([row / jnp.linalg.norm(row) for row in z]), False),
    ],
)
def test_summing_function_is_refused(meet, refused):
    predict, dw, x, _ = task("function")
    J = tj.jacobian(lambda dw, x: meet(predict(dw, x)), dw, x)
    if not refused:
        J.norms()
        return
    with pytest.raises(InputError, match="sums over the examples"):
        J.norms()

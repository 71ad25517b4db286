"""The quadratic expansion at an optimum against dense algebra: what changes when examples leave, and estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import private_case, ridge
from helpers import in_long

from experiments.shared import ekfac
from tangent_jax.core.checks import InputError
from tangent_jax.solver import expansion as expansions
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective

SQUARE, CROSS = make_objective("rsl", 0.4, alpha=2.0, kappa=3.0), make_objective("ce", 0.4)


def close(got, want, tolerance=1e-9):
    assert np.linalg.norm(np.asarray(got) - want) <= tolerance * np.linalg.norm(want)


class Dense:
    """The same by J "nc p" and H, on the first five of six examples, at some step for cross entropy."""

    def __init__(self, objective, kind="blocks", blocks=1, pool="token"):
        self.predict, _, self.x, y, j, f = private_case(kind, blocks, pool)
        self.y, self.j, self.total = y[:5], j[:5], 5 * 0.4
        if isinstance(objective.loss, CrossEntropy):
            step = np.random.default_rng(0).standard_normal(j.shape[-1]) * 0.01
        else:
            step = ridge(self.j, f[:5], self.y, total=self.total, alpha=2.0, kappa=3.0)
        self.f = f[:5] + self.j @ step
        at, labels = jnp.asarray(self.f), jnp.asarray(self.y)
        self.r = np.asarray(jax.grad(lambda f: jnp.sum(objective.losses(f, labels)))(at))
        hessian = jax.hessian(lambda f, y: objective.losses(f[None], y[None])[0])
        self.w = np.asarray(jax.vmap(hessian)(at, labels))
        bent = np.einsum("ncd,ndp->ncp", self.w, self.j)
        self.h = np.einsum("ncp,ncq->pq", self.j, bent) + self.total * np.eye(j.shape[-1])
        rows = jacobian_rows(self.predict, self.x)
        self.others, self.j_other = rows.take(slice(5, 6)), j[5]
        own = rows.take(slice(0, 5))
        self.expansion = expansions.expand(own, own.gram(), self.f, self.y, objective)


@pytest.mark.parametrize("objective", [CROSS, *in_long(SQUARE)], ids=["cross entropy", "square"])
def test_leaving_effects_are_dense_hessians(x64, objective):
    dense = Dense(objective)
    reach = dense.expansion.reach(dense.others)
    inverse = np.linalg.inv(dense.h)
    close(reach, np.einsum("cp,pq,ndq->cnd", dense.j_other, inverse, dense.j))
    pulls, left_out = dense.expansion.pulls(), dense.expansion.left_out()
    for i in range(5):
        j, own = dense.j[i], dense.h - dense.j[i].T @ dense.w[i] @ dense.j[i]
        step = np.linalg.solve(own, j.T @ dense.r[i])
        close(reach[:, i] @ pulls[i], dense.j_other @ step)
        close(left_out[i], dense.f[i] + j @ step)


def test_newton_step_leaves_one_out_exactly(x64):
    dense = Dense(SQUARE)
    *_, f = private_case("blocks", 1)
    for i in range(5):
        left = np.setdiff1d(np.arange(5), [i])
        dw = ridge(dense.j[left], f[left], dense.y[left], total=dense.total, alpha=2.0, kappa=3.0)
        close(dense.expansion.left_out()[i], f[i] + dense.j[i] @ dw)


@pytest.mark.parametrize(("blocks", "pool"), [(1, "token"), (1, "avg")])
def test_ekfac_is_diagonal_in_eigenvectors(x64, monkeypatch, blocks, pool):
    monkeypatch.setattr(ekfac, "CHUNK", 200)  # several chunks
    dense = Dense(SQUARE, "blocks", blocks, pool)
    effects, total = ekfac.ekfac_effects(dense.expansion, dense.others), 0
    rows, roots = dense.expansion.rows, dense.expansion.roots
    for path, part in rows.leaves.items():
        each, other = formed(part), formed(dense.others.leaves[path])
        rotated = np.einsum("nchio,nck->nkhio", each, roots)
        if part.x is None:
            flat = rotated.reshape(-1, rotated.shape[-1])
            bases = np.linalg.eigh(flat.T @ flat)[1][None], np.eye(1)[None]
            rotated, each, other = (a.swapaxes(-1, -2) for a in (rotated, each, other))
        else:
            flowing = np.einsum("nctho,nck->nktho", part.s, roots)
            moments = np.einsum("nthi,nthj->hij", part.x, part.x), np.einsum("nktho,nkthp->hop", flowing, flowing)
            bases = tuple(np.linalg.eigh(a)[1] for a in moments)
        rotated, each, other = (np.einsum("nchio,hij,hop->nchjp", g, *bases) for g in (rotated, each, other))
        scales = (rotated**2).sum((0, 1)) + dense.total
        total = total + np.einsum("chio,nhio->cn", other[0] / scales, np.einsum("nchio,nc->nhio", each, dense.r))
    close(effects, total)


def formed(part):
    """An example's gradients, "n c h i o"."""
    if part.x is None:
        return part.s[:, :, None, None]
    return np.einsum("nthi,nctho->nchio", part.x, part.s)


def test_expansion_needs_a_penalty(x64):
    dense = Dense(SQUARE)
    with pytest.raises(InputError, match="penalty must be > 0"):
        expansions.expand(dense.expansion.rows, np.eye(35), dense.f, dense.y, make_objective("rsl", 0.0))
    with pytest.raises(InputError, match="penalty must be above the rounding of the kernel; got 1e-30"):
        expansions.expand(dense.expansion.rows, np.ones((35, 35)), dense.f, dense.y, make_objective("rsl", 1e-30))

"""Whitening by public images: better coordinates for clipping and noise.

    M  = sum_(i,t) x_it x_it^T / m + 0.1 I       over public images i, their tokens t; m: the mean eigenvalue
    dW = R dV,  R R^T = M^-1                         a kernel's tangent, trained as dV

Noise is equal in all directions, but a kernel's inputs are not: a few directions hold most of their energy, and in the
others noise exceeds the gradient. Whitening by the second moments of public images makes directions more equal. It
changes the predictor only, not the mechanism: sensitivity and noise stay. Any root of M^-1 serves, as clip norm and
noise depend on lengths alone; this file takes the inverse of a Cholesky factor. Biases, gains and signals are not
whitened; whitening signals by their factor G gave no gain. Public images cost no privacy. Only their inputs are read,
so they may be of any class.
"""

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from tangent_jax.core import Tree, expect, require, trees
from tangent_jax.core.boundary import public
from tangent_jax.models.features import Features
from tangent_jax.models.predict import Predictor
from tangent_jax.models.whitened import ROOT, WHITENED, Whitened, times_root
from tangent_jax.solver.problem import make_curvature
from tangent_jax.train.objective import make_objective

DAMPING = 0.1  # in units of the mean eigenvalue; 0.03 to 1 serve alike


@public
def whiten(predict: Predictor, public: Features, private: Features) -> Predictor:
    """The predictor with kernels in coordinates whitened by public images; `unwhiten` converts its dw back.

    Args:       predict: a model with a closed form; public: its features of public images; private: its features of the
                training images, to check that none of them is public.
    Returns:    Predictor of the same outputs, whose kernels' leaves have other names.
    Guarantees: reads the content identifiers of private images and nothing else of them; reads no labels.
    Edge cases: fewer public images than a kernel has inputs: the damping makes M definite.
    Raises:     InputError for no public image, an image that is public and private, or inputs that are not finite.

    >>> white = tj.privacy.whiten(demo.predict, public=demo.test, private=demo.train)
    >>> white.subset.paths
    ('head/bias', 'head/kernel_whitened', 'second/bias', 'second/kernel_whitened')
    """
    expect(not isinstance(predict.model, Whitened), "a predictor that is not whitened", "one that is")
    predict.closed_form("whiten")
    expect(len(public), "a public image at least", "none")
    check_public("whiten", *([identifier for identifier, _ in part.examples] for part in (public, private)))
    # square loss without targets: only the inputs' factors are used
    unlabelled = dataclasses.replace(public, targets=np.zeros((len(public), predict.model.classes), np.float32))
    tangent = dataclasses.replace(predict, method="taft")
    public_curvature = make_curvature(tangent, unlabelled, make_objective("mse", penalty=0.0), key=jax.random.key(0))
    leaves, v = trees.leaves(predict.w), {}
    for path, (a, _) in public_curvature.kernels.items():
        expect(np.isfinite(a).all(), f"finite inputs of {path}", "others", "Leave such images out")
        leaves |= {path + ROOT: inverse_root(np.asarray(a)), path + WHITENED: jnp.zeros_like(leaves[path])}
        v[path] = path + WHITENED
    paths = tuple(sorted(v.get(path, path) for path in predict.subset.paths))
    subset = dataclasses.replace(predict.subset, name=f"{predict.subset.name} whitened", paths=paths)
    model = Whitened(predict.model, public_curvature.layouts)
    return dataclasses.replace(predict, model=model, w=trees.nest(leaves), subset=subset)


@public
def check_public(function: str, public: Collection[str], private: Collection[str]) -> None:
    """Raises InputError if an image is public and private, by content identifiers.

    >>> tj.privacy.check_public("whiten", public={"aa", "bb"}, private={"cc"})
    """
    shared = {*public} & {*private}
    got = f"{len(shared)} of {len(public)} that are among the private ones"
    require(not shared, function, "public images that are not private", got, "Take them out of one of the two")


@threadpool_limits.wrap(limits=1, user_api="blas")
def inverse_root(a: np.ndarray) -> jax.Array:
    """R of matrices "h i i", on the host in f64; one thread, as `solver.curvature.invert` says."""
    wide, n = a.astype(np.float64), a.shape[-1]
    mean = np.trace(wide, axis1=1, axis2=2).mean() / n or 1.0
    m = wide / mean + DAMPING * np.eye(n)
    roots = [scipy.linalg.solve_triangular(np.linalg.cholesky(block), np.eye(n), lower=True).T for block in m]
    return jnp.asarray(np.stack(roots), a.dtype)


@public
def unwhiten(predict: Predictor, dw: Tree) -> Tree:
    """The tangent weights in the original coordinates: R dV for each whitened dV, other leaves unchanged.

    Edge cases: for a predictor that is not whitened, dw is returned unchanged.
    Raises:     InputError for a step of another predictor.

    >>> white = tj.privacy.whiten(demo.predict, public=demo.test, private=demo.train)
    >>> tj.privacy.unwhiten(white, white.zeros())["head"]["kernel"].shape
    (6, 3)
    """
    model = predict.model
    trees.check_part("unwhiten", predict.w, dw)
    leaves, w = trees.leaves(dw), trees.leaves(predict.w)
    for path, axes in model.layouts if isinstance(model, Whitened) else ():
        leaves[path] = times_root(w[path + ROOT], leaves.pop(path + WHITENED), axes)
    return trees.nest(leaves)

"""Public images: the coordinates in which private training clips gradients and adds noise.

    M  = sum_(i,t) x_it x_it^T / m + 0.1 I       over public images i, their tokens t; m: the mean eigenvalue
    dW = R dV,  R R^T = M^-1                         a kernel's tangent, trained as dV

Noise is alike in all directions of the coordinates that are trained, but a kernel's inputs are not: few directions hold
most of them, and in the others noise outweighs the gradient. Whitened by the second moments of public images they are
more alike. The mechanism is the same, on another predictor: nothing about its sensitivity or its noise changes. Any
root of M^-1 serves, as clip norm and noise see lengths alone: here the inverse of a Cholesky factor. Biases and gains
stay as they are; so do signals, whose factor G won nothing. Public images cost no privacy. Only their inputs are read,
so their classes may be any.
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
    """The predictor whose kernels train in coordinates whitened by public images; `unwhiten` gives its dw.

    Args:       predict: a model with a closed form; public: its features of images whose inputs may be known to all;
                private: those that it will be trained on, to see that none of them is public.
    Returns:    Predictor of the same outputs, whose kernels' leaves have other names.
    Guarantees: reads nothing of the private images but their content identifiers; labels of no image.
    Edge cases: fewer public images than a kernel has inputs: the damping makes M definite.
    Raises:     InputError for no public image, one that is private too, by its content, or inputs that are not finite.
    """
    expect(not isinstance(predict.model, Whitened), "a predictor that is not whitened", "one that is")
    predict.closed_form("whiten")
    expect(len(public), "a public image at least", "none")
    check_public("whiten", *([identifier for identifier, _ in part.examples] for part in (public, private)))
    # square loss and no targets: of the factors the inputs' alone are read
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
    """Raises InputError where an image is public and private, by content identifiers."""
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
    """The tangent weights of the predictor that was whitened: R dV for dV, other leaves as they are.

    Edge cases: a predictor that is not whitened gives dw as it is.
    Raises:     InputError for a step of another predictor.
    """
    model = predict.model
    trees.check_part("unwhiten", predict.w, dw)
    leaves, w = trees.leaves(dw), trees.leaves(predict.w)
    for path, axes in model.layouts if isinstance(model, Whitened) else ():
        leaves[path] = times_root(w[path + ROOT], leaves.pop(path + WHITENED), axes)
    return trees.nest(leaves)

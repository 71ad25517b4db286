"""Whitening: better coordinates for clipping and noise, without a look at private images.

    M  = sum_(i,t) x_it x_it^T / m + a I         over public images i, their tokens t; m: the mean eigenvalue
    M  = (diag(s^2) + b b^T) / m + a I           without public images, for a kernel that reads a layer norm s x^ + b
    dW = R dV,  R R^T = M^-1                     a kernel's tangent, trained as dV; a: the damping

Noise is equal in all directions, but a kernel's inputs are not: a few directions hold most of their energy, and in the
others noise exceeds the gradient. Whitening by second moments of the inputs makes directions more equal. A standardised
x^ has about zero mean and unit variance, so the gain s and the bias b of the norm below a kernel tell its moments, and
they are as public as the weights. Public images tell more: all moments, of all kernels. They cost no privacy; only
their inputs are read, so they may be of any class.

Whitening changes the predictor only, not the mechanism: sensitivity and noise stay. Any root of M^-1 serves, as clip
norm and noise depend on lengths alone; this file takes the inverse of a Cholesky factor. Biases, gains and signals are
not whitened; whitening signals by their factor G gave no gain.
"""

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.linear.signals import Layout
from tangent_jax.linear.tangent import check_factors
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import input_dtype
from tangent_jax.models.whitened import ROOT, WHITENED, Whitened, times_root
from tangent_jax.solver.problem import make_curvature
from tangent_jax.train.features import Features
from tangent_jax.train.objective import make_objective

DAMPING = 0.1  # in units of the mean eigenvalue; 0.03 to 1 serve alike

Moments = dict[str, tuple[np.ndarray, Layout]]
"""Second moments "h i i" of the inputs of kernels, up to a factor, and how the kernels' axes meet their inputs."""


def whiten(predict: Predictor, public: Features | None = None, private: Features | None = None) -> Predictor:
    """The predictor with kernels in whitened coordinates; `unwhiten` converts its dw back.

    Args:
        predict: A model with a closed form.
        public: Its features of public images, or None: kernels that read a layer norm (`input_norms` of the model) are
            whitened by its gain and bias.
        private: Its features of the training images, to check that none of them is public; needed beside `public` only.

    Returns:
        Predictor of the same outputs, whose whitened leaves have other names.

    Guarantees:
        Reads the content identifiers of private images and nothing else of them; reads no labels.

    Edge cases:
        Without public images, a predictor that trains no kernel above a layer norm is returned unchanged. Fewer public
        images than a kernel has inputs: the damping makes M definite.

    Raises:
        InputError: No public image, an image that is public and private, or inputs that are not finite.

    >>> white = tj.privacy.whiten(demo.predict, public=demo.test, private=demo.train)
    >>> white.subset.paths
    ('head/bias', 'head/kernel_whitened', 'second/bias', 'second/kernel_whitened')
    """
    if isinstance(predict.model, Whitened):
        raise InputError("predict must not be whitened; got one that is")
    if public is None:
        moments = moments_of_norms(predict)
    else:
        check_images(public, private)
        moments = moments_of_images(predict, public)
    if not moments:
        return predict
    leaves, renamed = trees.leaves(predict.w), {path: path + WHITENED for path in moments}
    for path, (a, _) in moments.items():
        leaves |= {path + ROOT: inverse_root(a), path + WHITENED: jnp.zeros_like(leaves[path])}
    paths = tuple(sorted(renamed.get(path, path) for path in predict.subset.paths))
    subset = dataclasses.replace(predict.subset, name=f"{predict.subset.name} whitened", paths=paths)
    model = Whitened(predict.model, tuple((path, axes) for path, (_, axes) in moments.items()))
    return dataclasses.replace(predict, model=model, w=trees.nest(leaves), subset=subset)


def moments_of_images(predict: Predictor, public: Features) -> Moments:
    """The moments of the inputs of all trained kernels, by public images."""
    check_factors(predict, "Whiten by the norms alone: leave out the public images")
    # square loss without targets: only the inputs' factors are used
    unlabelled = dataclasses.replace(public, targets=np.zeros((len(public), predict.model.classes), np.float32))
    tangent = dataclasses.replace(predict, method="taft")
    curvature = make_curvature(tangent, unlabelled, make_objective("mse", penalty=0.0), key=jax.random.key(0))
    axes_of = dict(curvature.layouts)
    for path, (a, _) in curvature.kernels.items():
        if not np.isfinite(a).all():
            raise InputError(f"inputs of {path} must be finite; got others. Leave such images out.")
    return {path: (np.asarray(a), axes_of[path]) for path, (a, _) in curvature.kernels.items()}


def moments_of_norms(predict: Predictor) -> Moments:
    """The moments of the inputs of each trained kernel that multiplies the output of a layer norm."""
    known = getattr(predict.model, "input_norms", {})
    norms = {path: known[path] for path in predict.subset.paths if path in known}
    axes_of = layouts(predict) if norms else {}
    return {path: (moment_of_norm(predict.w, norm), axes_of[path]) for path, norm in norms.items()}


def moment_of_norm(w: Tree, norm: str) -> np.ndarray:
    """diag(s^2) + b b^T of the gain s and the bias b of a layer norm, "1 i i": its kernels share inputs among heads."""
    leaves = trees.leaves(w)
    s, b = leaves[f"{norm}/scale"], leaves[f"{norm}/bias"]
    return np.asarray(jnp.diag(jnp.square(s)) + jnp.outer(b, b))[None]


def layouts(predict: Predictor) -> dict[str, Layout]:
    """The layout of each trained kernel, by path, traced on one example."""
    predict = dataclasses.replace(predict, linearization=None)  # the closed form names the axes
    model, stage = predict.model, predict.subset.stage
    dtype = input_dtype(model) if stage == 0 else np.float32
    found: dict[str, Layout] = {}

    def trace(x: jax.Array) -> None:
        probed = predict.probe(predict.zeros(), x, at_zero=True)
        leaves = probed.rows(jnp.zeros_like(probed.outputs)[None])
        found.update({path: leaf.layout for path, leaf in leaves.items() if leaf.layout is not None})

    jax.eval_shape(trace, jax.ShapeDtypeStruct((1, *model.input_shape(stage)), dtype))
    return found


def check_public(public: Collection[str], private: Collection[str]) -> None:
    """Raises InputError if an image is public and private, by content identifiers.

    >>> tj.privacy.check_public(public={"aa", "bb"}, private={"cc"})
    """
    shared = {*public} & {*private}
    if shared:
        raise InputError(
            f"public images must not be private; got {len(shared)} of {len(public)} that are among the private ones."
            " Take them out of one of the two."
        )


def check_images(public: Features, private: Features | None) -> None:
    """Raises InputError for no public image, one that is public and private, or private images that are not named."""
    if private is None:
        raise InputError("private must be the features of the training images, beside public; got none")
    if not len(public):
        raise InputError("public must be one image at least; got none")
    check_public(*([identifier for identifier, _ in part.examples] for part in (public, private)))


@threadpool_limits.wrap(limits=1, user_api="blas")
def inverse_root(a: np.ndarray) -> jax.Array:
    """R of matrices "h i i", on the host in f64; one thread, as `solver.curvature.invert` says."""
    wide, n = a.astype(np.float64), a.shape[-1]
    mean = np.trace(wide, axis1=1, axis2=2).mean() / n or 1.0
    m = wide / mean + DAMPING * np.eye(n)
    roots = [scipy.linalg.solve_triangular(np.linalg.cholesky(block), np.eye(n), lower=True).T for block in m]
    return jnp.asarray(np.stack(roots), a.dtype)


@jax.default_matmul_precision("highest")
def unwhiten(predict: Predictor, dw: Tree) -> Tree:
    """The tangent weights in the original coordinates: R dV for each whitened dV, other leaves unchanged.

    Edge cases:
        For a predictor that is not whitened, dw is returned unchanged.

    Raises:
        InputError: A step of another predictor.

    >>> white = tj.privacy.whiten(demo.predict, public=demo.test, private=demo.train)
    >>> tj.privacy.unwhiten(white, white.zeros())["head"]["kernel"].shape
    (6, 3)
    """
    model = predict.model
    trees.check_part(predict.w, dw)
    leaves, w = trees.leaves(dw), trees.leaves(predict.w)
    for path, axes in model.layouts if isinstance(model, Whitened) else ():
        leaves[path] = times_root(w[path + ROOT], leaves.pop(path + WHITENED), axes)
    return trees.nest(leaves)

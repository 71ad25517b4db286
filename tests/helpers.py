"""One table of tolerances, one comparison, and small models with pairwise-distinct sizes."""

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax import trees, vit
from tangent_jax.config import ViTConfig

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2}  # relative norm; STYLE.md
DIFFERENCE = 1e-7  # central difference, step 1e-5, f64


def assert_rel_close(got, want, tolerance=None):
    """Trees of one structure, shapes and dtypes, whose difference is small in relative L2 norm over all leaves."""
    got, want = jax.tree.leaves_with_path(got), jax.tree.leaves_with_path(want)
    assert [path for path, _ in got] == [path for path, _ in want]
    squares = np.zeros(2)
    for (path, g), (_, w) in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype), (path, g.shape, g.dtype, w.shape, w.dtype)
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        assert np.isfinite(g).all(), path
        squares += np.sum((g - w) ** 2), np.sum(w**2)
    tolerance = tolerance or TOLERANCE[str(jnp.dtype(want[0][1].dtype))]
    error = np.sqrt(squares[0] / max(squares[1], np.finfo(np.float64).tiny))
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def normal(key, shape, dtype=None):
    """Draws of a numbered key: the same in every dtype, but for rounding (None: f64 under x64, else f32)."""
    return jax.random.normal(jax.random.key(key), shape, jnp.float32).astype(dtype or jnp.zeros(()).dtype)


def tree_normal(key, tree, dtype=None):
    """A tree like `tree` of draws that differ leaf by leaf."""
    return trees.nest(
        {
            path: normal(key + 7919 * i, leaf.shape, dtype or leaf.dtype)
            for i, (path, leaf) in enumerate(trees.leaves(tree).items())
        }
    )


def small(depth=2, **changes):
    """A ViT of 5 tokens, 3 heads of 4, MLP 20, 7 classes, with parameters of order one (f64 under x64)."""
    config = ViTConfig(width=12, depth=depth, heads=3, mlp_width=20, patch_size=4, image_size=8, classes=7, **changes)
    shapes = vit.shapes(config).items()
    draws = tree_normal(
        11, trees.nest({path: np.zeros(shape, np.float32) for path, shape in shapes}), jnp.zeros(()).dtype
    )
    return config, jax.tree.map(lambda draw: 0.5 * draw + (draw.ndim == 1), draws)


def images(count=2, size=8, dtype=None):
    return normal(3, (count, size, size, 3), dtype)

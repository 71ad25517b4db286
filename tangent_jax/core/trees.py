"""Partial trees: the trained part of a parameter tree, addressed by path.

A *part* of `w` is a tree with some of its leaves, at the same paths. Paths are those of
`jax.tree_util.keystr(..., simple=True, separator="/")`, for nested dicts, NNX states, tuples and dataclasses alike.
"""

import difflib
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Float, Inexact, PRNGKeyArray

from tangent_jax.core.checks import InputError, instance, of_shape
from tangent_jax.core.digests import digests
from tangent_jax.core.notation import Dual, Tree

NO_FLOATS = "Leave it out of dw; if it is an nnx.Param, make it an nnx.Variable"
"""The advice for a leaf of whole numbers, which has no tangent."""


def leaves(tree: Tree) -> dict[str, Any]:
    """The leaves by path, in the tree's own order."""
    return {keystr(path, simple=True, separator="/"): leaf for path, leaf in tree_flatten_with_path(tree)[0]}


def nest(flat: Mapping[str, Any]) -> Tree:
    """The nested dict with the leaves `flat`, by path."""
    tree: dict = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise InputError(f"{parent} of {path} must be a leaf or hold others; got both")
        if name in node:
            raise InputError(f"{path} must be a leaf or hold others; got both")
        node[name] = leaf
    return tree


def body(tree: Tree) -> Tree:
    """The leaves of a model without its head.

    >>> sorted(tj.models.body(demo.dw))
    ['second']
    """
    instance("the leaves of a model", tree, Mapping)
    return {name: leaf for name, leaf in tree.items() if name != "head"}


def check_part(w: Tree, part: Tree) -> None:
    """Raises InputError unless every leaf of `part` is of floats, and has a leaf of `w` of its path and shape."""
    all_leaves = leaves(w)
    for path, leaf in leaves(part).items():
        if path not in all_leaves:
            near = ", ".join(difflib.get_close_matches(path, [*all_leaves], 1, 0.0))
            raise InputError(
                f"dw must be a part of w; w lacks its leaf {path}, and has {near}. Build dw by "
                "jax.tree.map(jnp.zeros_like, part of w)"
            )
        of_shape(path, leaf, jnp.shape(all_leaves[path]))
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise InputError(f"leaves of dw must be floats; got {dtype} at {path}. {NO_FLOATS}")


def restrict(w: Tree, part: Tree) -> Tree:
    """The leaves of `w` at the paths of `part`, in the structure of `part`."""
    all_leaves = leaves(w)
    return jax.tree.unflatten(jax.tree.structure(part), [all_leaves[path] for path in leaves(part)])


def replace(w: Tree, part: Tree) -> Tree:
    """`w` with its leaves at the paths of `part` replaced by those of `part`."""
    replaced = {**leaves(w), **leaves(part)}
    return jax.tree.unflatten(jax.tree.structure(w), replaced.values())


def add(w: Tree, dw: Tree) -> Tree:
    """w + dw, dw a part of w."""
    return replace(w, jax.tree.map(jnp.add, restrict(w, dw), dw))


def plus(a: Tree, b: Tree) -> Tree:
    """a + b, of one structure."""
    return jax.tree.map(jnp.add, a, b)


def scale(t: Any, tree: Tree) -> Tree:
    """t times every leaf."""
    return jax.tree.map(lambda leaf: t * leaf, tree)


@jax.jit
def along(a: Tree, t: Any, b: Tree) -> Tree:
    """a + t b, in the dtypes of a, even for a wider t."""
    return jax.tree.map(lambda x, y: x + jnp.asarray(t, x.dtype) * y, a, b)


def pair(w: Tree, dw: Tree) -> Tree:
    """The nested dict `w` with every leaf as Dual(w, dw); dw is None for frozen leaves."""
    tangent = leaves(dw)
    return nest({path: Dual(leaf, tangent.get(path)) for path, leaf in leaves(w).items()})


def cast(tree: Tree, dtype: jax.typing.DTypeLike | None) -> Tree:
    """The tree with every leaf in `dtype` (None: unchanged)."""
    return tree if dtype is None else jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


def select(w: Tree, keep: Callable[[str], bool]) -> Tree:
    """The part of the nested dict `w` whose paths satisfy `keep`."""
    return nest({path: leaf for path, leaf in leaves(w).items() if keep(path)})


def as_pytree(function: Callable) -> Callable:
    """The function as a pytree, which jit takes as data; a plain function has no leaves."""
    return function if jax.tree.leaves(function) != [function] else jax.tree_util.Partial(function)


def check_key(key: Any) -> None:
    """Raises InputError unless it is one key of `jax.random`."""
    is_typed = isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    try:
        is_one = (key if is_typed else jax.random.wrap_key_data(key)).shape == ()
    except (TypeError, ValueError):
        is_one = False
    if not is_one:
        given = f"{key.dtype} of shape {key.shape}" if hasattr(key, "dtype") else repr(key)[:60]
        raise InputError(f"key must be one key, as jax.random.key(0) gives; got {given}. Pass jax.random.key(seed)")


def leaf_key(key: PRNGKeyArray, path: str) -> PRNGKeyArray:
    """The key of one leaf: its draw depends on its path, not on the other leaves."""
    return jax.random.fold_in(key, zlib.crc32(path.encode()))


def vdot(a: Tree, b: Tree) -> Inexact[Array, ""]:
    """The inner product over the whole tree, a scalar."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum((jnp.vdot(x, y, precision="highest") for x, y in pairs), start=jnp.zeros(()))


def squared_norm(tree: Tree) -> Float[Array, ""]:
    """The squared L2 norm over the whole tree, a scalar."""
    return sum((vdot(leaf, leaf).real for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


@jax.jit
def norm(tree: Tree) -> Float[Array, ""]:
    """|tree|, in L2 over the whole tree, a scalar."""
    return jnp.sqrt(squared_norm(tree))


def fingerprint(tree: Tree) -> str:
    """SHA-256 (hex) over path, dtype, shape and digest (core/digests.py) of every leaf, in the order of the paths.

    Guarantees:
        Equal for equal trees, for any order of insertion and any device; any changed bit changes it.
    """
    flat = {path: leaf if hasattr(leaf, "nbytes") else np.asarray(leaf) for path, leaf in sorted(leaves(tree).items())}
    state = hashlib.sha256()
    for (path, leaf), digest in zip(flat.items(), digests([*flat.values()]), strict=True):
        state.update(f"{path} {leaf.dtype} {leaf.shape};".encode() + digest)
    return state.hexdigest()

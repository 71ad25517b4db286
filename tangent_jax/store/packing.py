"""A component as named arrays and named texts: all that a file format of any kind must keep.

dw/PATH          the leaves of dw
factors/PATH     those of its Kronecker factors, if it has some
texts            "provenance", if it has one; "factors": the settings of the factors
"""

import json
from collections.abc import Mapping

import numpy as np

from tangent_jax.composition.component import Component
from tangent_jax.composition.kinds import check_component
from tangent_jax.composition.sums import check_finite
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, about
from tangent_jax.io.records import parse_json
from tangent_jax.store.factors import as_tree, check_factors, from_tree
from tangent_jax.store.provenance import Provenance


def pack(component: Component) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays by name, texts by name) of a component, for files of your own format.

    Guarantees:
        `unpack` of equal arrays and texts gives the same bits.

    >>> arrays, texts = tj.store.pack(tj.Component(demo.fitted.dw, demo.origin))
    >>> sorted(arrays), sorted(texts)
    (['dw/head/bias', 'dw/head/kernel', 'dw/second/bias', 'dw/second/kernel'], ['provenance'])
    """
    arrays = {f"dw/{path}": np.asarray(leaf) for path, leaf in trees.leaves(component.dw).items()}
    origin = component.provenance
    texts = {"provenance": origin.to_json()} if isinstance(origin, Provenance) else {}
    if component.factors is not None:
        tree, settings = as_tree(component.factors)
        arrays |= {f"factors/{path}": np.asarray(leaf) for path, leaf in trees.leaves(tree).items()}
        texts = {**texts, "factors": json.dumps(settings)}
    return arrays, texts


def unpack(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str], where: str = "a component") -> Component:
    """The component of `pack`; `where`: the file that messages name.

    Raises:
        InputError: What `Store.add` refuses by itself: a leaf that the provenance names and that is missing, numbers
            that are not finite, statistics or factors that no images give, factors of another anchor; and arrays that
            are no component's or no floats, and invalid provenance.

    >>> component = tj.store.unpack(*tj.store.pack(tj.Component(demo.fitted.dw, demo.origin, demo.curvature)))
    >>> component.provenance == demo.origin, float(component.factors.count)
    (True, 24.0)
    """

    def below(part: str) -> dict[str, np.ndarray]:
        return {path.removeprefix(part): leaf for path, leaf in arrays.items() if path.startswith(part)}

    leaves = below("dw/")
    if not leaves:
        raise InputError(f"{where} must hold arrays named dw/PATH, as tj.store.pack gives them; got {[*arrays][:3]}")
    dw = trees.nest(leaves)
    origin = Provenance.from_json(texts["provenance"], where) if "provenance" in texts else None
    factors = None
    if "factors" in texts:
        factors = from_tree(trees.nest(below("factors/")), parse_json(texts["factors"], where), where)
    with about(where):
        check_finite(dw)
        if origin is not None:
            check_component(dw, origin)
        check_factors(dw, factors, origin)
    return Component(dw, origin, factors)

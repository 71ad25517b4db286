"""Task vectors: checkpoints that others have fine-tuned of one pre-trained network, as components.

    dw = w_expert - w        leaf by leaf, so that f_{w + dw} is the expert

Source: Ilharco et al. 2023 (task arithmetic). The merged network f_{w + sum_s lambda_s dw_s} is not the ensemble of the
experts, and no merge of them is exact; a removal re-sums the others, bit for bit, as for every component.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tangent_jax.composition.component import Component
from tangent_jax.composition.origin import WITHOUT_EFFECT
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import check_classes, check_order
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import tell
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import Model
from tangent_jax.models.subsets import is_fixed
from tangent_jax.solver.problem import make_curvature
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.train.features import Features

ROUNDING = 2**-8  # of a leaf's norm: a checkpoint in bfloat16 differs from one in float32 by up to 2^-9


def task_vector(
    expert: Pretrained, predict: Predictor, classes: Sequence[str] | None = None, data: Features | None = None
) -> Component:
    """The component of a fine-tuned checkpoint: its weights less the pre-trained ones.

    Says on stderr if the difference is as large as the weights, as between two networks that were trained apart.

    Args:
        expert: As `tj.load` reads it.
        predict: `tj.nonlinear` of the pre-trained network, with a head of the expert's classes; its blocks or kind must
            have all leaves that the expert's training changed ("everything" has).
        classes: The names of the outputs, in the expert's order; None for those in its file. Components without names
            merge, but no head is joined.
        data: Images of the expert's training, as features of `predict`. The component then has factors at the expert,
            and names these images, so that a removal finds it.

    Guarantees:
        `predict(component.dw, x)` gives the expert's outputs, up to rounding.

    Raises:
        InputError: Another architecture, preprocessing or number of classes, and a leaf outside of the predictor's that
            differs from the pre-trained one.

    >>> moved = tj.Pretrained(demo.model.model, jax.tree.map(lambda leaf: 1.1 * leaf, demo.model.w), "mine")
    >>> component = tj.task_vector(moved, tj.nonlinear(demo.model, kind="everything"), ["a", "b", "c"])
    >>> bool(jnp.allclose(component.dw["second"]["kernel"], 0.1 * demo.model.w["second"]["kernel"]))
    True
    """
    names = expert.class_names if classes is None else check_classes(classes) if classes else ()
    check_order(expert.class_names, names)
    check_order(predict.class_names, names)
    check_model(expert.model, predict.model)
    w = host_leaves(predict.w)
    moved = host_leaves(expert.w)
    check_frozen(moved, w, predict.subset.paths)
    dw = {path: moved[path] - w[path] for path in predict.subset.paths}
    kernels = [path for path in dw if w[path].ndim > 1 and not path.startswith("head/")]
    if kernels and length(dw, kernels) >= length(w, kernels):
        tell(
            f"{expert.source} differs from the pre-trained weights by as much as these weigh: it may be of another "
            "pre-trained network"
        )
    component = Component(trees.nest(dw), make_provenance(predict, classes=names))
    return component if data is None else with_data(component, predict, data)


def with_data(component: Component, predict: Predictor, data: Features) -> Component:
    """The component with the images of its training in its provenance, and its factors at w + dw."""
    origin = component.provenance
    assert isinstance(origin, Provenance)
    at = dataclasses.replace(predict, w=trees.add(predict.w, component.dw), method="taft")
    factors = dataclasses.replace(make_curvature(at, data), anchor=origin.anchor + origin.head)
    return Component(component.dw, origin.trained_on(data, 0.0), factors)


def check_model(expert: Model, wanted: Model) -> None:
    """Raises InputError naming the first field in which an expert's model differs from the pre-trained one."""
    here, there = (
        {"architecture": type(model).__name__, **model.settings, "preprocessing": model.preprocessing}
        for model in (wanted, expert)
    )
    for field in here:
        if field not in WITHOUT_EFFECT and here[field] != there.get(field):
            raise InputError(
                f"{field} of the expert must be {here[field]}, as of the pre-trained network; got "
                f"{there.get(field)}. Merge experts of one network, each with a head of its own classes"
            )


def check_frozen(moved: Mapping[str, np.ndarray], w: Mapping[str, np.ndarray], paths: Sequence[str]) -> None:
    """Raises InputError naming a leaf outside of these paths that differs from the pre-trained one."""
    for path in sorted(w.keys() - {*paths}):
        if np.linalg.norm(moved[path] - w[path]) <= ROUNDING * np.linalg.norm(w[path]):
            continue
        remedy = 'Give the weights that it was fine-tuned from, or more blocks: tj.nonlinear(..., kind="everything")'
        if is_fixed(path):
            remedy = "Merge experts whose batch norms were frozen"
        raise InputError(f"{path} of the expert must be that of the pre-trained network; it differs. {remedy}")


def host_leaves(w: Tree) -> dict[str, np.ndarray]:
    """The leaves of a tree on the host, by path."""
    return {path: np.asarray(leaf) for path, leaf in trees.leaves(w).items()}


def length(leaves: Mapping[str, np.ndarray], paths: Sequence[str]) -> float:
    """The L2 norm of some leaves."""
    return float(np.linalg.norm([np.linalg.norm(leaves[path]) for path in paths]))

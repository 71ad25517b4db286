"""The anchor of a first session: the weights file that --save_anchor writes."""

import sys
from functools import partial

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.settings import FIELD_OF, FirstSession
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.io import hosts
from tangent_jax.io.paths import is_url

STATED = ("method", "weights", "dataset", "images", "subset", "blocks", "loss", "lr", "epochs", "seed", "epsilon",
          "delta")  # fmt: skip
"""The flags that a first session's settings always state."""
STATED_IF_CHANGED = ("skip_unreadable", "most_pixels", "public", "part", "owners", "classes", "unit", "clip_norm",
                     "sampling", "noise", "noise_seed")  # fmt: skip


def check_flags(config: FirstSession, recipe: tj.Recipe) -> None:
    """Raises InputError for a --save_anchor that cannot be, before any long work."""
    if config.save_anchor is None:
        return
    if recipe.is_linear:
        raise InputError(
            f"--save_anchor needs --method=nlft, whose network has the weights w + dw; got {config.method}, for which "
            "w + dw is another model"
        )
    if not config.save_anchor.endswith(".safetensors"):
        raise InputError(f"--save_anchor must be a file that ends in .safetensors; got {config.save_anchor}")
    if not is_url(config.save_anchor):
        folder = config.path("save_anchor").absolute().parent
        if not folder.is_dir():
            raise InputError(f"--save_anchor must be a file in a folder that exists; {folder} does not")


def check(config: FirstSession, predict: tj.Predictor) -> None:
    """Raises InputError for a network that is no anchor of the weights' architecture, or is one already."""
    if config.save_anchor is None:
        return
    before = source(config)
    if before.session is not None:
        raise InputError(
            f"--weights must be pre-trained weights beside --save_anchor; {config.weights} is the anchor of a first "
            "session already. Begin with its source, and the images of both"
        )
    trains_body = any(not path.startswith("head/") for path in predict.subset.paths)
    if not trains_body or before.model.with_classes(predict.model.classes) != predict.model:
        raise InputError(
            "--save_anchor needs a --subset of the network's own leaves below its head, such as blocks, with a new "
            f"head; got {predict.subset.name}"
        )


def source(config: FirstSession) -> tj.Pretrained:
    """The weights of the flags at the image size of the flags."""
    before = setup.pretrained(config)
    return before if config.image_size is None else before.with_image_size(config.image_size)


def save(
    config: FirstSession,
    predict: tj.Predictor,
    dw: Tree,
    images: tuple[tuple[str, str], ...],
    dataset: Dataset,
    command: str,
    spent: tj.privacy.Spent | None = None,
) -> None:
    """Writes the file of --save_anchor, if it is given: the body at w + dw, the head of the source, and the session."""
    if config.save_anchor is None:
        return
    if not np.isfinite(float(trees.norm(dw))):
        raise InputError("the fine-tuned weights must be finite for --save_anchor; they are not. Lower --lr")
    paid = None
    if spent is not None:
        paid = tj.models.Paid(spent.compute_epsilon(), spent.mechanism.delta, spent.mechanism.unit, spent.private)
    body = trees.fingerprint(tj.models.body(setup.pretrained(config).w))
    session = tj.models.FirstSession(body, dataset.name, dataset.classes, images, command, settings(config), paid)
    moved = source(config).with_body(trees.add(predict.w, dw), session)
    hosts.in_writer(partial(tj.save, config.save_anchor, moved))
    print(f"{config.save_anchor}: {session}", file=sys.stderr)


def settings(config: FirstSession) -> dict[str, str]:
    """The flags that decide a first session, as texts."""
    texts = {}
    for name in (*STATED, *FIELD_OF, *STATED_IF_CHANGED):
        value = getattr(config, name, None)
        if value is not None and (name in STATED or value != config.default(name)):
            texts[name] = config.text(name)
    return texts

"""Schemes of pre-training a small model on letters: by classes, by masked patches, or against their names' images.

    classes       cross entropy of the letter's class
    mae           mean squared error of the masked patches' pixels, standardised (He et al. 2022: three of four masked)
    contrastive   cross entropy of cos(f(x), f(name_c)) / 0.1 over all names c, as CLIP compares an image with captions
                  (Radford et al. 2021); the caption of a letter is its printed image, and both have one encoder

Each is a function of (dw, images) that `tj.fit` trains from random weights, with one budget of letters and epochs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import characters
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.data.decode import decode
from tangent_jax.models import initial_weights
from tangent_jax.rules import dense, layer_norm

CLASSES, SIDE, TEMPERATURE, MASKED = len(characters.CLASSES), 16, 0.1, 0.75
PREPROCESSING = tj.models.Preprocessing(crop=1.0)
VIT = tj.models.VisionTransformer(tj.models.ViTConfig(96, 6, 3, 384, 4, SIDE, CLASSES), PREPROCESSING)
RESNET = tj.models.ResNet(
    tj.models.ResNetConfig((1, 2, 2), width=28, stem="small", image_size=SIDE, classes=CLASSES), PREPROCESSING
)
DECODER = tj.models.VisionTransformer(tj.models.ViTConfig(48, 2, 3, 192, 4, SIDE, 4 * 4 * 3, pool="avg"), PREPROCESSING)
MODELS = {"vit": VIT, "resnet": RESNET}
SCHEMES = ("classes", "mae", "contrastive")


class Scheme(NamedTuple):
    """A predictor of uint8 images to train, its start dw, its objective, and the model of the trained dw."""

    predict: Callable[[Tree, Array], Array]
    dw: Tree
    objective: tj.Objective
    has_classes: bool
    finish: Callable[[Tree], tj.Pretrained]


def letters(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rendered letters in the models' input format, "n 16 16 3" uint8, and their classes, "n"."""
    images, labels = characters.render(count, seed)
    return resized(images), labels


def resized(images: np.ndarray) -> np.ndarray:
    return np.stack([decode(image, "letter", SIDE, PREPROCESSING) for image in images])


def make_scheme(scheme: str, kind: str, key: Array, images: np.ndarray) -> Scheme:
    """The scheme of a name for a model of MODELS; images: for a ResNet's final statistics."""
    if kind == "resnet":
        return of_resnet(key, images)
    return {"classes": of_classes, "mae": of_masks, "contrastive": of_names}[scheme](key)


def of_classes(key: Array) -> Scheme:
    pretrained = tj.Pretrained(VIT, initial_weights(VIT, key), "builtin")
    predict = tj.nonlinear(pretrained, kind="everything")
    objective = tj.make_objective("ce", penalty=1e-4)
    return Scheme(predict, predict.zeros(), objective, True, lambda dw: moved(pretrained, dw))


def moved(pretrained: tj.Pretrained, dw: Tree) -> tj.Pretrained:
    return tj.Pretrained(pretrained.model, trees.add(pretrained.w, dw), pretrained.source)


# A residual network: the batch's statistics while it trains, then fixed


def of_resnet(key: Array, images: np.ndarray) -> Scheme:
    w = initial_weights(RESNET, key)
    trained = tj.models.make_subset(RESNET, "everything").zeros(w)

    def finish(dw: Tree) -> tj.Pretrained:
        return tj.Pretrained(RESNET, with_statistics(trees.add(w, dw), images), "builtin-resnet")

    objective = tj.make_objective("ce", penalty=1e-4)
    return Scheme(Partial(resnet_logits, w), trained, objective, True, finish)


def resnet_logits(w: Tree, dw: Tree, x: Array) -> Array:
    return RESNET.in_training(trees.add(w, dw), PREPROCESSING.normalize(x))[0]


def with_statistics(w: Tree, images: np.ndarray) -> Tree:
    """The weights with the mean statistics of some batches (precise batch norm: Wu and Johnson 2021)."""
    batch = min(128, len(images))
    most = 40
    observe = jax.jit(lambda w, x: RESNET.in_training(w, PREPROCESSING.normalize(x))[1])
    starts = range(0, len(images) - batch + 1, batch)[:most]
    seen = [observe(w, images[start : start + batch]) for start in starts]
    means = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values), 0), *seen)
    flat = {
        f"{norm}/{name}": value
        for norm, pair in means.items()
        for name, value in zip(("mean", "var"), pair, strict=True)
    }
    return trees.replace(w, trees.nest(flat))


# Masked patches


def of_masks(key: Array) -> Scheme:
    own, other = jax.random.split(key)
    joint = {"encoder": initial_weights(VIT, own), "decoder": initial_weights(DECODER, other)}
    joint["to_decoder"] = {"kernel": 0.02 * jax.random.normal(key, (96, 48)), "bias": jnp.zeros(48)}
    joint["mask_token"] = {"token": 0.02 * jax.random.normal(other, (48,))}
    zeros = jax.tree.map(jnp.zeros_like, joint)
    model = VIT.with_classes(0)

    def finish(dw: Tree) -> tj.Pretrained:
        encoder = {name: leaf for name, leaf in trees.add(joint, dw)["encoder"].items() if name != "head"}
        return tj.Pretrained(model, encoder, "builtin")

    error = tj.Objective(masked_error, 1e-4)
    return Scheme(tj.losses.Keyed(Partial(reconstructed, joint)), zeros, error, False, finish)


def masked_error(errors: Array, labels: Array) -> Array:
    """The loss "b": the error from `reconstructed`, "b 1"; letters have no labels here."""
    return errors[:, 0] + 0.0 * labels


def reconstructed(w: Tree, dw: Tree, x: Array, key: Array) -> Array:
    """The mean squared error of each image's masked patches, "b 1"; the key draws the masks."""
    w, x = trees.add(w, dw), PREPROCESSING.normalize(x)
    encoder = w["encoder"]
    depth = VIT.config.depth
    every = VIT.replace(pool="avg", depth=depth + 1)  # its blocks before the last run on all tokens
    order = jnp.argsort(jax.random.uniform(key, (len(x), 16)), -1)
    unmasked = order[:, : round(16 * (1 - MASKED))]
    tokens = every.apply(encoder, x, 0, 1)
    rows = jnp.concatenate([jnp.zeros((len(x), 1), int), 1 + unmasked], 1)
    visible = jnp.take_along_axis(tokens, rows[..., None], 1)
    of_visible = every.replace(image_size=4 * round(unmasked.shape[1] ** 0.5))  # as many patches as are visible
    visible = of_visible.apply(encoder, visible, 1, depth + 1)
    visible, _ = layer_norm(visible, None, trees.pair(encoder["norm"], {}), VIT.config.eps)
    latent, _ = dense(visible, None, trees.pair(w["to_decoder"], {}))
    full = jnp.broadcast_to(w["mask_token"]["token"], (len(x), 17, 48))
    full = full.at[jnp.arange(len(x))[:, None], rows].set(latent) + w["decoder"]["position_embedding"]
    depth = DECODER.config.depth
    full = DECODER.replace(depth=depth + 1).apply(w["decoder"], full, 1, depth + 1)
    full, _ = layer_norm(full, None, trees.pair(w["decoder"]["norm"], {}), VIT.config.eps)
    pixels, _ = dense(full[:, 1:], None, trees.pair(w["decoder"]["head"], {}))
    patches = x.reshape(-1, 4, 4, 4, 4, 3).swapaxes(2, 3).reshape(-1, 16, 48)
    patches = (patches - patches.mean(-1, keepdims=True)) / (patches.std(-1, keepdims=True) + 1e-3)
    is_masked = jnp.ones((len(x), 16)).at[jnp.arange(len(x))[:, None], unmasked].set(0.0)
    errors = jnp.mean((pixels - patches) ** 2, -1)
    return (jnp.sum(errors * is_masked, -1) / jnp.sum(is_masked, -1))[:, None]


# The images of their names


def of_names(key: Array) -> Scheme:
    model = VIT.with_classes(0)
    pretrained = tj.Pretrained(model, initial_weights(model, key), "builtin")
    zeros: Any = jax.tree.map(jnp.zeros_like, pretrained.w)
    names = jnp.asarray(resized(characters.names()))
    objective = tj.make_objective("ce", penalty=1e-4)
    return Scheme(Partial(similarities, pretrained.w, names), zeros, objective, True, lambda dw: moved(pretrained, dw))


def similarities(w: Tree, names: Array, dw: Tree, x: Array) -> Array:
    """cos(f(x), f(name_c)) / temperature, "b c"."""
    w, model = trees.add(w, dw), VIT.with_classes(0)
    both = model.apply(w, PREPROCESSING.normalize(jnp.concatenate([x, names])))
    both = both / jnp.linalg.norm(both, axis=-1, keepdims=True)
    return both[: len(x)] @ both[len(x) :].T / TEMPERATURE

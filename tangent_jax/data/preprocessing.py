"""Preprocessing of images for a model: resizing, cropping, and the scale of the numbers."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import require

INCEPTION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
INTERPOLATIONS = ("bicubic", "bilinear")


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that a model was trained with: resize, centre crop, then (x - mean) / std of RGB in [0, 1].

    `crop` is the fraction of the resized short side that remains; `interpolation` bicubic or bilinear.
    """

    mean: tuple[float, ...] = INCEPTION[0]
    std: tuple[float, ...] = INCEPTION[1]
    crop: float = 0.9
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        for name, low in (("mean", -100.0), ("std", 0.0)):
            values = getattr(self, name)
            good = len(values) == 3 and all(low < value <= 100 for value in values)
            require(good, "Preprocessing", f"a {name} of three numbers above {low:g}", values)
        require(0.1 <= self.crop <= 1, "Preprocessing", "crop in 0.1..1", self.crop)
        known = self.interpolation in INTERPOLATIONS
        require(known, "Preprocessing", f"interpolation {' or '.join(INTERPOLATIONS)}", self.interpolation)

    def normalize(self, images: Array, dtype: jax.typing.DTypeLike = jnp.float32) -> Array:
        """uint8 images "b y x 3" as (image / 255 - mean) / std, "b y x 3" of `dtype`."""
        x = images.astype(jnp.float32) / 255
        return ((x - jnp.asarray(self.mean, jnp.float32)) / jnp.asarray(self.std, jnp.float32)).astype(dtype)

"""Preprocessing of images for a model: resizing, cropping, and the scale of the numbers."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import require, whole_number
from tangent_jax.core.boundary import public_class

INCEPTION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
INTERPOLATIONS = ("bicubic", "bilinear")
RESIZES = ("short", "exact")
ImageSize = int | tuple[int, int]
"""The side of a square image in pixels, or (height, width)."""


def sides(image_size: ImageSize) -> tuple[int, int]:
    """Height and width in pixels."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def check_image_size(function: str, image_size: ImageSize) -> None:
    """Raises InputError unless it is a side, or a pair of height and width, in 1..4096."""
    pair = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    require(len(pair) == 2, function, "image_size a side, or height and width", image_size)
    for side in pair:
        whole_number("image_size", side, 1, 4096, by=function)


@public_class
@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that a model was trained with: resize, centre crop, then (x - mean) / std of RGB in [0, 1].

    `crop`: the fraction of each side of the resized image that is kept; `interpolation`: bicubic or bilinear; `resize`:
    "short" keeps the aspect ratio and crops the long side, "exact" does not.

    >>> scale = tj.models.Preprocessing(crop=0.875)
    >>> scale.resized_shape((640, 480), 224), scale.normalize(jnp.zeros((1, 2, 2, 3), jnp.uint8)).max().item()
    ((341, 256), -1.0)
    """

    mean: tuple[float, ...] = INCEPTION[0]
    std: tuple[float, ...] = INCEPTION[1]
    crop: float = 0.9
    interpolation: str = "bicubic"
    resize: str = "short"

    def __post_init__(self) -> None:
        for name, low in (("mean", -100.0), ("std", 0.0)):
            values = getattr(self, name)
            good = len(values) == 3 and all(low < value <= 100 for value in values)
            require(good, "Preprocessing", f"a {name} of three numbers above {low:g}", values)
        require(0.1 <= self.crop <= 1, "Preprocessing", "crop in 0.1..1", self.crop)
        for name, known in (("interpolation", INTERPOLATIONS), ("resize", RESIZES)):
            value = getattr(self, name)
            require(value in known, "Preprocessing", f"{name} {' or '.join(known)}", value)

    def resized_shape(self, picture: tuple[int, int], image_size: ImageSize) -> tuple[int, int]:
        """Width and height of a picture after resizing, before the centre crop.

        Source: torchvision's Resize, as timm evaluates: the short side floor(size / crop), the other in proportion.
        """
        width, height = picture
        high, wide = (int(side / self.crop) for side in sides(image_size))
        if self.resize == "exact":
            return wide, high
        return (
            (wide, int(wide * height / width)) if wide * height >= high * width else (int(high * width / height), high)
        )

    def normalize(self, images: Array, dtype: jax.typing.DTypeLike = jnp.float32) -> Array:
        """uint8 images "b y x 3" as (image / 255 - mean) / std, "b y x 3" of `dtype`."""
        x = images.astype(jnp.float32) / 255
        return ((x - jnp.asarray(self.mean, jnp.float32)) / jnp.asarray(self.std, jnp.float32)).astype(dtype)

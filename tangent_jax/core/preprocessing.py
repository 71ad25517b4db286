"""Preprocessing of images for a model: resizing, cropping, and the scale of the numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Num

from tangent_jax.core.checks import InputError, one_of, whole_number
from tangent_jax.core.promotion import promotes

INCEPTION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
"""The filters, by Pillow's names."""
RESIZES = ("short", "exact", "none")
CENTRES = ("nearest", "floor")
ImageSize = int | tuple[int, int]
"""The side of a square image in pixels, or (height, width)."""


def sides(image_size: ImageSize) -> tuple[int, int]:
    """Height and width in pixels."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def check_image_size(image_size: ImageSize) -> None:
    """Raises InputError unless it is a side, or a pair of height and width, in 1..4096."""
    pair = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    if len(pair) != 2:
        raise InputError(f"image_size must be a side, or height and width; got {image_size}")
    for side in pair:
        whole_number("image_size", side, 1, 4096)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that a model was trained with: resize, centre crop, then (x - mean) / std of RGB in [0, 1].

    Attributes:
        crop: The fraction of each side of the resized image that is kept; above 1, black surrounds the image.
        interpolation: One of INTERPOLATIONS.
        resize: "short" keeps the aspect ratio and crops the long side, "exact" does not; "none" only crops.
        centre: How the half before the image is rounded where an odd number of pixels is cropped: "nearest" to the even
            number (of pixels that are added, down), as torchvision and timm do, or "floor", as Hugging Face's
            processors do.

    >>> scale = tj.models.Preprocessing(crop=0.875)
    >>> scale.resized_shape((640, 480), 224), scale.normalize(jnp.zeros((1, 2, 2, 3), jnp.uint8)).max().item()
    ((341, 256), -1.0)
    """

    mean: tuple[float, ...] = INCEPTION[0]
    std: tuple[float, ...] = INCEPTION[1]
    crop: float = 0.9
    interpolation: str = "bicubic"
    resize: str = "short"
    centre: str = "nearest"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as JSON; `centre` only with another value than the default."""
        fields = dataclasses.asdict(self)
        if self.centre == "nearest":
            del fields["centre"]
        return fields

    def __post_init__(self) -> None:
        for name, low in (("mean", -100.0), ("std", 0.0)):
            values = getattr(self, name)
            if len(values) != 3 or not all(low < value <= 100 for value in values):
                raise InputError(f"{name} must be three numbers above {low:g}, at most 100; got {values}")
        if not 0.1 <= self.crop <= 10:
            raise InputError(f"crop must be in 0.1..10; got {self.crop}")
        one_of("interpolation", self.interpolation, INTERPOLATIONS)
        one_of("resize", self.resize, RESIZES)
        one_of("centre", self.centre, CENTRES)

    def resized_shape(self, picture: tuple[int, int], image_size: ImageSize) -> tuple[int, int]:
        """Width and height of a picture after resizing, before the centre crop.

        Source: what timm evaluates by. Squares: torchvision's Resize, the short side floor(size / crop), the other in
        proportion, cut to a whole number. Rectangles: timm's ResizeKeepRatio, the same, rounded.
        """
        if self.resize == "none":
            return picture
        width, height = picture
        high, wide = (int(side / self.crop) for side in sides(image_size))
        if self.resize == "exact":
            return wide, high
        if high != wide:
            ratio = min(height / high, width / wide)
            return round(width / ratio), round(height / ratio)
        if height >= width:
            return wide, int(wide * height / width)
        return int(high * width / height), high

    def corner(self, picture: tuple[int, int], image_size: ImageSize) -> tuple[int, int]:
        """Left and top of the centre crop in a resized picture of this width and height; below 0 it is surrounded."""
        high, wide = sides(image_size)
        cropped = picture[0] - wide, picture[1] - high
        if self.centre == "floor":
            return cropped[0] // 2, cropped[1] // 2
        left, top = (round(pixels / 2) if pixels > 0 else -(-pixels // 2) for pixels in cropped)
        return left, top

    @promotes
    def normalize(
        self, images: Num[Array | np.ndarray, "*b 3"], dtype: jax.typing.DTypeLike = jnp.float32
    ) -> Float[Array, "*b 3"]:
        """Images of 0 to 255 as (image / 255 - mean) / std, of `dtype`."""
        x = jnp.asarray(images).astype(jnp.float32) / 255
        return ((x - jnp.asarray(self.mean, jnp.float32)) / jnp.asarray(self.std, jnp.float32)).astype(dtype)

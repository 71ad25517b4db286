"""The settings of a feature map, without the map itself (ntk.py): what composition and stores read of it."""

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from tangent_jax import models  # its names are imported at their first use
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity

if TYPE_CHECKING:
    from tangent_jax.models.anchor import Pretrained
    from tangent_jax.models.ntk import FeatureMap

PARTS = ("h", "relu", "ntk", "place")
SUMS = ("counts", "gram", "sums")
"""The leaves of a component of statistics; for few images `root` replaces `gram` (solver/leaves.py)."""


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
    """The arguments of `feature_map` besides the pre-trained model, and the compute dtype; these decide the features.

    >>> settings = tj.models.FeatureSettings(parts=("h",))
    >>> settings.of(demo.model).sizes
    (6,)
    """

    parts: tuple[str, ...] = ("h", "ntk")
    blocks: int | None = None
    directions: int = 1
    width: int = 4096
    seed: int = 0
    dtype: str = "float32"

    def of(self, pretrained: "Pretrained") -> "FeatureMap":
        """The feature map of a pre-trained model."""
        more = {"blocks": self.blocks, "directions": self.directions, "width": self.width, "seed": self.seed}
        map_ = models.feature_map(pretrained, self.parts, **more)
        return map_ if self.dtype == "float32" else map_.in_dtype(jnp.dtype(self.dtype))

    def sizes(self, k: int) -> tuple[int, ...]:
        """The size of each part of k features; InputError if these settings cannot give k features."""
        d = k - self.width * (len(self.parts) - 1) if "h" in self.parts else 0
        sizes = tuple(d if part == "h" else self.width for part in self.parts)
        if not (sum(sizes) == k and min(sizes, default=0) > 0):
            raise InputError(f"features must be as many as {', '.join(self.parts)} have; got {k}")
        return sizes

    def identity(self, anchor: str) -> str:
        """The identity of the feature map, given the fingerprint of its anchor (without the head)."""
        return identity(dataclasses.astuple(self), anchor)

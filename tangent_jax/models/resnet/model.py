"""The residual network as a model of the protocol (models/protocol.py)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.preprocessing import IMAGENET, ImageSize, Preprocessing
from tangent_jax.models.protocol import normal
from tangent_jax.models.resnet import names
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.forward import Statistics, forward, input_shape

DEFAULT = Preprocessing(*IMAGENET)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """A ResNet v1.5 without its weights: stage 0 is the stem, 1 to depth the blocks, depth + 1 the head.

    >>> config = tj.models.ResNetConfig(blocks=(1, 1), bottleneck=False, width=4, stem="small", image_size=8, classes=3)
    >>> model = tj.models.ResNet(config)
    >>> model.stages, model.input_shape(1), model.shapes()["head/kernel"]
    (4, (8, 8, 4), (8, 3))
    """

    config: ResNetConfig
    preprocessing: Preprocessing = DEFAULT

    @property
    def stages(self) -> int:
        return self.config.depth + 2

    @property
    def image_size(self) -> ImageSize:
        return self.config.image_size

    @property
    def classes(self) -> int:
        return self.config.classes

    @property
    def settings(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self.config).items()
        known = {name: [*value] if isinstance(value, tuple) else value for name, value in fields}  # as JSON has it
        return {name: value for name, value in known.items() if name != "stem_width" or value is not None}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.config.shapes()

    def stage_of(self, path: str) -> int:
        if path.startswith("layer"):
            layer, place, *_ = path.split("/")
            before = sum(self.config.blocks[: int(layer.removeprefix("layer")) - 1])
            return before + int(place.removeprefix("block_")) + 1
        return self.config.depth + 1 if path.startswith("head/") else 0

    def input_shape(self, stage: int) -> tuple[int, ...]:
        return input_shape(self.config, stage)

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        """He et al. 2015 over the outputs for convolutions, N(0, 0.01^2) for the head; gains and variances 1."""
        shape, name = self.shapes()[path], path.rpartition("/")[2]
        if name == "kernel":
            deviation = 0.01 if path.startswith("head/") else (2 / (shape[0] * shape[1] * shape[3])) ** 0.5
            return normal(key, shape, deviation)
        return jnp.full(shape, 1.0 if name in ("scale", "var") else 0.0, jnp.float32)

    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Float[Array, "b ..."]:
        return forward(self.config, trees.pair(w, {}), x, start, stop).primal

    def dual(self, pairs: Tree, x: Float[Array, "b ..."], start: int = 0) -> Dual:
        return forward(self.config, pairs, x, start)

    def patch_grid(self, w: Tree, x: Float[Array, "b y x d"], stage: int) -> Float[Array, "b y x d"]:
        """What a block reads at each place: its input."""
        return x

    def with_classes(self, classes: int) -> "ResNet":
        return self.replace(classes=classes)

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """timm's names, which are torchvision's too."""
        return names.to_timm(flat)

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path of tensors under timm's names."""
        return names.to_ours(tensors, "these tensors")

    # Methods of residual networks only

    def replace(self, **changes: Any) -> "ResNet":
        """The model with changed fields of its configuration."""
        return dataclasses.replace(self, config=self.config.replace(**changes))

    def with_image_size(self, w: Tree, image_size: ImageSize) -> tuple["ResNet", Tree]:
        """The model at another image size, with the same weights."""
        return self.replace(image_size=image_size), w

    def in_training(self, w: Tree, x: Float[Array, "b y x 3"]) -> tuple[Float[Array, "b c"], Statistics]:
        """Outputs with the batch's own statistics, for pre-training, and these: {norm: (mean, var)}."""
        seen: Statistics = {}
        return forward(self.config, trees.pair(w, {}), x, seen=seen).primal, seen

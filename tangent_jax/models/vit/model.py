"""The Vision Transformer as a model of the protocol (models/protocol.py)."""

import dataclasses
import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.preprocessing import ImageSize, Preprocessing, sides
from tangent_jax.models.vit import leaves, names
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.forward import forward, input_shape, patch_grid
from tangent_jax.models.vit.positions import resample
from tangent_jax.models.vit.tables import TIMM

DEFAULT = Preprocessing()
BEFORE = "Begin with the model as it was before"
LATER = ("class_token", "registers", "gated", "positions", "rope_theta", "position_filter")
"""Fields that settings hold only with other values than the default, as version 0.3 did."""


@dataclasses.dataclass(frozen=True)
class VisionTransformer:
    """A ViT without its weights: stage 0 is the embedding, 1 to depth the blocks, depth + 1 final norm and head.

    >>> model = tj.models.VisionTransformer(demo.vit_config)
    >>> model.stages, model.input_shape(0), model.shapes()["head/kernel"]
    (3, (8, 8, 3), (8, 3))
    """

    config: ViTConfig
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
        defaults = {field.name: field.default for field in dataclasses.fields(self.config)}
        fields = {
            name: [*value] if isinstance(value, tuple) else value  # as JSON has it
            for name, value in dataclasses.asdict(self.config).items()
            if name not in LATER or value != defaults[name]
        }
        if not self.config.adapter_width:  # as in components of version 0.3
            del fields["adapter_width"], fields["adapter_from"]
        return fields

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return leaves.shapes(self.config)

    @property
    def input_norms(self) -> dict[str, str]:
        """The layer norm that gives a kernel's inputs, by the kernel's path."""
        return leaves.input_norms(self.config)

    def stage_of(self, path: str) -> int:
        if path.startswith("block_"):
            return int(path.split("/")[0].removeprefix("block_")) + 1
        if path == "new_class_token":
            return (self.config.class_token_at or 0) + 1
        return self.config.depth + 1 if path.startswith(("norm/", "head/", "pool/")) else 0

    def input_shape(self, stage: int) -> tuple[int, ...]:
        return input_shape(self.config, stage)

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        return leaves.initial(path, key, self.shapes()[path])

    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Float[Array, "b ..."]:
        return forward(self.config, trees.pair(w, {}), x, start, stop).primal

    def dual(self, pairs: Tree, x: Float[Array, "b ..."], start: int = 0) -> Dual:
        return forward(self.config, pairs, x, start)

    def patch_grid(self, w: Tree, x: Float[Array, "b n d"], stage: int) -> Float[Array, "b y x d"]:
        """The patch tokens that a block reads, after its first norm."""
        return patch_grid(self.config, w, x, stage)

    def with_classes(self, classes: int) -> "VisionTransformer":
        return self.replace(classes=classes)

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """timm's names."""
        return names.to_timm(flat, self.config.pool, self.config.gated)

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path of tensors under timm's names."""
        shapes = self.shapes()
        flat = names.translate(tensors, TIMM, "these tensors")
        flat = names.with_gates(flat, "these tensors") if self.config.gated else flat
        for path, value in flat.items():
            if path not in shapes:
                raise InputError(f"leaves must be those of this Vision Transformer; got {path}")
            if value.size != math.prod(shapes[path]):
                raise InputError(f"{path} must have shape {shapes[path]}; got {value.shape}")
        return {path: value.reshape(shapes[path]) for path, value in flat.items()}

    # Methods of Vision Transformers only

    def replace(self, **changes: Any) -> "VisionTransformer":
        """The model with changed fields of its configuration."""
        return dataclasses.replace(self, config=self.config.replace(**changes))

    def with_class_token(self, blocks: int) -> "VisionTransformer":
        """CLS=T: a new class token replaces the old one at the input of the last `blocks` blocks."""
        depth, at = self.config.depth, self.config.class_token_at
        blocks = whole_number("blocks", blocks, 1, depth)
        if at is not None:
            raise InputError(f"the model must have its first class token; got one replaced at block {at}. {BEFORE}")
        return self.replace(class_token_at=depth - blocks)

    def with_adapters(self, width: int, blocks: int) -> "VisionTransformer":
        """Adds adapters of a width to the last `blocks` blocks."""
        depth, old = self.config.depth, self.config.adapter_width
        width = whole_number("width", width, 1, self.config.width)
        blocks = whole_number("blocks", blocks, 1, depth)
        if old:
            raise InputError(f"the model must have no adapters yet; got adapters of width {old}. {BEFORE}")
        return self.replace(adapter_width=width, adapter_from=depth - blocks)

    def with_image_size(self, w: Tree, image_size: ImageSize) -> tuple["VisionTransformer", Tree]:
        """The model at another image size; position embeddings are resampled, rotary ones follow the grid.

        The filter is `position_filter`: that of the program whose names the file had. The class token's row is kept.
        """
        new, old = self.replace(image_size=image_size), self.config
        read = tuple(patches * old.patch_size for patches in new.config.grid)
        if read != sides(image_size):
            line = f"of {image_size} pixels, {read} are read: whole patches of {old.patch_size} pixels"
            warnings.warn(line, stacklevel=3)
        if new.config.grid == old.grid or old.positions != "learned":
            return new, w
        token, grid = np.split(w["position_embedding"], [int(old.class_token)])
        grid = resample(np.asarray(grid).reshape(*old.grid, old.width), *new.config.grid, old.position_filter)
        resized = np.concatenate([np.asarray(token), grid.reshape(-1, old.width)])
        return new, {**w, "position_embedding": jnp.asarray(resized)}

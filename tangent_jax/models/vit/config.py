"""The configuration of a Vision Transformer, and the named sizes."""

import dataclasses
from typing import Literal

from tangent_jax.core import require, whole_number
from tangent_jax.rules import ACTIVATIONS

MOST = {"width": 65536, "depth": 1024, "heads": 1024, "mlp_width": 1 << 20, "patch_size": 4096, "image_size": 4096}
MOST |= {"classes": 1 << 20}
"""The largest value of each size: a larger one is a mistake, and would fill the memory before any other check."""


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The configuration of a Vision Transformer.

    Sizes in numbers of features, heads, pixels. `class_token_at` is the block at whose input the class
    token is replaced by the leaf "new_class_token" (the paper's CLS=T), or None. `eps` is the layer norms'. Without
    classes there is no head, and the model gives features. Blocks from `adapter_from` on have adapters of
    `adapter_width` features, 0 for none (Houlsby et al. 2019).
    """

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch_size: int = 16
    image_size: int = 224
    classes: int = 1000
    pool: Literal["token", "avg"] = "token"
    pre_norm: bool = False
    layer_scale: bool = False
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    eps: float = 1e-6
    class_token_at: int | None = None
    adapter_width: int = 0
    adapter_from: int = 0

    def __post_init__(self) -> None:
        for field, most in MOST.items():
            whole_number("ViTConfig", field, getattr(self, field), 0 if field == "classes" else 1, most)
        whole_number("ViTConfig", "adapter_width", self.adapter_width, 0, self.width)
        whole_number("ViTConfig", "adapter_from", self.adapter_from, 0, self.depth)
        at, size, patch = self.class_token_at, self.image_size, self.patch_size
        require(self.width % self.heads == 0, "ViTConfig", f"width {self.width} a multiple of heads", self.heads)
        require(size % patch == 0, "ViTConfig", f"image_size a multiple of patch_size {patch}", size)
        require(self.pool in ("token", "avg"), "ViTConfig", "pool token or avg", self.pool)
        require(self.activation in ACTIVATIONS, "ViTConfig", f"activation in {', '.join(ACTIVATIONS)}", self.activation)
        good = at is None or (0 <= at < self.depth and self.pool == "token")
        require(good, "ViTConfig", f"class_token_at in 0..{self.depth - 1} and pool token", f"{at}, {self.pool}")

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """The number of tokens: patches and the class token."""
        return self.grid**2 + 1

    def replace(self, **changes: object) -> "ViTConfig":
        """The configuration with other fields."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]


SIZES = {  # width, depth, heads, mlp_width (Dosovitskiy et al. 2021; Steiner et al. 2022)
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}
PATCH_SIZES = (8, 14, 16, 32)


def vit_config(name: str, **changes: object) -> ViTConfig:
    """The configuration of a named model, such as "L/16": a size of SIZES and a patch size.

    >>> vit_config("Ti/16").tokens
    197
    """
    size, _, patch = name.partition("/")
    expected = f"SIZE/PATCH with size in {', '.join(SIZES)} and patch in {', '.join(map(str, PATCH_SIZES))}"
    require(size in SIZES and patch in map(str, PATCH_SIZES), "vit_config", expected, name)
    return ViTConfig(*SIZES[size], patch_size=int(patch)).replace(**changes)

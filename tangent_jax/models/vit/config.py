"""The configuration of a Vision Transformer, and the named sizes."""

import dataclasses
from typing import Literal

from tangent_jax.core.checks import InputError, finite_number, one_of, whole_number
from tangent_jax.core.preprocessing import ImageSize, check_image_size, sides
from tangent_jax.models.vit.positions import FILTERS
from tangent_jax.rules import ACTIVATIONS

MOST = {"width": 65536, "depth": 1024, "heads": 1024, "mlp_width": 1 << 20, "patch_size": 4096}
MOST |= {"classes": 1 << 20, "registers": 1024}
"""The largest allowed value of each size; a larger one is a mistake that would fill the memory."""
POOLS = ("token", "avg", "norm_avg", "plain_avg", "token_avg", "token_register", "attention")
PAIRS = ("token_avg", "token_register")
"""Pools of two rows side by side."""
POSITIONS = ("learned", "rotary", "none")


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The configuration of a Vision Transformer.

    Sizes are in features, heads, or pixels (an image: a side, or height and width; pixels
    beside the last whole patch are not read, as in timm and Hugging Face's code). `class_token_at`: the block at
    whose input the leaf "new_class_token" replaces the class token (the paper's CLS=T), or None; `eps`: the layer
    norms'; classes = 0: no head, the model gives features; `adapter_width`: the features of the adapters in blocks from
    `adapter_from` on, 0 for none (Houlsby et al. 2019).

    Attributes:
        pool: The class token; the mean of the patches, normalised after it, before it, or not at all; class token and
            mean, or class token and first register, side by side; attention of a learned query (pools.py).
        gated: The MLP is a product of two layers: SwiGLU if the activation is silu.
        positions: Learned: added to class token and patches, resampled by `position_filter` (positions.py) at another
            image size; rotary: of queries and keys (rules/rotary.py), with the period `rope_theta`; or none.
        registers: Tokens without a position between the class token and the patches (Darcet et al. 2024).

    >>> config = tj.models.ViTConfig(width=8, depth=1, heads=2, mlp_width=16, patch_size=4, image_size=8, classes=3)
    >>> config.tokens, config.grid
    (5, (2, 2))
    """

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch_size: int = 16
    image_size: ImageSize = 224
    classes: int = 1000
    pool: Literal["token", "avg", "norm_avg", "plain_avg", "token_avg", "token_register", "attention"] = "token"
    pre_norm: bool = False
    layer_scale: bool = False
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "gelu"
    eps: float = 1e-6
    class_token_at: int | None = None
    adapter_width: int = 0
    adapter_from: int = 0
    class_token: bool = True
    registers: int = 0
    gated: bool = False
    positions: Literal["learned", "rotary", "none"] = "learned"
    rope_theta: float = 100.0
    position_filter: Literal[
        "bicubic", "bilinear", "bicubic_plain", "bicubic_offset", "bicubic_corners", "linear_corners"
    ] = "bicubic"

    def __post_init__(self) -> None:
        for field, most in MOST.items():
            whole_number(field, getattr(self, field), 0 if field in ("classes", "registers") else 1, most)
        check_image_size(self.image_size)
        finite_number("rope_theta", self.rope_theta, 1.0)
        whole_number("adapter_width", self.adapter_width, 0, self.width)
        whole_number("adapter_from", self.adapter_from, 0, self.depth)
        at, size, patch = self.class_token_at, self.image_size, self.patch_size
        if self.width % self.heads != 0:
            raise InputError(f"width must be a multiple of heads; got width {self.width} and heads {self.heads}")
        if min(sides(size)) < patch:
            raise InputError(f"image_size must be at least one patch of {patch} pixels; got {size}")
        choices = {"pool": POOLS, "activation": ACTIVATIONS, "positions": POSITIONS, "position_filter": FILTERS}
        for field, known in choices.items():
            value = getattr(self, field)
            one_of(field, value, known)
        if not self.class_token and self.pool in ("token", *PAIRS):
            raise InputError(f"pool {self.pool} needs a class token; got class_token False")
        if self.pool == "token_register" and not self.registers:
            raise InputError("registers must be 1 or more for pool token_register; got 0")
        if self.positions == "rotary" and self.head_width % 4:
            raise InputError(f"rotary positions need a multiple of 4 features per head; got {self.head_width}")
        if not (at is None or (0 <= at < self.depth and self.pool == "token")):
            raise InputError(
                f"class_token_at must be in 0..{self.depth - 1}, with pool token; got {at} with pool {self.pool}"
            )

    @property
    def head_width(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = sides(self.image_size)
        return height // self.patch_size, width // self.patch_size

    @property
    def prefix(self) -> int:
        """The number of tokens before the patches: the class token and the registers."""
        return self.class_token + self.registers

    @property
    def tokens(self) -> int:
        """The number of all tokens."""
        return self.prefix + self.grid[0] * self.grid[1]

    def replace(self, **changes: object) -> "ViTConfig":
        """The configuration with changed fields."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]


SIZES = {  # width, depth, heads, mlp_width (Dosovitskiy et al. 2021; Steiner et al. 2022)
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}
PATCH_SIZES = (8, 14, 16, 32)
DINOV2 = {"layer_scale": True, "image_size": 518, "classes": 0}
DINOV3 = {"layer_scale": True, "positions": "rotary", "registers": 4, "eps": 1e-5, "classes": 0}
SIGLIP = {"class_token": False, "pool": "attention", "activation": "gelu_tanh", "classes": 0}
KINDS: dict[str, tuple[dict, tuple[str, ...]]] = {  # the named models without a head: their fields and sizes
    "dinov2": (DINOV2, ("S/14", "B/14", "L/14")),
    "dinov2-registers": ({**DINOV2, "registers": 4}, ("S/14", "B/14", "L/14")),
    "dinov3": (DINOV3, ("S/16", "B/16", "L/16")),
    "siglip": (SIGLIP, ("B/16", "L/16")),
}


def vit_config(name: str, **changes: object) -> ViTConfig:
    """The configuration of a named model: a size of SIZES and a patch size, optionally after a kind of KINDS.

    >>> vit_config("Ti/16").tokens
    197
    >>> vit_config("dinov3-S/16").tokens
    201
    """
    kind, _, plain = name.rpartition("-")
    fields, known = KINDS.get(kind, ({}, ()))
    size, _, patch = plain.partition("/")
    form = f"SIZE/PATCH with size in {', '.join(SIZES)} and patch in {', '.join(map(str, PATCH_SIZES))}"
    form += f", or KIND-SIZE/PATCH of {', '.join(KINDS)}"
    if not (size in SIZES and patch in map(str, PATCH_SIZES) and (plain in known or not kind)):
        raise InputError(f"a ViT's name must be {form}; got {name}")
    return ViTConfig(*SIZES[size], patch_size=int(patch)).replace(**{**fields, **changes})

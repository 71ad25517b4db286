"""The configuration of a residual network, and the shapes of its leaves."""

import dataclasses
from typing import Literal

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.preprocessing import ImageSize, check_image_size, sides

Shapes = dict[str, tuple[int, ...]]
EXPANSION = 4  # factor of a bottleneck's channels


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """The configuration of a residual network v1.5.

    Attributes:
        blocks: The number in each layer.
        width: The channels of the first layer, doubled in every next one (inside a bottleneck; four times that
            outside).
        stem: large is 7 x 7 with stride 2 and a max pool, small is 3 x 3, for small images.
        slope: The slope of the ReLU below 0 (LQF linearises networks with a leaky ReLU).
        eps: The batch norms'.
        stem_width: The channels of the stem, None for those of the first layer.

    >>> config = tj.models.ResNetConfig(blocks=(1, 1), bottleneck=False, width=4, stem="small", image_size=8, classes=3)
    >>> config.depth, config.channels(1)
    (2, (4, 8, 8))
    """

    blocks: tuple[int, ...]
    bottleneck: bool = True
    width: int = 64
    stem: Literal["large", "small"] = "large"
    image_size: ImageSize = 224
    classes: int = 1000
    slope: float = 0.0
    eps: float = 1e-5
    stem_width: int | None = None

    def __post_init__(self) -> None:
        if not (1 <= len(self.blocks) <= 8):
            raise InputError(f"blocks must have 1 to 8 layers; got {self.blocks}")
        for field, low, most in (("width", 1, 1 << 14), ("classes", 0, 1 << 20)):
            whole_number(field, getattr(self, field), low, most)
        check_image_size(self.image_size)
        whole_number("stem_width", self.stem_channels, 1, 1 << 14)
        for count in self.blocks:
            whole_number("blocks of a layer", count, 1, 1024)
        if self.stem not in ("large", "small"):
            raise InputError(f"stem must be large or small; got {self.stem}")
        if not (0 <= self.slope < 1):
            raise InputError(f"slope must be in [0, 1); got {self.slope}")

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return sum(self.blocks)

    @property
    def stem_channels(self) -> int:
        """The channels of the stem's output."""
        return self.width if self.stem_width is None else self.stem_width

    def layer_of(self, block: int) -> tuple[int, int]:
        """(layer, place in it) of a block, both counted from 0."""
        layer = 0
        while block >= self.blocks[layer]:
            block, layer = block - self.blocks[layer], layer + 1
        return layer, block

    def name(self, block: int) -> str:
        """The path of a block's leaves."""
        layer, place = self.layer_of(block)
        return f"layer{layer + 1}/block_{place}"

    def stride(self, block: int) -> int:
        """The stride of a block: 2 in the first block of every layer but the first, else 1."""
        layer, place = self.layer_of(block)
        return 2 if layer > 0 and place == 0 else 1

    def channels(self, block: int) -> tuple[int, int, int]:
        """The channels of a block's input, interior and output."""
        layer, place = self.layer_of(block)
        factor = EXPANSION if self.bottleneck else 1
        before = self.stem_channels if layer == 0 else self.width * 2 ** (layer - 1) * factor
        inside = self.width * 2**layer
        return inside * factor if place else before, inside, inside * factor

    def pixels(self, block: int) -> tuple[int, int]:
        """Height and width in pixels of a block's input; for `depth`, of the last block's output."""
        halvings = 2 * (self.stem == "large") + sum(self.stride(i) == 2 for i in range(block))
        height, width = sides(self.image_size)
        return -(-height // 2**halvings), -(-width // 2**halvings)

    def has_shortcut(self, block: int) -> bool:
        """True if the shortcut is a convolution, as stride or channels change."""
        before, _, after = self.channels(block)
        return self.stride(block) > 1 or before != after

    def windows(self, block: int) -> tuple[int, ...]:
        """The sizes of a block's convolutions."""
        return (1, 3, 1) if self.bottleneck else (3, 3)

    def shapes(self) -> Shapes:
        """The shape of every leaf; a norm's mean and var are its fixed statistics."""
        size = 7 if self.stem == "large" else 3
        leaves = {"stem_conv/kernel": (size, size, 3, self.stem_channels), **norm("stem_norm", self.stem_channels)}
        for i in range(self.depth):
            name, (before, inside, after), sizes = self.name(i), self.channels(i), self.windows(i)
            widths = (before, *[inside] * (len(sizes) - 1), after)
            for j, size in enumerate(sizes):
                leaves[f"{name}/conv{j + 1}/kernel"] = (size, size, widths[j], widths[j + 1])
                leaves |= norm(f"{name}/norm{j + 1}", widths[j + 1])
            if self.has_shortcut(i):
                leaves[f"{name}/shortcut_conv/kernel"] = (1, 1, before, after)
                leaves |= norm(f"{name}/shortcut_norm", after)
        if self.classes:
            leaves |= {"head/kernel": (self.channels(self.depth - 1)[2], self.classes), "head/bias": (self.classes,)}
        return leaves

    def replace(self, **changes: object) -> "ResNetConfig":
        """The configuration with changed fields."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]


def norm(path: str, channels: int) -> Shapes:
    """The shapes of a batch norm's leaves."""
    return {f"{path}/{name}": (channels,) for name in ("scale", "bias", "mean", "var")}


SIZES = {  # blocks, bottleneck (He et al. 2016)
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}


def resnet_config(name: str, **changes: object) -> ResNetConfig:
    """The configuration of a named model, such as "resnet50".

    >>> resnet_config("resnet50").channels(15)
    (2048, 512, 2048)
    """
    if name not in SIZES:
        raise InputError(f"a ResNet must be one of {', '.join(SIZES)}; got {name}")
    return ResNetConfig(*SIZES[name]).replace(**changes)

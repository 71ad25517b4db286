"""The family of residual networks: their files under timm's, torchvision's and Hugging Face's names.

The architecture is inferred from the tensors; errors name a missing, extra or misshapen one.
"""

import dataclasses
import re

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import IMAGENET, Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.resnet.config import SIZES, ResNetConfig, resnet_config
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.resnet.names import FIRST_BLOCK, Flat, is_known, to_ours
from tangent_jax.pretrained.architectures import (
    NAME_IT,
    check_arguments,
    check_stray,
    check_supported,
    find,
    key_of,
    model_args_of,
)
from tangent_jax.pretrained.family import Family, Naming, any_name
from tangent_jax.pretrained.files import Tensors, assemble
from tangent_jax.pretrained.processors import Images, Published, images_assumed, images_of, images_or_published

OF_TORCHVISION = Preprocessing(*IMAGENET, crop=0.875, interpolation="bilinear")
ASSUMED = "as by torchvision's IMAGENET1K_V1 (bilinear, 224 of 256 pixels) is assumed; its V2 has 232"
"""The images of a bare file, and what a line says of them."""
PUBLISHED = Published("ConvNextImageProcessor", Preprocessing(*IMAGENET, crop=0.875, centre="floor"))


@dataclasses.dataclass(frozen=True)
class Beside:
    """The fields of config.json that are read, Hugging Face's."""

    downsample_in_bottleneck: bool = False
    downsample_in_first_stage: bool = False
    hidden_act: str = "relu"


def from_torch(file: Tensors) -> Pretrained:
    """Reads tensors under timm's, torchvision's or Hugging Face's names, at the size of its images or 224 pixels.

    Raises:
        InputError: Unless config.json or the caller names the network: anti-aliasing, strides and activations do not
            show in the tensors.
    """
    check_architecture_is_named(file)
    beside: Beside = file.config(Beside)
    if beside.downsample_in_bottleneck or beside.downsample_in_first_stage:
        raise InputError(
            f"{file.path} must be a ResNet v1.5; it has strides elsewhere. Use weights of version 1.5, whose "
            "strides are in 3 x 3 convolutions from the second layer on"
        )
    if beside.hidden_act != "relu":
        raise InputError(f"hidden_act of {file.path} must be relu; got {beside.hidden_act}")
    flat = to_ours(file.tensors, file.path)
    images = prepared(file)
    config = infer(flat, file.path)
    if images.size is not None:
        config = config.replace(image_size=images.size)
    return assemble(ResNet(config, images.preprocessing), flat, file.path)


def prepared(file: Tensors) -> Images:
    """The preparation of images: as the JSON says, or as those of Hugging Face's or torchvision's published models."""
    if file.beside.get("config", {}).get("model_type") == "resnet":
        return images_or_published(file, "resnet", PUBLISHED)
    return images_of(file) or images_assumed(file.path, OF_TORCHVISION, ASSUMED)


def infer(flat: Flat, path: str) -> ResNetConfig:
    """Infers the architecture from the tensors."""
    stem = flat.get("stem_conv/kernel")
    if stem is None:
        raise InputError(f"{path} must hold the tensor of stem_conv/kernel; it does not")
    counts: dict[int, set[int]] = {}
    for name in flat:
        match = re.match(r"layer(\d+)/block_(\d+)/", name)
        if match:
            counts.setdefault(int(match[1]), set()).add(int(match[2]))
    is_valid = counts.keys() == {*range(1, len(counts) + 1)} and all(
        own == {*range(len(own))} for own in counts.values()
    )
    if not is_valid:
        raise InputError(f"{path} must hold layers 1, 2, ... of blocks 0, 1, ...; it holds others")
    first = flat.get("layer1/block_0/conv1/kernel", stem)
    width, channels = first.shape[-1], stem.shape[-1]
    return ResNetConfig(
        tuple(len(counts[layer]) for layer in sorted(counts)),
        bottleneck="layer1/block_0/conv3/kernel" in flat,
        width=width,
        stem_width=None if channels == width else channels,
        stem="large" if stem.shape[0] == 7 else "small",
        classes=flat["head/kernel"].shape[-1] if "head/kernel" in flat else 0,
    )


def check_architecture_is_named(file: Tensors) -> None:
    """Raises InputError for a network without a name, one that is not supported, or an unknown argument."""
    config, where = file.beside.get("config", {}), f"config.json beside {file.path}"
    check_supported(config, where)
    if config.get("model_type") == "resnet":
        return
    check_stray(config, where, ("global_pool",))
    name = file.architecture or config.get("architecture")
    if not isinstance(name, str):
        raise InputError(
            f"architecture of the ResNet in {file.path} must be said; it is not. Say which it is: "
            "architecture=NAME, such as resnet50; anti-aliased ones and others have the same tensors"
        )
    own = find("resnet", "ResNets", str(name), where)
    args = model_args_of(config, where)
    known = ("num_classes", "in_chans", "layers", "drop_rate", "drop_path_rate", "global_pool")
    check_arguments(args, known, f"model_args of {where}")
    pools = {config.get("global_pool", "avg"), args.get("global_pool", "avg")}
    if pools != {"avg"}:
        raise InputError(f"global_pool in {where} must be avg; got {' and '.join(map(str, pools))}")
    if not (bool(args) or key_of(file.shapes) == own.key):
        raise InputError(f"{file.path} must hold the tensors of {name}; it holds others. {NAME_IT}")


FAMILY = Family(
    name="resnet",
    title="a ResNet",
    small=ResNetConfig((1, 1), False, width=2, stem="small", image_size=5, classes=7),
    model=ResNet,
    config=ResNetConfig,
    namings=(
        Naming(
            "timm, torchvision, Hugging Face",
            any_name(FIRST_BLOCK),
            from_torch,
            of_timm=True,
            covers=is_known,
            model_types=("resnet", "timm_wrapper"),
        ),
    ),
    architectures={name: resnet_config(name) for name in SIZES},
    sizes=("blocks", "bottleneck", "width"),
    embedded={"builtin-resnet": "resnet_builtin.safetensors"},
)

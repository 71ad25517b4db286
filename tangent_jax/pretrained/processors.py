"""The JSON of image processors: how images are prepared, and their size, as the program that wrote it reads it.

Hugging Face's is read by its class, which decides what a missing field means, what a size that is one number means, and
in which order the steps come. The class is `image_processor_type` or `feature_extractor_type`; without one it is that
of config.json's model_type. The fields follow one another as

    resize to `size`, crop the middle of `crop_size`, times rescale_factor, minus image_mean, divided by image_std

so that every scale is one affine map of the pixels, (x / 255 - mean) / std. A field that a class does not read has no
effect. timm's is pretrained_cfg of config.json, whose missing fields have timm's defaults. Another class, and steps
that `Preprocessing` cannot express, are refused by name.

Source: the PIL processors of transformers 5 and `resolve_data_config` of timm 1.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.preprocessing import CLIP, IMAGENET, INCEPTION, INTERPOLATIONS, ImageSize, Preprocessing
from tangent_jax.io.progress import tell
from tangent_jax.io.records import convert
from tangent_jax.pretrained.files import Tensors

RESAMPLES = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The filters by Pillow's numbers."""
UNDERSTOOD = frozenset((
    "crop_pct", "crop_size", "do_center_crop", "do_normalize", "do_pad", "do_rescale", "do_resize",
    "feature_extractor_type", "image_mean", "image_processor_type", "image_std", "max_num_patches", "patch_size",
    "resample", "rescale_factor", "size",
))  # fmt: skip
"""Fields that are read, or that the class of the processor does not read."""
HARMLESS = frozenset((
    "auto_map", "data_format", "device", "disable_grouping", "do_convert_rgb", "do_reduce_labels", "input_data_format",
    "processor_class", "reduce_labels", "return_tensors", "transformers_version",
))  # fmt: skip
"""Fields that change no image: all images are RGB here, and arrays in one order."""
WARPED_FROM = 384  # pixels: ConvNext's processor crops smaller images, and warps these

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class Images(NamedTuple):
    """The preparation of images, and their size; None where the JSON leaves it to the model."""

    preprocessing: Preprocessing
    size: ImageSize | None


class Processor(NamedTuple):
    """The values of a class of Hugging Face's where its JSON has no such field.

    Attributes:
        size, crop_size: As in JSON.
        resample: Pillow's number of the filter.
        is_cropped: do_center_crop.
        statistics: Mean and standard deviation.
        is_square: True if a size of one number is height and width, False if it is the shortest edge.
    """

    size: dict[str, int]
    resample: int = 3
    statistics: Statistics = INCEPTION
    crop_size: dict[str, int] | None = None
    is_cropped: bool = False
    is_square: bool = True


class Published(NamedTuple):
    """The class of processors of a model_type, and what its published models say: for files without either.

    transformers itself refuses a folder without a processor.
    """

    title: str
    preprocessing: Preprocessing


def square(side: int) -> dict[str, int]:
    """A square size as JSON has it."""
    return {"height": side, "width": side}


OF_CLIP = Processor({"shortest_edge": 224}, 3, CLIP, square(224), is_cropped=True, is_square=False)
PROCESSORS = {
    "BeitImageProcessor": Processor(square(224), crop_size=square(224)),
    "BitImageProcessor": OF_CLIP,
    "CLIPImageProcessor": OF_CLIP,
    "ConvNextImageProcessor": Processor({"shortest_edge": 384}, is_square=False),
    "DeiTImageProcessor": Processor(square(256), crop_size=square(224), is_cropped=True),
    "DINOv3ViTImageProcessor": Processor(square(224), 2, IMAGENET),
    "Siglip2ImageProcessor": Processor({}, 2),
    "SiglipImageProcessor": Processor(square(224), is_square=False),
    "ViTImageProcessor": Processor(square(224), 2),
}


def images_of(file: Tensors, published: Published | None = None) -> Images | None:
    """The images as the JSON beside a file says that they are prepared; None if there is none.

    A pretrained_cfg comes before a processor's JSON, as in transformers.

    Args:
        published: The preprocessing that goes with the model_type of its tensors, for JSON without a class.

    Raises:
        InputError: A class of processors, or a step, that is not supported.
    """
    where = f"pretrained_cfg of config.json beside {file.path}"
    given = file.beside.get("config", {}).get("pretrained_cfg")
    timm: dict[str, Any] = convert(dict[str, Any] | None, given, where) or {}
    if timm:
        return of_timm(timm, where)
    fields, where = processor_of(file)
    if fields is None:
        return None
    title = class_of(fields, published, where)
    unknown = [name for name in sorted(fields.keys() - UNDERSTOOD - HARMLESS) if fields[name] and name[0] != "_"]
    if unknown:
        tell(f"{where} has fields that are not read, so that images may be prepared otherwise: {', '.join(unknown)}")
    if title == "Siglip2ImageProcessor":
        return of_any_shape(fields, PROCESSORS[title], where)
    return of_processor(fields, title, where)


def images_or_published(file: Tensors, kind: str, published: Published) -> Images:
    """As `images_of`; a file without JSON has the preprocessing of the published models of its kind, in one line."""
    images = images_of(file, published)
    if images is not None:
        return images
    tell(f"{file.path} has no preprocessor_config.json beside it: images are prepared as for {kind}'s published models")
    return Images(published.preprocessing, None)


def images_assumed(path: str, preprocessing: Preprocessing, line: str) -> Images:
    """The images of a file that does not say how they are prepared; `line` says what is assumed, "" if it is known."""
    if line:
        remedy = "If that is wrong, put a config.json with timm's pretrained_cfg beside it"
        tell(f"{path} does not say how its images are prepared: {line}. {remedy}")
    return Images(preprocessing, None)


def of_timm(fields: Mapping[str, Any], where: str) -> Images:
    """The images of timm's pretrained_cfg, as its own `resolve_data_config` reads it."""
    mode = fields.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise InputError(f"crop_mode must be center or squash in {where}; got {mode}")
    interpolation = fields.get("interpolation") or "bicubic"
    if interpolation not in INTERPOLATIONS:
        raise InputError(f"interpolation must be one of {', '.join(INTERPOLATIONS)} in {where}; got {interpolation}")
    said = {
        "mean": fields.get("mean") or IMAGENET[0],
        "std": fields.get("std") or IMAGENET[1],
        "crop": fields.get("crop_pct") or 0.875,
        "interpolation": interpolation,
        "resize": "exact" if mode == "squash" else "short",
    }
    size: tuple[int, int, int] | None = convert(
        tuple[int, int, int] | None, fields.get("input_size"), f"input_size of {where}"
    )
    return Images(convert(Preprocessing, said, where), None if size is None else as_size(*size[1:]))


# Hugging Face


def processor_of(file: Tensors) -> tuple[dict[str, Any] | None, str]:
    """The fields of the image processor, and their place: that within processor_config.json comes first."""
    where = f"image_processor of processor_config.json beside {file.path}"
    inner = file.beside.get("processor_config", {}).get("image_processor")
    if inner is not None:
        return convert(dict[str, Any], inner, where), where
    outside = UNDERSTOOD & file.beside.get("processor_config", {}).keys()
    if outside:
        tell(
            f"processor_config.json beside {file.path} has {min(outside)} outside image_processor, whose fields alone "
            "are read: they are ignored, as by transformers"
        )
    return file.beside.get("preprocessor_config"), f"preprocessor_config.json beside {file.path}"


def class_of(fields: Mapping[str, Any], published: Published | None, where: str) -> str:
    """The class of a processor by its JSON, without the suffix of its kind of arrays, or by the model's kind."""
    said = fields.get("image_processor_type") or fields.get("feature_extractor_type")
    if said is None:
        if published is None:
            raise InputError(f"{where} must have an image_processor_type; got none. Write the class that made it")
        return published.title
    title = str(said).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if title not in PROCESSORS:
        raise InputError(f"image_processor_type must be one of {', '.join(PROCESSORS)} in {where}; got {said}")
    return title


def of_processor(fields: Mapping[str, Any], title: str, where: str) -> Images:
    """The images of a processor of this class that makes all of them of one shape."""
    default = PROCESSORS[title]
    size = size_of(fields, "size", default.size, default.is_square, where)
    is_cropped = value_of(fields, "do_center_crop", bool, default.is_cropped, where)
    crop = size_of(fields, "crop_size", default.crop_size or {}, True, where) if is_cropped else None
    if not value_of(fields, "do_resize", bool, True, where):
        geometry = not_resized(crop, where)
    elif title == "ConvNextImageProcessor":
        geometry = of_convnext(size, value_of(fields, "crop_pct", float, 224 / 256, where), crop, where)
    elif {*size} == {"height", "width"}:
        geometry = warped(size, crop, where)
    elif {*size} == {"shortest_edge"}:
        geometry = cropped(size["shortest_edge"], crop, where)
    else:
        raise InputError(f"size must be by shortest_edge, or by height and width, in {where}; got {', '.join(size)}")
    if fields.get("do_pad"):
        raise InputError(f"images must not be padded in {where}; got do_pad {fields['do_pad']}")
    changed, image_size = geometry
    said = {**scale_of(fields, title, where), "interpolation": filter_of(fields, default.resample, where), **changed}
    return Images(convert(Preprocessing, said, where), image_size)


def of_any_shape(fields: Mapping[str, Any], default: Processor, where: str) -> Images:
    """The images of SigLIP 2's processor, which keeps the shape of each: here all have that of a square one."""
    patch = value_of(fields, "patch_size", int, 16, where)
    patches = whole_number(f"max_num_patches in {where}", value_of(fields, "max_num_patches", int, 256, where), 1)
    side = math.isqrt(patches) * patch
    tell(f"{where} keeps each image's shape, which is not supported: all are resized to {side} x {side}")
    said = scale_of(fields, "Siglip2ImageProcessor", where)
    said |= {"interpolation": filter_of(fields, default.resample, where), "crop": 1.0, "resize": "exact"}
    return Images(convert(Preprocessing, said, where), side)


Geometry = tuple[dict[str, Any], ImageSize]
"""Fields of Preprocessing, and the image size."""


def warped(size: Mapping[str, int], crop: Mapping[str, int] | None, where: str) -> Geometry:
    """Resized to height and width, then cropped in the middle."""
    if crop is None:
        return {"crop": 1.0, "resize": "exact"}, as_size(size["height"], size["width"])
    fraction = fraction_of(crop["height"], size["height"])
    if int(crop["width"] / fraction) != size["width"]:
        raise InputError(f"size must have the shape of crop_size in {where}; got {dict(size)}, {dict(crop)}")
    return {"crop": fraction, "resize": "exact", "centre": "floor"}, as_size(crop["height"], crop["width"])


def cropped(shortest: int, crop: Mapping[str, int] | None, where: str) -> Geometry:
    """Resized by the short side, then cropped to a square in the middle."""
    if crop is None:
        raise InputError(f"images must have one shape in {where}; got shortest_edge without do_center_crop. Set it")
    if crop["height"] != crop["width"]:
        raise InputError(f"crop_size after shortest_edge must be a square in {where}; got {dict(crop)}")
    fraction = fraction_of(crop["height"], shortest)
    return {"crop": fraction, "resize": "short", "centre": "floor"}, crop["height"]


def of_convnext(size: Mapping[str, int], fraction: float, crop: Mapping[str, int] | None, where: str) -> Geometry:
    """Small images are resized by the short side and cropped, larger ones warped."""
    if {*size} != {"shortest_edge"}:
        raise InputError(f"size of a ConvNextImageProcessor must be by shortest_edge in {where}; got {', '.join(size)}")
    side = size["shortest_edge"]
    if crop not in (None, square(side)):
        raise InputError(f"crop_size must be size in {where}, as a ConvNextImageProcessor crops; got {crop}")
    if side >= WARPED_FROM:
        return {"crop": 1.0, "resize": "exact"}, side
    return {"crop": fraction, "resize": "short", "centre": "floor"}, side


def not_resized(crop: Mapping[str, int] | None, where: str) -> Geometry:
    """Only cropped in the middle."""
    if crop is None:
        raise InputError(
            f"images must be resized or cropped to one shape in {where}; got do_resize and do_center_crop false. "
            "Set one"
        )
    return {"crop": 1.0, "resize": "none", "centre": "floor"}, as_size(crop["height"], crop["width"])


def fraction_of(after: int, before: int) -> float:
    """A number f with int(after / f) = before, as Preprocessing computes it."""
    fraction = after / before
    while int(after / fraction) < before:
        fraction = math.nextafter(fraction, 0.0)
    return fraction


def scale_of(fields: Mapping[str, Any], title: str, where: str) -> dict[str, Any]:
    """Mean and deviation so that (x / 255 - mean) / std is what the processor makes of a pixel x.

        (f x - m) / s = (x / 255 - m / (255 f)) / (s / (255 f))

    The factor f is 1 / 255 or rescale_factor, and 1 without do_rescale.
    """
    is_rescaled = value_of(fields, "do_rescale", bool, True, where)
    scale = 255 * value_of(fields, "rescale_factor", float, 1 / 255, where) if is_rescaled else 255.0
    if abs(scale - 1) < 1e-6:  # 1 / 255 in fewer digits
        scale = 1.0
    if scale <= 0:
        raise InputError(f"rescale_factor must be above 0 in {where}; got {scale / 255:g}")
    mean, std = (0.0,) * 3, (1.0,) * 3
    if value_of(fields, "do_normalize", bool, True, where):
        mean = triple(fields, "image_mean", PROCESSORS[title].statistics[0], where)
        std = triple(fields, "image_std", PROCESSORS[title].statistics[1], where)
    return {"mean": tuple(m / scale for m in mean), "std": tuple(s / scale for s in std)}


def filter_of(fields: Mapping[str, Any], default: int, where: str) -> str:
    """The name of the filter that JSON has by Pillow's number."""
    number = fields.get("resample")
    number = default if number is None else number
    if isinstance(number, bool) or number not in range(len(RESAMPLES)):
        numbers = ", ".join(f"{i} ({name})" for i, name in enumerate(RESAMPLES))
        raise InputError(f"resample must be one of {numbers} in {where}; got {number}")
    return RESAMPLES[number]


def value_of(fields: Mapping[str, Any], name: str, kind: Any, default: Any, where: str) -> Any:
    """A field of one value; null is the class's own, as in transformers."""
    value = fields.get(name)
    return default if value is None else convert(kind, value, f"{name} of {where}")


def triple(fields: Mapping[str, Any], name: str, default: tuple[float, ...], where: str) -> tuple[float, ...]:
    """A field of one number for each channel, or of one for all."""
    value = value_of(fields, name, tuple[float, ...] | float, default, where)
    value = (value,) * 3 if isinstance(value, float | int) else tuple(value)
    if len(value) != 3:
        raise InputError(f"{name} must be three numbers in {where}; got {len(value)}")
    return value


def size_of(
    fields: Mapping[str, Any], name: str, default: dict[str, int], is_square: bool, where: str
) -> dict[str, int]:
    """A size as a JSON object: of one number (as old versions wrote it), of height and width, or as it is."""
    kind = dict[str, int | None] | tuple[int, int] | int
    value = value_of(fields, name, kind, default, where)
    if isinstance(value, int):
        value = square(value) if is_square else {"shortest_edge": value}
    elif isinstance(value, tuple):
        value = {"height": value[0], "width": value[1]}
    value = {edge: pixels for edge, pixels in value.items() if pixels is not None}
    if not value or any(pixels < 1 for pixels in value.values()):
        raise InputError(f"{name} must be in pixels, 1 or more, in {where}; got {value or 'none'}")
    return value


def as_size(height: int, width: int) -> ImageSize:
    """The image size of height and width."""
    return height if height == width else (height, width)

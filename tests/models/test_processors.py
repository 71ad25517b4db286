"""Processors' JSON, by the rules of the program that wrote it: sizes, crops, filters and scales.

The reference here is transformers' order of steps on Pillow's pictures, written out; `make parity` compares us with
transformers and timm themselves (compatibility.py).
"""

import json

import numpy as np
import pytest
from PIL import Image
from saved import modern

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, IMAGENET, Preprocessing, sides
from tangent_jax.data.decode import decode
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.load import load
from tangent_jax.pretrained.processors import PROCESSORS, Published, images_of
from tangent_jax.pretrained.resnet import prepared
from tangent_jax.pretrained.vit.stated import PUBLISHED
from tangent_jax.pretrained.vit.weights import B_16, H_14, L_16, of_torchvision

SHAPES = [(20, 33), (33, 20), (24, 24), (70, 9)]
SMALL = {"height": 8, "width": 12}
NOTHING = Published("ViTImageProcessor", Preprocessing())


def read(fields, published=NOTHING):
    return images_of(Tensors({}, {}, {"preprocessor_config": fields}, "FILE"), published)


def by_transformers(picture, resized, crop, resample, factor=1 / 255, mean=0.5, std=0.5):
    """The pixels: resized to (height, width), or None; cropped in the middle, rounded down, with black around."""
    image = Image.fromarray(picture)
    if resized is not None:
        image = image.resize((resized[1], image.height), resample).resize(resized[::-1], resample)  # as Pillow 12
    pixels = np.asarray(image)
    if crop is not None:
        canvas = np.zeros((200, 200, 3), np.uint8)
        high, wide = pixels.shape[:2]
        canvas[60 : 60 + high, 60 : 60 + wide] = pixels
        top, left = (60 + (side - kept) // 2 for side, kept in zip((high, wide), crop, strict=True))
        pixels = canvas[top : top + crop[0], left : left + crop[1]]
    return (pixels * factor - np.array(mean)) / np.array(std)


def short(side):
    """(height, width) with this short side, the long one rounded down."""
    return lambda high, wide: (side, int(side * wide / high)) if high < wide else (int(side * high / wide), side)


def exact(*size):
    return lambda high, wide: size


CASES = {
    "vit, one number is a square": ("ViT", {"size": 8}, exact(8, 8), None, 2),
    "vit, no square": ("ViT", {"size": SMALL}, exact(8, 12), None, 2),
    "vit, a list": ("ViT", {"size": [8, 12]}, exact(8, 12), None, 2),
    "vit cropped": ("ViT", {"size": 9, "do_center_crop": True, "crop_size": 6}, exact(9, 9), (6, 6), 2),
    "deit": ("DeiT", {"size": 11, "crop_size": 8}, exact(11, 11), (8, 8), 3),
    "deit, no crop": ("DeiT", {"size": 11, "do_center_crop": False}, exact(11, 11), None, 3),
    "bit, one number is the short side": ("Bit", {"size": 11, "crop_size": 8}, short(11), (8, 8), 3),
    "clip": ("CLIP", {"size": {"shortest_edge": 8}, "crop_size": 8}, short(8), (8, 8), 3),
    "clip, black around": ("CLIP", {"size": 6, "crop_size": {"height": 9, "width": 9}}, short(6), (9, 9), 3),
    "bit, not resized": ("Bit", {"do_resize": False, "crop_size": SMALL}, lambda *_: None, (8, 12), 3),
    "siglip": ("Siglip", {"size": SMALL, "resample": 3}, exact(8, 12), None, 3),
    "beit does not crop": ("Beit", {"size": 8, "crop_size": 4}, exact(8, 8), None, 3),
    "convnext crops small images": ("ConvNext", {"size": 7, "crop_pct": 0.6}, short(11), (7, 7), 3),
    "convnext, its own fraction": ("ConvNext", {"size": {"shortest_edge": 8}}, short(9), (8, 8), 3),
    "convnext warps large ones": ("ConvNext", {"size": 384}, exact(384, 384), None, 3),
    "dinov3": ("DINOv3ViT", {"size": 8}, exact(8, 8), None, 2),
    **{f"resample {i}": ("ViT", {"size": 8, "resample": i}, exact(8, 8), None, i) for i in range(6)},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_picture_is_prepared_as_by_processor(name, shape):
    kind, fields, resized, crop, resample = CASES[name]
    colours = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    preprocessing, size = read({**fields, **colours, "image_processor_type": f"{kind}ImageProcessor"})
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    want = by_transformers(picture, resized(*shape), crop, resample, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    got = np.asarray(preprocessing.normalize(decode(picture, "", size, preprocessing)))
    assert sides(size) == want.shape[:2]
    assert np.abs(got - want).max() < 1e-5


SCALES = [
    ({}, lambda x: (x / 255 - 0.5) / 0.5),
    ({"do_normalize": False}, lambda x: x / 255),
    ({"do_rescale": False}, lambda x: (x - 0.5) / 0.5),
    ({"do_rescale": False, "do_normalize": False}, lambda x: x),
    ({"rescale_factor": 1 / 127.5}, lambda x: (x / 127.5 - 0.5) / 0.5),
    ({"rescale_factor": 0.00392156862745}, lambda x: (x / 255 - 0.5) / 0.5),
    ({"image_mean": 0.25, "image_std": None}, lambda x: (x / 255 - 0.25) / 0.5),
    ({"rescale_offset": True, "include_top": True, "do_flip_channel_order": True}, lambda x: (x / 255 - 0.5) / 0.5),
]


@pytest.mark.parametrize(("fields", "want"), SCALES)
def test_processor_scales_and_unread_fields(fields, want):
    levels = np.arange(256, dtype=np.uint8)[:, None].repeat(3, 1)
    got = np.asarray(read({"size": 8, **fields})[0].normalize(levels))
    assert np.abs(got - want(levels.astype(float))).max() <= 1e-6 * np.abs(want(255.0))


@pytest.mark.parametrize(
    "spelled", ["{}ImageProcessor", "{}FeatureExtractor", "{}ImageProcessorFast", "{}ImageProcessorPil"]
)
@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Bit", "CLIP", "Beit"])
def test_class_names_come_before_model_kind(kind, spelled):
    field = "feature_extractor_type" if "Feature" in spelled else "image_processor_type"
    other = Published("ConvNextImageProcessor", Preprocessing())
    got = read({field: spelled.format(kind)}, other)
    assert got == read({}, Published(f"{kind}ImageProcessor", Preprocessing()))
    assert sides(got.size) == (224, 224)


def test_null_field_has_class_default():
    default = read({"image_processor_type": "DeiTImageProcessor"})
    fields = ("size", "resample", "do_resize", "crop_size", "image_mean", "do_rescale", "rescale_factor")
    assert read({"image_processor_type": "DeiTImageProcessor", **dict.fromkeys(fields)}) == default


BIT = {"image_processor_type": "BitImageProcessor"}
REFUSED = [
    ({"image_processor_type": "MobileViTImageProcessor"}, "must be one of .*ViTImageProcessor .*got MobileViT"),
    ({**BIT, "do_center_crop": False}, "one shape in .*; got shortest_edge without do_center_crop"),
    ({**BIT, "crop_size": {"height": 8, "width": 9}}, "crop_size after shortest_edge must be a square"),
    (
        {"size": 8, "do_center_crop": True, "crop_size": {"height": 4, "width": 6}},
        "size must have the shape of crop_size",
    ),
    ({"image_processor_type": "SiglipImageProcessor", "size": 8}, "got shortest_edge without do_center_crop"),
    (
        {"image_processor_type": "ConvNextImageProcessor", "size": SMALL},
        "must be by shortest_edge in .*; got height, width",
    ),
    ({"size": {"longest_edge": 9}}, "size must be by shortest_edge, or by height and width, in .*; got longest_edge"),
    ({"size": {"shortest_edge": 9, "longest_edge": 10}}, "got shortest_edge, longest_edge"),
    ({"do_resize": False}, "resized or cropped to one shape in .*; got do_resize and do_center_crop false"),
    ({"do_center_crop": True, "size": 8}, "crop_size must be in pixels, 1 or more, in .*; got none"),
    ({"do_pad": True}, "must not be padded in .*; got do_pad True"),
    ({"resample": 6}, r"resample must be one of 0 \(nearest\), 1 \(lanczos\), .*; got 6"),
    ({"resample": [3]}, r"resample must be one of .*; got \[3\]"),
    ({"resample": True}, "resample must be one of .*; got True"),
    ({"size": "x"}, "size of preprocessor_config.json beside FILE"),
    ({"size": 0}, "size must be in pixels, 1 or more"),
    ({"size": {"height": 0.5}}, "size of preprocessor_config.json"),
    ({"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": -1}, "max_num_patches in .* must be a whole"),
    ({"rescale_factor": "x"}, "rescale_factor of preprocessor_config.json"),
    ({"rescale_factor": 0}, "rescale_factor must be above 0"),
    ({"image_mean": [0.5]}, "image_mean must be three numbers .*; got 1"),
    ({"image_std": [0.5, 0.0, 0.5]}, "std must be three numbers above 0"),
]


@pytest.mark.parametrize(("fields", "match"), REFUSED)
def test_processor_is_refused_by_field(fields, match):
    with pytest.raises(InputError, match=match) as error:
        read(fields)
    assert "\n" not in str(error.value)


def test_processor_without_class_is_model_types():
    assert {kind.title for kind in PUBLISHED.values()} <= PROCESSORS.keys()
    assert read({"size": 9, "crop_size": 8}, PUBLISHED["clip"]).preprocessing.resize == "short"
    assert read({"size": 9}, PUBLISHED["vit"]).preprocessing.resize == "exact"
    with pytest.raises(InputError, match="must have an image_processor_type; got none"):
        read({"size": 9}, None)


def test_inner_image_processor_comes_first():
    inner = {"image_processor": {"image_processor_type": "CLIPImageProcessor", "size": 9, "crop_size": 9}}
    beside = {"processor_config": inner, "preprocessor_config": {"size": 7}}
    assert images_of(Tensors({}, {}, beside, "FILE"), NOTHING).size == 9
    assert images_of(Tensors({}, {}, beside | {"processor_config": {}}, "FILE"), NOTHING).size == 7


def test_unread_processor_fields_are_named(capsys):
    fields = {"size": 9, "crop_size": 8, "do_flip_channel_order": True, "tile": 4, "_class": "a", "do_blur": False}
    assert read({**fields, "processor_class": "CLIPProcessor"}, PUBLISHED["clip"]).size == 8
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "has fields that are not read, so that images may be prepared otherwise: do_flip_channel_order, tile"
    )


def test_top_level_image_fields_are_ignored(capsys):
    beside = {"processor_config": {"size": 9, "image_mean": [0.1] * 3}, "preprocessor_config": {"size": 7}}
    assert images_of(Tensors({}, {}, beside, "FILE"), NOTHING).size == 7
    assert "processor_config.json beside FILE has image_mean outside image_processor" in capsys.readouterr().err


TIMM = [
    ({"mean": [0.1] * 3, "crop_pct": 0.9}, Preprocessing((0.1,) * 3, IMAGENET[1], 0.9), None),
    ({"input_size": [3, 16, 16], "crop_mode": "squash"}, Preprocessing(*IMAGENET, 0.875, resize="exact"), 16),
    ({"input_size": [3, 8, 16], "interpolation": "lanczos"}, Preprocessing(*IMAGENET, 0.875, "lanczos"), (8, 16)),
    (
        {"input_size": [3, 16, 16], "test_input_size": [3, 32, 32], "test_crop_pct": 1.0},
        Preprocessing(*IMAGENET, 0.875),
        16,
    ),
]


@pytest.mark.parametrize(("cfg", "preprocessing", "size"), TIMM)
def test_pretrained_cfg_has_timm_defaults(cfg, preprocessing, size):
    beside = {"config": {"pretrained_cfg": cfg}, "preprocessor_config": {"size": 7}}
    assert images_of(Tensors({}, {}, beside, "FILE"), NOTHING) == (preprocessing, size)


# The size of a model's images


def processed(folder, name, **fields):
    modern(name, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    return load(folder)


def test_dinov2_uses_its_processors_size(tmp_path, capsys):
    found = processed(tmp_path, "dinov2", size={"shortest_edge": 9}, crop_size={"height": 8, "width": 8})
    assert found.model.image_size == 8
    assert found.model.preprocessing == Preprocessing(*CLIP, 8 / 9, centre="floor")
    both = "has positions for 12 x 12 pixels, and the JSON beside it prepares images of 8 x 8 pixels"
    assert f"{both}: it is loaded for 8 x 8 pixels" in capsys.readouterr().err
    (tmp_path / "preprocessor_config.json").unlink()
    whole = load(tmp_path)
    assert whole.model.image_size == 12
    assert (found.with_image_size(12).w["position_embedding"] == whole.w["position_embedding"]).all()


def test_fixed_size_model_keeps_position_size(tmp_path, capsys):
    found = processed(tmp_path, "siglip", size={"height": 8, "width": 8})
    assert found.model.image_size == 12
    assert "images of 8 x 8 pixels: it is loaded for 12 x 12 pixels" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"image_size must be a whole number in 1\.\.4096; got 9999"):
        processed(tmp_path, "siglip", size={"height": 9999, "width": 9999})


def test_images_of_as_many_patches_print_nothing(tmp_path, capsys):
    with pytest.warns(UserWarning, match=r"of \(14, 13\) pixels, \(12, 12\) are read: whole patches of 4 pixels"):
        found = processed(tmp_path, "siglip", size={"height": 14, "width": 13}, resample=3)
    assert found.model.image_size == (14, 13)
    assert found.model.config.grid == (3, 3)
    assert "loaded for" not in capsys.readouterr().err


def test_missing_processor_is_published_models(tmp_path, capsys):
    found = modern("dinov2", tmp_path)
    assert found.model.preprocessing == Preprocessing(*IMAGENET, 0.875, centre="floor")
    assert "images are prepared as for dinov2's published models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "side", "before", "interpolation", "is_assumed"),
    [
        (B_16, 224, 256, "bilinear", True),  # or SWAG_LINEAR
        (B_16, 384, 384, "bicubic", False),  # SWAG_E2E
        (L_16, 224, 242, "bilinear", True),
        (L_16, 512, 512, "bicubic", False),
        (H_14, 224, 224, "bicubic", False),
        (H_14, 518, 518, "bicubic", False),
        ((768, 12, 3072, 32), 224, 256, "bilinear", False),
        ((1024, 24, 4096, 32), 224, 256, "bilinear", False),
        (B_16, 320, 365, "bilinear", True),  # trained by its user
    ],
)
def test_torchvision_images_follow_tensors(sizes, side, before, interpolation, is_assumed):
    """Source: transforms() of torchvision 0.28's ViT_*_Weights; `make parity` compares the pixels."""
    own, line = of_torchvision(sizes, side)
    assert (own.resized_shape((900, 900), side)[0], own.interpolation) == (before, interpolation)
    assert (own.mean, own.std) == IMAGENET
    assert bool(line) == is_assumed


def test_bare_resnet_assumptions_are_said(capsys):
    said = prepared(Tensors({}, {}, {}, "FILE"))
    assert said.preprocessing == Preprocessing(*IMAGENET, 0.875, "bilinear")
    line = "FILE does not say how its images are prepared: as by torchvision's IMAGENET1K_V1"
    assert f"{line} (bilinear, 224 of 256 pixels) is assumed" in capsys.readouterr().err
    timm = {"config": {"pretrained_cfg": {"crop_pct": 0.95, "interpolation": "bicubic"}}}
    assert prepared(Tensors({}, {}, timm, "FILE")).preprocessing == Preprocessing(*IMAGENET, 0.95)
    assert not capsys.readouterr().err

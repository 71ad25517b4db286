"""Model files of other programs against `tj.load`: writes the models' half of docs/reference/compatibility.md.

    PYTHONPATH=. python tests/models/compatibility.py            (part of `make parity`; 5 minutes)

Four lists, each a table of the page; torch and the programs are imported only where a case runs, so that a quick test
(test_compatibility.py) can hold the lists against the page.

    FILES        small random models, saved by their own program: largest difference of the outputs from the program's,
                 over the largest output, at the file's own image size and at others
    PROCESSORS   JSON of image processors: largest difference of the pixels, in levels of 255, over pictures of
                 several shapes
    IMAGES       weights whose images the tensors or open_clip's JSON decide: largest difference of the pixels from the
                 program's own transform, in levels of 255
    POSITIONS    filters of position embeddings: largest difference at 300 random pairs of grids

The exit code is 1 where one differs by more than LIMITS.
"""

import copy
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing, sides
from tangent_jax.data.decode import decode
from tangent_jax.models.vit.positions import FILTERS, resample
from tangent_jax.pretrained import resnet
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.processors import PROCESSORS as KNOWN
from tangent_jax.pretrained.processors import Images, Published, images_of
from tangent_jax.pretrained.vit.stated import PUBLISHED
from tangent_jax.pretrained.vit.weights import of_torchvision

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- models -->", "<!-- /models -->"
LIMITS = {"files": 1e-4, "processors": 1e-3, "images": 1e-3, "positions": 1e-4}

Answer = Callable[[np.ndarray], np.ndarray]
"""What the program answers to normalised images "b y x 3"."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of file.

    Attributes:
        make: Writes it to a folder, and returns the program's answers.
        sizes: Image sizes besides that of the file.
        is_refused: True if `tj.load` refuses it.
    """

    make: Callable[[Path], Answer]
    sizes: tuple = ()
    is_refused: bool = False


FILES: dict[str, Case] = {}
BASE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16, "patch_size": 4}
MLP, LABELS = {"intermediate_size": 20}, {"num_labels": 5}
OTHER = (12, 28, (12, 20))


def noisy(model: Any) -> Any:
    """The model with weights that are not near their initial values."""
    import torch

    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and value.ndim:
                drawn = 0.05 * torch.randn_like(value)
                value.add_(drawn.abs() if "running_var" in name else drawn)
    return model.eval()


def channels_first(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy())


# Hugging Face

DINO = {**BASE, "mlp_ratio": 1}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}
PARTS = {"vision_config": {**BASE, **MLP}, "text_config": TEXT}
ANY_SHAPE = {name: value for name, value in BASE.items() if name != "image_size"} | MLP | {"num_patches": 16}
DECODER = {"decoder_hidden_size": 8, "decoder_intermediate_size": 8, "decoder_num_attention_heads": 2}
DECODER |= {"decoder_num_hidden_layers": 1, "mask_ratio": 0.0}
HUGGING_FACE: dict[str, tuple[str, dict[str, Any]]] = {
    "ViTForImageClassification": ("ViTConfig", BASE | MLP | LABELS),
    "ViTModel": ("ViTConfig", BASE | MLP),
    "ViTForMaskedImageModeling": ("ViTConfig", BASE | MLP | {"encoder_stride": 4}),
    "ViTMAEForPreTraining": ("ViTMAEConfig", BASE | MLP | DECODER),
    "ViTMAEModel": ("ViTMAEConfig", BASE | MLP | {"mask_ratio": 0.0}),
    "ViTMSNForImageClassification": ("ViTMSNConfig", BASE | MLP | LABELS),
    "DeiTForImageClassification": ("DeiTConfig", BASE | MLP | LABELS),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", BASE | MLP | LABELS),
    "IJepaForImageClassification": ("IJepaConfig", BASE | MLP | LABELS),
    "Dinov2Model": ("Dinov2Config", DINO),
    "Dinov2ForImageClassification": ("Dinov2Config", DINO | LABELS),
    "Dinov2ForImageClassification, SwiGLU": ("Dinov2Config", DINO | LABELS | {"use_swiglu_ffn": True}),
    "Dinov2ForImageClassification, positions for 74, images of 32": (
        "Dinov2Config", DINO | LABELS | {"image_size": 74, "patch_size": 2}),
    "Dinov2ForImageClassification, patches of 7 in images of 16": ("Dinov2Config", DINO | LABELS | {"patch_size": 7}),
    "Dinov2WithRegistersForImageClassification": (
        "Dinov2WithRegistersConfig", DINO | LABELS | {"num_register_tokens": 2}),
    "DINOv3ViTModel": ("DINOv3ViTConfig", BASE | MLP | {"num_register_tokens": 2}),
    "CLIPModel": ("CLIPConfig", PARTS | {"projection_dim": 5}),
    "CLIPVisionModel": ("CLIPVisionConfig", BASE | MLP),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", BASE | MLP | {"projection_dim": 5}),
    "CLIPForImageClassification": ("CLIPConfig", PARTS | LABELS),
    "SiglipModel": ("SiglipConfig", PARTS),
    "SiglipVisionModel": ("SiglipVisionConfig", BASE | MLP),
    "SiglipVisionModel, patches of 4 in images of 18": ("SiglipVisionConfig", BASE | MLP | {"image_size": 18}),
    "SiglipForImageClassification": ("SiglipConfig", PARTS | LABELS),
    "Siglip2VisionModel": ("Siglip2VisionConfig", ANY_SHAPE),
    "Siglip2ForImageClassification": ("Siglip2Config", {"vision_config": ANY_SHAPE, "text_config": TEXT} | LABELS),
    "ResNetForImageClassification": (
        "ResNetConfig", {"embedding_size": 4, "hidden_sizes": [16, 32], "depths": [2, 1]} | LABELS),
    "BeitForImageClassification": ("BeitConfig", BASE | MLP | LABELS | {"use_relative_position_bias": True}),
}  # fmt: skip
"""(the class of the configuration, its fields) by the model's class and what is special in it."""


def of_hugging_face(title: str) -> Any:
    """A model of this title, with random weights."""
    import transformers

    kind, fields = HUGGING_FACE[title]
    return noisy(getattr(transformers, title.partition(",")[0])(getattr(transformers, kind)(**fields)))


def answer_of(model: Any, x: np.ndarray, **forward: Any) -> np.ndarray:
    """What it answers to images: logits, embeddings, or the features of the class token."""
    import torch
    from make_fixtures import patches_of

    kind, images = type(model).__name__, channels_first(x)
    given = patches_of(images, 4) if kind.startswith("Siglip2") else {"pixel_values": images}
    with torch.no_grad():
        if kind in ("CLIPModel", "SiglipModel"):
            found = model.get_image_features(**given)
            return (found if torch.is_tensor(found) else found.pooler_output).numpy()
        model = model.vit if kind in ("ViTForMaskedImageModeling", "ViTMAEForPreTraining") else model
        found = model(**given, **forward)
    if type(model).__name__ in ("ViTModel", "ViTMAEModel"):
        return found.last_hidden_state[:, 0].numpy()
    return next(found[key] for key in ("logits", "image_embeds", "pooler_output") if key in found).numpy()


def hugging_face(title: str, *sizes: Any, is_refused: bool = False, beside: dict | None = None, **forward: Any) -> None:
    """Adds a model of HUGGING_FACE, at these sizes too; `forward`: arguments of its forward."""

    def make(folder: Path) -> Answer:
        model = of_hugging_face(title)
        model.save_pretrained(folder)
        if beside is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(beside))
        return lambda x: answer_of(model, x, **forward)

    FILES[title] = Case(make, sizes, is_refused)


RESIZES = {"interpolate_pos_encoding": True}
CROPPED = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 36}}
CROPPED |= {"crop_size": {"height": 32, "width": 32}}
hugging_face("ViTForImageClassification", *OTHER, **RESIZES)
hugging_face("DeiTForImageClassification", *OTHER, **RESIZES)
hugging_face("IJepaForImageClassification", *OTHER, **RESIZES)
hugging_face("Dinov2ForImageClassification", *OTHER)
hugging_face("Dinov2ForImageClassification, positions for 74, images of 32", 74, 18, beside=CROPPED)
hugging_face("Dinov2ForImageClassification, patches of 7 in images of 16", 21, 30, (23, 40))
hugging_face("Dinov2WithRegistersForImageClassification", *OTHER)
hugging_face("DINOv3ViTModel", *OTHER)
hugging_face("SiglipVisionModel", *OTHER, **RESIZES)
hugging_face("SiglipVisionModel, patches of 4 in images of 18", 22, 34, (14, 23), **RESIZES)
hugging_face("Siglip2VisionModel", *OTHER)
hugging_face("CLIPVisionModelWithProjection", *OTHER, **RESIZES)
hugging_face("ResNetForImageClassification", 64, 33, (40, 65))
hugging_face("BeitForImageClassification", is_refused=True)


# timm


def of_timm(name: str, sizes: tuple, **args: Any) -> None:
    """Adds an architecture of timm's, made with `args`."""

    def make(folder: Path) -> Answer:
        from timm_models import timm

        model = noisy(timm.create_model(name, num_classes=7, **args))
        timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
        for pickled in folder.glob("*.bin"):
            pickled.unlink()
        return lambda x: at_size(model, x)

    FILES[f"timm {name}"] = Case(make, sizes)


def at_size(model: Any, x: np.ndarray) -> np.ndarray:
    """What a model of timm's answers at the size of these images."""
    import torch

    with torch.no_grad():
        if hasattr(model, "set_input_size") and getattr(model, "pos_embed", None) is not None:
            model = copy.deepcopy(model)
            model.set_input_size(img_size=x.shape[1:3])
        return model(channels_first(x)).numpy()


of_timm("vit_tiny_patch16_224", (160, 288, (96, 320)), depth=2)
of_timm("deit_tiny_patch16_224", (160, 288, (96, 320)), depth=2)
of_timm("deit3_small_patch16_224", (160, 288, (96, 320)), depth=2)
of_timm("vit_small_patch14_dinov2", (224, 532, (126, 210)), depth=1)
of_timm("vit_small_patch14_reg4_dinov2", (224, 532, (126, 210)), depth=1)
of_timm("vit_small_patch16_dinov3", (160, 288, (96, 320)), depth=1)
of_timm("vit_base_patch16_siglip_224", (160, 288, (96, 320)), depth=1)
of_timm("vit_so400m_patch14_siglip_384", (224, 392, (126, 210)), depth=1)
of_timm("vit_base_patch16_clip_224", (160, 288, (96, 320)), depth=1)
of_timm("vit_base_patch32_clip_quickgelu_224", (160, 288, (96, 320)), depth=1)
of_timm("resnet18", (160, 257, (96, 320)))
of_timm("resnet50", (160, 257, (96, 320)), layers=(1, 1, 1, 1))


def of_dinov2_itself(folder: Path) -> Answer:
    """DINOv2's own names are timm's, with a mask token; its program adds 0.1 to the size of the new grid."""
    import torch
    from safetensors.torch import save_file
    from timm_models import timm

    args = {"depth": 1, "img_size": 98}
    model = noisy(timm.create_model("vit_small_patch14_dinov2", num_classes=0, **args))
    state = model.state_dict() | {"mask_token": torch.zeros(1, 384)}
    save_file(state, folder / "model.safetensors")
    config = {"architecture": "vit_small_patch14_dinov2", "model_args": args, "num_classes": 0}
    (folder / "config.json").write_text(json.dumps(config))

    def answer(x: np.ndarray) -> np.ndarray:
        sized = timm.create_model("vit_small_patch14_dinov2", num_classes=0, depth=1, img_size=x.shape[1:3]).eval()
        token, grid = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
        grid = grid.reshape(1, 7, 7, -1).permute(0, 3, 1, 2)
        factors = tuple((side // 14 + 0.1) / 7 for side in x.shape[1:3])
        if x.shape[1:3] != (98, 98):
            grid = torch.nn.functional.interpolate(grid, scale_factor=factors, mode="bicubic")
        positions = torch.cat([token, grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)
        sized.load_state_dict({n: v for n, v in state.items() if n != "mask_token"} | {"pos_embed": positions})
        with torch.no_grad():
            return sized(channels_first(x)).numpy()

    return answer


FILES["DINOv2's own names"] = Case(of_dinov2_itself, (70, 126, (42, 140)))


# Google


def of_google(folder: Path) -> Answer:
    """A .npz as vision_transformer writes it, read by timm; scipy zooms its positions, as Google's code does."""
    import scipy.ndimage
    import torch
    from timm_models import timm

    rng, d, h, f = np.random.default_rng(0), 48, 3, 64

    def draw(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    arrays = {"cls": draw(1, 1, d), "embedding/kernel": draw(8, 8, 3, d), "embedding/bias": draw(d)}
    arrays["Transformer/posembed_input/pos_embedding"] = draw(1, 1 + 7 * 7, d)
    arrays |= {"head/kernel": draw(d, 5), "head/bias": draw(5)}
    arrays |= {"Transformer/encoder_norm/scale": 1 + draw(d), "Transformer/encoder_norm/bias": draw(d)}
    for i in range(2):
        block = f"Transformer/encoderblock_{i}"
        for j in (0, 2):
            arrays |= {f"{block}/LayerNorm_{j}/scale": 1 + draw(d), f"{block}/LayerNorm_{j}/bias": draw(d)}
        heads = f"{block}/MultiHeadDotProductAttention_1"
        for name in ("query", "key", "value"):
            arrays |= {f"{heads}/{name}/kernel": draw(d, h, d // h), f"{heads}/{name}/bias": draw(h, d // h)}
        arrays |= {f"{heads}/out/kernel": draw(h, d // h, d), f"{heads}/out/bias": draw(d)}
        mlp = f"{block}/MlpBlock_3"
        arrays |= {f"{mlp}/Dense_0/kernel": draw(d, f), f"{mlp}/Dense_0/bias": draw(f)}
        arrays |= {f"{mlp}/Dense_1/kernel": draw(f, d), f"{mlp}/Dense_1/bias": draw(d)}
    np.savez(folder / "model.npz", **arrays)

    def answer(x: np.ndarray) -> np.ndarray:
        position, grid = "Transformer/posembed_input/pos_embedding", tuple(side // 8 for side in x.shape[1:3])
        old = arrays[position]
        zoomed = scipy.ndimage.zoom(old[0, 1:].reshape(7, 7, d), (grid[0] / 7, grid[1] / 7, 1), order=1)
        with tempfile.TemporaryDirectory() as place:
            np.savez(f"{place}/m.npz", **arrays | {position: np.concatenate([old[:, :1], zoomed.reshape(1, -1, d)], 1)})
            sizes = {"patch_size": 8, "embed_dim": d, "depth": 2, "num_heads": h, "mlp_ratio": f / d}
            model = timm.models.VisionTransformer(
                img_size=x.shape[1:3], num_classes=5, act_layer="gelu_tanh", **sizes
            ).eval()
            model.load_pretrained(f"{place}/m.npz")
        with torch.no_grad():
            return model(channels_first(x)).numpy()

    return answer


FILES["Google's .npz"] = Case(of_google, (40, 72, (24, 80)))


def compare_file(case: Case) -> tuple[str, float]:
    """(what the table says, the largest difference) of one kind of file."""
    import jax
    import torch

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        answer = case.make(Path(name))
        weights = next(iter(Path(name).glob("*.npz")), Path(name))
        try:
            pretrained = tj.load(weights)
        except InputError as error:
            said = str(error).replace(name, "FOLDER")
            return f"refused: {said}", 0.0 if case.is_refused else np.inf
        worst, own = 0.0, pretrained.model.image_size
        for size in (own, *case.sizes):
            found = pretrained.with_image_size(size)
            x = np.random.default_rng(0).standard_normal((2, *sides(size), 3)).astype(np.float32)
            want, got = answer(x), np.asarray(jax.jit(found.model.apply)(found.w, x))
            worst = max(worst, np.abs(got - want).max() / np.abs(want).max() if got.shape == want.shape else np.inf)
    shown = ", ".join(str(size).replace("(", "").replace(")", "").replace(", ", " x ") for size in (own, *case.sizes))
    return f"{shown} | {worst:.0e}", np.inf if case.is_refused else float(worst)


# Processors

HALF, COLOURS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, {"image_mean": [0.485, 0.456, 0.406]}
COLOURS |= {"image_std": [0.229, 0.224, 0.225]}
WHOLE = {"do_resize": True, "do_normalize": True}
SQUARE = {"height": 224, "width": 224}
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT of 2021: no class, size 224": ("vit", {**WHOLE, **HALF, "size": 224}),
    "ViTFeatureExtractor, size 224": (
        "vit", {**WHOLE, **HALF, "feature_extractor_type": "ViTFeatureExtractor", "resample": 2, "size": 224}),
    "ViTImageProcessorFast": ("vit", {**HALF, "image_processor_type": "ViTImageProcessorFast", "size": SQUARE}),
    "ViTImageProcessor, do_normalize false": (
        "vit", {"image_processor_type": "ViTImageProcessor", "do_normalize": False, "size": SQUARE}),
    "ViTImageProcessor, do_rescale false": (
        "vit", {"image_processor_type": "ViTImageProcessor", "do_rescale": False, "size": SQUARE}),
    "ViTImageProcessor, rescale_factor 1/127.5": (
        "vit", {"image_processor_type": "ViTImageProcessor", "rescale_factor": 1 / 127.5, "size": SQUARE}),
    "ViTImageProcessor, 160 x 224": (
        "vit", {"image_processor_type": "ViTImageProcessor", "size": {"height": 160, "width": 224}}),
    **{
        f"ViTImageProcessor, resample {number}": (
            "vit", {"image_processor_type": "ViTImageProcessor", "resample": number, "size": SQUARE})
        for number in range(6)
    },
    "ViT in MAE: no class, ImageNet's colours": ("vit_mae", {**WHOLE, **COLOURS, "size": 224}),
    "DeiTFeatureExtractor, size 256, crop_size 224": (
        "deit", {**WHOLE, **COLOURS, "feature_extractor_type": "DeiTFeatureExtractor", "do_center_crop": True,
                 "crop_size": 224, "resample": 3, "size": 256}),
    "DeiTImageProcessor, size 438, crop_size 384": (
        "deit", {"image_processor_type": "DeiTImageProcessor", "size": {"height": 438, "width": 438},
                 "crop_size": {"height": 384, "width": 384}}),
    "BitImageProcessor of DINOv2": (
        "dinov2", {**COLOURS, "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256},
                   "crop_size": SQUARE, "do_center_crop": True, "resample": 3}),
    "BitImageProcessor, size 255, crop_size 222": (
        "dinov2", {"image_processor_type": "BitImageProcessor", "size": 255, "crop_size": 222}),
    "BitImageProcessor, do_resize false": (
        "dinov2", {"image_processor_type": "BitImageProcessor", "do_resize": False, "crop_size": 224}),
    "BitImageProcessor, crop_size above size": (
        "dinov2", {"image_processor_type": "BitImageProcessor", "size": 200, "crop_size": 224}),
    "BitImageProcessor, do_center_crop false": (
        "dinov2", {"image_processor_type": "BitImageProcessor", "do_center_crop": False}),
    "CLIPFeatureExtractor, size 224, crop_size 224": (
        "clip", {**WHOLE, "feature_extractor_type": "CLIPFeatureExtractor", "do_center_crop": True, "crop_size": 224,
                 "resample": 3, "size": 224}),
    "CLIPImageProcessor of 336": (
        "clip", {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 336, "width": 336},
                 "size": {"shortest_edge": 336}}),
    "SiglipImageProcessor": ("siglip", {**HALF, "image_processor_type": "SiglipImageProcessor", "resample": 3,
                                        "size": SQUARE}),
    "BeitFeatureExtractor": ("beit", {**HALF, "feature_extractor_type": "BeitFeatureExtractor", "crop_size": 224,
                                      "do_center_crop": False, "size": 224}),
    "ConvNextFeatureExtractor of ResNet, size 224, crop_pct 7/8": (
        "resnet", {**WHOLE, **COLOURS, "feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875,
                   "resample": 3, "size": 224}),
    "ConvNextImageProcessor, shortest_edge 224": (
        "resnet", {**COLOURS, "image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.95,
                   "size": {"shortest_edge": 224}}),
    "ConvNextImageProcessor, shortest_edge 384: warped": (
        "resnet", {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}}),
    "no preprocessor_config.json": ("vit", {}),
    "MobileViTImageProcessor": ("vit", {"image_processor_type": "MobileViTImageProcessor", "size": SQUARE}),
    "timm, crop_pct 0.9": ("timm", {"input_size": [3, 224, 224], "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3}),
    "timm, crop_pct 0.95, 255 pixels, bilinear": (
        "timm", {"input_size": [3, 255, 255], "crop_pct": 0.95, "interpolation": "bilinear"}),
    "timm, 224 x 160": ("timm", {"input_size": [3, 224, 160], "crop_pct": 0.9}),
    "timm, 161 x 221, crop_pct 1.1": ("timm", {"input_size": [3, 161, 221], "crop_pct": 1.1}),
    "timm, 160 x 224, squash": ("timm", {"input_size": [3, 160, 224], "crop_pct": 0.95, "crop_mode": "squash"}),
    "timm, squash": ("timm", {"input_size": [3, 224, 224], "crop_pct": 1.0, "crop_mode": "squash"}),
    "timm, border": ("timm", {"input_size": [3, 224, 224], "crop_mode": "border"}),
    "timm, no crop_pct": ("timm", {"input_size": [3, 224, 224], "test_input_size": [3, 288, 288]}),
}  # fmt: skip
"""(model_type, or timm for a pretrained_cfg, and the JSON) by title."""
SHAPES = ((203, 301), (301, 203), (224, 224), (900, 100), (223, 257), (60, 90))
"""Height and width of the pictures."""
KINDS = PUBLISHED | {"resnet": Published("ConvNextImageProcessor", PUBLISHED["dinov2"].preprocessing)}
KINDS |= {"beit": Published("BeitImageProcessor", PUBLISHED["vit"].preprocessing)}


def compare_processor(kind: str, fields: dict[str, Any]) -> tuple[str, float]:
    """(what the table says, the largest difference in levels of 255) of one processor's JSON."""
    if not fields:
        return "refused by transformers; here that of the published models, in one line", 0.0
    beside = {"config": {"pretrained_cfg": fields}} if kind == "timm" else {"preprocessor_config": fields}
    try:
        images = images_of(Tensors({}, {}, beside, "FOLDER"), KINDS.get(kind))
    except InputError as error:
        return f"refused: {error}", 0.0
    assert images is not None
    assert images.size is not None
    program = partial(by_timm, fields) if kind == "timm" else partial(by_transformers, kind, fields)
    mean, worst = largest_difference(images, program)
    height, width = sides(images.size)
    return f"{height} x {width} | {mean:.0e} | {worst:.0e}", worst


def by_transformers(kind: str, fields: dict[str, Any], picture: np.ndarray) -> np.ndarray:
    """The pixels "y x 3" of transformers' processor of Pillow, found as AutoImageProcessor finds it."""
    from PIL import Image
    from transformers import AutoImageProcessor

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(fields))
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": kind}))
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    assert type(processor).__name__.removesuffix("Pil") in KNOWN, type(processor)
    return processor(Image.fromarray(picture), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)


def by_timm(fields: dict[str, Any], picture: np.ndarray) -> np.ndarray:
    """The pixels "y x 3" of timm's own transform."""
    from timm_models import timm

    said = timm.data.resolve_data_config(pretrained_cfg=fields)
    return transformed(timm.data.create_transform(**said, is_training=False), picture)


def transformed(transform: Callable[[Any], Any], picture: np.ndarray) -> np.ndarray:
    """The pixels "y x 3" of a transform from Pillow's pictures to PyTorch's tensors."""
    from PIL import Image

    return transform(Image.fromarray(picture)).numpy().transpose(1, 2, 0)


def largest_difference(images: Images, program: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """(mean, largest) difference of our pixels from a program's in levels of 255, over noise of SHAPES."""
    assert images.size is not None
    differences = []
    for i, (height, width) in enumerate(SHAPES):
        picture = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
        want, pixels = program(picture), decode(picture, "", images.size, images.preprocessing)
        got = np.asarray(images.preprocessing.normalize(pixels[None]))[0]
        assert got.shape == want.shape, (got.shape, want.shape)
        differences.append(np.abs(got - want) * 255 * np.array(images.preprocessing.std))
    return float(np.mean([d.mean() for d in differences])), float(max(d.max() for d in differences))


# Images of weights

OWN = {"layers": 2, "width": 48, "head_width": 16, "patch_size": 8}
SIGLIP = {"timm_model_name": "vit_base_patch16_siglip_224", "timm_model_pretrained": False, "image_size": 224}
SIGLIP |= {"timm_pool": "map", "timm_proj": "none"}
SQUASH = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
OPEN_CLIP: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "open_clip, no preprocess_cfg": (OWN | {"image_size": 32}, None),
    "open_clip, squash, bilinear": (OWN | {"image_size": 32}, SQUASH | {"interpolation": "bilinear"}),
    "open_clip, 32 x 64": (OWN | {"image_size": [32, 64]}, {}),
    "open_clip, 16 x 64, squash": (OWN | {"image_size": [16, 64]}, SQUASH),
    "open_clip, SigLIP of timm": (SIGLIP, SQUASH),
    "open_clip, SigLIP of timm, no preprocess_cfg": (SIGLIP, None),
}
"""(vision_cfg, preprocess_cfg) by title."""
VITS = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
IMAGES = (*OPEN_CLIP, *(f"torchvision {name}" for name in (*VITS, *RESNETS)))


def compare_images(title: str) -> tuple[str, float]:
    """(what the table says, the largest difference in levels of 255) of one kind of weights."""
    if title in OPEN_CLIP:
        with tempfile.TemporaryDirectory() as folder:
            program = open_clip_in(Path(folder), *OPEN_CLIP[title])
            model = tj.load(folder).model
        images = Images(model.preprocessing, model.image_size)
        _, worst = largest_difference(images, program)
        height, width = sides(model.image_size)
        return f"{height} x {width} | {worst:.0e} | ", worst
    import torchvision

    name, said, largest = title.removeprefix("torchvision "), [], 0.0
    for weights in torchvision.models.get_model_weights(name):
        transform = weights.transforms()
        side = transform.crop_size[0]
        preprocessing, line = shown_by_torchvision(name, side)
        _, worst = largest_difference(Images(preprocessing, side), partial(transformed, transform))
        is_assumed = weights.name != "IMAGENET1K_V1" and line
        said.append(f"{weights.name}: {f'{worst:.0f}, in one line' if is_assumed else f'{worst:.0e}'}")
        largest = max(largest, 0.0 if is_assumed else worst)
    return f"224 x 224 and its own | {largest:.0e} | {'; '.join(said)}", largest


def open_clip_in(folder: Path, vision: dict[str, Any], preprocess: dict[str, Any] | None) -> Callable:
    """Writes a small model of open_clip's; its own pixels of a picture."""
    import open_clip
    from safetensors.torch import save_file

    is_of_timm = "timm_model_name" in vision
    width = 768 if is_of_timm else 24
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": width, "vision_cfg": vision, "text_cfg": text, "custom_text": is_of_timm}
    whole = {"model_cfg": config} | ({} if preprocess is None else {"preprocess_cfg": preprocess})
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    kind = open_clip.CustomTextCLIP if is_of_timm else open_clip.CLIP
    state = kind(width, dict(vision), dict(text)).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "open_clip_model.safetensors")
    return partial(transformed, open_clip.create_model_from_pretrained(f"local-dir:{folder}")[1])


def shown_by_torchvision(name: str, side: int) -> tuple[Preprocessing, str]:
    """(the preprocessing that a bare file of torchvision's is loaded with, what a line says of it)."""
    import torch
    import torchvision

    if name in RESNETS:
        return resnet.OF_TORCHVISION, resnet.ASSUMED
    with torch.device("meta"):
        model = getattr(torchvision.models, name)(image_size=side)
    blocks = model.encoder.layers
    sizes = (model.hidden_dim, len(blocks), blocks[0].mlp[0].out_features, model.patch_size)
    return of_torchvision(sizes, side)


# Positions

POSITIONS = {
    "bicubic": "timm; Hugging Face's DINOv2 with registers",
    "bicubic_plain": "Hugging Face's ViT, DeiT, MAE, I-JEPA, DINOv2, CLIP, SigLIP",
    "bilinear": "Hugging Face's SigLIP 2 of any shape",
    "bicubic_offset": "DINOv2's own program",
    "bicubic_corners": "torchvision's interpolate_embeddings",
    "linear_corners": "Google's `.npz`",
}
"""Whose each filter is."""
assert POSITIONS.keys() == FILTERS.keys()


def by_program(name: str, grid: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Positions "y x d" on another grid, by the functions that the programs call."""
    import scipy.ndimage
    import torch

    old = grid.shape
    if name == "linear_corners":
        return scipy.ndimage.zoom(grid, (rows / old[0], columns / old[1], 1), order=1)
    planes, call = torch.from_numpy(grid.transpose(2, 0, 1).copy())[None], torch.nn.functional.interpolate
    if name == "bicubic_offset":
        factors = (float(rows + 0.1) / old[0], float(columns + 0.1) / old[1])
        found = call(planes, scale_factor=factors, mode="bicubic")
    elif name == "bicubic_corners":
        found = call(planes, size=(rows, columns), mode="bicubic", align_corners=True)
    else:
        mode, antialias = name.removesuffix("_plain"), not name.endswith("_plain")
        found = call(planes, size=(rows, columns), mode=mode, antialias=antialias, align_corners=False)
    return found[0].numpy().transpose(1, 2, 0)


def compare_positions(name: str) -> tuple[str, float]:
    """(what the table says, the largest difference) of a filter at random pairs of grids of 2 to 40 points.

    Grids where scipy's rounding leaves the last row or column 0 are drawn again.
    """
    rng, worst, drawn = np.random.default_rng(0), 0.0, 0
    while drawn < 300:
        height, width, rows, columns = (int(side) for side in rng.integers(2, 41, 4))
        grid = rng.standard_normal((height, width, 3)).astype(np.float32)
        want = by_program(name, grid, rows, columns)
        if not want[-1].any() or not want[:, -1].any():
            continue
        worst, drawn = max(worst, np.abs(resample(grid, rows, columns, name) - want).max()), drawn + 1
    return f"{worst:.0e}", float(worst)


# The page


def section() -> tuple[str, list[str]]:
    """(the models' half of the page, the titles of what differs)."""
    lines = [
        "### Files of weights",
        "",
        "Each is a small random model, saved by its own program. The difference is the largest one of the outputs from",
        "the program's, over the largest output, at the file's own image size (first) and at others.",
        "",
        "| file | image sizes | difference |",
        "|---|---|---|",
    ]
    differing = []

    def add(title: str, said: str, difference: float, limit: float, columns: int) -> None:
        cells = said.split(" | ") if not said.startswith("refused") else [said, *[""] * (columns - 1)]
        lines.append(f"| {title} | {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        print(lines[-1], file=sys.stderr)
        if difference > limit:
            differing.append(title)

    for title, case in FILES.items():
        add(title, *compare_file(case), LIMITS["files"], 2)
    lines += [
        "",
        "### Processors of images",
        "",
        "`preprocessor_config.json` (or `image_processor` of `processor_config.json`) and timm's `pretrained_cfg`, on",
        f"noise of {', '.join(f'{height} x {width}' for height, width in SHAPES)} pixels: differences in levels of 255",
        "from the processors of transformers that use Pillow, and from timm's own transform, with Pillow 12.",
        "",
        "| JSON | images | mean difference | largest |",
        "|---|---|---|---|",
    ]
    for title, (kind, fields) in PROCESSORS.items():
        add(title, *compare_processor(kind, fields), LIMITS["processors"], 3)
    lines += [
        "",
        "### Images of bare weights, and of open_clip",
        "",
        "As above, from the program's own transform. Where torchvision's tensors do not show which weights they are,",
        "those of IMAGENET1K_V1 are assumed, and a line says so.",
        "",
        "| weights | images | largest | of each |",
        "|---|---|---|---|",
    ]
    for title in IMAGES:
        add(title, *compare_images(title), LIMITS["images"], 3)
    lines += [
        "",
        "### Positions at another image size",
        "",
        "The filters of `tangent_jax/models/vit/positions.py` at 300 random pairs of grids of 2 to 40 rows and",
        "columns, against `torch.nn.functional.interpolate` and `scipy.ndimage.zoom` of positions drawn from N(0, 1).",
        "",
        "| filter | whose | largest difference |",
        "|---|---|---|",
    ]
    for name, whose in POSITIONS.items():
        said, difference = compare_positions(name)
        add(name, f"{whose} | {said}", difference, LIMITS["positions"], 2)
    return "\n".join(lines), differing


def main() -> None:
    import timm_models  # noqa: F401  (it takes the operators out of torchvision, which others import)

    text, differing = section()
    page = PAGE.read_text() if PAGE.exists() else f"# Compatibility\n\n## Models\n\n{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    print(json.dumps({"differ": differing}))
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()

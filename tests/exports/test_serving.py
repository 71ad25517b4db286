"""A predictor that left as a program gives its outputs without this library: StableHLO by jax, ONNX by onnxruntime."""

import dataclasses
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, in_long, predictor, tree_normal
from jax.export import deserialize
from PIL import Image
from PIL.ExifTags import Base

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.decode import decode
from tangent_jax.exports import folder as exports
from tangent_jax.exports import serving
from tangent_jax.exports.folder import export
from tangent_jax.models.trunk import run_trunk
from tangent_jax.models.vit.model import VisionTransformer

RUN = runpy.run_path(str(Path(tj.__file__).parent / "assets/run.py"))
MADE_BEFORE = Path(__file__).parent / "served"


def resnet():
    model = tj.models.ResNet(tj.models.ResNetConfig((1, 1), False, 2, "small", 8, 7))
    w = tree_normal(11, trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()}))
    w = jax.tree.map(lambda leaf: leaf**2 + 0.5 if leaf.ndim == 1 else 0.5 * leaf, w)
    predict = tj.tangent(tj.Pretrained(model, w, "random"), 1)
    return predict, tree_normal(40, predict.zeros())


def lora():
    predict, _ = predictor()
    with_lora = tj.Pretrained(predict.model, predict.w, "random").with_lora(2, 1, jax.random.key(0))
    predict = tj.tangent(with_lora, 1, "lora")
    return predict, tree_normal(40, predict.zeros())


def half():
    """Two blocks of every token, whose attention cuDNN would take."""
    config = tj.models.ViTConfig(
        width=16, depth=2, heads=2, mlp_width=20, patch_size=4, image_size=8, classes=7, pool="avg"
    )
    model = tj.models.VisionTransformer(config)
    w = tree_normal(11, trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()}))
    predict = tj.tangent(tj.Pretrained(model, w, "random"), 1, dtype=jnp.dtype("bfloat16"))
    return predict, tree_normal(40, predict.zeros())


def features(parts=("h", "relu", "ntk")):
    """A head on the features of every part."""
    predict, _ = predictor()
    settings = tj.models.FeatureSettings(parts, 1, 2, 16, 3)
    built = settings.of(tj.Pretrained(predict.model, predict.w, "random"))
    width = sum(built.sizes)
    shapes = {"center": (width,), "kernel": (width, 4), "bias": (4,)}
    head = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return built, tree_normal(40, head)


TOKEN = partial(predictor, "bitfit", 1, 2, class_token_at=1)
CASES = {
    "one block": predictor,
    "two blocks of all tokens": partial(predictor, "blocks", 2, 2, pool="avg"),
    "everything": partial(predictor, "everything", 2, 2, layer_scale=True),
    "a new class token": TOKEN,
    "autodiff": partial(predictor, linearization="autodiff"),
    "non-linear": partial(predictor, method="nlft"),
    "ResNet": resnet,
    "LoRA": lora,
    "half": half,
    "a head on features": features,
}


def inputs_of(count):
    return np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3), np.uint8)


def outputs_of(predict, dw, x):
    """The outputs as the library gives them: features first."""
    model, stage = predict.model, predict.subset.stage
    if stage:
        x = run_trunk(predict.w, x, model=model, stop=stage, dtype=predict.dtype)
    return np.asarray(jax.jit(predict)(dw, x))


QUICK = ("one block", "non-linear", "ResNet", "half", "a head on features")


@pytest.mark.parametrize("name", [*QUICK, *in_long(*(name for name in CASES if name not in QUICK))])
def test_program_serves_any_batch_size(tmp_path, name):
    predict, dw = CASES[name]()
    export(tmp_path / "out", predict, dw, {}, "stablehlo")
    program = RUN["load"](tmp_path / "out")
    for count in (1, 3, 7) if name == "one block" else (3,):
        want = outputs_of(predict, dw, inputs_of(count))
        assert_rel_close(program(inputs_of(count)), want, 2e-2 if name == "half" else None)


@pytest.fixture
def traced_locations():
    """Programs name the files that they were traced from, as they do outside of tests."""
    limit = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)
    yield
    jax.config.update("jax_traceback_in_locations_limit", limit)


@pytest.mark.usefixtures("traced_locations")
def test_program_is_for_three_platforms(tmp_path):
    predict, dw = half()
    for name in "ab":
        export(tmp_path / name, predict, dw, {}, "stablehlo")
    content = (tmp_path / "a/model.jax").read_bytes()
    program, said = deserialize(bytearray(content)), json.loads((tmp_path / "a/serving.json").read_text())
    assert program.platforms == ("cpu", "cuda", "tpu") == (*said["platforms"],)
    assert program.calling_convention_version == said["calling_convention"]
    assert "cudnn" not in program.mlir_module()
    assert b".py" not in content
    assert content == (tmp_path / "b/model.jax").read_bytes()
    assert "bf16" in program.mlir_module()


def test_old_program_is_still_read():
    """The folder is one that jax 0.10.2 wrote, of `predictor(depth=1)`: jax promises its readers six months."""
    predict, dw = predictor(depth=1)
    assert_rel_close(RUN["load"](MADE_BEFORE)(inputs_of(3)), outputs_of(predict, dw, inputs_of(3)))


WITHOUT = """
import runpy, sys
sys.modules["tangent_jax"] = None  # as if it were not installed
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_script_runs_without_the_library(tmp_path):
    predict, dw = predictor()
    classes = [f"class {c}" for c in range(7)]
    export(tmp_path / "out", predict, dw, {}, "stablehlo", classes)
    photo = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (13, 17, 3), np.uint8)))
    (tmp_path / "photo.png").write_bytes(photo)
    np.save(tmp_path / "two.npy", inputs_of(2))
    command = [sys.executable, "-c", WITHOUT, tmp_path / "out/run.py"]
    lines = subprocess.check_output([*command, tmp_path / "photo.png", tmp_path / "two.npy"], text=True).splitlines()
    x = np.concatenate([decode(photo, "photo", 8, predict.model.preprocessing)[None], inputs_of(2)])
    want = outputs_of(predict, dw, x)
    printed = [json.loads(line) for line in lines]
    assert_rel_close(np.float32([line["outputs"] for line in printed]), want)
    assert [line["class"] for line in printed] == [classes[i] for i in want.argmax(1)]
    (tmp_path / "out/weights.safetensors").write_bytes(b"altered")
    ended = subprocess.run([*command, tmp_path / "photo.png"], capture_output=True, text=True)
    assert ended.returncode == 1
    want = "run.py: weights.safetensors must be the file that serving.json names; it was altered. Export it again.\n"
    assert ended.stderr == want


def encoded(picture, format="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def turned(picture, orientation, **options):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    return encoded(picture, exif=exif, **options)


def drawn(mode="RGB"):
    draws = np.random.default_rng(0).integers(0, 256, (13, 17, 4), np.uint8)
    if mode == "I;16":
        return Image.fromarray(draws[..., 0].astype(np.uint16) * 257 - draws[..., 1] // 2)
    return Image.fromarray(draws, "RGBA").convert(mode)


def palette_with_transparency():
    return encoded(drawn("P"), transparency=3)


MODES = ("RGB", "RGBA", "L", "LA", "1", "P")
PICTURES = {
    **{f"PNG, {mode}": partial(lambda mode: encoded(drawn(mode)), mode) for mode in MODES},
    "PNG, palette with transparency": palette_with_transparency,
    "PNG, grey of 16 bits": lambda: encoded(drawn("I;16")),
    "PNG, grey of 16 bits, turned": lambda: turned(drawn("I;16"), 8),
    "PNG, palette, turned": lambda: turned(drawn("P"), 6),
    "JPEG, landscape": lambda: encoded(drawn(), "JPEG"),
    "JPEG, portrait": lambda: encoded(drawn().transpose(Image.Transpose.ROTATE_90), "JPEG"),
    **{f"JPEG, turned by EXIF {n}": partial(lambda n: turned(drawn(), n, format="JPEG"), n) for n in range(1, 10)},
    "JPEG, grey": lambda: encoded(drawn("L"), "JPEG"),
    "JPEG, CMYK": lambda: encoded(drawn("CMYK"), "JPEG"),
    "JPEG, CMYK, turned": lambda: turned(drawn("CMYK"), 3, format="JPEG"),
    "JPEG with a preview (MPO)": lambda: encoded(drawn(), "MPO", save_all=True, append_images=[drawn()]),
    "BMP": lambda: encoded(drawn(), "BMP"),
    "WebP": lambda: encoded(drawn("RGBA"), "WEBP", lossless=True),
    "small": lambda: encoded(drawn().resize((8, 8))),
}


@pytest.fixture(scope="module")
def exported_script(tmp_path_factory):
    """The functions of an exported run.py."""
    folder = tmp_path_factory.mktemp("exported")
    serving.write_script(folder, "stablehlo", predictor()[0].model, ())
    return runpy.run_path(str(folder / "run.py"))


@pytest.mark.parametrize("name", PICTURES)
def test_script_decodes_like_the_library(tmp_path, exported_script, name):
    content = PICTURES[name]()
    (tmp_path / "picture").write_bytes(content)
    for fields in (
        {"crop": 0.8},
        {"crop": 0.8, "centre": "floor"},
        {"resize": "none", "crop": 1.0},
        {"resize": "exact"},
        {"crop": 1.3},
    ):
        own = tj.models.Preprocessing(interpolation="bilinear", **fields)
        got = exported_script["read_image"](str(tmp_path / "picture"), (8, 6), dataclasses.asdict(own))
        assert (got == decode(content, "picture", (8, 6), own)).all()


REFUSED = {
    "transparent colour": (lambda: encoded(drawn(), transparency=(0, 0, 0)), "one colour that is transparent"),
    "animated": (lambda: encoded(drawn(), save_all=True, append_images=[drawn("L").convert("RGB")]), "it has 2 frames"),
    "TIFF": (lambda: encoded(drawn(), "TIFF"), "must be a picture in JPEG, PNG, BMP, WEBP; cannot identify"),
    "damaged": (lambda: encoded(drawn(), "JPEG")[:300], "must be a picture in JPEG, PNG, BMP, WEBP; "),
    "text": (lambda: b"no picture", "must be a picture in JPEG, PNG, BMP, WEBP; cannot identify"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_script_refuses_unknown_picture(tmp_path, exported_script, name):
    make, message = REFUSED[name]
    (tmp_path / "picture").write_bytes(make())
    with pytest.raises(ValueError, match=message) as refused:
        exported_script["read_image"](
            str(tmp_path / "picture"), (8, 8), dataclasses.asdict(tj.models.Preprocessing(interpolation="bilinear"))
        )
    assert "save it as JPEG or PNG of 8 bits" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_program_refuses_other_inputs():
    program = RUN["load"](MADE_BEFORE)
    for wrong in (inputs_of(2)[:, :, :4], inputs_of(2).astype(np.float32)):
        with pytest.raises(ValueError, match=r"inputs must be uint8 of shape \('b', 8, 8, 3\); got"):
            program(wrong)


def test_newer_jax_program_says_its_version(tmp_path, monkeypatch):
    folder = shutil.copytree(MADE_BEFORE, tmp_path / "newer")
    path = folder / "serving.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"jax": "99.1.0"}))

    def unknown(*_):
        raise RuntimeError("custom call not registered")

    monkeypatch.setattr("jax.export.deserialize", lambda _: SimpleNamespace(call=unknown))
    with pytest.raises(ValueError, match=r"model.jax needs jax 99.1.0, which wrote it, or a newer one; this is jax 0"):
        RUN["load"](folder)(inputs_of(2))


class Spectral(VisionTransformer):
    def apply(self, w, x, start=0, stop=None):
        y = super().apply(w, x, start, stop)
        return y + jnp.linalg.eigvals(jnp.eye(2)).real.sum()


class Counting(VisionTransformer):
    def apply(self, w, x, start=0, stop=None):
        return super().apply(w, x, start, stop) * len(x)


def test_impossible_export_writes_nothing(tmp_path, monkeypatch):
    predict, dw = predictor()
    write = partial(export, tmp_path / "out", predict, dw, {})
    with pytest.raises(InputError, match=r"format must be one of safetensors, stablehlo, onnx.*; got pickle"):
        write("pickle")
    with pytest.raises(InputError, match=r"classes must name all 7 outputs, or none; got 1 names"):
        write("stablehlo", ["cat"])
    counting = dataclasses.replace(predict, model=Counting(predict.model.config))
    with pytest.raises(InputError, match=r"model must take any batch size .*; got TypeError"):
        export(tmp_path / "out", counting, dw, {}, "stablehlo")
    spectral = dataclasses.replace(predict, model=Spectral(predict.model.config))
    with pytest.raises(InputError, match=r"model must lower for cpu, cuda, tpu; got: .* 'eig' .* platform"):
        export(tmp_path / "out", spectral, dw, {}, "stablehlo")
    double = dataclasses.replace(predict, w=jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), predict.w))
    with pytest.raises(InputError, match=r"leaves must fit float32; got w/.* in float64"):
        export(tmp_path / "out", double, dw, {}, "stablehlo")
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    for name, package in (("stablehlo", "flatbuffers"), ("onnx", "jax2onnx")):
        expected = rf"{package}, .* must be installed; it is not. Run pip install 'tangent-jax\[{name}\]'"
        with pytest.raises(InputError, match=expected):
            write(name)
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def onnx():
    for package in exports.FORMATS["onnx"].needs:
        pytest.importorskip(package, reason=f"{package} is of the extra onnx: make parity")


def variant(**changes):
    """A predictor of two blocks and the head of a small ViT."""
    return predictor("blocks", 2, 2, **changes)


FAMILIES = {
    "DINOv2, classifier": partial(variant, pool="token_avg", layer_scale=True),
    "DINOv2, registers, gated": partial(variant, pool="token_avg", registers=3, gated=True, activation="silu"),
    "mean of normed patches": partial(variant, pool="norm_avg"),
    "SigLIP, attention pool": partial(variant, pool="attention", class_token=False, activation="gelu_tanh"),
    "CLIP": partial(variant, pre_norm=True, activation="quick_gelu"),
    "EVA, rotary": partial(variant, positions="rotary", registers=1, gated=True, activation="silu", width=16, heads=2),
}
ONNX = {name: make for name, make in (CASES | FAMILIES).items() if name != "ResNet"}


class Fourier(VisionTransformer):
    """A model with a Fourier transform, which jax2onnx lacks."""

    def apply(self, w, x, start=0, stop=None):
        return super().apply(w, x, start, stop) * jnp.abs(jnp.fft.rfft(jnp.ones(4)))[0] / 4


@pytest.mark.usefixtures("onnx")
@pytest.mark.parametrize("name", ONNX)
def test_onnxruntime_gives_predictor_outputs(tmp_path, name):
    import onnx

    predict, dw = ONNX[name]()
    in_f32 = predict.in_dtype(None)
    want = {count: outputs_of(in_f32, dw, inputs_of(count)) for count in (1, 3, 7)}
    for opset in serving.OPSETS if name == "one block" else (serving.OPSET,):
        folder = tmp_path / str(opset)
        export(folder, predict, dw, {}, "onnx", opset=opset)
        written = onnx.load(folder / "model.onnx")
        assert [(entry.domain, entry.version) for entry in written.opset_import] == [("", opset)]
        onnx.checker.check_model(written, full_check=True)
        graph = RUN["load"](folder)
        for count in want if opset == serving.OPSET else (3,):
            assert_rel_close(graph(inputs_of(count)), want[count])


@pytest.mark.usefixtures("onnx")
def test_an_onnx_names_its_opset(tmp_path):
    export(tmp_path / "default", *predictor(), {}, "onnx")
    export(tmp_path / "20", *predictor(), {}, "onnx", opset=20)
    for name, opset in (("default", 18), ("20", 20)):
        for file in ("provenance.json", "serving.json"):
            assert json.loads((tmp_path / name / file).read_text())["opset"] == opset
        assert f"ONNX opset {opset}" in (tmp_path / name / "README.md").read_text()


@pytest.mark.usefixtures("onnx")
def test_impossible_onnx_is_not_written(tmp_path, monkeypatch):
    predict, dw = predictor()
    with pytest.raises(InputError, match=r"model must be one that jax2onnx converts; got .*DFT.*as stablehlo"):
        export(tmp_path / "out", dataclasses.replace(predict, model=Fourier(predict.model.config)), dw, {}, "onnx")
    with pytest.raises(InputError, match=r"got NotImplementedError: .*'platform_index'.*as stablehlo"):
        export(tmp_path / "out", *resnet(), {}, "onnx")  # a convolution for each platform
    monkeypatch.setattr(serving, "ALIKE", 0)
    with pytest.raises(InputError, match=r"outputs of the ONNX must be the predictor.s; they are .* away"):
        export(tmp_path / "out", predict, dw, {}, "onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("format", "opset", "refused"),
    [
        ("onnx", 17, "opset must be 18 to 23; got 17. TensorRT 10 reads up to 20."),
        ("onnx", 24, "opset must be 18 to 23; got 24."),
        ("stablehlo", 18, "opset is of the format onnx, and this export is stablehlo."),
    ],
)
def test_an_opset_that_cannot_be_is_one_sentence(tmp_path, format, opset, refused):
    with pytest.raises(InputError, match=re.escape(refused)):
        export(tmp_path / "out", *predictor(), {}, format, opset=opset)
    assert not [*tmp_path.iterdir()]

"""The card of an export says what the export knows, in Hugging Face's form, and no name in it is read as a mark."""

import dataclasses
import json
import re

import numpy as np
import pytest
from helpers import assert_rel_close, origin, predictor

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import FORMATS, export
from tangent_jax.exports.summary import without_folders
from tangent_jax.io.files import file_fingerprint
from tangent_jax.store.recipe import Recipe

EVIL = ("<script>alert(1)</script>", "---\nlicense: mit", "a: b", '"q"\\', "`x`", "[y](http://e.vil)", "| \u2028\x7f😀")
SAID = {
    "of": {
        f"shard {s}": (
            origin(
                s,
                recipe=Recipe(
                    weights="/home/me/vit.safetensors",
                    dataset="folder:/home/me/photos.zip",
                    head="/home/me/head.safetensors",
                    seed=s,
                ),
                owners={f"photo {3 * s}.jpg": f"ann{s}@example.org"},
                public=origin(7).data.examples[:2],
            )
        )
        for s in range(2)
    },
    "merge": "mean",
    "privacy": {"epsilon": 2.5, "delta": 1e-5, "private": True, "neighbouring": "add-or-remove-one"},
    "accuracy": {"digits: 8": 0.9125},
    "removals": {"examples": 4, "receipts": {"0123456789abcdef": "f" * 64}},
}


def card(folder, said=SAID, format="safetensors", classes=EVIL, **options):
    """The text of the card of a small predictor's export."""
    export(folder, *predictor("blocks", 1, 1, **options), said, format, classes)
    return (folder / "README.md").read_text()


def test_card_is_that_of_hugging_face(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    text = card(tmp_path / "out")
    data = hub.ModelCard.load(tmp_path / "out/README.md").data
    assert data.to_dict() == {
        "license": "unknown",
        "library_name": "tangent-jax",
        "tags": ["tangent-jax", "tangent-transformer", "taft", "safetensors"],
    }
    anchor = origin(0).anchor
    for line in (
        f"body `{anchor}`",
        "weights vit.safetensors",
        "dataset folder\\:photos.zip",
        "**Components**: 2, of 6 images of 2 owners, and 2 public images, which nothing protects",
        "VisionTransformer, taft; outputs: total",
        "learning\\_rate 0.001",
        "digits\\: 8, test images: 0.9125",
        "epsilon 2.5 at delta 1e-05",
        "1 before this export, of 4 examples",
        "tangent-jax 0.",
        "**Licence**: not known",
    ):
        assert line in text, line
    assert "seed" not in text  # in which the components differ


@pytest.mark.parametrize("evil", EVIL)
def test_name_ends_neither_yaml_nor_line(tmp_path, evil):
    hub, markdown = pytest.importorskip("huggingface_hub"), pytest.importorskip("markdown_it")
    said = {**SAID, "accuracy": {evil: 0.5}, "license": evil}
    text = card(tmp_path / "out", said)
    data = hub.ModelCard.load(tmp_path / "out/README.md").data
    assert data.license == evil
    body = text.split("\n---\n", 1)[1]
    tokens = markdown.MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    allowed = {"text", "code_inline", "text_special", "softbreak", "strong_open", "strong_close"}
    assert {token.type for token in inline} <= allowed
    assert not [token for token in tokens if token.type == "html_block"]
    lines = ["".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"]
    shown = "".join(c if c.isprintable() else " " for c in evil)
    assert any(line == f"Accuracy: {shown}, test images: 0.5" for line in lines)
    assert any(line.startswith("Classes: 7, ") and shown in line for line in lines)


def test_card_is_stable_and_holds_no_image(tmp_path):
    text = card(tmp_path / "a")
    assert text == card(tmp_path / "b")
    said = json.loads((tmp_path / "a/provenance.json").read_text())
    assert said["files"]["README.md"] == file_fingerprint(tmp_path / "a/README.md")
    hidden = [
        *(i for part in SAID["of"].values() for pair in part.data.examples for i in pair),
        "/home",
        "ann0",
        "shard 0",
    ]
    assert not [word for word in hidden if word in text]


def test_unknown_fields_are_not_invented(tmp_path):
    text = card(tmp_path / "bare", {"of": {"mine": "elsewhere"}}, classes=())
    for line in ("Components**: not known", "without names", "component**: not known", "not measured"):
        assert line in text, line
    assert "promises no differential privacy" in text
    assert "**Removals**: not known" in text
    seeded = {"privacy": {**SAID["privacy"], "private": False}, "license": "cc-by-4.0"}
    text = card(tmp_path / "seeded", seeded)
    assert "NOT private: a seed drew the noise" in text
    assert 'license: "cc-by-4.0"' in text


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"accuracy": {"digits": 91}}, r"accuracy on digits must be in 0..1; got 91"),
        ({"accuracy": 0.9}, r"accuracy must be \{data set: number\}; got 0.9"),
        ({"privacy": {"epsilon": 1.0}}, "privacy must hold the field delta; it is missing"),
        ({"removals": {"examples": "all"}}, "examples of removals must be a whole number; got 'all'"),
        ({"removals": {"examples": 4}}, "receipts of removals must be an object; got None"),
    ],
)
def test_wrong_claim_writes_nothing(tmp_path, said, message):
    with pytest.raises(InputError, match=message):
        card(tmp_path / "out", said)
    assert not [*tmp_path.iterdir()]


NEEDS = {"stablehlo": "flatbuffers", "onnx": "jax2onnx"}


@pytest.mark.parametrize(("format", "output"), [("safetensors", "tangent"), *((name, "total") for name in FORMATS)])
def test_its_lines_of_python_load_the_export(tmp_path, monkeypatch, format, output):
    if format in NEEDS:
        pytest.importorskip(NEEDS[format], reason=f"{NEEDS[format]} is of the extra {format}, or make parity")
    predict, dw = predictor("blocks", 1, 1, output=output)
    export(tmp_path / "out", predict, dw, {}, format)
    monkeypatch.chdir(tmp_path / "out")
    monkeypatch.syspath_prepend(tmp_path / "out")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    x = np.zeros((1, 8, 8, 3), np.uint8)
    whole = tj.Predictor(predict.w, predict.model, dataclasses.replace(predict.subset, stage=0), output=output)
    assert_rel_close(np.asarray(names["outputs"]), np.asarray(whole(dw, x)))


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("/home/al,ice/a=b/c@d/e:f/g?h/vit.safetensors", "vit.safetensors"),
        ("folder:/home/al,ice@x/photos=1/cub?50.zip/", "folder:cub?50.zip"),
        ("csv:/home/bob/set.csv?image=path&folder=/home/bob/images", "csv:set.csv?image=path&folder=images"),
        ("wds:/data/bob/train-{000..099}.tar", "wds:train-{000..099}.tar"),
        ("tfds:mnist@/home/bob/tfds", "tfds:mnist@tfds"),
        ("folder:s3://user:secret@bucket/people/bob", "folder:bob"),
        ("s3://user:secret@bucket", "bucket"),
        ("https://user:pa;ss@host/x", "x"),
        ("https://user:pa?ss@host/bob/x?v=1", "x"),
        ("folder:s3://user:pa#s/s@bucket/bob/x.zip", "folder:x.zip"),
        ("s3://us;er@bucket/x", "x"),
        ("https://user:pa;ss@host", "host"),
        ("https://host:80/bob/x;v=1@2", "x"),
        ("https://host/bob/w.safetensors?token=secret", "w.safetensors"),
        (r"C:\\Users\\bob\\w.safetensors", "w.safetensors"),
        ("hf-hub:timm/vit_tiny", "hf-hub:timm/vit_tiny"),
        ("rsl:alpha=1:kappa=15", "rsl:alpha=1:kappa=15"),
        ("digits", "digits"),
    ],
)
def test_specification_hides_folders_and_secrets(spec, shown):
    assert without_folders(spec) == shown


def test_split_folders_hide_their_parents():
    spec = "folder:?train=/home/bob/x&test=/media/ann/y.zip"
    assert without_folders(spec) == "folder:?train=x&test=y.zip"

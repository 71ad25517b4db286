"""The anchor of a first session: a weights file like its source's, that names the images in it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tree_normal
from models.layouts import google, hugging_face, model, said, timm
from models.test_families import pretrained
from safetensors.numpy import load_file, save_file
from saved import modern

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.tensors import encode, read_tensors
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.ntk import feature_map
from tangent_jax.models.predict import nonlinear, tangent
from tangent_jax.models.session import FirstSession, Paid
from tangent_jax.pretrained.load import load, save
from tangent_jax.pretrained.sessions import SESSION

IMAGES = tuple((f"{i:064x}", f"train/owl/{i}.png") for i in range(3))
KEY = jax.random.key(0)


def session(**changes):
    settings = {"method": "nlft", "images": "0.1", "dataset": "folder:birds"}
    fields = {"settings": settings, "paid": Paid(3.0, 1e-5, "example"), **changes}
    return FirstSession("0" * 64, "birds", ("gull", "owl"), IMAGES, **fields)


def of_timm(folder):
    save_file(timm(*model()), folder / "model.safetensors")
    return said(folder, config={"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}})


def of_hugging_face(folder):
    save_file(hugging_face(*model()), folder / "model.safetensors")
    fields = {"model_type": "vit", "hidden_size": 128, "num_attention_heads": 2, "layer_norm_eps": 3e-6}
    (folder / "config.json").write_text(json.dumps({**fields, "image_size": 8, "patch_size": 4}))
    return folder


def of_google(folder):
    np.savez(folder / "model.npz", **google(*model()))
    return folder / "model.npz"


def of_dinov3(folder):
    modern("dinov3", folder)
    return folder


def of_ours(base):
    def write(folder):
        save(folder / "ours.safetensors", pretrained(base))
        return folder / "ours.safetensors"

    return write


SOURCES = {"timm": of_timm, "Hugging Face": of_hugging_face, "Google": of_google, "DINOv3": of_dinov3}
SOURCES |= {"builtin": lambda _: "builtin", "builtin-resnet": lambda _: "builtin-resnet"}
SOURCES |= {name: of_ours(name) for name in ("clip", "layer scale, avg", "resnet, bottleneck")}


@pytest.mark.parametrize("name", SOURCES)
def test_anchor_file_has_w_plus_dw(tmp_path, name):
    before = load(SOURCES[name](tmp_path))
    predict = nonlinear(before.with_head(5, KEY), blocks=2, kind="blocks")
    dw = tree_normal(9, predict.zeros())
    save(tmp_path / "moved.safetensors", before.with_body(trees.add(predict.w, dw), session()))
    again = load(tmp_path / "moved.safetensors")
    assert again.model == before.model
    assert again.model.preprocessing == before.model.preprocessing
    own = {path: leaf for path, leaf in trees.leaves(dw).items() if not path.startswith("head/")}
    moved = trees.leaves(trees.add(before.w, trees.nest(own)))
    assert trees.fingerprint(again.w) == trees.fingerprint(trees.nest(moved))  # the head is the source's
    assert fingerprints(again.w)[0] != fingerprints(before.w)[0]
    assert again.session == session()
    names = {*load_file(tmp_path / "moved.safetensors")}
    assert names == {*before.model.to_world({path: np.zeros(leaf.shape) for path, leaf in moved.items()})}


def test_session_survives_changes_of_weights():
    before = load("builtin")
    anchor = before.with_body(before.w, session())
    assert anchor.w["head"] is before.w["head"]
    made = anchor.with_head(3, KEY).with_class_token(1, KEY).with_adapters(2, 1, KEY).with_lora(2, 1, KEY)
    for own in (made, anchor.with_image_size(12), anchor.with_head(["a", "b"], KEY).with_scaled_head(2.0)):
        assert own.session == session()
        predict = tangent(own)
        assert predict.session == nonlinear(own).session == session()
        assert dataclasses.replace(predict, dtype=jnp.dtype("bfloat16")).session == session()
        assert jax.tree.map(lambda leaf: leaf, predict).session == session()
    assert feature_map(anchor, ("h",)).session == session()
    assert before.session is None
    with pytest.raises(InputError, match="w must have the model's leaves alone; got block_5"):
        anchor.with_body(made.w, session())


def test_half_weights_keep_session(tmp_path):
    anchor = dataclasses.replace(load("builtin"), session=session())
    half = dataclasses.replace(anchor, w=trees.cast(anchor.w, jnp.bfloat16))
    save(tmp_path / "half.safetensors", half)
    assert load(tmp_path / "half.safetensors").session == session()


def edited(path, change):
    """The anchor's file with another text of its session."""
    tensors, metadata = read_tensors(path)
    path.write_bytes(encode({name: np.array(value) for name, value in tensors.items()}, change(tensors, metadata)))


def other_body(tensors, metadata):
    return {**metadata, SESSION: metadata[SESSION].replace('"body": "', '"body": "0')}


def fewer_images(tensors, metadata):
    fields = json.loads(metadata[SESSION])
    return {**metadata, SESSION: json.dumps({**fields, "images": fields["images"][1:]}) + "\n"}


def of_other_weights(tensors, metadata):
    """A session that is whole, of other weights."""
    from tangent_jax.pretrained.sessions import encode_session

    return {**metadata, SESSION: encode_session(session(), "1" * 64)}


def made_up(tensors, metadata):
    """A text with the right hash that is no session."""
    from tangent_jax.io.records import seal_fields

    body = json.loads(metadata[SESSION])["body"]
    return {**metadata, SESSION: seal_fields({"dataset": "birds", "body": body})}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_body, "its text was edited"),
        (fewer_images, "its text was edited"),
        (of_other_weights, "it was written for other weights"),
        (made_up, "the field source"),
        (lambda _, metadata: {**metadata, SESSION: "no JSON"}, "JSON"),
        (lambda _, metadata: {**metadata, SESSION: "[" * 100000}, "RecursionError"),
    ],
)
def test_altered_session_is_refused(tmp_path, change, message):
    path, before = tmp_path / "moved.safetensors", load("builtin")
    save(path, before.with_body(before.w, session()))
    edited(path, lambda _, metadata: metadata)
    assert load(path).session == session()
    edited(path, change)
    with pytest.raises(InputError, match=message) as error:
        load(path)
    assert str(error.value).startswith(f"{SESSION} in the metadata of {path} must say whose images are in the anchor")
    assert "Fetch or make the file again; or delete this key of its metadata" in str(error.value)
    edited(path, lambda _, metadata: {name: text for name, text in metadata.items() if name != SESSION})
    assert load(path).session is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ()}, "must have images"),
        ({"images": (("1" * 63, "a.png"),)}, "must be SHA-256 sums"),
        ({"source": "builtin"}, "must be SHA-256 sums"),
        ({"command": "rm"}, "command must be finetune or private"),
        ({"settings": {"lr; rm": "1"}}, "must have the names of flags"),
        ({"paid": lambda: Paid(float("nan"), 1e-5, "example")}, "epsilon must be finite and >= 0"),
    ],
)
def test_wrong_fields_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(session(), **{n: v() if callable(v) else v for n, v in changes.items()})


def test_a_session_escapes_control_characters():
    evil = session(settings={"lr": "\x1b[2J"})
    evil = dataclasses.replace(evil, images=(("1" * 64, "\x1b]0;x"),), dataset="\x1b[1m", classes=("\x1b",))
    texts = [str(evil), *evil.settings.values(), *evil.classes, *(name for _, name in evil.images)]
    assert all(text.isprintable() for text in texts)

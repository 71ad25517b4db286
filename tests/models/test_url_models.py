"""Weights, components and exports at s3:// are those of the same files on disk."""

import json

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, origin, part
from models.layouts import model, said, timm
from safetensors.numpy import save_file

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save
from tangent_jax.store.erasure import unreached
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.receipts import Trace
from tangent_jax.store.store import Store

MODEL = VisionTransformer(ViTConfig(12, 3, 3, 20, patch_size=4, image_size=8, classes=7))
W = initial_weights(MODEL, jax.random.key(0))


def same(one, other):
    return trees.fingerprint(one) == trees.fingerprint(other)


def test_weights_come_back(s3):
    url = f"{s3.fresh()}/w.safetensors"
    save(url, Pretrained(MODEL, W, ""))
    pretrained = load(url)
    assert same(pretrained.w, W)
    assert (pretrained.model, pretrained.source) == (MODEL, url)
    with pytest.raises(InputError, match=r"s3://bucket/none\.npz must be reachable; got FileNotFoundError"):
        load("s3://bucket/none.npz")


def test_sharded_weights_come_from_url(s3, tmp_path):
    """A folder's config.json, index and the files that it names; what else is there is not fetched."""
    tensors = {name: np.asarray(value) for name, value in timm(*model()).items()}
    places = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in {*places.values()}:
        save_file({name: tensors[name] for name in tensors if places[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    said(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"")
    assert_rel_close(load(s3.put(tmp_path)).w, model()[1])
    assert not [*s3.copies.rglob("optimizer.pt")]


def test_url_reads_leave_no_copy(s3, tmp_path):
    write_component(tmp_path / "dw.safetensors", part(0), {"a": "b"})
    dw, metadata = read_component(f"{s3.put(tmp_path)}/dw.safetensors")
    assert same(dw, part(0))
    assert metadata["a"] == "b"
    predict = tangent(Pretrained(MODEL, W, ""), blocks=1)
    export(tmp_path / "export", predict, predict.zeros(), {})
    pretrained, step = load_export(s3.put(tmp_path / "export"))
    assert same(pretrained.w, W)
    assert same(step, predict.zeros())
    assert not [*s3.copies.rglob("dw.safetensors")], "a copy that a removal could not reach"


def test_url_written_elsewhere_is_refused(s3):
    predict = tangent(Pretrained(MODEL, W, ""), blocks=1)
    for write in (
        lambda: export("s3://bucket/export", predict, predict.zeros(), {}),
        lambda: write_component("s3://bucket/dw.safetensors", part(0), {}),
        lambda: Store("s3://bucket/store"),
    ):
        with pytest.raises(InputError, match=r"a path must be one of this machine; got s3://.*aws s3 sync"):
            write()


def test_a_run_at_a_url_is_listed_as_not_reached(tmp_path):
    store = Store(tmp_path / "store")
    store.add("a", part(0), origin(0, folders=("s3://bucket/run",)))
    assert Trace("run", "s3://bucket/run") in unreached(store, ["a"], (), tmp_path / "cache")
    with pytest.raises(InputError, match="folders must be absolute or URLs, without"):
        origin(0, folders=("s3://bucket/../x",))

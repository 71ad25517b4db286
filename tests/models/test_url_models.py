"""Weights, components and exports at a URL: read back with the bits that were written."""

import itertools
import json

import jax
import numpy as np
import pytest
from helpers import origin, part, stopping

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports import folder as exports
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save
from tangent_jax.remote import urls
from tangent_jax.store.files import read_component, write_component
from tangent_jax.train.features import Features

NUMBERS = itertools.count()
SEEN = tuple((f"{i:064x}", f"image {i}") for i in range(10))
GONE = {identifier for identifier, _ in SEEN}
MODEL = VisionTransformer(ViTConfig(12, 3, 3, 20, patch_size=4, image_size=8, classes=7))
W = initial_weights(MODEL, jax.random.key(0))


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))
    return f"memory://models/{next(NUMBERS)}"


def same(one, other):
    return trees.fingerprint(one) == trees.fingerprint(other)


def test_weights_and_components_come_back(url, tmp_path):
    save(f"{url}/w.safetensors", Pretrained(MODEL, W, ""))
    pretrained = load(f"{url}/w.safetensors")
    assert same(pretrained.w, W)
    assert (pretrained.model, pretrained.source) == (MODEL, f"{url}/w.safetensors")
    write_component(f"{url}/dw.safetensors", part(0), {"a": "b"})
    dw, metadata = read_component(f"{url}/dw.safetensors")
    assert same(dw, part(0))
    assert metadata["a"] == "b"
    copies = [path.name for path in (tmp_path / "scratch").rglob("*.safetensors")]
    assert copies == ["w.safetensors"], "no copy of a component stays, which a removal could not reach"


def test_an_export_that_is_stopped_is_none_and_is_written_again(url, monkeypatch):
    predict = tangent(Pretrained(MODEL, W, ""), blocks=1)
    dw, calls, upload = predict.zeros(), itertools.count(), urls.upload
    for stopped in itertools.count():
        calls = itertools.count()
        monkeypatch.setattr(urls, "upload", stopping(upload, lambda: next(calls) == stopped))  # noqa: B023
        try:
            exports.export(url, predict, dw, {})
            break
        except KeyboardInterrupt:
            assert not exports.is_export(url)
    assert stopped == 4
    pretrained, step = exports.load_export(url)
    files = json.loads(urls.read(f"{url}/provenance.json"))["files"]
    assert same(pretrained.w, W)
    assert same(step, dw)
    assert {*urls.list_files(url)} == {*files, "provenance.json"}
    with pytest.raises(InputError, match="folder must not exist yet; got memory://"):
        exports.export(url, predict, dw, {})


def test_a_local_copy_of_a_url_names_it_in_a_provenance(url, tmp_path):
    """So that a removal lists both."""
    rows = Features(np.zeros((10, 2), np.float32), np.zeros(10, int), SEEN, folder=str(tmp_path / "cache"))
    out = urls.scratch_of(f"{url}/run") / "out"
    folders = origin(0).trained_on(rows, 0.1, (str(out),)).folders
    assert folders == (rows.folder, str(out), f"{url}/run")
    with pytest.raises(InputError, match="folders must be absolute or URLs, without"):
        origin(0, folders=("s3://bucket/../x",))

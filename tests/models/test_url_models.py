"""Weights, components, exports and cached features at a URL: read back with the bits that were written."""

import itertools
import json

import jax
import numpy as np
import pytest
from helpers import origin, part, stopping
from models.test_features import examples

from tangent_jax.core import InputError, trees, urls
from tangent_jax.exports import folder as exports
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.features import Cache, features
from tangent_jax.models.load import load, save
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.store.erasure import find_traces
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.store import Store

NUMBERS = itertools.count()
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
    files = json.loads(urls.read("test", f"{url}/provenance.json"))["files"]
    assert same(pretrained.w, W)
    assert same(step, dw)
    assert {*urls.list_files("test", url)} == {*files, "provenance.json"}
    with pytest.raises(InputError, match="expected a folder that does not exist yet; got memory://"):
        exports.export(url, predict, dw, {})


def test_features_are_computed_once_for_all_machines(url, tmp_path, monkeypatch):
    reads = []
    first = features(MODEL, W, examples(reads), 2, Cache(url))
    count = len(reads)
    assert count >= 150
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "elsewhere"))
    data = examples(reads)
    data.identifiers()
    before = len(reads)
    second = features(MODEL, W, data, 2, Cache(url))
    assert len(reads) <= before + 1, "decoded again"  # one tells the size of the images
    assert np.array_equal(np.asarray(first.inputs), np.asarray(second.inputs))
    name = next(iter(urls.list_files("test", url))).partition("/")[0]
    objects = urls.list_files("test", f"{url}/{name}/objects")
    largest = max(objects, key=lambda whole: objects[whole]["size"])
    content = urls.read("test", f"{url}/{name}/objects/{largest}")
    urls.write("test", f"{url}/{name}/objects/{largest}", content[:-1] + b"x")
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "third"))
    with pytest.raises(InputError, match="with SHA-256"):
        features(MODEL, W, examples(), 2, Cache(url))
    with pytest.raises(InputError, match="a URL alone, or folders"):
        Cache([url, "x"])


def test_a_removal_says_which_urls_it_does_not_reach(url, tmp_path):
    out, cache = urls.scratch_of(f"{url}/run") / "out", Cache(f"{url}/cache")
    out.mkdir()
    store = Store(tmp_path / "store")
    store.add("a", part(0), origin(0, folders=(str(out), str(cache.folders[0]))))
    _, left = find_traces(store, ["a"], set(), cache.folders)
    assert f"{url}/run: results and state of the run of a; delete them there" in left
    assert f"{url}/cache: cached rows there, if any; delete that folder, as they are computed again" in left

"""Weights, components and exports at a URL: read back with the bits that were written."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from helpers import origin, part, stopping

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports import folder as exports
from tangent_jax.io import machine
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save
from tangent_jax.remote import mirrors, urls
from tangent_jax.remote.snapshots import Remote
from tangent_jax.store.erasure import erase_found, find_traces
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.store import Store
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


def component(root, url, **changes):
    """(a store of one component of the first ten images, whose run and rows are at URLs; its run's identity)."""
    run = "0123456789abcdef" * 2
    store = Store(root)
    store.add("a", part(0), origin(0, examples=SEEN, run=run, folders=(f"{url}/run",), **changes))
    return store, run


def test_a_removal_erases_a_run_at_a_url(url, tmp_path):
    """Its component, factors, steps and checkpoints, in the state and by name; other components and files stay."""
    store, run = component(tmp_path / "store", url)
    with mirrors.open_mirror(f"{url}/run") as mirror:
        for name in ("factors.safetensors", "result.json", "steps/1.dw", f"checkpoints/{run}/0/x", f"{run}/y",
                     "checkpoints/other/z"):  # fmt: skip
            (mirror.root / name).parent.mkdir(parents=True, exist_ok=True)
            (mirror.root / name).write_text(name)
        write_component(mirror.root / "dw.safetensors", part(0), {})
        mirror.publish()
    shutil.rmtree(tmp_path / "scratch")
    line = f"{url}/run: the removed component, its factors, steps and checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urls, "delete", stopping(urls.delete, itertools.count().__next__))  # the second: of results
        traces = find_traces(store, ["a"], GONE)[0]
        with pytest.raises(KeyboardInterrupt):
            [trace.erase() for trace in traces if trace.line == line]
    assert "dw.safetensors" in urls.list_files(f"{url}/run")
    assert line in erase_found(*find_traces(store, ["a"], GONE)).deleted
    assert {*Remote(f"{url}/run/state").files} == {"result.json", "checkpoints/other/z"}
    names = urls.list_files(f"{url}/run")
    assert {name for name in names if not name.startswith("state/")} == {"result.json"}
    assert len([name for name in names if "/objects/" in name]) == 2
    assert line not in erase_found(*find_traces(store, ["a"], GONE)).deleted
    with mirrors.open_mirror(f"{url}/run") as mirror:  # another component, of a later run
        write_component(mirror.root / "dw.safetensors", part(1), {})
        mirror.publish()
    assert line not in erase_found(*find_traces(store, ["a"], GONE)).deleted
    assert same(read_component(f"{url}/run/dw.safetensors")[0], part(1))


def test_a_removal_deletes_no_result_where_another_run_writes(url, tmp_path, monkeypatch):
    """It could be that run's."""
    store, _ = component(tmp_path / "store", url)
    with mirrors.open_mirror(f"{url}/run") as mirror:
        write_component(mirror.root / "dw.safetensors", part(0), {})
        mirror.publish()
    monkeypatch.setattr(urls, "create", lambda *_: False)  # another writer
    done = erase_found(*find_traces(store, ["a"], GONE))
    assert any(f"{url}/run: the removed" in line and "of another writer" in line for line in done.not_reached)
    assert "dw.safetensors" in urls.list_files(f"{url}/run")


def test_what_a_removal_cannot_erase_at_a_url_is_listed(url, tmp_path, monkeypatch):
    store, _ = component(tmp_path / "store", url)
    connect = urls.connect

    def fail(at):
        if at.startswith(url):
            raise urls.explain(at, PermissionError("no"))
        return connect(at)

    monkeypatch.setattr(urls, "connect", fail)
    assert any(f"{url}/run: the right to read" in line for line in find_traces(store, ["a"], GONE)[1])
    monkeypatch.setattr(machine, "is_own", lambda *_: False)
    assert f"{url}/run: named by a, which was not made on this machine" in "\n".join(find_traces(store, ["a"], GONE)[1])


def test_a_local_copy_of_a_url_names_it_in_a_provenance(url, tmp_path):
    """So that a removal finds the URL where the local copy was lost, and the copy where it was not."""
    rows = Features(np.zeros((10, 2), np.float32), np.zeros(10, int), SEEN, folder=str(tmp_path / "cache"))
    out = urls.scratch_of(f"{url}/run") / "out"
    folders = origin(0).trained_on(rows, 0.1, (str(out),)).folders
    assert folders == (rows.folder, str(out), f"{url}/run")
    with pytest.raises(InputError, match="absolute folders or URLs, without"):
        origin(0, folders=("s3://bucket/../x",))

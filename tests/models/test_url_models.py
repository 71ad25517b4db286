"""Weights, components, exports and cached features at a URL: read back with the bits that were written."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from helpers import origin, part, stopping
from models.test_features import examples

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports import folder as exports
from tangent_jax.features.extract import Cache, features
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
    files = json.loads(urls.read(f"{url}/provenance.json"))["files"]
    assert same(pretrained.w, W)
    assert same(step, dw)
    assert {*urls.list_files(url)} == {*files, "provenance.json"}
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
    name = next(iter(urls.list_files(url))).partition("/")[0]
    objects = urls.list_files(f"{url}/{name}/objects")
    largest = max(objects, key=lambda whole: objects[whole]["size"])
    content = urls.read(f"{url}/{name}/objects/{largest}")
    urls.write(f"{url}/{name}/objects/{largest}", content[:-1] + b"x")
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "third"))
    with pytest.raises(InputError, match="must have SHA-256"):
        features(MODEL, W, examples(), 2, Cache(url))
    with pytest.raises(InputError, match="a URL alone, or folders"):
        Cache([url, "x"])


def component(root, url, **changes):
    """(a store of one component of the first ten images, whose run and rows are at URLs; its run's identity)."""
    run, data = "0123456789abcdef" * 2, examples()
    seen = tuple(zip(data.identifiers()[:10], data.names[:10], strict=True))
    store = Store(root)
    store.add("a", part(0), origin(0, examples=seen, run=run, folders=(f"{url}/run", f"{url}/cache"), **changes))
    return store, run


def rows_of_url(url):
    """Whether each folder of cached rows at a URL holds a file of rows."""
    names = {name.partition("/")[0] for name in urls.list_files(url)}
    return sorted(bool(Remote(f"{url}/{name}").objects) for name in names)


def test_a_removal_erases_rows_at_a_url(url, tmp_path):
    """On a machine that has no copy of them; rows of other images stay; one that is stopped is finished by the next."""
    store, _ = component(tmp_path / "store", url)
    features(MODEL, W, examples(), 2, Cache(f"{url}/cache"))
    other = examples().take(np.arange(100, 140))
    features(MODEL, W, other, 2, Cache(f"{url}/cache"))
    shutil.rmtree(tmp_path / "scratch")
    for name in {name.partition("/")[0] for name in urls.list_files(f"{url}/cache")}:
        urls.write(f"{url}/cache/{name}/objects/{'0' * 64}", b"rows that a killed writer left")
    gone = {*examples().identifiers()[:10]}
    traces, left = find_traces(store, ["a"], gone)
    assert [trace.line for trace in traces if "cache" in trace.line and "rows" in trace.line]
    assert rows_of_url(f"{url}/cache") == [True, True], "a plan erases nothing"
    assert any(line.startswith(f"{url}/cache: versions that its bucket keeps, and copies on other") for line in left)
    delete = urls.delete
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urls, "delete", stopping(delete, itertools.count().__next__))  # the second: of objects
        with pytest.raises(KeyboardInterrupt):
            [trace.erase() for trace in traces if "cache" in trace.line]
    done = erase_found(*find_traces(store, ["a"], gone))
    assert any("rows of removed images" in line for line in done.deleted)
    assert rows_of_url(f"{url}/cache") == [False, True]
    assert not [name for name in urls.list_files("test", f"{url}/cache") if name.endswith("0" * 64)]
    assert not [line for line in erase_found(*find_traces(store, ["a"], gone)).deleted if "rows" in line]
    again = features(MODEL, W, examples(), 2, Cache(f"{url}/cache"))
    assert np.isfinite(again.inputs).all()
    assert rows_of_url(f"{url}/cache") == [True, True], "they are computed again for who asks for them"


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
    gone = {*examples().identifiers()[:10]}
    line = f"{url}/run: the removed component, its factors, steps and checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urls, "delete", stopping(urls.delete, itertools.count().__next__))  # the second: of results
        traces = find_traces(store, ["a"], gone)[0]
        with pytest.raises(KeyboardInterrupt):
            [trace.erase() for trace in traces if trace.line == line]
    assert "dw.safetensors" in urls.list_files("test", f"{url}/run")
    assert line in erase_found(*find_traces(store, ["a"], gone)).deleted
    assert {*Remote("test", f"{url}/run/state").files} == {"result.json", "checkpoints/other/z"}
    names = urls.list_files("test", f"{url}/run")
    assert {name for name in names if not name.startswith("state/")} == {"result.json"}
    assert len([name for name in names if "/objects/" in name]) == 2
    assert line not in erase_found(*find_traces(store, ["a"], gone)).deleted
    with mirrors.open_mirror("test", f"{url}/run") as mirror:  # another component, of a later run
        write_component(mirror.root / "dw.safetensors", part(1), {})
        mirror.publish()
    assert line not in erase_found(*find_traces(store, ["a"], gone)).deleted
    assert same(read_component(f"{url}/run/dw.safetensors")[0], part(1))


def test_a_removal_deletes_no_result_where_another_run_writes(url, tmp_path, monkeypatch):
    """It could be that run's."""
    store, _ = component(tmp_path / "store", url)
    with mirrors.open_mirror(f"{url}/run") as mirror:
        write_component(mirror.root / "dw.safetensors", part(0), {})
        mirror.publish()
    monkeypatch.setattr(urls, "create", lambda *_: False)  # another writer
    done = erase_found(*find_traces(store, ["a"], {*examples().identifiers()[:10]}))
    assert any(f"{url}/run: the removed" in line and "of another writer" in line for line in done.not_reached)
    assert "dw.safetensors" in urls.list_files(f"{url}/run")


def test_what_a_removal_cannot_erase_at_a_url_is_listed(url, tmp_path, monkeypatch):
    store, _ = component(tmp_path / "store", url)
    features(MODEL, W, examples(), 2, Cache(f"{url}/cache"))
    gone, connect = {*examples().identifiers()[:10]}, urls.connect
    monkeypatch.setattr(urls, "write", lambda *_: None)
    monkeypatch.setattr(urls, "create", lambda *_: False)  # another writer
    done = erase_found(*find_traces(store, ["a"], gone))
    assert any("rows of removed images (" in line and "of another writer" in line for line in done.not_reached)

    def fail(at):
        if at.startswith(url):
            raise urls.explain(at, PermissionError("no"))
        return connect(at)

    monkeypatch.setattr(urls, "connect", fail)
    for place in (f"{url}/run", f"{url}/cache"):
        assert any(f"{place}: the right to read" in line for line in find_traces(store, ["a"], gone)[1])
    shutil.rmtree(tmp_path / "scratch")
    monkeypatch.setattr(machine, "is_own", lambda *_: False)
    assert f"{url}/run: named by a, which was not made on this machine" in "\n".join(find_traces(store, ["a"], gone)[1])


def test_a_local_copy_of_a_url_names_it_in_a_provenance(url, tmp_path):
    """So that a removal finds the URL where the local copy was lost, and the copy where it was not."""
    rows = features(MODEL, W, examples(), 2, Cache(f"{url}/cache"))
    out = urls.scratch_of(f"{url}/run") / "out"
    folders = origin(0).trained_on(rows, 0.1, (str(out),)).folders
    assert folders == (rows.folder, f"{url}/cache", str(out), f"{url}/run")
    with pytest.raises(InputError, match="absolute folders or URLs, without"):
        origin(0, folders=("s3://bucket/../x",))

"""Commands whose URL cannot be read or written end in one line, with exit code 1 and nothing half written."""

import re
import time

import fsspec
import pytest
from helpers import in_long
from photos import photographs
from run_binary import run_here
from s3_server import serving_bucket

from tangent_jax.pretrained.load import load, save
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import Remote

pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
pytest.importorskip("s3fs", reason="s3fs is absent")
LINE = re.compile(r"\w+: \S.+")
"""COMMAND: a sentence, in one line."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """A server, with a data set and weights in its bucket; `here`: the same on disk."""
    here = tmp_path_factory.mktemp("inputs")
    photographs(here / "photos", 8)
    save(here / "weights.safetensors", load("builtin"))
    with serving_bucket(tmp_path_factory.mktemp("scratch")) as server:
        server.here = here
        for path in here.rglob("*.*"):
            urls.upload(path, f"s3://bucket/{path.relative_to(here)}")
        yield server


@pytest.fixture(autouse=True)
def mended(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))
    s3.mend()
    yield
    s3.mend()
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture(scope="module")
def store(s3, tmp_path_factory):
    """A store of one component."""
    root = tmp_path_factory.mktemp("store")
    flags = [f"--dataset=folder:{s3.here}/photos", f"--weights={s3.here}/weights.safetensors", "--method=fc"]
    run("finetune", *flags, "--epochs=1", f"--out={root}/run", f"--cache_dir={root}/cache")
    run("store", "add", f"--store={root}/store", f"--source={root}/run", "--name=a")
    return root / "store"


def run(binary, *flags, code=0):
    """stderr of a command that runs in this process, where `urls` and its local copies are those of the test."""
    got, _, err = run_here(binary, *flags)
    assert got == code, err
    return err


def ends(binary, *flags):
    """The line in which a command ends."""
    err = run(binary, *flags, code=1)
    line = err.strip().rpartition("\n")[2]
    assert LINE.fullmatch(line), line
    assert "Traceback" not in err
    return line


def training(binary, place, tmp_path, *more):
    """The arguments of a short training on data and weights at a place."""
    own = {"finetune": ["--epochs=1"], "compose": ["--epochs=1", "--shards=2", "--method=fc", "--lr=1e-3"],
           "private": ["--epochs=1", "--subset=head", "--delta=1e-3"]}[binary]  # fmt: skip
    local = [f"--store={tmp_path}/stores"] if binary == "compose" else []
    flags = [f"--dataset=folder:{place}/photos", f"--weights={place}/weights.safetensors"]
    return [binary, *flags, *own, *local, f"--cache_dir={tmp_path}/cache", *more]


DENIED = "the right to read or write"


@pytest.mark.parametrize("binary", ["finetune", *in_long("compose", "private")])
@pytest.mark.parametrize("after", [0, 3])
def test_data_that_cannot_be_read_ends_a_training(binary, after, s3, tmp_path):
    """At the first request, and in the midst of reading."""
    flags = training(binary, "s3://bucket", tmp_path, f"--out={tmp_path}/out")
    s3.fail("GET", "/photos/", "AccessDenied", 403, "Access Denied", after=after)
    assert DENIED in ends(*flags)
    assert not [*tmp_path.glob("out/*.json")]


def test_a_bucket_that_does_not_exist_ends_a_command(s3, store, tmp_path):
    for flags in (
        training("finetune", "s3://nothing", tmp_path, f"--out={tmp_path}/out"),
        training("finetune", s3.here, tmp_path, "--out=s3://nothing/out"),
        ("store", "export", f"--store={store}", "--to=s3://nothing/export"),
    ):
        assert "the bucket of s3://nothing" in ends(*flags)


@pytest.mark.parametrize("binary", ["finetune", *in_long("compose", "private")])
@pytest.mark.parametrize("after", [0, 3])
def test_results_that_cannot_be_written_end_a_training(binary, after, s3, tmp_path):
    """At the first request that writes, and in the midst of it; no result is at the URL, and the command goes on."""
    url = f"s3://bucket/{binary}{after}"
    flags = training(binary, s3.here, tmp_path, f"--out={url}")
    s3.fail("PUT", f"/{binary}{after}/", "AccessDenied", 403, "Access Denied", after=after)
    assert DENIED in ends(*flags)
    s3.mend()
    assert not s3.fs.exists(f"{url}/result.json")
    state = Remote(f"{url}/state")
    assert {state.places[name] for name in state.files.values()} <= state.objects
    run(*flags)
    assert s3.fs.exists(f"{url}/result.json")


def test_a_data_set_that_changes_while_it_is_read_ends_a_training(s3, tmp_path, monkeypatch):
    """An image with other bytes of the same size, put there after the listing."""
    read, other = urls.list_files, {}

    def list_then_replace(url):
        listed = read(url)
        if url.endswith("/photos") and not other:
            name = next(name for name in listed if name.startswith("train"))
            other[name] = s3.fs.cat_file(f"bucket/photos/{name}")
            s3.fs.pipe_file(f"bucket/photos/{name}", other[name][:-1] + b"x")
        return listed

    monkeypatch.setattr(urls, "list_files", list_then_replace)
    flags = training("finetune", "s3://bucket", tmp_path, f"--out={tmp_path}/out")
    assert "must be as it was listed; it changed while it was read" in ends(*flags)
    for name, content in other.items():
        s3.fs.pipe_file(f"bucket/photos/{name}", content)
    run(*flags)
    assert (tmp_path / "out/result.json").exists()


def test_an_export_that_fails_is_none(s3, store):
    flags = "store", "export", f"--store={store}", "--to=s3://bucket/export"
    for after in range(4):
        s3.fail("PUT", "/export/", "AccessDenied", 403, "Access Denied", after=after)
        assert DENIED in ends(*flags)
        s3.mend()
        assert not s3.fs.exists("bucket/export/provenance.json")
    run(*flags)
    assert s3.fs.exists("bucket/export/provenance.json")


def test_credentials_in_a_url_are_told_and_stored_nowhere(s3, store, tmp_path, capfd):
    secret = "s3://AKIA:se/cret@bucket"
    lines = [
        ends(*training("finetune", secret, tmp_path, f"--out={tmp_path}/out")),
        ends(*training("finetune", s3.here, tmp_path, f"--out={secret}/out")),
        ends(*training("finetune", s3.here, tmp_path, f"--out={tmp_path}/out")[:-2], f"--cache_dir={secret}/cache"),
        ends(*training("compose", s3.here, tmp_path)[:-2], f"--store={secret}/stores"),
        ends("store", "export", f"--store={store}", f"--to={secret}/export"),
        ends("store", "add", f"--store={tmp_path}/added", f"--source={secret}/run"),
    ]
    assert all("s3://***@bucket" in line for line in lines), lines
    assert not any("se/cret" in line for line in lines)
    for path in (*tmp_path.rglob("*"), *store.rglob("*")):
        assert not path.is_file() or b"se/cret" not in path.read_bytes(), path


def test_urls_that_nothing_opens_end_a_command(s3, store, tmp_path):
    for flags in (
        training("finetune", s3.here, tmp_path, "--out=s3://bucket/../x"),
        training("finetune", "s3://bucket/../x", tmp_path),
        ("store", "export", f"--store={store}", "--to=s3://bucket/../x"),
    ):
        assert "a URL must be plain" in ends(*flags)


def test_a_cache_at_a_url_is_refused(s3, tmp_path):
    flags = training("finetune", "s3://bucket", tmp_path, f"--out={tmp_path}/out")
    flags[flags.index(f"--cache_dir={tmp_path}/cache")] = "--cache_dir=s3://bucket/rows"
    assert "a path must be one of this machine; got s3://bucket/rows" in ends(*flags)


@pytest.mark.long
def test_a_server_that_is_down_ends_a_command_soon(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fsspec.filesystem("s3").clear_instance_cache()
    begin = time.monotonic()
    line = ends(*training("finetune", "s3://bucket", tmp_path))
    assert "s3://bucket/photos" in line
    assert "EndpointConnectionError" in line
    assert time.monotonic() - begin < 60

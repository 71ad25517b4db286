"""URLs: whole writes, states of folders, results in a mirror; memory:// and a real S3 server (moto's) beside it."""

import itertools
import os
import sys
from pathlib import Path

import fsspec
import pytest
from helpers import stopping

from tangent_jax.core import InputError, mirrors, urls
from tangent_jax.core.files import file_fingerprint, write_whole
from tangent_jax.core.journal import Journal
from tangent_jax.core.snapshots import Remote
from tangent_jax.core.url_paths import as_place, read_range

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture(scope="module")
def s3():
    """A server, and its bucket `bucket`."""
    pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="s3fs is absent")
    from s3_server import serving

    with pytest.MonkeyPatch.context() as patch:
        environment = {}
        with serving(environment) as server:
            for name, value in environment.items():
                patch.setenv(name, value)
            server.fs = fsspec.filesystem("s3", skip_instance_cache=True)
            server.fs.mkdir("bucket")
            yield server
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture(params=["memory", "s3"])
def url(request):
    """A URL that holds nothing."""
    if request.param == "s3":
        request.getfixturevalue("s3").mend()
        return f"s3://bucket/{next(NUMBERS)}"
    return f"memory://bucket/{next(NUMBERS)}"


def folder(root, **files):
    """(a folder of these files, their fingerprints by name)."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root, {name: file_fingerprint(root / name) for name in files}


def refused(match, call, *arguments):
    """Asserts that a call is refused in one line."""
    with pytest.raises(InputError, match=match) as error:
        call(*arguments)
    assert "\n" not in str(error.value)


def test_an_object_is_created_once(url):
    assert urls.create("test", f"{url}/x", b"1")
    assert not urls.create("test", f"{url}/x", b"2")
    assert urls.create("test", f"{url}/x", b"1"), "the answer to the first try was lost"
    assert urls.read("test", f"{url}/x") == b"1"


def test_a_folder_comes_back_as_it_was_pushed_last(url, tmp_path):
    root, files = folder(tmp_path / "a", **{"x": b"1", "deep/y": bytes(5 << 20), "same": b"1"})
    Remote("test", url).push(root, files)
    (root / "x").write_bytes(b"other")
    files = {"x": file_fingerprint(root / "x"), "deep/y": files["deep/y"]}
    remote = Remote("test", url)
    assert remote.number == 1
    remote.push(root, files)
    assert len(urls.list_files("test", f"{url}/objects")) == 2, "what no state names is deleted"
    Remote("test", url).pull(tmp_path / "b")
    assert {str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*") if p.is_file()} == {*files}
    assert all(file_fingerprint(tmp_path / "b" / name) == whole for name, whole in files.items())


def test_of_two_writers_one_is_refused_and_changes_nothing(url, tmp_path):
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    first, second = Remote("test", url), Remote("test", url)
    first.push(root, files)
    refused("a newer state, of another writer", second.push, root, {"x": files["x"]})
    first.push(root, {"y": files["y"]})
    assert [*urls.list_files("test", f"{url}/index")] == ["000000000002.json"]
    refused("a newer state, of another writer", second.push, root, {"x": files["x"]})  # number 1 is free again
    assert [*urls.list_files("test", f"{url}/index")] == ["000000000002.json"]
    assert Remote("test", url).files == {"y": files["y"]}


def test_altered_and_missing_objects_are_told_and_change_nothing(url, tmp_path):
    root, files = folder(tmp_path / "a", x=b"1")
    remote = Remote("test", url)
    remote.push(root, files)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").write_text("")
    urls.write("test", remote.object_url(files["x"]), b"2")
    refused(f"expected {url}/objects/.* with SHA-256", remote.pull, tmp_path / "b")
    urls.delete("test", [remote.object_url(files["x"])])
    refused("which does not exist", remote.pull, tmp_path / "b")
    assert (tmp_path / "b/mine").exists()
    urls.write("test", remote.index_url(2), b'{"files": {"../x": "%s"}, "writer": ""}' % files["x"].encode())
    refused("expected plain names and hashes", Remote, "test", url)


@pytest.mark.parametrize("stopped", range(6))
def test_a_push_that_is_stopped_at_any_request_leaves_the_state_before_or_after(stopped, tmp_path, monkeypatch):
    url = f"memory://bucket/{next(NUMBERS)}"
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    Remote("test", url).push(root, {"x": files["x"]})
    calls = itertools.count()
    for name in ("write", "create", "delete"):
        monkeypatch.setattr(urls, name, stopping(getattr(urls, name), lambda: next(calls) == stopped))
    try:
        Remote("test", url).push(root, {"y": files["y"]})
        done = True
    except KeyboardInterrupt:
        done = False
    assert done == (stopped > 2)
    state = Remote("test", url).files
    assert state in ({"x": files["x"]}, {"y": files["y"]})
    Remote("test", url).pull(tmp_path / "b")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {*state}
    monkeypatch.undo()


def test_a_mirror_has_what_was_written_whole_and_goes_on_elsewhere(url, tmp_path, monkeypatch):
    with mirrors.open_mirror("test", url) as mirror:
        write_whole(mirror.root / "ledger.json", "paid 1")
        Journal("test", mirror.root / "runs.jsonl").append({"a": 1})
        here = {name: file_fingerprint(mirror.root / name) for name in ("ledger.json", "runs.jsonl")}
        assert Remote("test", f"{url}/state").files == here
        refused("expected no other process", mirrors.open_mirror("test", url).__enter__)
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "elsewhere"))
    with mirrors.open_mirror("test", url) as mirror:
        assert (mirror.root / "ledger.json").read_text() == "paid 1"
        write_whole(mirror.root / "result.json", "{}")
        mirror.publish()
    assert urls.read("test", f"{url}/result.json") == b"{}"
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))
    with mirrors.open_mirror("test", url) as first:  # behind by a state: it takes the newer one
        assert (first.root / "result.json").exists()
        monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "elsewhere"))
        with mirrors.open_mirror("test", url) as second:
            second.remote.push(second.root, {})
        refused("a newer state, of another writer", write_whole, first.root / "ledger.json", "paid 2")


def test_a_local_copy_is_fetched_where_it_changed(url, monkeypatch):
    urls.write("test", f"{url}/x", b"1")
    assert urls.local_copy("test", f"{url}/x", ["beside it is none"]).read_bytes() == b"1"
    urls.write("test", f"{url}/x", b"2")
    assert urls.local_copy("test", f"{url}/x").read_bytes() == b"2"
    monkeypatch.setattr(urls, "download", lambda *_: pytest.fail("fetched twice"))
    path = urls.local_copy("test", f"{url}/x")
    monkeypatch.undo()
    path.write_bytes(b"3")  # altered here
    assert urls.local_copy("test", url).joinpath("x").read_bytes() == b"2"


def test_what_a_file_system_cannot_do_is_one_line(s3, monkeypatch, tmp_path):
    call = urls.write, "test", "s3://bucket/x", b""
    for method, code, status, message, match in [
        ("PUT", "QuotaExceeded", 507, "the bucket is full", "s3://bucket/x to answer; got .*the bucket is full"),
        ("PUT", "RequestTimeTooSkewed", 403, "The difference between the request time and the current time is too"
         " large.", "a clock within 15 minutes"),
        ("PUT", "AccessDenied", 403, "no", "the right to read or write s3://bucket/x"),
    ]:  # fmt: skip
        s3.fail(method, "", code, status, message)
        refused(match, *call)
    s3.mend()
    assert not s3.fs.exists("bucket/x")
    refused("the bucket of s3://nothing/x; got no such bucket", urls.read, "test", "s3://nothing/x")
    refused("the bucket of s3://nothing; got no such bucket", urls.list_files, "test", "s3://nothing")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    fsspec.filesystem("s3").clear_instance_cache()
    refused("credentials for s3://bucket/x; got none", *call)
    fsspec.filesystem("s3").clear_instance_cache()


def test_an_object_that_is_replaced_after_its_listing_is_told(s3):
    """Of the same size, by another client, whose writes this one's own listing does not show."""
    urls.write("test", "s3://bucket/listed/x", b"1" * 100)
    file = as_place("test", "s3://bucket/listed") / "x"
    assert read_range(file, 10, 5) == b"11111"
    with file.open() as opened:
        s3.fs.pipe_file("bucket/listed/x", b"2" * 100)
        refused("it changed while it was read", read_range, file, 10, 5)
        with pytest.raises(InputError, match="it changed while it was read"), urls.telling("test", str(file)):
            opened.read()
    urls.write("test", "s3://bucket/listed/x", b"3" * 100)
    refused("it changed while it was read", read_range, file, 10, 5)


def test_urls_that_nothing_reads_are_one_line(monkeypatch):
    refused("a URL that fsspec can open", urls.read, "test", "foo://bucket/x")
    refused("a URL of a remote file system", urls.read, "test", "file:///etc/passwd")
    refused("a plain URL", urls.read, "test", "memory://bucket/../x")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    refused("gcsfs, which reads gs://; got none", urls.read, "test", "gs://bucket/x")
    assert [urls.is_url(value) for value in ("C:/x", Path("s3://x"), "s3://x")] == [False, False, True]
    assert os.fspath(urls.local_copy("test", "~")) == os.path.expanduser("~")

"""Places at URLs, on a real S3 server (moto's): what is read, copied and written, and what is refused in one line."""

import re

import numpy as np
import pytest
from s3_server import forget_clients

from tangent_jax.core.checks import InputError, without_secrets
from tangent_jax.data.sources import read_file
from tangent_jax.io import paths
from tangent_jax.io.checkpoints import Checkpoints
from tangent_jax.io.files import expand_path
from tangent_jax.train.run import History


@pytest.fixture
def url(s3, tmp_path, monkeypatch):
    """A URL that holds nothing; copies of weights lie in tmp_path."""
    monkeypatch.setattr(paths, "COPIES", str(tmp_path / "copies"))
    s3.mend()
    yield s3.fresh()
    s3.mend()
    forget_clients()


def refused(match, call, *arguments):
    """Asserts that a call is refused in one line."""
    with pytest.raises(InputError, match=match) as error:
        call(*arguments)
    assert "\n" not in str(error.value)


# Places


def test_a_folder_is_read_as_one_on_disk(url, s3):
    for name in ("b.png", "a/x.png", "a/b/y.png"):
        paths.write(f"{url}/{name}", name.encode())
    s3.fs.pipe_file(f"{url}/empty/", b"")  # a marker, as consoles make
    folder = paths.any_path(f"{url}/")
    assert paths.names_below(folder) == ["a/b/y.png", "a/x.png", "b.png"]
    assert (folder / "a").is_dir()
    assert (folder / "b.png").is_file()
    assert not (folder / "c.png").exists()
    assert (str(folder), str((folder / "a/x.png").relative_to(folder))) == (url, "a/x.png")
    assert paths.absolute(folder) == folder
    assert (folder / "a/x.png").read_bytes() == b"a/x.png"


@pytest.mark.parametrize(("offset", "size"), [(0, 3), (5, 4), (8, 10), (10, 3), (99, 3), (4, 0)])
def test_a_range_is_that_of_the_file_on_disk(offset, size, url, tmp_path):
    content = b"0123456789"
    (tmp_path / "x").write_bytes(content)
    paths.write(f"{url}/x", content)
    for place in (paths.any_path(str(tmp_path / "x")), paths.any_path(f"{url}/x")):
        assert paths.read_range(place, offset, size) == content[offset : offset + size]
        assert paths.size_of(place) == 10


def test_a_file_is_read_from_any_place_in_blocks(url, monkeypatch):
    content = np.random.default_rng(0).bytes(1000)
    paths.write(f"{url}/x", content)
    monkeypatch.setattr(paths, "BLOCK", 64)
    with paths.open_file(paths.any_path(f"{url}/x")) as file:
        for start, size in ((990, 100), (0, 10), (63, 2), (500, 300)):
            file.seek(start)
            assert file.read(size) == content[start : start + size]


def test_other_bytes_have_another_stamp(url):
    place = paths.any_path(f"{url}/x")
    paths.write(f"{url}/x", b"1")
    first = paths.stamp_of(place)
    assert first == paths.stamp_of(paths.any_path(f"{url}/x"))
    paths.write(f"{url}/x", b"2")
    assert paths.stamp_of(paths.any_path(f"{url}/x")) != first


def opened(place):
    with paths.open_file(place) as file, paths.explaining(place):
        return file.read()


READERS = {
    "an image": lambda place: read_file(place.parent, place.name),
    "a range, as of a tar": lambda place: paths.read_range(place, 0, 1000),
    "a file, as of a table": opened,
}


@pytest.mark.parametrize("name", READERS)
def test_object_replaced_after_listing_is_refused(url, s3, name):
    """Sizes, stamps and bytes of one listing belong together; the next reading sees what is there then."""
    paths.write(f"{url}/x", b"1" * 100)
    place = paths.any_path(url) / "x"
    assert paths.names_below(place.parent) == ["x"]
    assert READERS[name](place) == b"1" * 100
    s3.fs.pipe_file(f"{url}/x", b"2" * 200)
    refused(f"{url}/x must stay as it was listed; it was replaced since. Start again", READERS[name], place)
    assert READERS[name](place) == b"2" * 200


def test_object_replaced_while_read_is_told(url, s3, monkeypatch):
    monkeypatch.setattr(paths, "BLOCK", 64)
    paths.write(f"{url}/x", b"1" * 1000)
    place = paths.any_path(f"{url}/x")
    with paths.open_file(place) as file:
        assert file.read(1) == b"1"
        s3.fs.pipe_file(f"{url}/x", b"2" * 1000)
        file.seek(500)
        told = pytest.raises(InputError, match=f"{url}/x must stay as it was listed; it was replaced since")
        with told, paths.explaining(place):
            file.read(1)


# Copies


def test_copy_is_fetched_only_if_changed(url, s3):
    paths.write(f"{url}/w.npz", b"1")
    paths.write(f"{url}/config.json", b"{}")
    copy = paths.local_copy(f"{url}/w.npz", ("config.json", "absent.json"))
    assert copy.read_bytes() == b"1"
    assert sorted(path.name for path in copy.parent.iterdir()) == ["config.json", "w.npz"]
    s3.fail("GET", f"{url[12:]}/w.npz", "AccessDenied", 403)
    assert paths.local_copy(f"{url}/w.npz", ("config.json",)) == copy
    s3.mend()
    s3.fs.pipe_file(f"{url}/w.npz", b"2")  # by another client
    assert paths.local_copy(f"{url}/w.npz", ("config.json",)).read_bytes() == b"2"
    assert copy.parent.parent.stat().st_mode & 0o77 == 0
    assert paths.local_copy("~") == expand_path("~")


def test_a_passing_copy_of_a_folder_is_deleted(url):
    for name in ("x", "deep/y", "z"):
        paths.write(f"{url}/{name}", name.encode())
    with paths.passing_copy(url) as folder:
        assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {"x", "deep/y", "z"}
    assert not folder.exists()
    with paths.passing_copy(url, ("x", "absent")) as folder:
        assert [path.name for path in folder.iterdir()] == ["x"]


def test_failed_write_leaves_old_object(url, s3, tmp_path):
    (tmp_path / "large").write_bytes(bytes(101 << 20))  # in several parts
    paths.write(f"{url}/large", b"old")
    s3.fail("PUT", "/large", "QuotaExceeded", 507, "the bucket is full", after=1)
    refused(f"{url}/large must be reachable; got .*the bucket is full", paths.upload, tmp_path / "large",
            f"{url}/large")  # fmt: skip
    s3.mend()
    assert paths.any_path(f"{url}/large").read_bytes() == b"old"


# Checkpoints


def test_a_run_goes_on_from_checkpoints_at_a_url(url):
    """Elsewhere: nothing of the first process is left. An altered save is refused, and a missing one is none."""
    run, state = "0" * 32, {"w": np.arange(5.0)}
    saver = Checkpoints(f"{url}/checkpoints").open(run)
    for epoch in (1, 2):
        history = History()
        history.rows.extend({"loss": float(i)} for i in range(epoch))
        saver.save({"w": state["w"] * epoch}, history)
    saver.scratch.cleanup()
    again = Checkpoints(f"{url}/checkpoints").open(run)
    history = History()
    assert np.array_equal(again.restore({"w": np.zeros(5)}, history)["w"], state["w"] * 2)
    assert history.rows == [{"loss": 0.0}, {"loss": 1.0}]
    other = Checkpoints(f"{url}/checkpoints").open("1" * 32)
    assert other.restore(state, History()) is state
    paths.write(f"{url}/checkpoints/{run}.zip", b"PK")
    refused(f"{run}.zip must be a whole zip; .*Delete {url}", Checkpoints(f"{url}/checkpoints").open, run)


# Refusals


def test_unreachable_url_is_one_line(url, s3, monkeypatch, tmp_path):
    refused("s3://nothing/x .*The specified bucket does not exist", paths.local_copy, "s3://nothing/x")
    refused("s3://nothing/x .*The specified bucket does not exist", paths.write, "s3://nothing/x", b"")
    refused(f"{url}/x must be reachable; got FileNotFoundError: {url[5:]}/x", paths.local_copy, f"{url}/x")
    for method in ("PUT", "GET", "HEAD"):
        s3.fail(method, "", "AccessDenied", 403, "Access Denied")
    refused(f"{url}/x must .*PermissionError", paths.write, f"{url}/x", b"1")
    refused(f"{url}/x must .*PermissionError", paths.local_copy, f"{url}/x")
    s3.mend()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    forget_clients()
    for call in ((paths.write, f"{url}/x", b""), (paths.local_copy, f"{url}/x")):
        refused("NoCredentialsError: Unable to locate credentials", *call)


def test_a_package_that_is_missing_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "adlfs", None)
    refused("az://box/x must be .*ImportError: .*adlfs", paths.any_path, "az://box/x")


@pytest.mark.parametrize("value", ["memory://a/b", "file:///etc/passwd", "https://host/x", "s3://", "s3a://b/x"])
def test_other_urls_are_refused(value):
    refused("a URL must begin with s3://, gs://, az:// or hf:// and name a bucket; got", paths.any_path, value)


SECRETS = [
    "s3://AKIA:se/cr+et@bucket/x",
    "gs://me:se@cr@host/x",
    "s3://host/x?X-Amz-Signature=secret&y=1",
    "az://box/x?sv=1&sig=secret",
    "hf://secret@datasets/owner/name",
    "https://host/x#token=secret",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_credentials_are_not_told(secret, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "COPIES", str(tmp_path / "copies"))
    for call in (
        (paths.any_path, secret), (paths.local_copy, secret), (paths.write, secret, b""), (expand_path, secret),
        (paths.passing_copy(secret).__enter__,), (Checkpoints(secret).open, "0" * 32),
    ):  # fmt: skip
        with pytest.raises(InputError) as error:
            call[0](*call[1:])
        assert not re.search("secret|se/cr|se@cr", str(error.value))
        assert "***" in str(error.value)
    assert not [*tmp_path.iterdir()]


SECRET_NAMES = (
    "key", "api_key", "apikey", "X-API-Key", "accessKey", "AccountKey", "AWSAccessKeyId", "subscription-key", "token",
    "access_token", "X-Amz-Security-Token", "X-Amz-Credential", "X-Goog-Signature", "Signature", "sig", "sas",
    "delegation", "password", "passwd", "pwd", "client_secret", "auth", "authorization", "jwt",
)  # fmt: skip


@pytest.mark.parametrize("before", ["?", "?v=1&", ";", "#"])
@pytest.mark.parametrize("name", SECRET_NAMES)
def test_opening_parameter_is_hidden(name, before):
    assert without_secrets(f"https://host/x{before}{name}=word&y=2") == f"https://host/x{before}{name}=***&y=2"


@pytest.mark.parametrize(
    "url",
    [
        *(f"https://host/x?{name}=word" for name in ("tokenizer", "keypoints", "keyword", "monkey", "label", "signal")),
        "csv:s3://bucket/labels.csv?sep=;&label=key",
        "hf://datasets/owner/name@token",
        "hf://owner/name@key/model.safetensors",
    ],
)
def test_what_only_looks_like_a_secret_is_shown(url):
    assert without_secrets(url) == url

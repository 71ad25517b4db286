"""URLs: whole writes, states of folders, results in a mirror; memory:// and a real S3 server (moto's) beside it."""

import errno
import itertools
import os
import re
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from helpers import stopping
from s3_server import SKEWED, serving

from tangent_jax.core.checks import InputError, without_secrets
from tangent_jax.io.files import expand_path, file_fingerprint, write_whole
from tangent_jax.io.journal import Journal
from tangent_jax.remote import mirrors, urls
from tangent_jax.remote.snapshots import Remote
from tangent_jax.remote.url_errors import explain_package
from tangent_jax.remote.url_paths import as_place, read_range

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture(scope="module")
def s3():
    """A server, and its bucket `bucket`."""
    pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="s3fs is absent")
    with pytest.MonkeyPatch.context() as patch:
        environment = {}
        with serving(environment) as server:
            for name, value in environment.items():
                patch.setenv(name, value)
            server.fs = fsspec.filesystem("s3", skip_instance_cache=True)
            server.fs.mkdir("bucket")
            yield server


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
    assert urls.create(f"{url}/x", b"1")
    assert not urls.create(f"{url}/x", b"2")
    assert urls.create(f"{url}/x", b"1"), "the answer to the first try was lost"
    assert urls.read(f"{url}/x") == b"1"


def test_a_folder_comes_back_as_it_was_pushed_last(url, tmp_path):
    root, files = folder(tmp_path / "a", **{"x": b"1", "deep/y": bytes(5 << 20), "same": b"1"})
    Remote(url).push(root, files)
    (root / "x").write_bytes(b"other")
    files = {"x": file_fingerprint(root / "x"), "deep/y": files["deep/y"]}
    remote = Remote(url)
    assert remote.number == 1
    remote.push(root, files)
    assert len(urls.list_files(f"{url}/objects")) == 2, "what no state names is deleted"
    Remote(url).pull(tmp_path / "b")
    assert {str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*") if p.is_file()} == {*files}
    assert all(file_fingerprint(tmp_path / "b" / name) == whole for name, whole in files.items())


def test_of_two_writers_one_is_refused_and_changes_nothing(url, tmp_path):
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    first, second = Remote(url), Remote(url)
    first.push(root, files)
    refused("a newer state, of another writer", second.push, root, {"x": files["x"]})
    first.push(root, {"y": files["y"]})
    assert [*urls.list_files(f"{url}/index")] == ["000000000002.json"]
    refused("a newer state, of another writer", second.push, root, {"x": files["x"]})  # number 1 is free again
    assert [*urls.list_files(f"{url}/index")] == ["000000000002.json"]
    assert Remote(url).files == {"y": files["y"]}


def whole(url, folder):
    """The files of the newest state at a URL, each read whole."""
    remote = Remote(url)
    remote.pull(folder)
    assert {name: file_fingerprint(folder / name) for name in remote.files} == remote.files
    return remote.files


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("request_of_first", range(7))
def test_of_two_writers_at_any_request_one_is_refused_and_the_state_of_the_other_is_whole(
    request_of_first, early, tmp_path, monkeypatch
):
    """The second opens, before or in the midst of the first's push, and pushes there what the first replaces."""
    url, calls = f"memory://bucket/{next(NUMBERS)}", itertools.count()
    root, files = folder(tmp_path / "a", x=b"1", y=b"2", z=b"3")
    x, y, z = ({name: files[name]} for name in "xyz")
    Remote(url).push(root, x)
    first, second = Remote(url), Remote(url) if early else None
    refusals = []

    def push(remote, *wanted):
        try:
            for state in wanted:
                remote.push(root, state)
        except InputError as error:
            refusals.append(str(error))

    def interrupted(call):
        def calling(*arguments):
            if next(calls) == request_of_first:
                push(second or Remote(url), x | z, x)
            return call(*arguments)

        return calling

    for name in ("write", "create", "list_files", "delete"):
        monkeypatch.setattr(urls, name, interrupted(getattr(urls, name)))
    push(first, y, y | z)
    monkeypatch.undo()
    assert next(calls) > request_of_first, "the second never wrote"
    assert len(refusals) == 1
    assert "a newer state, of another writer. Run the same command again" in refusals[0]
    assert whole(url, tmp_path / "b") in (x, y | z)


def test_results_are_not_published_over_those_of_a_newer_run(url, monkeypatch):
    with mirrors.open_mirror(url) as mirror:
        write_whole(mirror.root / "result.json", "{}")
        push = mirror.push

        def and_another(self):
            push()
            Remote(f"{url}/state").push(self.root, {})

        monkeypatch.setattr(mirrors.Mirror, "push", and_another)
        refused("as it was read; it has a newer state, of another writer", mirror.publish)
    assert "result.json" not in urls.list_files(url)


def test_altered_and_missing_objects_are_told_and_change_nothing(url, tmp_path):
    root, files = folder(tmp_path / "a", x=b"1")
    remote = Remote(url)
    remote.push(root, files)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").write_text("")
    urls.write(remote.object_url(files["x"]), b"2")
    refused(f"{url}/objects/.* must have SHA-256", remote.pull, tmp_path / "b")
    urls.delete([remote.object_url(files["x"])])
    refused("does not exist", remote.pull, tmp_path / "b")
    assert (tmp_path / "b/mine").exists()
    urls.write(remote.index_url(2), b'{"files": {"../x": "%012d-%s"}, "writer": ""}' % (1, files["x"].encode()))
    refused("must hold plain names and hashes", Remote, url)


def test_an_object_that_a_bucket_lost_is_copied_again_by_the_next_push(url, tmp_path):
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    Remote(url).push(root, files)
    remote = Remote(url)
    urls.delete([remote.object_url(files["x"])])
    Remote(url).push(root, files)
    Remote(url).pull(tmp_path / "b")
    assert (tmp_path / "b/x").read_bytes() == b"1"
    state = Remote(url).number
    Remote(url).push(root, files)
    assert Remote(url).number == state  # nothing is lost now


@pytest.mark.parametrize("stopped", range(6))
def test_a_push_that_is_stopped_at_any_request_leaves_the_state_before_or_after(stopped, tmp_path, monkeypatch):
    url = f"memory://bucket/{next(NUMBERS)}"
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    Remote(url).push(root, {"x": files["x"]})
    calls = itertools.count()
    for name in ("write", "create", "delete"):
        monkeypatch.setattr(urls, name, stopping(getattr(urls, name), lambda: next(calls) == stopped))
    try:
        Remote(url).push(root, {"y": files["y"]})
        done = True
    except KeyboardInterrupt:
        done = False
    assert done == (stopped > 2)
    state = Remote(url).files
    assert state in ({"x": files["x"]}, {"y": files["y"]})
    Remote(url).pull(tmp_path / "b")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {*state}
    monkeypatch.undo()


def test_a_mirror_has_what_was_written_whole_and_goes_on_elsewhere(url, tmp_path, monkeypatch):
    with mirrors.open_mirror(url) as mirror:
        write_whole(mirror.root / "ledger.json", "paid 1")
        Journal(mirror.root / "runs.jsonl").append({"a": 1})
        here = {name: file_fingerprint(mirror.root / name) for name in ("ledger.json", "runs.jsonl")}
        assert Remote(f"{url}/state").files == here
        refused("must not be in use; process .* holds it", mirrors.open_mirror(url).__enter__)
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "elsewhere"))
    with mirrors.open_mirror(url) as mirror:
        assert (mirror.root / "ledger.json").read_text() == "paid 1"
        write_whole(mirror.root / "result.json", "{}")
        mirror.publish()
    assert urls.read(f"{url}/result.json") == b"{}"
    monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "scratch"))
    with mirrors.open_mirror(url) as first:  # behind by a state: it takes the newer one
        assert (first.root / "result.json").exists()
        monkeypatch.setattr(urls, "SCRATCH", str(tmp_path / "elsewhere"))
        with mirrors.open_mirror(url) as second:
            second.remote.push(second.root, {})
        refused("a newer state, of another writer", write_whole, first.root / "ledger.json", "paid 2")


def test_a_local_copy_is_fetched_where_it_changed(url, monkeypatch):
    urls.write(f"{url}/x", b"1")
    assert urls.local_copy(f"{url}/x", ["beside it is none"]).read_bytes() == b"1"
    urls.write(f"{url}/x", b"2")
    assert urls.local_copy(f"{url}/x").read_bytes() == b"2"
    monkeypatch.setattr(urls, "download", lambda *_: pytest.fail("fetched twice"))
    path = urls.local_copy(f"{url}/x")
    monkeypatch.undo()
    path.write_bytes(b"3")  # altered here
    assert urls.local_copy(url).joinpath("x").read_bytes() == b"2"


ANSWERS = [
    ("QuotaExceeded", 507, "the bucket is full", "s3://bucket/.* needs more room; .*the bucket is full. Free some"),
    ("XMinioStorageFull", 507, "The backend has reached its minimum free drive threshold.", "s3://bucket/.* more room"),
    ("RequestTimeTooSkewed", 403, SKEWED, "the clock must be within 15 minutes of that of s3://.*Set this machine"),
    ("AccessDenied", 403, "no", "the right to read or write s3://bucket/.* is missing; .*no. Ask the owner"),
    ("ExpiredToken", 400, "The token has expired.", "the credentials for s3://bucket/.* must be valid; .*Get new ones"),
    ("InvalidAccessKeyId", 403, "The Key Id does not exist.", "the credentials for s3://bucket/.* must be valid"),
    ("SignatureDoesNotMatch", 403, "Check your key.", "the credentials for s3://.* must be valid; .*Check your key"),
    ("InternalError", 400, "we are down", "s3://bucket/.* must answer; OSError: .*we are down"),
]  # fmt: skip
"""(S3's code, HTTP status, text; the line)."""


@pytest.mark.parametrize(("code", "status", "text", "line"), ANSWERS)
def test_what_a_server_refuses_is_one_line_for_every_request(code, status, text, line, s3, tmp_path):
    """HEAD too, to which S3 gives no reason; nothing is written, there or here."""
    url = f"s3://bucket/{next(NUMBERS)}"
    urls.write(f"{url}/read", b"1")
    for method in ("PUT", "GET", "HEAD", "POST", "DELETE"):
        s3.fail(method, "", code, status, text)
    refused(line, urls.write, f"{url}/x", b"2")
    refused(line, urls.create, f"{url}/x", b"2")
    refused(line, urls.read, f"{url}/read")
    refused(line, urls.info_of, f"{url}/read")
    refused(line, urls.list_files, url)
    refused(line, urls.delete, [f"{url}/read"])
    refused(line, urls.local_copy, f"{url}/read")
    refused(line, urls.download, f"{url}/read", tmp_path / "read")
    (tmp_path / "large").write_bytes(bytes(6 << 20))
    refused(line, urls.upload, tmp_path / "large", f"{url}/large")
    assert not (tmp_path / "read").exists()
    s3.mend()
    assert [*urls.list_files(url)] == ["read"]


OLD_SERVERS = (
    ("MissingContentLength", 411, "You must provide the Content-Length HTTP header."),
    ("XAmzContentSHA256Mismatch", 400, "The provided 'x-amz-content-sha256' header does not match what was computed."),
    ("NotImplemented", 501, "A header you provided implies functionality that is not implemented"),
    ("InvalidArgument", 400, "Unsupported header 'x-amz-sdk-checksum-algorithm' received for this API call."),
    ("InvalidArgument", 400, "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, or a valid sha256 value."),
)


@pytest.mark.parametrize(("code", "status", "text"), OLD_SERVERS)
def test_a_server_that_refuses_checksums_is_one_line_whose_remedy_works(code, status, text, s3, monkeypatch):
    from s3fs import S3FileSystem

    s3.mend()
    url = f"s3://bucket/old-server/{next(NUMBERS)}"
    s3.fail("PUT", "old-server/", code, status, text, header="x-amz-sdk-checksum")
    names = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")
    try:
        with pytest.raises(InputError, match=f"the server of {url} must know the checksums .*; ") as error:
            urls.create(url, b"1")
        assert all(f"{name}=when_required" in str(error.value) for name in names)
        for name in names:
            monkeypatch.setenv(name, "when_required")
        S3FileSystem.clear_instance_cache()
        assert urls.create(url, b"1")
    finally:
        s3.mend()
        S3FileSystem.clear_instance_cache()


@pytest.fixture
def set_fsspec(monkeypatch):
    """Sets variables as a new process reads them: fsspec does so when it is imported."""
    from fsspec import config
    from s3fs import S3FileSystem

    def set_variables(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        conf = {}
        config.set_conf_env(conf)
        monkeypatch.setattr(config, "conf", conf)
        S3FileSystem.clear_instance_cache()

    yield set_variables
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def objects(s3):
    """The URLs of an object that everybody may read and of one that is private."""
    s3.mend()
    named = {acl: f"s3://bucket/{acl}/{next(NUMBERS)}" for acl in ("public-read", "private")}
    for acl, url in named.items():
        s3.fs.pipe_file(url, b"1", ACL=acl)
    return named.values()


def test_a_public_object_is_read_without_credentials(objects, set_fsspec, monkeypatch):
    public, private = objects
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    set_fsspec()
    refused("needs credentials; .* for a public bucket of S3 set FSSPEC_S3_ANON=true", urls.read, public)
    set_fsspec(FSSPEC_S3_ANON="true")
    assert urls.read(public) == b"1"
    refused(f"write {private} is missing; .* unset FSSPEC_S3_ANON and set credentials", urls.read, private)


def test_a_bucket_whose_readers_pay_is_read_by_the_variable_that_the_refusal_names(objects, s3, set_fsspec):
    _, url = objects
    try:
        s3.fail("GET", "private/", "AccessDenied", 403, "Access Denied", lacking="x-amz-request-payer")
        refused(
            "the right to read .* is missing; .*, and if its readers pay FSSPEC_S3_REQUESTER_PAYS=true", urls.read, url
        )
        set_fsspec(FSSPEC_S3_REQUESTER_PAYS="true")
        assert urls.read(url) == b"1"
    finally:
        s3.mend()


def test_a_server_of_ones_own_is_named_by_either_variable(objects, s3, set_fsspec, monkeypatch):
    _, url = objects
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    set_fsspec(FSSPEC_S3_ENDPOINT_URL=s3.url)
    assert urls.read(url) == b"1"


def test_a_large_file_is_not_there_if_a_part_of_it_failed(s3, tmp_path):
    (tmp_path / "large").write_bytes(bytes(101 << 20))
    s3.fail("PUT", "/parts/large", "QuotaExceeded", 507, "the bucket is full", after=1)
    refused("s3://bucket/parts/large needs more room", urls.upload, tmp_path / "large", "s3://bucket/parts/large")
    s3.mend()
    assert not urls.list_files("s3://bucket/parts")


def test_a_bucket_and_credentials_that_are_missing_are_one_line(s3, monkeypatch, tmp_path):
    refused("the bucket of s3://nothing/x must exist", urls.read, "s3://nothing/x")
    refused("the bucket of s3://nothing/x must exist", urls.write, "s3://nothing/x", b"")
    refused("the bucket of s3://nothing/x must exist", urls.info_of, "s3://nothing/x")
    refused("the bucket of s3://nothing must exist", urls.list_files, "s3://nothing")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    fsspec.filesystem("s3").clear_instance_cache()
    for call in ((urls.write, "s3://bucket/x", b""), (urls.info_of, "s3://bucket/x")):
        refused("s3://bucket/x needs credentials; there are none. Set AWS_ACCESS_KEY_ID", *call)
    fsspec.filesystem("s3").clear_instance_cache()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refused("s3://bucket/x needs credentials", urls.read, "s3://bucket/x")
    fsspec.filesystem("s3").clear_instance_cache()


class Failing(MemoryFileSystem):
    """A file system whose reads and writes raise `error`, as those of other providers do."""

    protocol, error = "failing", OSError()

    def cat_file(self, *_, **__):
        raise self.error

    pipe_file = put_file = info = find = rm_file = _open = cat_file


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "failing://a/quota needs more room; .*Free some there"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "failing://a/quota needs more room"),
        (OSError("The user has exceeded their Drive storage quota, 403"), "failing://a/quota needs more room"),
        (FileNotFoundError("a/quota"), "failing://a/quota does not exist"),
        (OSError("The specified bucket does not exist., 404"), "the bucket of failing://a/quota"),
        (FileNotFoundError("The specified container does not exist"), "the bucket of failing://a/quota"),
        (
            caused(OSError("x"), type("DefaultCredentialsError", (Exception,), {})()),
            "failing://a/quota needs credentials",
        ),
        (ConnectionResetError("peer"), "failing://a/quota must answer; ConnectionResetError: peer. Run the same"),
        (RuntimeError("two\nlines of https://me:word@host/x"), "two lines of https://[*]{3}@host/x"),
    ],
)
def test_what_another_file_system_refuses_is_one_line(error, line, monkeypatch):
    fsspec.register_implementation("failing", Failing, clobber=True)
    monkeypatch.setattr(Failing, "error", error)
    refused(line, urls.write, "failing://a/quota", b"")
    if not isinstance(error, FileNotFoundError) or "container" in line + str(error):
        refused(line, urls.list_files, "failing://a/quota")
        refused(line, urls.create, "failing://a/quota", b"")


def test_a_full_disk_of_this_machine_is_not_taken_for_a_full_bucket(url, tmp_path, monkeypatch):
    class Full:
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    write_here = urls.write_here
    monkeypatch.setattr(urls, "write_here", lambda _, piece, folder: write_here(Full(), piece, folder))
    urls.write(f"{url}/x", b"1")
    line = f"a local copy in {tmp_path} needs more room; No space left on device. Free some on this machine"
    refused(line, urls.download, f"{url}/x", tmp_path / "x")
    assert not [*tmp_path.glob("x*")]


def test_an_object_that_is_replaced_after_its_listing_is_told(s3):
    """Of the same size, by another client, whose writes this one's own listing does not show."""
    urls.write("s3://bucket/listed/x", b"1" * 100)
    file = as_place("s3://bucket/listed") / "x"
    assert read_range(file, 10, 5) == b"11111"
    with file.open() as opened:
        s3.fs.pipe_file("bucket/listed/x", b"2" * 100)
        refused("it changed while it was read", read_range, file, 10, 5)
        with pytest.raises(InputError, match="it changed while it was read"), urls.explain_errors(str(file)):
            opened.read()
    urls.write("s3://bucket/listed/x", b"3" * 100)
    refused("it changed while it was read", read_range, file, 10, 5)


def test_an_image_that_is_replaced_after_its_listing_is_told(s3):
    """Of the same size: its bytes are asked for under the ETag of the listing."""
    urls.write("s3://bucket/images/x", b"1" * 100)
    folder = as_place("s3://bucket/images")
    assert (folder / "x").read_bytes() == b"1" * 100
    s3.fs.pipe_file("bucket/images/x", b"2" * 100)
    refused("it changed while it was read", (folder / "x").read_bytes)
    urls.info_of("s3://bucket/images/x")  # forgets what this client has listed
    refused("it changed while it was read", (folder / "x").read_bytes)


def test_a_state_that_is_replaced_while_it_is_read_is_told(url, tmp_path, monkeypatch):
    """Neither its index nor its objects are there any more: that is said, and not that they do not exist."""
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    writer = Remote(url)
    writer.push(root, {"x": files["x"]})
    reader = Remote(url)
    list_files = urls.list_files

    def list_then_push(listed):
        names = list_files(listed)
        monkeypatch.undo()
        writer.push(root, files)
        return names

    monkeypatch.setattr(urls, "list_files", list_then_push)
    refused(f"{url} must be as it was read; it has a newer state, of another writer. Run the same", Remote, url)
    writer.push(root, {"y": files["y"]})
    refused("a newer state, of another writer. Run the same command again", reader.pull, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_a_killed_push_left_is_deleted_by_the_next(url, tmp_path, monkeypatch):
    """Also if that one has nothing new to say: a removed file must not stay."""
    root, files = folder(tmp_path / "a", x=b"1", y=b"2")
    Remote(url).push(root, files)
    monkeypatch.setattr(urls, "delete", stopping(urls.delete, lambda: True))
    with pytest.raises(KeyboardInterrupt):
        Remote(url).push(root, {"x": files["x"]})
    monkeypatch.undo()
    remote = Remote(url)
    assert (remote.files, len(remote.objects)) == ({"x": files["x"]}, 2)
    remote.push(root, {"x": files["x"]})
    assert [*urls.list_files(f"{url}/objects")] == [f"000000000001-{files['x']}"]
    assert len(urls.list_files(f"{url}/index")) == 1


SECRETS = [
    "s3://AKIA:se/cr+et@bucket/x",
    "sftp://me:se@cr@host:22/x",
    "https://secret@host/x",
    "https://host/x?X-Amz-Signature=secret&y=1",
    "az://box/x?sv=1&sig=secret",
    "hf://secret@datasets/owner/name",
    "https://host/x#token=secret",
]


@pytest.mark.parametrize("url", SECRETS)
def test_credentials_in_a_url_are_neither_told_nor_stored(url, tmp_path):
    for call in (
        (urls.read, url), (urls.local_copy, url), (as_place, url), (urls.scratch_of, url),
        (mirrors.open_mirror(url).__enter__,), (Remote, url), (expand_path, url),
    ):  # fmt: skip
        with pytest.raises(InputError) as error:
            call[0](*call[1:])
        assert not re.search("secret|se/cr|se@cr", str(error.value))
        assert "***" in str(error.value)
    assert not [*(tmp_path / "scratch").glob("*")]


SECRET_NAMES = (
    "key", "api_key", "apikey", "X-API-Key", "accessKey", "AccountKey", "AWSAccessKeyId", "subscription-key", "token",
    "access_token", "X-Amz-Security-Token", "X-Amz-Credential", "X-Goog-Signature", "Signature", "sig", "sas",
    "delegation", "password", "passwd", "pwd", "client_secret", "auth", "authorization", "jwt",
)  # fmt: skip


@pytest.mark.parametrize("before", ["?", "?v=1&", ";", "#"])
@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_parameter_whose_name_says_that_it_opens_something_is_hidden(name, before):
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


def test_a_url_is_the_same_with_a_slash_at_its_end(url):
    urls.write(f"{url}/x", b"1")
    assert [*urls.list_files(f"{url}/")] == ["x"]
    assert urls.scratch_of(f"{url}/") == urls.scratch_of(url)
    assert urls.local_copy(f"{url}//") == urls.local_copy(url)
    assert str(as_place(f"{url}/") / "x") == f"{url}/x"


def test_urls_that_nothing_reads_are_one_line(monkeypatch):
    refused("must be one that fsspec can open", urls.read, "foo://bucket/x")
    refused("must be of a remote file system", urls.read, "file:///etc/passwd")
    for url in ("memory://bucket/../x", "memory://bucket/./x", "memory://../x", "memory://bucket//x"):
        refused("a URL must be plain; got .*Leave out empty names, . and ..", urls.read, url)
    for url in ("s3://", "memory:///", "s3:////", "s3:///x"):
        refused("must name a bucket or a folder", urls.list_files, url)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    refused("gs:// needs gcsfs, which is not installed. pip install gcsfs", urls.read, "gs://bucket/x")
    missing = explain_package("s3://bucket/x", ImportError())
    assert str(missing) == "s3:// needs s3fs, which is not installed. pip install 'tangent-jax[url]'"
    monkeypatch.setitem(sys.modules, "paramiko", None)
    refused("sftp:// needs a package that reads it; there is none .*paramiko", urls.read, "sftp://host/x")
    assert [urls.is_url(value) for value in ("C:/x", Path("s3://x"), "s3://x")] == [False, False, True]
    assert os.fspath(urls.local_copy("~")) == os.path.expanduser("~")

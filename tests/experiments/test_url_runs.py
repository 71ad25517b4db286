"""Commands from data in S3 to results in S3, killed and resumed elsewhere: the bits of local files; and refusals."""

import json
import os
import re
import signal
import time

import pytest
import slurm
from helpers import in_long
from photos import as_zip, photographs
from run_binary import module_of, output_of, run_here, start, wait_until
from s3_server import forget_clients

from tangent_jax.core import trees
from tangent_jax.pretrained.load import load, save
from tangent_jax.store.files import read_component

pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
pytest.importorskip("s3fs", reason="s3fs is absent")
EVERY_STEP = """
import runpy, sys
from tangent_jax.io import checkpoints
checkpoints.CHECKPOINT_SECONDS = 0.0  # saves each epoch
sys.argv = ["finetune", *sys.argv[1:]]
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
""".format(module=module_of("finetune"))
LINE = re.compile(r"\w+: \S.+")
"""COMMAND: a sentence, in one line."""


@pytest.fixture(scope="module")
def s3(s3, tmp_path_factory):
    """The server, with a data set and weights in its bucket; `here`: the same on disk."""
    here = tmp_path_factory.mktemp("inputs")
    photographs(here / "photos", 8)
    as_zip(
        here / "photos.zip",
        {str(p.relative_to(here / "photos")): p.read_bytes() for p in (here / "photos").rglob("*.png")},
    )
    save(here / "weights.safetensors", load("builtin"))
    s3.here = here
    for path in here.rglob("*.*"):
        s3.fs.put_file(path, f"bucket/{path.relative_to(here)}")
    return s3


@pytest.fixture(autouse=True)
def mended(s3):
    s3.mend()
    yield
    s3.mend()
    forget_clients()


def run(binary, *flags, code=0):
    """(last line of stdout, stderr) of a command that runs in this process."""
    got, out, err = run_here(binary, *flags)
    assert got == code, err
    return out.strip().rpartition("\n")[2], err


def ends(binary, *flags):
    """The line in which a command ends."""
    _, err = run(binary, *flags, code=1)
    line = err.strip().rpartition("\n")[2]
    assert LINE.fullmatch(line), line
    assert "Traceback" not in err
    return line


def training(binary, place, tmp_path, *more):
    """The arguments of a short training on data and weights at a place."""
    own = {"finetune": ["--epochs=1"], "compose": ["--epochs=1", "--shards=2", "--method=fc", "--lr=1e-3"],
           "private": ["--epochs=1", "--subset=head", "--delta=1e-3"]}[binary]  # fmt: skip
    local = [f"--store={tmp_path}/stores"] if binary == "compose" else []
    flags = [f"--dataset=folder:{place}/photos.zip", f"--weights={place}/weights.safetensors"]
    return [binary, *flags, *own, *local, f"--cache_dir={tmp_path}/cache", *more]


def same_run(s3, url, local):
    """Asserts that a run at a URL has the result, the history and the tangent weights of a run in a folder."""
    here = json.loads((local / "result.json").read_text())
    there = json.loads(s3.fs.cat_file(f"{url}/result.json"))

    def plain(fields):
        return {name: value for name, value in fields.items() if "second" not in name and name != "dataset"}

    for field in ("accuracy", "steps", "step_norm", "run"):
        assert here[field] == there[field], field
    assert [plain(row) for row in here["history"]] == [plain(row) for row in there["history"]]
    dw, metadata = read_component(f"{url}/dw.safetensors")
    assert trees.fingerprint(dw) == trees.fingerprint(read_component(local / "dw.safetensors")[0])
    assert url in json.loads(metadata["provenance"])["training"]["folders"]
    assert {path.name for path in local.iterdir()} <= {name.split("/")[-1] for name in s3.fs.ls(url, detail=False)}


def test_bucket_run_is_that_on_disk(s3, tmp_path):
    run(*training("finetune", s3.here, tmp_path, f"--out={tmp_path}/here"))
    url = "s3://bucket/tuned"
    out, _ = run(*training("finetune", "s3://bucket", tmp_path, f"--out={url}/"))
    assert json.loads(out).items() <= json.loads(s3.fs.cat_file(f"{url}/result.json")).items()
    same_run(s3, url, tmp_path / "here")
    run("store", "add", f"--store={tmp_path}/store", f"--source={url}")
    _, err = run("store", "remove", f"--store={tmp_path}/store", "--name=tuned")
    assert f"NOT reached: {url}" in err


def kill_and_end(s3, tmp_path, url, *flags, number, times):
    """Ends a finetune that is killed after its state at `url` has changed, some times, each on another machine."""

    def state():
        s3.fs.invalidate_cache()
        return [s3.fs.checksum(name) for name in s3.fs.glob(f"{url}/checkpoints/*.zip")]

    for machine in range(times):
        before = state()
        process = start(EVERY_STEP, *flags, stderr=tmp_path / "err", HOME=tmp_path / f"machine {machine}")
        wait_until(process, lambda before=before: state() != before)
        assert process.exitcode is None, (tmp_path / "err").read_text()
        os.kill(process.pid, number)
        process.join()
        assert not s3.fs.exists(f"{url}/result.json")
    _, err = output_of(EVERY_STEP, *flags, HOME=tmp_path / "last machine")
    assert "resuming after epoch" in err


@pytest.mark.parametrize(("number", "times"), [(signal.SIGKILL, 1), *in_long((signal.SIGKILL, 3), (signal.SIGTERM, 3))])
def test_killed_bucket_run_goes_on_elsewhere(number, times, s3, tmp_path):
    more = ["--epochs=9", "--batch_size=8"]
    run(*training("finetune", s3.here, tmp_path, *more, f"--out={tmp_path}/here"))
    url = f"s3://bucket/killed{number}-{times}"
    flags = training("finetune", "s3://bucket", tmp_path, *more, f"--out={url}")[1:]
    kill_and_end(s3, tmp_path, url, *flags, number=number, times=times)
    same_run(s3, url, tmp_path / "here")


@pytest.mark.long
def test_two_processes_write_one_url(s3, tmp_path):
    """Processes without a common disk, as on two hosts: a run is killed, and goes on elsewhere."""
    url = "s3://bucket/two"
    flags = training("finetune", "s3://bucket", tmp_path, "--epochs=6", "--batch_size=8", f"--out={url}")[1:-2]

    def process(index, port, home):
        (tmp_path / home).mkdir()
        join = [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process_id={index}"]
        files = {"stdout": tmp_path / home / "out", "stderr": tmp_path / home / "err"}
        cache = f"--cache_dir={tmp_path}/{home}/cache"
        return start(EVERY_STEP, *flags, f"--out={url}", cache, *join, **files, HOME=tmp_path / home)

    port = slurm.free_port()
    pair = [process(index, port, f"first-{index}") for index in range(2)]
    wait_until(pair[0], lambda: s3.fs.invalidate_cache() or s3.fs.glob(f"{url}/checkpoints/*.zip"))
    assert [one.exitcode for one in pair] == [None, None], (tmp_path / "first-0/err").read_text()
    for one in pair:
        one.kill()
        one.join()
    assert not s3.fs.exists(f"{url}/result.json")
    port = slurm.free_port()
    pair = [process(index, port, f"second-{index}") for index in range(2)]
    for index, one in enumerate(pair):
        one.join(300)
        assert one.exitcode == 0, (tmp_path / f"second-{index}/err").read_text()
    assert json.loads(s3.fs.cat_file(f"{url}/result.json"))["steps"] > 0
    assert "resuming after epoch" in (tmp_path / "second-0/err").read_text()
    assert '"method"' not in (tmp_path / "second-1/out").read_text()


# Refusals


@pytest.mark.parametrize("after", [0, 3])
def test_data_that_cannot_be_read_ends_a_training(after, s3, tmp_path):
    """At the first request, and in the midst of reading."""
    s3.fail("GET", "/photos/", "AccessDenied", 403, "Access Denied", after=after)
    flags = training("finetune", "s3://bucket", tmp_path, f"--out={tmp_path}/out")
    flags[1] = "--dataset=folder:s3://bucket/photos"
    assert "must be reachable; got PermissionError: Access Denied" in ends(*flags)
    assert not [*tmp_path.glob("out/*.json")]


@pytest.mark.parametrize("after", [0, 1])
def test_unwritable_results_end_training(after, s3, tmp_path):
    """At the first request that writes, and in the midst of it; no result is at the URL, and the command goes on."""
    url = f"s3://bucket/refused{after}"
    flags = training("finetune", s3.here, tmp_path, f"--out={url}")
    s3.fail("PUT", f"/refused{after}/", "AccessDenied", 403, "Access Denied", after=after)
    assert "must be reachable; got PermissionError: Access Denied" in ends(*flags)
    s3.mend()
    assert not s3.fs.exists(f"{url}/result.json")
    run(*flags)
    assert s3.fs.exists(f"{url}/result.json")


def test_missing_bucket_ends_command(s3, tmp_path):
    line = ends(*training("finetune", "s3://nothing", tmp_path, f"--out={tmp_path}/out"))
    assert "s3://nothing/photos.zip must be a file or folder; it does not exist" in line
    line = ends(*training("finetune", s3.here, tmp_path, "--out=s3://nothing/out"))
    assert "s3://nothing/out/checkpoints" in line
    assert "The specified bucket does not exist" in line


def test_file_system_needs_are_refused(s3, tmp_path):
    place = [f"--out={tmp_path}/out"]
    for flags in (
        training("private", s3.here, tmp_path, "--out=s3://bucket/x"),  # its ledger pays before each step
        training("compose", s3.here, tmp_path, "--out=s3://bucket/x"),
        [*training("compose", s3.here, tmp_path, *place), "--store=s3://bucket/x"],
        [*training("finetune", s3.here, tmp_path, *place), "--cache_dir=s3://bucket/x"],
        ("store", "list", "--store=s3://bucket/x"),
    ):
        line = ends(*flags)
        assert "a path must be one of this machine; got s3://bucket/x. Locks and renames need a file system" in line
        assert "as by aws s3 sync" in line


def test_url_credentials_are_stored_nowhere(s3, tmp_path):
    secret = "s3://AKIA:se/cret@bucket"
    lines = [
        ends(*training("finetune", secret, tmp_path, f"--out={tmp_path}/out")),
        ends(*training("finetune", s3.here, tmp_path, f"--out={secret}/out")),
        ends(*training("private", s3.here, tmp_path, f"--out={secret}/out")),
        ends("store", "add", f"--store={tmp_path}/added", f"--source={secret}/run"),
    ]
    assert all("s3://***@bucket" in line for line in lines), lines
    assert not any("se/cret" in line for line in lines)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"se/cret" not in path.read_bytes(), path


@pytest.mark.long
def test_dead_server_ends_command_soon(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    forget_clients()
    begin = time.monotonic()
    line = ends(*training("finetune", "s3://bucket", tmp_path))
    assert "s3://bucket/photos" in line
    assert "EndpointConnectionError" in line
    assert time.monotonic() - begin < 60

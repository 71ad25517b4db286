"""Commands from data in S3 to results in S3, killed three times and resumed elsewhere: the bits of local files."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import slurm
from photos import as_zip, photographs
from run_binary import module_of, output_of, run, start, wait_until

from tangent_jax.core import trees
from tangent_jax.exports.folder import load_export
from tangent_jax.pretrained.load import load, save
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import newest
from tangent_jax.store.files import read_component
from tangent_jax.store.store import Store

pytestmark = pytest.mark.long
EVERY_STEP = """
import runpy, sys
from tangent_jax.io import checkpoints, ledger
checkpoints.Saver.__init__.__defaults__ = (0.0,)  # saves each epoch
ledger.Ledger.__init__.__defaults__ = (0.0,)
sys.argv = ["{binary}", *sys.argv[1:]]
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="s3fs is absent")
    from s3_server import serving_bucket

    with serving_bucket(tmp_path_factory.mktemp("scratch")) as server:
        yield server


@pytest.fixture(scope="module")
def inputs(s3, tmp_path_factory):
    """A folder with a data set and weights, which are in the bucket, too."""
    root = tmp_path_factory.mktemp("inputs")
    photographs(root / "photos", 20)
    files = {str(p.relative_to(root / "photos")): p.read_bytes() for p in (root / "photos").rglob("*.png")}
    as_zip(root / "photos.zip", files)
    save(root / "weights.safetensors", load("builtin"))
    for path in root.rglob("*"):
        if path.is_file():
            urls.upload(path, f"s3://bucket/{path.relative_to(root)}")
    return root


def number_at(url):
    """The number of the newest state of a run at a URL, which may be replaced before it is read."""
    return newest(urls.list_files(f"{url}/state/index"))


def killed_three_times(s3, tmp_path, binary, url, *flags, number=signal.SIGKILL):
    """The last line of a command that is killed after its state at `url` has changed, three times, and ends then."""
    code = EVERY_STEP.format(binary=binary, module=module_of(binary.split()[0]))
    flags = [*binary.split()[1:], *flags]
    for machine in range(3):
        home = tmp_path / f"machine {machine}"
        home.mkdir()
        before = number_at(url)
        process = start(code, *flags, stderr=tmp_path / "err", HOME=home)
        wait_until(process, lambda before=before: number_at(url) > before + 1)
        assert process.exitcode is None, (tmp_path / "err").read_text()
        os.kill(process.pid, number)
        process.join()
        assert not s3.fs.exists(f"{url}/result.json")
        shutil.rmtree(home)
    home.mkdir()
    return json.loads(output_of(code, *flags, HOME=home)[0].strip().rpartition("\n")[2])


def same_run(line, url, local):
    """Asserts that a run at a URL has the result, the history and the tangent weights of a run in a folder."""
    here = json.loads((local / "result.json").read_text())
    there = json.loads(urls.read(f"{url}/result.json"))

    def plain(fields):
        return {name: value for name, value in fields.items() if "second" not in name and name != "dataset"}

    assert plain(line).items() <= plain(there).items()
    for field in ("accuracy", "steps", "epsilon", "shards", "full", "run"):
        assert here.get(field) == there.get(field), field
    assert [plain(row) for row in here.get("history", [])] == [plain(row) for row in there.get("history", [])]
    if (local / "dw.safetensors").exists():
        dw = read_component(f"{url}/dw.safetensors")[0]
        assert trees.fingerprint(dw) == trees.fingerprint(read_component(local / "dw.safetensors")[0])


def flags_of(place, *more):
    return [f"--dataset=folder:{place}/photos", f"--weights={place}/weights.safetensors", *more]


def test_finetune_and_export(s3, inputs, tmp_path):
    more = ["--epochs=6", "--batch_size=8"]
    run("finetune", *flags_of(inputs, *more), f"--out={tmp_path}/here", f"--cache_dir={tmp_path}/cache")
    url = "s3://bucket/tuned"
    flags = flags_of("s3://bucket", *more, f"--out={url}", f"--cache_dir={tmp_path}/there")
    line = killed_three_times(s3, tmp_path, "finetune", url, *flags)
    same_run(line, url, tmp_path / "here")
    store, to = tmp_path / "store", "s3://bucket/export"
    run("store", "add", f"--store={store}", f"--source={url}", "--name=a")
    pushed = json.loads(run("store", "push", "s3://bucket/store", f"--store={store}")[0])
    assert pushed == {"lines": 1, "files": 4, "copied": 4}
    pulled = json.loads(run("store", "pull", "s3://bucket/store", f"--store={tmp_path}/pulled")[0])
    assert pulled == {"lines": 1, "files": 4, "copied": 4}
    s3.slow("PUT", "/export/", 1.0)
    for name in ("README.md", "README.md", "model.safetensors"):
        s3.fs.rm("bucket/export", recursive=True) if s3.fs.exists("bucket/export") else None
        process = start(module_of("store"), "export", f"--store={tmp_path}/pulled", f"--to={to}")
        wait_until(process, lambda name=name: name in urls.list_files(to))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert "provenance.json" not in urls.list_files(to)
    s3.mend()
    run("store", "export", f"--store={tmp_path}/pulled", f"--to={to}")
    (_, there), dw = load_export(to), Store(store)["a"].dw
    for path, leaf in trees.leaves(dw).items():
        assert np.array_equal(trees.leaves(there)[path], leaf), path
    run(
        "store",
        "export",
        f"--store={store}",
        f"--to={tmp_path}/export",
        f"--weights={inputs}/weights.safetensors",
    )
    for name in ("model.safetensors", "tangent.safetensors"):
        assert urls.read(f"{to}/{name}") == (tmp_path / "export" / name).read_bytes(), name
    _, err = run("store", "export", f"--store={store}", f"--to={to}", code=1)
    assert "--to must be a folder that does not exist yet; got s3://bucket/export" in err
    check_removed(s3, store, url)


def check_removed(s3, store, url):
    """Asserts that a removal lists the run at a URL, and the exports."""
    _, err = run("store", "remove", f"--store={store}", "--name=a")
    assert f"NOT reached: {url}: a cache, or results of a run" in err
    assert f"NOT reached: {store.parent}/export" in err
    assert s3.fs.exists(f"{url}/dw.safetensors")


def test_two_processes_are_one_job_with_its_results_at_a_url(s3, inputs, tmp_path):
    """Processes without a common disk, as on two hosts: a run is killed, and goes on elsewhere."""
    url, port = "s3://bucket/two", slurm.free_port()
    code = EVERY_STEP.format(binary="finetune", module=module_of("finetune"))
    flags = flags_of("s3://bucket", "--epochs=6", "--batch_size=8", f"--out={url}")

    def process(index, port, home):
        (tmp_path / home).mkdir()
        join = [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process_id={index}"]
        files = {"stdout": tmp_path / home / "out", "stderr": tmp_path / home / "err"}
        cache = f"--cache_dir={tmp_path}/{home}/cache"
        return start(code, *flags, cache, *join, **files, HOME=tmp_path / home)

    pair = [process(index, port, f"first-{index}") for index in range(2)]
    wait_until(pair[0], lambda: number_at(url) > 5)  # after an epoch's
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
    assert json.loads(urls.read(f"{url}/result.json"))["steps"] == 6 * 5
    assert "going on after epoch" in (tmp_path / "second-0/err").read_text()
    assert '"method"' not in (tmp_path / "second-1/out").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_private_steps_are_paid_at_the_url(number, s3, inputs, tmp_path):
    """SIGTERM loses nothing; a step that was paid and then lost to SIGKILL stays paid, and is not taken again."""
    more = ["--epochs=12", "--subset=head", "--noise_seed=3", "--delta=1e-3"]
    run("private", *flags_of(inputs, *more), f"--out={tmp_path}/here", f"--cache_dir={tmp_path}/cache")
    url = f"s3://bucket/private{number}"
    flags = flags_of("s3://bucket", *more, f"--out={url}", f"--cache_dir={tmp_path}/cache")
    line = killed_three_times(s3, tmp_path, "private", url, *flags, number=number)
    paid = json.loads(urls.read(f"{url}/ledger.json"))["spent"]["steps_paid"]
    assert paid == 12
    assert line["epsilon"] == pytest.approx(json.loads((tmp_path / "here/result.json").read_text())["epsilon"])
    if number == signal.SIGTERM:
        same_run(line, url, tmp_path / "here")
    else:
        assert 12 - 3 <= line["steps"] <= paid


def test_compose_finds_the_settings_that_were_searched(s3, inputs, tmp_path):
    more = ["--epochs=3", "--shards=2", "--method=taft,soup", "--lr=1e-3,3e-3", "--batch_size=8"]
    local = [f"--out={tmp_path}/here", f"--store={tmp_path}/stores", f"--cache_dir={tmp_path}/cache"]
    run("compose", *flags_of(inputs, *more), *local)
    url = "s3://bucket/composed"
    at = [f"--out={url}", f"--store={tmp_path}/others", f"--cache_dir={tmp_path}/cache"]
    flags = flags_of("s3://bucket", *more, *at)
    flags[0] = "--dataset=folder:s3://bucket/photos.zip"
    line = killed_three_times(s3, tmp_path, "compose", url, *flags)
    same_run(line, url, tmp_path / "here")
    _, err = run("compose", *flags_of("s3://bucket", *more), "--store=s3://bucket/stores", code=1)
    assert "s3://bucket/stores" in err.splitlines()[-1]
    assert "store push copies a store to a URL" in err

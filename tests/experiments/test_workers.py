"""Workers of shard models: killed, or more than there is work for; the bits of one process."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from farm_kills import content
from run_binary import ROOT, output, run, start, wait_until

from tangent_jax.commands.shared.workers import parse_worker
from tangent_jax.core.checks import InputError
from tangent_jax.store.claims import Claims
from tangent_jax.store.store import Store

FLAGS = ["--method=fc", "--shards=3", "--at_once=1"]
STORE = "digits-fc-uniform-3-seed0"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(flags of all runs, the last line and the folder of the stores of one process)."""
    folder = tmp_path_factory.mktemp("alone")
    flags = [*FLAGS, f"--cache_dir={folder / 'cache'}"]
    line, _ = run("compose", *flags, "--epochs=1", f"--store={folder / 'stores'}", f"--out={folder / 'out'}")
    return flags, line, folder / "stores"


def states(store):
    return {name: of["state"] for name, of in Claims(Store(store)).states().items()}


def test_a_worker_trains_its_groups_alone_and_compose_ends_with_the_bits_of_one_process(alone, tmp_path):
    flags, line, stores = alone
    flags = [*flags, "--epochs=1", f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    said = json.loads(run("compose", *flags, "--worker=1/2")[0])
    assert said == {"worker": 1, "workers": 2, "groups": 2}
    assert not (tmp_path / "out/result.json").exists()
    assert states(tmp_path / "stores" / STORE) == {"shard 0": "waiting", "shard 1": "done", "shard 2": "waiting"}
    assert run("compose", *flags)[0] == line
    assert content(tmp_path / "stores") == content(stores)


def test_the_shards_of_a_killed_worker_are_lost_and_its_store_verifies(alone, tmp_path):
    flags, _, _ = alone
    flags = [*flags, f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    endless = (*flags, "--epochs=100000", "--worker=0/4")
    child = start("tangent_jax", "compose", *endless)
    store = tmp_path / "stores" / STORE
    try:
        wait_until(child, (store / "claims/0.lock").exists)
        time.sleep(0.5)
        stdout, _ = output("store", "status", f"--store={tmp_path / 'stores'}")
        assert f"running  process {child.pid} on " in stdout
        assert json.loads(stdout.strip().rpartition("\n")[2])["running"] == 1
    finally:
        child.kill()
    child.join()
    assert states(store)["shard 0"] == "lost"
    assert Store(store).verify() == []


def test_a_search_is_not_left_to_workers(alone, tmp_path):
    flags, _, _ = alone
    _, err = run("compose", *flags, "--lr=1e-3,3e-3", "--worker=0/2", f"--out={tmp_path / 'out'}", code=1)
    assert "--worker needs settings that were searched before" in err


@pytest.mark.parametrize("text", ["4/4", "all", "1", "-1/2"])
def test_parse_worker_refuses_other_text(text):
    with pytest.raises(InputError, match=r"--worker must be I/N with I in 0\.\.N-1; got"):
        parse_worker(text)


@pytest.mark.long
def test_four_workers_each_killed_five_times_end_with_the_bits_of_one_process(tmp_path):
    """Of digits; `python tests/farm_kills.py --help` for other data."""
    flags = ["--method=taft", "--shards=8", "--at_once=2", "--epochs=2", f"--cache_dir={tmp_path / 'cache'}"]
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests/farm_kills.py"), str(tmp_path), *flags]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    result = json.loads(child.stdout)
    assert result["equal"]
    assert min(result["kills"]) == 5
    assert Path(tmp_path / "farm").is_dir()

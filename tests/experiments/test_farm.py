"""A farm of shard models: workers that are killed, interrupted, started twice or fail; the bits of one process."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from farm_kills import content
from run_binary import ROOT, output, run, start, wait_until

from tangent_jax.commands.shared.farm import failure
from tangent_jax.commands.shared.worker import Worker
from tangent_jax.io.files import hold_lock
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


def started(*flags, **options):
    command = [sys.executable, "-W", "ignore", "-m", "tangent_jax", "compose", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True, **options)


def states(store):
    return {name: of["state"] for name, of in Claims(Store(store)).states().items()}


def test_a_killed_worker_s_shards_are_lost_and_whoever_comes_next_gives_the_bits_of_one_process(alone, tmp_path):
    flags, line, stores = alone
    flags = [*flags, f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    assert json.loads(run("compose", *flags, "--epochs=1", "--worker=1/2")[0]) == {
        "worker": 1, "workers": 2, "groups": 2
    }  # fmt: skip
    assert not (tmp_path / "out/result.json").exists()
    assert states(tmp_path / "stores" / STORE) == {"shard 0": "waiting", "shard 1": "done", "shard 2": "waiting"}
    endless = (*flags, "--epochs=100000", "--shards=4", "--worker=0/5")
    child = start("tangent_jax", "compose", *endless)  # other shards: trained without an end
    four = tmp_path / "stores" / STORE.replace("-3-", "-4-")
    try:
        wait_until(child, (four / "claims/0.lock").exists)
        time.sleep(0.5)
        stdout, _ = output("store", "status", f"--store={tmp_path / 'stores'}")
        assert f"running  process {child.pid} on " in stdout
        assert json.loads(stdout.strip().rpartition("\n")[2])["running"] == 1
    finally:
        child.kill()
    child.join()
    assert states(four)["shard 0"] == "lost"
    assert Store(four).verify() == []
    assert run("compose", *flags, "--epochs=1")[0] == line
    (tmp_path / "stores" / four.name).rename(tmp_path / four.name)
    assert content(tmp_path / "stores") == content(stores)


@pytest.mark.long
def test_a_farm_on_this_machine_gives_the_result_of_one_process(alone, tmp_path):
    flags, line, stores = alone
    flags = [*flags, "--epochs=1", f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    said, err = run("compose", *flags, "--farm=local", "--workers=1")
    assert said == line
    assert f"1 workers; logs: {tmp_path / 'out/farm'}" in err
    assert content(tmp_path / "stores") == content(stores)
    (log,) = (tmp_path / "out/farm").glob("*.out")
    assert '{"worker": 0, "workers": 1, "groups": 4}' in log.read_text()


def test_of_two_launchers_at_once_the_second_is_refused(alone, tmp_path):
    flags, _, _ = alone
    claims = Claims(Store(tmp_path / "stores" / STORE))
    with hold_lock(claims.lock("launcher")):
        flags = [*flags, "--farm=local", "--workers=1", f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
        _, err = run("compose", *flags, code=1)
    assert f"hold_lock: expected no other process in {claims.folder}; got process {os.getpid()} on" in err
    assert not [*Store(tmp_path / "stores" / STORE)]


def test_a_search_is_not_left_to_workers(alone, tmp_path):
    flags, _, _ = alone
    _, err = run("compose", *flags, "--lr=1e-3,3e-3", "--worker=0/2", f"--out={tmp_path / 'out'}", code=1)
    assert "compose: expected settings searched before its workers start; got none searched" in err


# A worker as submitit runs it

CHILD = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(130)); print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_worker_that_is_preempted_ends_its_process_in_order_first(number):
    """As submitit calls it: at SIGUSR2 `checkpoint`, then out; SIGTERM it would ignore."""
    worker, pending = Worker([sys.executable, "-c", CHILD], None), []

    def requeue(*_):
        pending.append(worker.checkpoint().function.command)
        sys.exit(-1)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, requeue)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    timer.start()
    try:
        with pytest.raises(SystemExit) as ended:
            worker()
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert os.waitstatus_to_exitcode(os.waitpid(worker.child, 0)[1]) == 130
    assert ended.value.code == (143 if number == signal.SIGTERM else -1)
    assert pending == ([] if number == signal.SIGTERM else [worker.command])


def test_a_worker_hands_on_its_exit_code_and_the_launcher_says_why_and_where(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    codes = [Worker([sys.executable, "-c", code], None)() for code in ("", "import sys; sys.exit(3)")]
    signal.signal(signal.SIGTERM, before)
    assert codes == [0, 3]
    log = tmp_path / "7_0_log.err"
    log.write_text("a bar\nstore: [Errno 28] No space left on device: 'x'\n")
    job = SimpleNamespace(result=lambda: codes[1], paths=SimpleNamespace(stderr=log))
    assert failure(2, job) == (
        f"worker 2 ended with exit code 3: store: [Errno 28] No space left on device: 'x' (log: {log})"
    )
    assert failure(2, SimpleNamespace(result=lambda: codes[0])) is None


# Long


@pytest.mark.long
def test_a_full_disk_in_a_worker_is_one_line_of_the_launcher(alone, tmp_path):
    flags, _, _ = alone
    limit = (30_000, 30_000)  # bytes of a file: less than a component of a whole block
    flags = [*flags, "--method=taft", "--epochs=1"]
    run("compose", *flags, f"--store={tmp_path / 'other'}", f"--out={tmp_path / 'out'}")  # fills the cache
    flags += ["--farm=local", "--workers=2"]
    flags += [f"--store={tmp_path / 's'}", f"--out={tmp_path / 'out'}"]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    child = started(*flags, env=environment, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    _, err = child.communicate(timeout=300)
    assert child.returncode == 1, err
    last = err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert last.startswith("farm: expected every worker to finish; got worker 0 ended with exit code 1: ")
    assert "File too large" in last
    assert f"(log: {tmp_path / 'out/farm'}" in last
    assert last.endswith("Run the same command again: what is trained stays.")
    for store in (tmp_path / "s").iterdir():
        assert Store(store).verify() == []


SCRIPTS = {
    "sbatch": """#!/bin/sh
n=$(grep -c . "$1")
for task in $(seq 0 $(sed -n 's/.*--array=0-\\([0-9]*\\)%.*/\\1/p' "$1")); do
  SLURM_JOB_ID=$((70 + task)) SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_NTASKS=1 sh "$1" >/dev/null 2>&1 &
done
echo Submitted batch job 7
""",
    "srun": """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  case "$1" in --output|--error) shift;; esac
  shift
done
exec "$@"
""",
    "sacct": "#!/bin/sh\necho 'JobID|State|NodeList'\n",
}


@pytest.mark.long
def test_a_farm_through_slurm_s_commands(alone, tmp_path, monkeypatch):
    """`sbatch`, `srun` and `sacct` are scripts here that run the array on this machine."""
    flags, line, stores = alone
    (tmp_path / "bin").mkdir()
    for name, text in SCRIPTS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    flags = [*flags, "--farm=slurm", "--workers=2", f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    child = started(*flags, "--epochs=1", "--farm_options=partition=gpu,time=30,gpus_per_node=1")
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert out.strip().rpartition("\n")[2] == line
    assert content(tmp_path / "stores") == content(stores)
    (script,) = (tmp_path / "out/farm").glob("*submission.sh")
    for option in ("--partition=gpu", "--time=30", "--gpus-per-node=1", "--signal=USR2@90"):
        assert option in script.read_text()
    _, err = started(*flags, "--farm_options=tme=30").communicate(timeout=300)
    assert "farm: expected options that --farm=slurm takes; got Unavailable parameter(s): ['tme']" in err
    assert "Traceback" not in err


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

"""One, two and four devices, and two processes: the same results, one noise, one ledger, one stop."""

import json
import os
import socket
import time

import numpy as np
import pytest
import run_binary
from helpers import in_long
from run_binary import output, output_of, refused

TOLERANCE = 2e-5  # relative, of dw after a few epochs: sums over examples are formed in another order
DRAWN = {"noise", "coins"}  # with entropy


def start(folder, *arguments, devices=1):
    """A process of tests/job.py."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    folder.mkdir(parents=True, exist_ok=True)
    return run_binary.start("job", folder, *arguments, stderr=folder / "stderr", XLA_FLAGS=flags)


def finish(*processes, code=0):
    try:
        for process in processes:
            process.join(240)
            assert process.exitcode == code
    finally:
        for process in processes:  # one that waits for another would outlive the test
            process.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"{probe.getsockname()[1]}"


def job(folder, *more, devices=1):
    """Two processes, each of so many devices, to their end."""
    port = free_port()
    finish(*[start(folder, f"{process}", port, *more, devices=devices) for process in range(2)])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of one device, and of the four of two processes: {name: array}."""
    root = tmp_path_factory.mktemp("devices")
    finish(start(root / "1"))
    job(root / "processes", devices=2)
    names = {"1": "1/results", "processes": "processes/results", "other": "processes/results-1"}
    return {name: dict(np.load(root / f"{path}.npz")) for name, path in names.items()}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The results of four devices of one process."""
    root = tmp_path_factory.mktemp("four")
    finish(start(root, devices=4))
    return dict(np.load(root / "results.npz"))


def test_results_are_those_of_one_device(results):
    expected = results["1"]
    assert_alike(expected, results["processes"])
    assert np.array_equal(expected["fit"], expected["streamed"])


@pytest.mark.long
def test_one_process_is_one_device(results, four):
    assert_alike(results["1"], four)
    check_noise(four["noise"])
    assert four["paid"] == 4
    assert not four["read again"].any()


def assert_alike(expected, given):
    for name in expected.keys() - DRAWN:
        error = np.linalg.norm(given[name] - expected[name])
        assert error <= TOLERANCE * np.linalg.norm(expected[name]), (name, error / np.linalg.norm(expected[name]))


@pytest.mark.long
@pytest.mark.parametrize("part", ["--newton", "--factored"])
def test_an_optimum_is_that_of_one_device(tmp_path, part):
    finish(start(tmp_path / "1", part), start(tmp_path / "4", part, devices=4))
    job(tmp_path / "processes", part)
    for placement in ("4", "processes"):
        assert_alike(*(np.load(tmp_path / name / "results.npz") for name in ("1", placement)))


def test_processes_hold_one_result(results):
    for name, value in results["processes"].items():
        assert np.array_equal(value, results["other"][name]), name
    assert np.ptp(results["processes"]["coins"])


def test_disagreeing_processes_are_refused(results):
    for name in ("processes", "other"):
        assert all(results[name][f"raised: {call}"] == 1 for call in ("inputs", "order", "on_step"))


def check_noise(noise):
    """54,000 draws: their scale is 1 to 0.3 %; noise of two processes would have sqrt(2)."""
    assert abs(np.std(noise) - 1) < 0.02
    assert abs(np.mean(noise)) < 0.02


@pytest.mark.parametrize("placement", ["1", "processes"])
def test_noise_is_added_once(results, placement):
    check_noise(results[placement]["noise"])


def test_a_private_run_has_one_ledger(results):
    for given in results.values():
        assert given["paid"] == 4
        assert not given["read again"].any()


def test_stop_of_one_process_stops_all(results):
    for name in ("processes", "other"):
        for ask in ("a handler", "SIGTERM"):
            assert 2 <= results[name][f"{ask}: epochs saved"] < 30
            assert not results[name][f"{ask}: went on"].any()


def test_features_need_no_common_disk(results):
    for name in ("processes", "other"):
        assert np.array_equal(results[name]["features apart"], results["1"]["features"])


@pytest.mark.long
def test_same_device_count_gives_same_bits(four, tmp_path):
    finish(start(tmp_path, "--trained", devices=4))
    for name, value in np.load(tmp_path / "results.npz").items():
        assert np.array_equal(value, four[name]), name


def test_killed_private_job_took_no_unpaid_step(tmp_path):
    """TANGENT_JAX_KILLS=10 for the long form, and no more: a kill is a start of two processes."""
    rng, ledger, log = np.random.default_rng(0), tmp_path / "slow/ledger.json", tmp_path / "steps"
    log.touch()
    for _ in range(min(10, int(os.environ.get("TANGENT_JAX_KILLS", "1")))):
        port, before = free_port(), log.read_text()
        processes = [start(tmp_path, f"{process}", port, "--slowly") for process in range(2)]
        while all(process.is_alive() for process in processes):
            if log.read_text() != before:
                time.sleep(rng.uniform(0, 0.5))
                break
            time.sleep(0.01)
        for process in rng.permutation(processes):
            process.kill()
            process.join()
        steps = [int(step) for step in log.read_text().split()]
        assert steps == sorted(set(steps))  # none is taken twice
        assert json.loads(ledger.read_text())["spent"]["steps_paid"] >= steps[-1]
    job(tmp_path, "--slowly")
    assert json.loads(ledger.read_text())["spent"]["steps_paid"] == 60


FINETUNE = "tangent_jax.commands.finetune"
REFUSED = {
    "--devices=9": "devices must be in 1..1, the devices of this machine; got 9",
    "--coordinator=127.0.0.1:1": "coordinator, processes and process_id must be given together; got 1 of them",
    "--coordinator=12700 --processes=2 --process_id=0": "coordinator must be HOST:PORT; got 12700",
    "--coordinator=127.0.0.1:1 --processes=2 --process_id=2": "process_id must be a whole number in 0..1; got 2",
    "--coordinator=127.0.0.1:{taken} --processes=2 --process_id=0": "the port of 127.0.0.1:{taken} must be free",
}


@pytest.mark.parametrize("given", REFUSED)
def test_impossible_job_is_refused(given):
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        flags = given.format(taken=taken).split()
        is_checked_by_jax = "{taken}" in given
        stderr = output_of(FINETUNE, *flags, code=1)[1] if is_checked_by_jax else refused("finetune", *flags)
    assert stderr.startswith("finetune: " + REFUSED[given].format(taken=taken))
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("process", [1, *in_long(0)])
def test_lonely_process_ends_with_one_line(process, tmp_path):
    finish(start(tmp_path, f"{process}", free_port(), "--soon"), code=1)
    last = (tmp_path / "stderr").read_text().splitlines()[-1]
    assert "2 processes of the job must start within 2 s; got fewer." in last


@pytest.mark.long
def test_binary_of_two_processes_prints_once(tiny, tmp_path):
    flags = [tiny, "--epochs=2", f"--cache_dir={tmp_path}/cache"]
    join = [f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", f"--out={tmp_path}/two"]
    command = ("tangent_jax", "finetune", *flags, *join)
    finish(*[run_binary.start(*command, f"--process_id={p}", stdout=tmp_path / f"{p}") for p in range(2)])
    lines = [(tmp_path / f"{p}").read_text().splitlines() for p in range(2)]
    (alone,) = output("finetune", *flags, f"--out={tmp_path}/one")[0].splitlines()
    assert json.loads(lines[0][-1])["accuracy"] == pytest.approx(json.loads(alone)["accuracy"], abs=1.5 / 899)
    assert not [line for line in lines[1] if line.startswith("{")]
    assert json.loads((tmp_path / "two/result.json").read_text())["accuracy"]

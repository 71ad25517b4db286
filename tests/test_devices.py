"""One, two and four devices, and two processes: the same results, one noise, one ledger, one stop."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 2e-5  # relative, of dw after a few epochs: sums over examples are formed in another order
DRAWN = {"noise", "coins"}  # with entropy


def start(folder, *arguments, devices=1):
    """A process of tests/job.py."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", ROOT / "tests/job.py", folder, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(*processes):
    for process in processes:
        _, stderr = process.communicate(timeout=500)
        assert process.returncode == 0, stderr[-3000:]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"{probe.getsockname()[1]}"


def job(folder, *more):
    """Two processes of one device each, to their end."""
    port = free_port()
    finish(*[start(folder, f"{process}", port, *more) for process in range(2)])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of each placement, {name: array}."""
    root = tmp_path_factory.mktemp("devices")
    for devices in (1, 4):
        finish(start(root / f"{devices}", devices=devices))
    job(root / "processes")
    names = {"1": "1/results", "4": "4/results", "processes": "processes/results", "other": "processes/results-1"}
    return {name: dict(np.load(root / f"{path}.npz")) for name, path in names.items()}


@pytest.mark.parametrize("placement", ["4", "processes"])
def test_results_are_those_of_one_device(results, placement):
    expected, given = results["1"], results[placement]
    for name in expected.keys() - DRAWN:
        error = np.linalg.norm(given[name] - expected[name])
        assert error <= TOLERANCE * np.linalg.norm(expected[name]), (name, error / np.linalg.norm(expected[name]))
    assert np.array_equal(expected["fit"], expected["streamed"])


def test_processes_hold_one_result(results):
    for name, value in results["processes"].items():
        assert np.array_equal(value, results["other"][name]), name
    assert np.ptp(results["processes"]["coins"])


@pytest.mark.parametrize("placement", ["1", "4", "processes"])
def test_noise_is_added_once(results, placement):
    """54,000 draws: their scale is 1 to 0.3 %; noise of two processes would have sqrt(2)."""
    noise = results[placement]["noise"]
    assert abs(np.std(noise) - 1) < 0.02
    assert abs(np.mean(noise)) < 0.02


def test_a_private_run_has_one_ledger(results):
    for given in results.values():
        assert given["paid"] == 4
        assert not given["read again"].any()


def test_a_stop_of_one_process_is_one_of_all_and_both_go_on_to_the_same_bits(results):
    for name in ("processes", "other"):
        assert 2 <= results[name]["epochs saved"] < 30
        assert not results[name]["went on"].any()


def test_features_of_processes_without_a_common_disk_are_those_of_one(results, tmp_path):
    job(tmp_path, "--apart", "--cached")
    for name in ("results", "results-1"):
        assert np.array_equal(np.load(tmp_path / f"{name}.npz")["features"], results["1"]["features"])
    assert {path.name for path in tmp_path.glob("cache*")} == {"cache-0", "cache-1"}


def test_the_same_number_of_devices_gives_the_same_bits(results, tmp_path):
    finish(start(tmp_path, "--trained", devices=4))
    for name, value in np.load(tmp_path / "results.npz").items():
        assert np.array_equal(value, results["4"][name]), name

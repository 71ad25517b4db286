"""Joining a job of several processes by `jax.distributed`: one that is named, or that the environment describes.

What the processes of a job do together is in placement.py.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import jax

from tangent_jax.core import placement, progress
from tangent_jax.core.checks import refusal, require

START_SECONDS = 300  # that processes of a job wait for one another


def cluster(environment: Mapping[str, str]) -> str | None:
    """The name of the cluster whose job of several processes the environment describes, or None.

    Not asked of JAX: it takes every pod of Kubernetes for a part of a job.
    """

    def count(name: str) -> int:
        return int(environment.get(name, "1"))

    is_slurm = {"SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_LOCALID"} <= {*environment}  # by srun
    described = {
        "slurm": is_slurm and count("SLURM_NTASKS") > 1,
        "ompi": count("OMPI_COMM_WORLD_SIZE") > 1,
        "gketpu": "," in environment.get("TPU_WORKER_HOSTNAMES", environment.get("TPU_PROCESS_ADDRESSES", "")),
        "k8s": {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= {*environment},  # an Indexed Job
        "gcetpu": environment.get("JAX_PLATFORMS", "") != "cpu" and find_spec("libtpu") is not None,
    }
    return next((name for name, there in described.items() if there), None)


def start(coordinator: str | None = None, processes: int | None = None, process_id: int | None = None) -> None:
    """Joins this process to its job by `jax.distributed`: the one that the arguments name, else the cluster's, if any.

    Args:   coordinator: HOST:PORT of process 0; processes: how many there are; process_id: 0 to processes - 1.
    Raises: InputError for arguments that name no job, and in process 0 for a port that is taken. Where a process does
            not come within START_SECONDS, this one ends with a line on stderr and exit code 1: JAX would abort.
    """
    given = [value for value in (coordinator, processes, process_id) if value is not None]
    do = "Give all three, or none on a cluster that JAX knows (Slurm, TPU, GKE, Open MPI)"
    require(len(given) in (0, 3), "start", "a job's three numbers together", f"{len(given)} of them", do)
    method = "deactivate" if given else cluster(os.environ)
    if method is None:
        return
    if given:
        _check_job(coordinator, processes, process_id)
    if process_id:  # in short tries, which a signal ends: JAX's own waiting answers none
        _reach(coordinator, time.monotonic() + START_SECONDS)

    def give_up() -> None:
        expected = f"{processes or 'all'} processes of the job within {START_SECONDS} s"
        print(f"start: expected {expected}; got fewer. Start all, with one coordinator.", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(START_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    try:
        by = None if method == "k8s" else method  # which has no name there
        options: Any = {"cluster_detection_method": by, "initialization_timeout": START_SECONDS + 60}
        jax.distributed.initialize(coordinator, processes, process_id, **options)
    except ValueError:
        require(method == "gcetpu", "start", "a job", f"one that JAX refuses ({method})", do)  # libtpu alone is no TPU
    finally:
        timer.cancel()
    progress.stop_together(jax.process_count() > 1)
    if jax.process_count() > 1:
        placement.least_memory()  # the first exchange, which on a CPU waits for half a minute only: before long work


def _check_job(coordinator: Any, processes: Any, process_id: Any) -> None:
    """Raises InputError for values that name no job, or where process 0 cannot have the port."""
    host, _, port = coordinator.rpartition(":")
    good = host and port.isdecimal() and 0 < int(port) < 1 << 16
    require(good, "start", "a coordinator HOST:PORT", coordinator)
    require(processes >= 1, "start", "at least 1 process", processes)
    require(0 <= process_id < processes, "start", f"a process_id of 0 to {processes - 1}", process_id)
    if process_id == 0:
        try:
            with socket.create_server(("", int(port))):
                pass
        except OSError as error:
            got = f"{coordinator} ({os.strerror(error.errno or 0)})"
            raise refusal("start", "a port that is free", got, "Choose another for all processes") from error


def _reach(coordinator: Any, until: float) -> None:
    """Waits until the coordinator answers, or the time is over; InputError for a host that has no address."""
    host, _, port = coordinator.rpartition(":")
    while time.monotonic() < until:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), 1):
                return
        except socket.gaierror as error:
            do = "Name the host of process 0"
            raise refusal(
                "start", "a coordinator that has an address", f"{coordinator} ({error.strerror})", do
            ) from error
        except OSError:
            time.sleep(0.2)

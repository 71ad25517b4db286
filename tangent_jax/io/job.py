"""Joins a job of several processes by `jax.distributed`: from arguments, or as the environment describes it.

placement.py holds what the processes of a job do together.
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

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.io import progress

START_SECONDS = 300  # seconds that the processes of a job wait for each other


def cluster(environment: Mapping[str, str]) -> str | None:
    """The cluster whose multi-process job the environment describes, or None.

    JAX's own detection is not used: it takes every Kubernetes pod for a part of a job. Pods get their numbers by flags
    (examples/cluster/finetune.yaml). Open MPI comes before Slurm, within whose jobs its processes are one task a host.
    JAX reads the coordinator of Open MPI 4 from the environment, that of Open MPI 5 by mpi4py alone.

    Raises:
        InputError: Open MPI 5 without mpi4py.
    """

    def count(name: str) -> int:
        return int(environment.get(name, "1"))

    is_slurm = {"SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_LOCALID"} <= {*environment}  # by srun
    if count("OMPI_COMM_WORLD_SIZE") > 1:
        if "OMPI_MCA_orte_hnp_uri" in environment:
            return "ompi"
        if find_spec("mpi4py") is None:
            raise InputError(
                "mpi4py must be installed under Open MPI 5, which JAX knows by it alone; it is not. Install it, or "
                "give coordinator=HOST:PORT, processes=N and process_id=$OMPI_COMM_WORLD_RANK"
            )
        return "mpi4py"
    described = {
        "slurm": is_slurm and count("SLURM_NTASKS") > 1,
        "gketpu": "," in environment.get("TPU_WORKER_HOSTNAMES", environment.get("TPU_PROCESS_ADDRESSES", "")),
        "gcetpu": environment.get("JAX_PLATFORMS", "") != "cpu"
        and find_spec("libtpu") is not None
        and "TPU_SKIP_MDS_QUERY" not in environment,  # which JAX sets where it finds no TPU
    }
    return next((name for name, there in described.items() if there), None)


def local_devices(environment: Mapping[str, str]) -> list[int] | None:
    """[], for all visible devices, if the process shares its host's devices with no other process; else None.

    With None, JAX takes one device under Slurm and Open MPI: the one with the process's number on its host.
    """
    one_task_a_host = environment.get("SLURM_NTASKS") == environment.get("SLURM_STEP_NUM_NODES", "")
    is_alone = one_task_a_host or environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    sees_one = "," not in environment.get("CUDA_VISIBLE_DEVICES", ",")  # by --gpus-per-task=1
    return [] if (is_alone or sees_one) and "JAX_LOCAL_DEVICE_IDS" not in environment else None


def start(coordinator: str | None = None, processes: int | None = None, process_id: int | None = None) -> None:
    """Joins this process to its job by `jax.distributed`: the job of the arguments, else the cluster's, if any.

    Args:
        coordinator: HOST:PORT of process 0.
        processes: How many there are.
        process_id: 0 to processes - 1.

    Raises:
        InputError: Arguments that name no job, and, in process 0, a port in use. If a process does not arrive within
            START_SECONDS, this one ends with a line on stderr and exit code 1, where JAX would abort.
    """
    given = [value for value in (coordinator, processes, process_id) if value is not None]
    advice = "Give all three, or none on a cluster that JAX knows (Slurm, TPU, GKE, Open MPI)"
    if len(given) not in (0, 3):
        raise InputError(
            f"coordinator, processes and process_id must be given together; got {len(given)} of them. {advice}"
        )
    method = "deactivate" if given else cluster(os.environ)
    if method is None:
        return
    if given:
        _check_job(coordinator, processes, process_id)
    until = time.monotonic() + START_SECONDS
    if process_id:  # in short tries, so that a signal ends them; JAX's own waiting ignores signals
        _reach(coordinator, until)

    def give_up() -> None:
        print(
            f"{processes or 'all'} processes of the job must start within {START_SECONDS} s; got fewer. Start all, "
            "with one coordinator",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(until - time.monotonic(), give_up)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process_id,
            local_device_ids=local_devices(os.environ),
            cluster_detection_method=method,
            initialization_timeout=START_SECONDS + 60,
        )
    except ValueError as error:
        if method != "gcetpu":  # libtpu may be there without a TPU
            raise InputError(f"the job must be one that JAX knows; it refuses {method} ({error}). {advice}") from error
    finally:
        timer.cancel()
    progress.stop_together(jax.process_count() > 1)
    if jax.process_count() > 1:
        placement.least_memory()  # the first exchange, which on a CPU waits half a minute: before long work


def _check_job(coordinator: Any, processes: Any, process_id: Any) -> None:
    """Raises InputError for values that name no job, or if process 0 cannot use the port."""
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"coordinator must be HOST:PORT; got {coordinator}")
    whole_number("processes", processes, 1)
    whole_number("process_id", process_id, 0, processes - 1)
    if process_id == 0:
        try:
            with socket.create_server(("", int(port))):
                pass
        except OSError as error:
            raise InputError(
                f"the port of {coordinator} must be free; got {os.strerror(error.errno or 0)}. Choose another for all "
                "processes"
            ) from error


def _reach(coordinator: Any, until: float) -> None:
    """Waits until the coordinator answers, or time is over; InputError for a host without an address by then.

    A Kubernetes pod has no address before it runs.
    """
    host, _, port = coordinator.rpartition(":")
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), 1):
                return
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.2)
            elif isinstance(error, socket.gaierror):
                raise InputError(
                    f"the host of {coordinator} must have an address; got {error.strerror}. Name the host of process 0"
                ) from error
            else:
                return

"""The number of cores that this process may use."""

import os


def cores() -> int:
    """The cores of this process's affinity, as Slurm, taskset and cpusets set it; on macOS those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""A flag of XLA for jaxlib 0.10.2, whose CPU compiler gives wrong sums. It counts if it is set before JAX computes."""

import os

from jaxlib.version import __version__

FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def avoid_wrong_sums() -> None:
    """Turns off the fusion of sums on CPUs in jaxlib 0.10.2, unless XLA_FLAGS names it (jax issue 39103).

    With it x * mean(x * u) was wrong by 10 % for x "t d" and u "k t d" of a million numbers: so were J of several steps
    side by side, rows of J, and NTK features, each of two trained blocks and more.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if __version__ == "0.10.2" and FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=-reduce".strip()

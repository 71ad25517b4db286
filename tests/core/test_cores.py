"""The cores of the process: of its affinity, for all threads of the library."""

import os

import pytest
from run_binary import ROOT

from tangent_jax.core.placement import cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="macOS has no affinity")
def test_cores_are_those_that_the_process_may_use():
    own = os.sched_getaffinity(0)
    assert cores() == len(own)
    os.sched_setaffinity(0, {min(own)})
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, own)


def test_only_one_place_counts_cores():
    sources = [*ROOT.glob("tangent_jax/**/*.py"), *ROOT.glob("experiments/**/*.py")]
    assert [path.name for path in sources if "cpu_count" in path.read_text()] == ["placement.py"]

"""The cores of the process: of its affinity, for all threads of the library."""

import os

import pytest

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

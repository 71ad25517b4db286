"""Tensors in one file: what does not fit its header."""

import numpy as np
import pytest

from tangent_jax.core import InputError
from tangent_jax.core.tensors import MOST_HEADER, encode


def test_metadata_that_no_header_holds_are_refused():
    """A component names each of its images: of a million that is too much (docs/benchmarks.md)."""
    with pytest.raises(InputError, match=r"encode: expected a header of at most 100,000,000 bytes; got 100,0"):
        encode({"a": np.zeros(1)}, {"provenance": "x" * MOST_HEADER})

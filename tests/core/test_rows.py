"""Rows of several arrays are those of their concatenation."""

import numpy as np
import pytest

from tangent_jax.core.rows import Parts

INDICES = {
    "one": 3,
    "negative": np.array([-1, 0, -5]),
    "of several parts": np.array([6, 0, 3, 3]),
    "a table": np.array([[0, 5], [2, 1]]),
    "a mask": np.array([True, False] * 4)[:7],
    "a slice": slice(1, 6, 2),
    "backwards": slice(None, None, -1),
    "rows and columns": (slice(1, 5), 1),
    "none": np.zeros(0, int),
}


@pytest.mark.parametrize("case", INDICES)
def test_parts_are_rows_of_their_concatenation(case):
    arrays = [np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2) + 10]
    np.testing.assert_array_equal(Parts(arrays)[INDICES[case]], np.concatenate(arrays)[INDICES[case]])


@pytest.mark.parametrize("row", [7, -8])
def test_a_row_outside_the_parts_is_refused(row):
    with pytest.raises(IndexError):
        Parts([np.zeros((3, 2)), np.zeros((4, 2))])[np.array([row])]

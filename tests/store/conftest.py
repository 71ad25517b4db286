"""No test of a store finds traces in the index of this machine's user."""

import pytest


@pytest.fixture(autouse=True)
def no_index(monkeypatch):
    """An index that cannot be made: its entries would be one more trace of a removal, where a file is old enough."""
    monkeypatch.setattr("tangent_jax.data.identifiers.INDEX", "/dev/null/index.sqlite")

"""No test of a store erases in the cache of this machine's user, which a removal searches by default."""

import pytest


@pytest.fixture(autouse=True)
def no_home(monkeypatch, tmp_path_factory):
    """A home without a cache, and an index that cannot be made: it keeps nothing of files that changed just now."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setattr("tangent_jax.data.identifiers.INDEX", "/dev/null/index.sqlite")

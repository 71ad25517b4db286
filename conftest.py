"""The names that the examples of docstrings (`>>>`) use: jax, jnp, np, tj, and `demo` (tests/demo.py)."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "tests"))


def pytest_collection(session):
    """Imports the library whole before its files are collected, so that each of them is one module."""
    if any("tangent_jax" in argument for argument in session.config.args):
        from experiments.shared.names import public_names

        public_names()


@pytest.fixture(autouse=True, scope="session")
def _names_of_examples(request, doctest_namespace):
    """Adds the names; where no example runs, nothing is imported for it."""
    if not any(isinstance(item, pytest.DoctestItem) for item in request.session.items):
        yield
        return
    import jax
    import jax.numpy as jnp
    import numpy as np
    from demo import Demo

    import tangent_jax as tj

    demo = Demo()
    doctest_namespace.update(jax=jax, jnp=jnp, np=np, tj=tj, demo=demo)
    yield
    demo.close()

"""What jaxlib's compiler for CPUs gets wrong, and the flag that avoids it."""

import os
import subprocess
import sys

SCRIPT = """
import tangent_jax
import jax, jax.numpy as jnp

def f(x, u):
    return u - x * jnp.mean(x * u, -1, keepdims=True)

x, u = jax.random.normal(jax.random.key(0), (394, 192)), jax.random.normal(jax.random.key(1), (16, 394, 192))
print(float(jnp.linalg.norm(jax.jit(f)(x, u) - f(x, u)) / jnp.linalg.norm(f(x, u))))
"""


def test_side_by_side_sums_are_right():
    """jaxlib 0.10.2 was wrong by 10 % here (jax issue 39103)."""
    others = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=others, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1e-6


def test_flags_of_the_user_are_kept(monkeypatch):
    from tangent_jax._xla import FLAG, avoid_wrong_sums

    monkeypatch.setenv("XLA_FLAGS", f"--first {FLAG}=")
    avoid_wrong_sums()
    assert os.environ["XLA_FLAGS"] == f"--first {FLAG}="

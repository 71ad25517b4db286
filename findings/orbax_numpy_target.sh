#!/usr/bin/env bash
# Orbax checks the shapes of a target of JAX arrays, and not those of a target of NumPy arrays.
#
# Versions  orbax-checkpoint 0.12.8, jax 0.10.2 (Python 3.11); the same with jax 0.12.0.1 (Python 3.13).
# Valid     restore(path, target) with the tree that the program expects, as the documentation advises.
# Seen      Three stored numbers and a target of five: with jnp.zeros(5) a ValueError, with np.zeros(5) the three
#           numbers, without a word; (2, 3) into np.zeros((3, 2)) stays (2, 3). The target's dtype is obeyed, though:
#           1e300 into float32 is inf, 300.7 into int8 is 44.
# So        Give jax.ShapeDtypeStruct targets, or compare shapes and dtypes afterwards.
#
#     bash findings/orbax_numpy_target.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import logging
import tempfile

logging.disable(logging.CRITICAL)
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp


def restored(array, target):
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(f"{folder}/step", {"a": array})
        checkpointer.wait_until_finished()
        return np.asarray(checkpointer.restore(f"{folder}/step", {"a": target})["a"])


stored = np.arange(3.0, dtype=np.float32)
shapes = [restored(stored, np.zeros(5, np.float32)).shape, restored(np.zeros((2, 3)), np.zeros((3, 2))).shape]
print("NumPy targets of (5,) and (3, 2) give", shapes)
refused = 0
for target in (jnp.zeros(5), jax.ShapeDtypeStruct((5,), jnp.float32)):
    try:
        restored(jnp.asarray(stored), target)
    except ValueError as error:
        refused += 1
        print("JAX target:", str(error)[:80])
cast = restored(np.array([300.7], np.float32), np.zeros(1, np.int8))[0], restored(np.array([1e300]), np.zeros(1, np.float32))[0]
print("300.7 into int8, 1e300 into float32:", *cast)
assert shapes == [(3,), (2, 3)] and refused == 2 and cast[0] == 44 and np.isinf(cast[1])
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

#!/usr/bin/env bash
# On a CPU, JAX compares subnormal numbers as zero, and keeps them: equal arrays have other bytes.
#
# Versions  jax 0.10.2 (Python 3.11); jax 0.12.0.1 (Python 3.13) does the same. CPU.
# Valid     float32 below 1.2e-38 occurs in Adam's second moments and in differences of nearly equal weights.
# Seen      jnp.array_equal([1e-40], [0]) is True and NumPy says False of the same two buffers; jnp.unique of (2e-40, 0,
#           1e-40) has one value, jnp.sort leaves them in that order, argmax of (0, 1e-40) is 0. Multiplying gives 0;
#           copies, jit of the identity and x + 0 under jit keep the bytes. bfloat16 does the same, float16 does not.
# So        Compare bytes (np.array_equal after np.asarray, or a hash) where bit for bit is meant. tangent_jax hashes
#           bytes.
#
#     bash findings/jax_subnormals.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import jax
import jax.numpy as jnp
import numpy as np

small, zero = jnp.full(1, 1e-40, jnp.float32), jnp.zeros(1, jnp.float32)
three = jnp.array([2e-40, 0, 1e-40], jnp.float32)
seen = {
    "jnp.array_equal": bool(jnp.array_equal(small, zero)),
    "np.array_equal": bool(np.array_equal(np.asarray(small), np.asarray(zero))),
    "values of jnp.unique": int(jnp.unique(three).size),
    "jnp.sort leaves the order": bool(np.array_equal(np.asarray(jnp.sort(three)), np.asarray(three))),
    "jnp.argmax of (0, 1e-40)": int(jnp.argmax(jnp.concatenate([zero, small]))),
    "times 1e10": float((small * 1e10)[0]),
    "bytes through jit": int(np.asarray(jax.jit(lambda x: x)(small)).view(np.uint32)[0]),
    "bfloat16 1e-39 == 0": bool(jnp.bfloat16(1e-39) == 0),
    "float16 1e-7 == 0": bool(jnp.float16(1e-7) == 0),
}
print(*(f"{name}: {value}" for name, value in seen.items()), sep="\n")
assert list(seen.values()) == [True, False, 1, True, 0, 0.0, 71362, True, False]
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

#!/usr/bin/env bash
# flax.serialization restores big-endian arrays as other numbers.
#
# Versions  flax 0.12.8, jax 0.10.2, numpy 2.4.6 (Python 3.11); the same with flax 0.12.12, jax 0.12.0.1 (Python 3.13).
# Valid     IDX files (MNIST), FITS and netCDF hold big-endian numbers, and NumPy computes with them as with any others.
# Seen      to_bytes stores the name of the dtype, which does not hold the byte order, and the bytes as they lie: 0, 1,
#           2 come back as 0, 4.6e-41, 9.2e-44 and no error is raised. Orbax 0.12.8 and np.save keep the values;
#           jnp.asarray refuses such an array.
# So        array.astype(array.dtype.newbyteorder("=")) when it is read.
#
#     bash findings/flax_msgpack_big_endian.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import io

import jax.numpy as jnp
import numpy as np
from flax import serialization

for dtype in (">f4", ">i4", ">f8", "<f4"):
    array = np.arange(3).astype(dtype)
    again = serialization.from_bytes({"a": np.zeros(3, dtype)}, serialization.to_bytes({"a": array}))["a"]
    print(dtype, array, "->", again, again.dtype)
    assert np.array_equal(array, again) == (dtype[0] == "<")
try:
    jnp.asarray(np.arange(3).astype(">f4"))
    raise SystemExit("jnp.asarray takes it now")
except TypeError as error:
    print("jnp.asarray:", str(error).splitlines()[0][:90])
file = io.BytesIO()
np.save(file, np.arange(3).astype(">f4"))
file.seek(0)
assert np.array_equal(np.load(file), [0, 1, 2])
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

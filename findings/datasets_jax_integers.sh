#!/usr/bin/env bash
# datasets' with_format("jax") cuts int64 to 32 bits: identifiers collide in silence.
#
# Versions  datasets 5.2.0, jax 0.10.2, pyarrow 26.0.1 (Python 3.11); the same with jax 0.12.0.1 (Python 3.13).
# Valid     Columns of int64 identifiers (of people, images, time stamps in microseconds), read for a JAX loop.
# Seen      2^40 + 1 is returned as 1 and 2^33 + 7 as 7, alone and in batches; 1e300 becomes inf. jnp.asarray of the
#           same Python number raises OverflowError. A column of whole numbers with one null is float32 in the numpy
#           format, seven digits, but int64 where a row is read alone.
# So        Keep identifiers in the numpy format or as text; tangent_jax reads parquet itself and knows images by their
#           content.
#
#     bash findings/datasets_jax_integers.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import warnings

warnings.filterwarnings("ignore")
import datasets
import jax.numpy as jnp
import numpy as np

ids = [2**40 + 1, 2**33 + 7, 1, 7]
read = datasets.Dataset.from_dict({"id": ids, "x": [1e300, 1.0, 2.0, 3.0]}).with_format("jax")
print(ids, "->", read[:]["id"], " one row:", read[0]["id"], " floats:", read[:]["x"])
try:
    jnp.asarray(ids[0])
    raise SystemExit("jnp.asarray takes it now")
except OverflowError as error:
    print("jnp.asarray:", str(error)[:80])
null = datasets.Dataset.from_dict({"n": [2**53 + 1, None]}).with_format("numpy")
print("with a null:", null[:]["n"].astype(float)[0] == 2.0**53, null[:]["n"].dtype, " one row:", null[0]["n"], null[0]["n"].dtype)
assert np.asarray(read[:]["id"]).tolist() == [1, 7, 1, 7] and int(read[0]["id"]) == 1 and np.isinf(float(read[0]["x"]))
assert null[:]["n"].dtype.kind == "f" and null[0]["n"].dtype.kind == "i"
print("as described")
P
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

#!/usr/bin/env bash
# jnp.cumsum of uint8 wraps at 256 where jnp.sum, jnp.cumulative_sum and NumPy's cumsum do not.
#
# Versions  jax 0.10.2 (Python 3.11); jax 0.12.0.1 (Python 3.13) does the same. CPU.
# Valid     Masks and one-hot labels are kept as uint8; positions in a packed batch are a cumsum of the mask.
# Seen      300 ones of uint8: sum 300 (uint32), cumulative_sum 300, cumsum 44, nancumsum 44, segment_sum 44;
#           cumulative_prod of three 10s is 232 (prod: 1,000), though the array API asks it to widen as cumulative_sum
#           does. Of bool, cumsum counts to 300.
# So        Give dtype=int32, or keep masks as bool.
#
#     bash findings/jax_cumsum_uint8.sh        a minute; exit code 0 if it is still so
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

ones, tens = jnp.ones(300, jnp.uint8), jnp.full(3, 10, jnp.uint8)
seen = {
    "jnp.sum": jnp.sum(ones),
    "jnp.cumulative_sum": jnp.cumulative_sum(ones)[-1],
    "jnp.cumsum": jnp.cumsum(ones)[-1],
    "jnp.nancumsum": jnp.nancumsum(ones)[-1],
    "jnp.cumsum of bool": jnp.cumsum(jnp.ones(300, bool))[-1],
    "np.cumsum": np.cumsum(np.ones(300, np.uint8))[-1],
    "jax.ops.segment_sum": jax.ops.segment_sum(ones, jnp.zeros(300, jnp.int32), 1)[0],
    "jnp.prod": jnp.prod(tens),
    "jnp.cumulative_prod": jnp.cumulative_prod(tens)[-1],
}
seen = {name: int(value) for name, value in seen.items()}
print(seen)
assert [seen[n] for n in ("jnp.sum", "jnp.cumulative_sum", "jnp.cumsum of bool", "np.cumsum")] == [300] * 4
assert [seen[n] for n in ("jnp.cumsum", "jnp.nancumsum", "jax.ops.segment_sum")] == [44] * 3
assert (seen["jnp.prod"], seen["jnp.cumulative_prod"]) == (1000, 232)
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

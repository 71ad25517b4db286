#!/usr/bin/env bash
# The gradient of a row that is read 1,000 times is 256 in bfloat16: scatters add one by one in their dtype.
#
# Versions  jax 0.10.2 (Python 3.11); jax 0.12.0.1 (Python 3.13) does the same. CPU.
# Valid     Embedding lookups, class tokens and position tables are e[index]; jax.ops.segment_sum counts by class.
# Seen      The transposed gather adds 1,000 ones into a bfloat16 number, and 256 + 1 is 256. sum, mean, cumsum, dot and
#           the gradient of a broadcast give 1,000, since XLA sums these in float32; .at[].add, segment_sum and lax.scan
#           give 256 as the gather does.
# So        Cast to float32 before indexing, not after, or multiply by a one-hot matrix.
#
#     bash findings/jax_gather_gradient_bf16.sh        a minute; exit code 0 if it is still so
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

ones, zeros = jnp.ones(1000, jnp.bfloat16), jnp.zeros(1000, jnp.int32)
seen = {
    "gradient of e[index]": jax.grad(lambda e: e[zeros].sum())(jnp.ones(2, jnp.bfloat16))[0],
    "gradient of e.astype(float32)[index]": jax.grad(lambda e: e.astype(jnp.float32)[zeros].sum())(jnp.ones(2, jnp.bfloat16))[0],
    "gradient of a broadcast": jax.grad(lambda b: (b * ones).sum())(jnp.bfloat16(1)),
    "segment_sum": jax.ops.segment_sum(ones, zeros, 1)[0],
    ".at[].add": jnp.zeros(1, jnp.bfloat16).at[zeros].add(ones)[0],
    "lax.scan": jax.lax.scan(lambda c, x: (c + x, None), jnp.zeros((), jnp.bfloat16), ones)[0],
    "sum": ones.sum(),
    "cumsum": jnp.cumsum(ones)[-1],
    "dot": ones @ ones,
}
seen = {name: float(value) for name, value in seen.items()}
print(*(f"{name}: {value:g}" for name, value in seen.items()), sep="\n")
assert {name for name, value in seen.items() if value == 256} == {"gradient of e[index]", "segment_sum", ".at[].add", "lax.scan"}
assert {value for value in seen.values()} == {256.0, 1000.0}
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

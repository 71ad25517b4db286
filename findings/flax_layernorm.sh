#!/usr/bin/env bash
# Flax's LayerNorm is wrong where the mean is large: 0.5 at a mean of 1,000, thousands at 10,000, for outputs near 1.
#
# Versions  flax 0.12.8, jax 0.10.2 (Python 3.11); the same with flax 0.12.12, jax 0.12.0.1 (Python 3.13). CPU, float32.
# Valid     nn.LayerNorm() and nnx.LayerNorm(192) with default settings, on 4 x 192 normal numbers plus a constant; deep
#           residual streams and raw features have such rows.
# Seen      The variance is mean(x^2) - mean(x)^2 (use_fast_variance=True), whose digits cancel. Largest error of
#           outputs that lie within 4: 2e-7 at mean 0, 0.003 at 100, 0.5 at 1,000, 3,900 at 10,000, where the variance
#           comes out as 0 or below. With use_fast_variance=False 9e-4 at 10,000; PyTorch's and NumPy's are like this.
# So        use_fast_variance=False. tangent_jax subtracts the mean first.
#
#     bash findings/flax_layernorm.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx

x = np.random.default_rng(0).normal(size=(4, 192)).astype(np.float32)


def error(normalise, mean):
    shifted = x + np.float32(mean)
    exact = shifted.astype(np.float64) - shifted.mean(-1, dtype=np.float64, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    return float(np.abs(np.asarray(normalise(jnp.asarray(shifted))) - exact).max())


of = {
    "linen": lambda x: nn.LayerNorm(use_bias=False, use_scale=False).apply({}, x),
    "nnx": nnx.LayerNorm(192, rngs=nnx.Rngs(0)),
    "linen, use_fast_variance=False": lambda x: nn.LayerNorm(use_bias=False, use_scale=False, use_fast_variance=False).apply({}, x),
}
seen = {name: {mean: error(normalise, mean) for mean in (0, 100, 1000, 10000)} for name, normalise in of.items()}
print(*(f"{name}: " + ", ".join(f"{m}: {e:.1g}" for m, e in errors.items()) for name, errors in seen.items()), sep="\n")
for name in ("linen", "nnx"):
    assert seen[name][0] < 1e-6 and seen[name][100] > 1e-3 and seen[name][1000] > 0.1 and seen[name][10000] > 100
assert seen["linen, use_fast_variance=False"][10000] < 0.01
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

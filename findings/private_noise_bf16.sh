#!/usr/bin/env bash
# The DP-SGD of optax and of jax_privacy adds no Gaussian noise to bfloat16 gradients: it has 128 values.
#
# Versions  optax 0.2.8, jax-privacy 2.0.0, jax 0.10.2 (Python 3.11); the same with jax 0.12.0.1 (Python 3.13). CPU.
# Valid     Both are gradient transformations that take gradients of any float dtype, and say nothing of bfloat16.
# Seen      The noise is drawn in the gradient's dtype. In bfloat16 jax.random.normal has 128 values between -2.89 and
#           2.52 and is not symmetric; float16 has 1,024 up to 3.5. An accountant assumes the normal law with all its
#           tails: an output beyond the largest value proves that the sum was another, so no epsilon holds. float32 has
#           940,000 values in a million draws.
# So        Keep the clipped sum and the noise in float32 and round afterwards; jax_privacy's
#           gaussian_privatizer(dtype=float32) draws so. tangent_jax draws its noise in float32.
#
#     bash findings/private_noise_bf16.sh        two minutes; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check optax==0.2.8 jax-privacy==2.0.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import warnings

warnings.filterwarnings("ignore")
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import noise_addition

SIZE = 1_000_000


def seen(noise):
    values = np.asarray(noise).astype(np.float64)
    return len(np.unique(values)), values.min(), values.max()


def of_optax(dtype):
    private = optax.contrib.differentially_private_aggregate(l2_norm_clip=1.0, noise_multiplier=1.0, key=jax.random.key(0))
    weights = {"w": jnp.zeros(SIZE, dtype)}
    return private.update({"w": jnp.zeros((1, SIZE), dtype)}, private.init(weights), weights)[0]["w"]


def of_jax_privacy(dtype, drawn_as=None):
    private = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0), dtype=drawn_as)
    total = {"w": jnp.zeros(SIZE, dtype)}
    return private.update(total, private.init(total))[0]["w"]


for name, noise in {"optax": of_optax, "jax_privacy": of_jax_privacy}.items():
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        values, low, high = seen(noise(dtype))
        print(f"{name}, {dtype.__name__}: {values} values from {low:.3f} to {high:.3f} in a million draws")
        assert values == {"bfloat16": 128, "float16": 1024}.get(dtype.__name__, values)
        assert (values > 900_000) == (dtype == jnp.float32)
        assert dtype != jnp.bfloat16 or (high < 2.6 and low > -3.0)
values, low, high = seen(of_jax_privacy(jnp.bfloat16, jnp.float32))
print(f"jax_privacy, bfloat16 with dtype=float32: {values} values from {low:.3f} to {high:.3f}")
assert high > 4.5 and low < -4.5  # rounded, with its tails
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

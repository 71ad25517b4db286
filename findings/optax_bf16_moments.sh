#!/usr/bin/env bash
# Adam's second moment and a moving average never forget where the weights are bfloat16.
#
# Versions  optax 0.2.8, jax 0.10.2 (Python 3.11); the same with jax 0.12.0.1 (Python 3.13). CPU.
# Valid     optax.adam(1.0), optax.ema(0.999) and optax.incremental_update(..., 0.001) of bfloat16 trees, with default
#           settings.
# Seen      The state has the dtype of the weights, and 0.999 is 1.0 in bfloat16: nothing decays. 5,000 steps after one
#           gradient of 100 among gradients of 0.1, Adam's step is 0.032 times the learning rate where float32 has 0.36.
#           mu_dtype=float32 changes the first moment alone, and the step stays. An average of ones (decay 0.999,
#           debiased) is 1.27 after 500 steps and 0.53 after 3,000.
# So        Keep the trained weights, or at least the optimizer's state, in float32 and cast for the forward pass.
#           tangent_jax keeps dw in float32.
#
#     bash findings/optax_bf16_moments.sh        two minutes; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import jax
import jax.numpy as jnp
import optax


def last_update(transformation, dtype, gradients):
    weights = {"w": jnp.zeros(1, dtype)}
    state, update = transformation.init(weights), jax.jit(transformation.update)
    for gradient in gradients:
        updates, state = update({"w": jnp.full(1, gradient, dtype)}, state, weights)
    return float(updates["w"][0])


spike = [100.0] + [0.1] * 5000
steps = {name: last_update(optax.adam(1.0), dtype, spike) for name, dtype in (("bf16", jnp.bfloat16), ("f32", jnp.float32))}
steps["bf16, mu_dtype=f32"] = last_update(optax.adam(1.0, mu_dtype=jnp.float32), jnp.bfloat16, spike)
print("Adam's update 5,000 steps after a gradient of 100:", steps)
means = {(n, d.__name__): last_update(optax.ema(0.999), d, [1.0] * n) for n in (10, 500, 3000) for d in (jnp.bfloat16, jnp.float32)}
print("moving average of ones:", means)
assert abs(steps["f32"] + 0.359) < 0.01 and abs(steps["bf16"] + 0.032) < 0.002 and abs(steps["bf16, mu_dtype=f32"] + 0.032) < 0.002
assert means[500, "bfloat16"] > 1.2 and means[3000, "bfloat16"] < 0.6
assert all(abs(means[n, "float32"] - 1) < 1e-4 for n in (10, 500, 3000))
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

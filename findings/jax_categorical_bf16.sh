#!/usr/bin/env bash
# jax.random.categorical takes the first of many equal classes where its logits are bfloat16.
#
# Versions  jax 0.10.2 (Python 3.11); jax 0.12.0.1 (Python 3.13) does the same. CPU.
# Valid     bfloat16 is what a mixed-precision network returns; categorical, choice(p=...) and bernoulli(p) accept it.
# Seen      The draws are made in the dtype of the logits. A bfloat16 uniform has 128 values, so the Gumbel noise has
#           128 values, ties are the rule, and argmax takes the first of them: of 1,000 equal classes the first 100 get
#           55 % of 100,000 draws, and classes from 886 on none. choice with p in bfloat16 never takes 872 of 1,000
#           equal items; bernoulli gives 0.0077 for p = 0.001 and 1.0 for 0.999.
# So        logits.astype(float32) before a draw, or mode="high" in categorical. tangent_jax draws in float32.
#
#     bash findings/jax_categorical_bf16.sh        a minute; exit code 0 if it is still so
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

key = jax.random.key(0)
first, chosen, rates = {}, {}, {}
for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
    name = dtype.__name__
    drawn = np.asarray(jax.random.categorical(key, jnp.zeros(1000, dtype), shape=(100_000,)))
    first[name] = float((drawn < 100).mean())
    counts = np.bincount(jax.random.choice(key, 1000, (100_000,), p=jnp.full(1000, 1e-3, dtype)), minlength=1000)
    chosen[name] = int((counts > 0).sum())
    rates[name] = float(jax.random.bernoulli(key, jnp.asarray(0.001, dtype), (1_000_000,)).mean())
    print(f"{name}: share of the first 100 of 1,000 equal classes {first[name]:.3f}, largest class drawn {drawn.max()};")
    print(f"  choice takes {chosen[name]} of 1,000 equal items; bernoulli(0.001) gives {rates[name]:.5f}")
high = np.asarray(jax.random.categorical(key, jnp.zeros(1000, jnp.bfloat16), shape=(100_000,), mode="high"))
print(f'bfloat16 with mode="high": share of the first 100 {(high < 100).mean():.3f}')
assert first["bfloat16"] > 0.5 and 0.13 < first["float16"] < 0.17 and 0.09 < first["float32"] < 0.11
assert chosen["bfloat16"] < 200 and chosen["float32"] == 1000
assert rates["bfloat16"] > 0.005 and 0.0009 < rates["float32"] < 0.0011
assert 0.09 < (high < 100).mean() < 0.11
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

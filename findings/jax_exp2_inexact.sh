#!/usr/bin/env bash
# jnp.exp2 of a whole number is no power of two on a CPU; 2.0 ** n is one.
#
# Versions  jax 0.10.2 (Python 3.11); jax 0.12.0.1 (Python 3.13) does the same. CPU.
# Valid     Scales of quantization, of losses and of rounding grids are powers of two, since multiplying by them is
#           exact.
# Seen      221 of the 254 exponents of float32 give another number than 2^n, also under jit, with relative errors up to
#           4e-6; 2^-126 comes out as 0. jnp.exp2(13) is 8192.004. jnp.power(2.0, n) and jnp.ldexp are exact for all
#           254.
# So        jnp.ldexp(1.0, n) where exactness counts.
#
#     bash findings/jax_exp2_inexact.sh        a minute; exit code 0 if it is still so
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

exponents = np.arange(-126, 128)
exact = np.ldexp(np.float32(1), exponents)
given = jnp.asarray(exponents, jnp.float32)
of = {
    "jnp.exp2": jnp.exp2(given),
    "jit(jnp.exp2)": jax.jit(jnp.exp2)(given),
    "jnp.power(2.0, n)": jnp.power(2.0, given),
    "jnp.ldexp(1, n)": jnp.ldexp(jnp.float32(1), exponents),
}
wrong = {name: int((np.asarray(values) != exact).sum()) for name, values in of.items()}
print("of 254 exponents, inexact:", wrong)
powers = np.asarray(of["jnp.exp2"])
print("jnp.exp2(13) =", powers[exponents == 13][0], " jnp.exp2(-126) =", powers[0], " largest relative error elsewhere", np.abs(powers[1:] / exact[1:] - 1).max())
assert wrong["jnp.exp2"] > 200 and wrong["jit(jnp.exp2)"] > 200
assert wrong["jnp.power(2.0, n)"] == wrong["jnp.ldexp(1, n)"] == 0
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

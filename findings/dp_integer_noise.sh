#!/usr/bin/env bash
# dp-accounting's RDP accountant forgets a count inside Poisson sampling where the noise multiplier is an int.
#
# Versions  dp-accounting 0.6.0 (Python 3.11).
# Valid     PoissonSampledDpEvent(q, SelfComposedDpEvent(GaussianDpEvent(sigma), count)): several releases on one
#           sample, such as a gradient and a clipped fraction, or microsteps.
# Seen      q = 0.1, count 4, delta 1e-5: epsilon 7.355 for sigma = 1.0, 2.133 for sigma = 1 or np.float32(1), which is
#           the cost of one release, with no warning. The four Gaussians are summed up in a field that is kept for
#           Python floats alone; two events of a ComposedDpEvent likewise count as one. The count outside of the
#           sampling is right for all, and the PLD accountant refuses the inner one.
# So        GaussianDpEvent(float(sigma)). tangent_jax makes every event so.
#
#     bash findings/dp_integer_noise.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check dp-accounting==0.6.0 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import dp_accounting as dp
import numpy as np
from dp_accounting import rdp


def epsilon(event):
    return float(rdp.RdpAccountant().compose(event).get_epsilon(1e-5))


inside, outside, pair = {}, {}, {}
for sigma in (1.0, 1, np.float32(1)):
    name, gaussian = type(sigma).__name__, dp.GaussianDpEvent(sigma)
    inside[name] = epsilon(dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(gaussian, 4)))
    outside[name] = epsilon(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, gaussian), 4))
    pair[name] = epsilon(dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([gaussian, gaussian])))
one = epsilon(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)))
print(f"one release {one:.3f}; four on one sample {inside}; two {pair}; four samples {outside}")
assert inside["int"] == inside["float32"] == pair["int"] == one and inside["float"] > 3 * one and pair["float"] > 1.5 * one
assert max(outside.values()) - min(outside.values()) < 1e-6
print("as described")
P
venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

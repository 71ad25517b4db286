#!/usr/bin/env bash
# dp-accounting: REPLACE_ONE doubles epsilon's cause in one accountant and changes nothing in the other.
#
# Versions  dp-accounting 0.6.0 (Python 3.11).
# Valid     One GaussianDpEvent(1.0) under NeighboringRelation.REPLACE_ONE, delta 1e-5, which both accountants accept.
# Seen      PLDAccountant 4.377 (add or remove one) becomes 9.997 (replace one): it doubles the sensitivity.
#           RdpAccountant stays at 4.729, so the noise multiplier means noise over the distance of two *neighbours*
#           there. Sampling without replacement, which RDP takes under REPLACE_ONE alone, follows the second reading:
#           all 100 of 100 is 4.729 too. Whoever divides by the clip norm gets half of the noise that RDP's epsilon asks
#           for.
# So        With RDP and REPLACE_ONE pass noise / (2 clip norm); with PLD noise / clip norm. tangent_jax accounts whole
#           and Poisson batches under add or remove one.
#
#     bash findings/dp_replace_one.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check dp-accounting==0.6.0 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import dp_accounting as dp
from dp_accounting import pld, rdp

relation = dp.NeighboringRelation
event = dp.GaussianDpEvent(1.0)


def epsilon(accountant, event, neighbours):
    return float(accountant(neighboring_relation=neighbours).compose(event).get_epsilon(1e-5))


seen = {(a.__name__, n.name): epsilon(a, event, n) for a in (pld.PLDAccountant, rdp.RdpAccountant) for n in (relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE)}
all_of_them = epsilon(rdp.RdpAccountant, dp.SampledWithoutReplacementDpEvent(100, 100, event), relation.REPLACE_ONE)
twice = epsilon(pld.PLDAccountant, dp.GaussianDpEvent(0.5), relation.ADD_OR_REMOVE_ONE)
print(*(f"{name}: {value:.3f}" for name, value in seen.items()), sep="\n")
print(f"100 of 100 without replacement, RDP: {all_of_them:.3f}; half the noise, PLD, add or remove one: {twice:.3f}")
assert abs(seen["PLDAccountant", "REPLACE_ONE"] - twice) < 0.01 and seen["PLDAccountant", "REPLACE_ONE"] > 2 * seen["PLDAccountant", "ADD_OR_REMOVE_ONE"]
assert seen["RdpAccountant", "REPLACE_ONE"] == seen["RdpAccountant", "ADD_OR_REMOVE_ONE"] == all_of_them
print("as described")
P
venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

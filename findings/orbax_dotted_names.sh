#!/usr/bin/env bash
# Orbax saves {"a.b": x, "a": {"b": y}} as one array: x is gone, and nothing says so.
#
# Versions  orbax-checkpoint 0.12.8, jax 0.10.2 (Python 3.11); the same with jax 0.12.0.1 (Python 3.13).
# Valid     A tree may hold flat names of PyTorch beside nested ones, such as a teacher's "head.bias" next to head:
#           {bias}.
# Seen      An array is stored under its path joined by dots, so both have the name a.b; saving succeeds, and restoring
#           gives the values of one for both leaves. Only where their shapes differ does saving fail. Names with a slash
#           do not collide.
# So        Nest by splitting at the dots, or replace the dots, before saving. tangent_jax numbers the leaves.
#
#     bash findings/orbax_dotted_names.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import logging
import tempfile

logging.disable(logging.CRITICAL)
import numpy as np
import orbax.checkpoint as ocp


def restored(tree):
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(f"{folder}/step", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(f"{folder}/step")


same = restored({"head.bias": np.ones(2), "head": {"bias": np.zeros(2)}})
slash = restored({"head/bias": np.ones(2), "head": {"bias": np.zeros(2)}})
print("saved 1 and 0:", same)
print("with a slash:", slash)
assert np.array_equal(same["head.bias"], same["head"]["bias"])
assert slash["head/bias"].sum() == 2 and slash["head"]["bias"].sum() == 0
print("as described")
P
JAX_PLATFORMS=cpu venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

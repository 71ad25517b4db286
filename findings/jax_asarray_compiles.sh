#!/usr/bin/env bash
# jnp.asarray of a NumPy array compiles a program for each shape from jax 0.10.1 on, and copies; with a dtype it does not.
#
# Versions  jax and jaxlib 0.10.0 and 0.10.2 (Python 3.11, CPU); 0.8.2 and 0.9.2 are as 0.10.0, and 0.10.1, 0.11.2 and
#           0.12.0.1 as 0.10.2.
# Valid     jnp.asarray(x), jnp.asarray(x, x.dtype) and jax.device_put(x) of float32 arrays of twenty shapes: the leaves
#           of a checkpoint.
# Seen      From 0.10.1 on the first compiles twenty programs (each the identity; half a second on two cores), and its
#           result is a copy; before, it compiled none, and an aligned array of NumPy's was shared. The two others compile
#           none and share in every version. So code that was written for one meaning has the other: a start-up that
#           grows by a program for each shape and dtype, twice the memory of a large array while it is copied, and
#           results that do or do not see later writes to x.
# So        jax.device_put, of a copy where the array may be written to; tangent_jax places arrays so (27 of the 52
#           programs that its finetune compiled were of this kind, or copies of single leaves).
#
#     bash findings/jax_asarray_compiles.sh        two minutes; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > run.py <<'P'
import jax
import jax.numpy as jnp
import numpy as np

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
)
jnp.zeros(1).block_until_ready()


def aligned(count):
    """An array of float32 whose memory begins at a multiple of 64 bytes."""
    room = np.empty(4 * count + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + 4 * count].view(np.float32)


found = {}
ways = {"asarray(x)": jnp.asarray, "asarray(x, x.dtype)": lambda x: jnp.asarray(x, x.dtype), "device_put(x)": jax.device_put}
for columns, (name, put) in enumerate(ways.items(), 7):
    compiled.clear()
    for rows in range(2, 22):
        put(np.ones((rows, columns), np.float32)).block_until_ready()
    programs = len(compiled)
    x = aligned(1 << 20)
    x[:] = 1
    y = put(x).block_until_ready()
    x[:] = 2
    found[name] = programs, float(y[0]) == 2
    print(f"jax {jax.__version__}: {name} compiles {programs} programs, {'shares memory' if found[name][1] else 'copies'}")
is_new = jax.__version__ == "0.10.2"
assert found == {"asarray(x)": (20, False) if is_new else (0, True), "asarray(x, x.dtype)": (0, True), "device_put(x)": (0, True)}
P
for version in 0.10.0 0.10.2; do
  python3 -m venv "v$version"
  "v$version/bin/python" -m pip install --quiet --disable-pip-version-check "jax==$version" "jaxlib==$version" numpy==2.4.6 \
    2>pip.log || { cat pip.log; exit 2; }
  JAX_PLATFORMS=cpu "v$version/bin/python" run.py
done
echo "as described"

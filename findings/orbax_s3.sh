#!/usr/bin/env bash
# Orbax writes the arrays of a checkpoint at s3:// to the local disk; the bucket gets metadata and a commit marker alone.
#
# Versions  orbax-checkpoint 0.12.8, etils 1.15.0, s3fs 2026.9.0, jax 0.10.2 (Python 3.11); moto 5.2.3 is the server.
# Valid     epath.Path("s3://...") is the type of path that Orbax takes, and it says that it is absolute.
# Seen      With OCDBT, the default, saving raises "Checkpoint path should be absolute. Got s3:/...": a slash is lost on the
#           way to TensorStore. With use_ocdbt=False the same path is taken for a relative one: the arrays go to a folder
#           "s3:" below the working directory, and to the bucket go _METADATA and commit_success.txt. Sometimes saving
#           ends without an error, sometimes with s3fs's FileNotFoundError of the last rename.
# So        write a checkpoint to a local folder and copy it as one object, as tangent_jax does.
#
#     bash findings/orbax_s3.sh        two to five minutes; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 'etils[epath]==1.15.0' \
  s3fs==2026.9.0 'moto[server]==5.2.3' jax==0.10.2 2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import os
import socket
import subprocess
import sys
import time

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
os.environ.update(
    AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
    AWS_DEFAULT_REGION="us-east-1", JAX_PLATFORMS="cpu",
)
try:
    for _ in range(150):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.2)
    import numpy as np
    import orbax.checkpoint as ocp
    import s3fs
    from etils import epath

    fs = s3fs.S3FileSystem()
    fs.mkdir("bucket")
    place = epath.Path("s3://bucket/run")
    assert place.is_absolute()
    try:
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(place / "default", {"a": np.arange(4.0)})
        refused = "saved"
    except ValueError as error:
        refused = str(error)
    print("OCDBT:", refused)
    try:
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(place / "plain", {"a": np.arange(4.0)})
        print("without OCDBT: saved")
    except FileNotFoundError as error:
        print("without OCDBT:", error)
    fs.invalidate_cache()
    there = sorted(name for name in fs.find("bucket") if "plain" in name)
    here = sorted(os.path.join(path, name) for path, _, names in os.walk("s3:") for name in names)
    print("in the bucket:", there)
    print("on the local disk:", here)
finally:
    server.kill()
assert refused.startswith("Checkpoint path should be absolute. Got s3:/bucket/"), refused
assert [name for name in there if name.endswith("_METADATA")], there
assert not [name for name in there if "/a/" in name], there
assert [name for name in here if "/a/" in name], here
print("as described")
P
venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

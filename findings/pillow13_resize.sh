#!/usr/bin/env bash
# Pillow 13 resizes a portrait picture to other pixels than Pillow 12: it takes the cheaper of the two axes first.
#
# Versions  pillow 13.0.0 against 12.3.0 and 11.3.0 (numpy 2.4.6, Python 3.11).
# Valid     Image.resize(size, filter) of an RGB picture, as torchvision, timm, open_clip and transformers call it.
# Seen      Both axes are filtered one after the other, and the values between are rounded and cut to 0..255. 11.3 and 12.3
#           filter rows first, always. 13.0 filters columns first where that is less work, as for a tall picture that
#           becomes square. On noise, bicubic differs by up to 23 levels of 255 here, and Lanczos by 47.
# So        two calls, the width first: picture.resize((width, picture.height)).resize((width, height)) has the bits of 11
#           and 12 with all three, and costs what 12 does. tangent_jax resizes so.
#
#     bash findings/pillow13_resize.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > run.py <<'P'
import hashlib
import json
import sys

import numpy as np
import PIL
from PIL import Image

rng = np.random.default_rng(0)
one_call, two_calls, largest = hashlib.sha256(), hashlib.sha256(), {}
for i in range(60):
    (rows, columns), (height, width) = rng.integers(20, 900, 2), rng.integers(8, 500, 2)
    picture = Image.fromarray(rng.integers(0, 256, (rows, columns, 3), np.uint8))
    for name in ("BILINEAR", "BICUBIC", "LANCZOS"):
        kind = Image.Resampling[name]
        one = picture.resize((int(width), int(height)), kind)
        two = picture.resize((int(width), picture.height), kind).resize((int(width), int(height)), kind)
        one_call.update(one.tobytes())
        two_calls.update(two.tobytes())
        difference = int(np.abs(np.asarray(one, int) - np.asarray(two, int)).max())
        largest[name] = max(largest.get(name, 0), difference)
found = {"one": one_call.hexdigest()[:12], "two": two_calls.hexdigest()[:12], "largest": largest}
print(PIL.__version__, json.dumps(found), file=sys.stderr)
print(json.dumps(found))
P
for version in 11.3.0 12.3.0 13.0.0; do
  python3 -m venv "$version"
  "$version/bin/python" -m pip install --quiet --disable-pip-version-check "pillow==$version" numpy==2.4.6 2>pip.log ||
    { cat pip.log; exit 2; }
  "$version/bin/python" run.py >"$version.json"
done
python3 - <<'P'
import json

old, middle, new = (json.load(open(f"{version}.json")) for version in ("11.3.0", "12.3.0", "13.0.0"))
assert old == middle and old["one"] == old["two"], "11.3 and 12.3 filter the rows first"
assert new["two"] == old["two"], "two calls have the same bits with each"
assert new["one"] != old["one"] and new["largest"]["BICUBIC"] > 10, "13.0 differs in one call"
print("as described")
P

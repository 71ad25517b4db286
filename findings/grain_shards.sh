#!/usr/bin/env bash
# grain's IndexSampler drops a record for every shard that is one longer, with drop_remainder=False too.
#
# Versions  grain 0.2.18 (Python 3.11).
# Valid     DataLoader over ten records, IndexSampler(10, shard_options=ShardOptions(i, 3)), whose drop_remainder is
#           False.
# Seen      The shards are (0, 1, 2), (4, 5, 6), (7, 8, 9): record 3 is read by nobody, in any epoch. SequentialSampler
#           leaves out record 9; slicing a MapDataset as dataset[i::3] reads all ten. Evaluation over shards counts nine
#           of ten.
# So        dataset[i::count], or pad. tangent_jax divides images by arithmetic of its own and tests that each is in one
#           shard.
#
#     bash findings/grain_shards.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check grain==0.2.18 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import grain
import numpy as np

records = np.arange(10)


def of(sampler):
    shards = []
    for i in range(3):
        options = grain.sharding.ShardOptions(i, 3, drop_remainder=False)
        loader = grain.DataLoader(data_source=records, sampler=sampler(options), worker_count=0)
        shards.append([int(x) for x in loader])
    return shards


seen = {
    "IndexSampler": of(lambda options: grain.samplers.IndexSampler(10, shard_options=options, shuffle=False, num_epochs=1)),
    "SequentialSampler": of(lambda options: grain.samplers.SequentialSampler(10, shard_options=options)),
    "MapDataset[i::3]": [[int(x) for x in grain.MapDataset.source(records)[i::3]] for i in range(3)],
}
print(*(f"{name}: {shards}" for name, shards in seen.items()), sep="\n")
assert sum(map(len, seen["IndexSampler"])) == sum(map(len, seen["SequentialSampler"])) == 9
assert sorted(sum(seen["MapDataset[i::3]"], [])) == list(range(10))
print("as described")
P
venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }

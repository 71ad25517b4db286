"""Workers killed at random moments end with the bits of one process: the long form of test_workers.py.

    python tests/farm_kills.py FOLDER --kills=5 --workers=4 --span=5 [flags of tangent-jax compose]

Each worker is killed at a random moment within --span seconds, five times, and then left alone.

Equal means, for every store: the names; the bytes of each component's numbers and of its factors; its provenance but
for the measured seconds; the bytes of the sum. Not equal: the order and times of the journal's lines, and file names.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run_binary import ROOT

from tangent_jax.composition.compose import compose
from tangent_jax.core import trees
from tangent_jax.store.store import Store


def content(stores):
    """All that two runs must have alike, by store and component."""
    table = {}
    for folder in sorted(Path(stores).iterdir()):
        store = Store(folder)
        assert store.verify() == []
        entries = {name: store.state.components[name] for name in store}
        table[folder.name] = {"sum": trees.fingerprint(compose(store))} | {
            name: (e.weights, e.factors and e.factors.weights, seconds_apart(store.provenance(name)))
            for name, e in entries.items()
        }
    return table


def seconds_apart(origin):
    return dataclasses.replace(origin, seconds=0.0)


def command(*flags):
    return [sys.executable, "-W", "ignore", "-m", "tangent_jax", "compose", *map(os.fspath, flags)]


def holds_a_claim(stores, pid):
    """True where a lock names this process: it trains a group, or was killed while it did."""
    locks = [path.read_text() for path in stores.glob("*/claims/*.lock")]
    return any(text.startswith(f"process {pid} ") for text in locks)


def until_done(flags, log, kills, span, rng):
    """Starts a worker again and again, killing it at random moments `kills` times; (kills, those that held a claim).

    Every second kill waits until the worker has begun to train: the start alone takes most of a short run.
    """
    killed, held, is_done = 0, 0, False
    stores = Path(next(flag for flag in flags if flag.startswith("--store=")).partition("=")[2])
    while True:
        with log.open("a") as file:
            child = subprocess.Popen(command(*flags), cwd=ROOT, stdout=file, stderr=file)
        waits = killed % 2 == 0 and killed < kills and not is_done
        while waits and child.poll() is None and not holds_a_claim(stores, child.pid):
            time.sleep(0.05)
        try:
            code = child.wait(rng.uniform(0, span) if killed < kills else 1200)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            code = child.wait()
            killed, held = killed + 1, held + holds_a_claim(stores, child.pid)
        assert code in (0, -signal.SIGKILL), log.read_text()[-2000:]
        is_done = code == 0
        if is_done and killed >= kills:
            return killed, held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("kills", 5), ("workers", 4), ("span", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given, flags = parser.parse_known_args()
    began = time.perf_counter()
    alone = [*flags, f"--store={given.folder / 'alone'}", f"--out={given.folder / 'out_alone'}"]
    subprocess.run(command(*alone), cwd=ROOT, check=True, stdout=sys.stderr)
    seconds = [time.perf_counter() - began]
    farm = [*flags, f"--store={given.folder / 'farm'}", f"--out={given.folder / 'out_farm'}"]

    def work(index):
        own = [*farm, f"--worker={index}/{given.workers}"]
        return until_done(own, given.folder / f"{index}.log", given.kills, given.span, random.Random(index))

    with ThreadPoolExecutor(given.workers) as pool:
        kills = [*pool.map(work, range(given.workers))]
    seconds.append(time.perf_counter() - began - seconds[0])
    counts = {name: len(table) - 1 for name, table in content(given.folder / "farm").items()}
    equal = content(given.folder / "alone") == content(given.folder / "farm")
    result = {"equal": equal, "components": counts, "kills": [k for k, _ in kills], "holding": [h for _, h in kills]}
    print(json.dumps(result | {"seconds": [round(s) for s in seconds]}))
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())

"""What `tests/test_devices.py` runs on one, two and four devices and in two processes: every trainer, on small shapes.

    python tests/job.py FOLDER [PROCESS PORT] [--PART ...] [--soon]

The parts are this file's functions, by default all but the last four of `main`; --soon: others must join within 2 s.
Process 0 writes FOLDER/results.npz, every other FOLDER/results-P.npz, which must be the same.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import jax
import numpy as np
from helpers import predictor, small
from recovered import recovered_noise

import tangent_jax as tj
from tangent_jax.audit.audit import run_openly
from tangent_jax.core import placement
from tangent_jax.data.sources import Examples
from tangent_jax.io import checkpoints as train_checkpoints
from tangent_jax.io import hosts, job
from tangent_jax.io.progress import request_stop, shown
from tangent_jax.models.trunk import Trunk
from tangent_jax.privacy import units
from tangent_jax.train.batches import Batches

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((52, 5)).astype(np.float32), RNG.integers(0, 3, 52).astype(np.int32)
START = {"bias": np.zeros(3, np.float32), "kernel": np.zeros((5, 3), np.float32)}
WIDE = {"bias": np.zeros(300, np.float32), "kernel": np.zeros((5, 300), np.float32)}


def linear(dw, x):
    return x @ dw["kernel"] + dw["bias"]


def batches(seed=0, size=6, **more):
    return Batches(X, Y, jax.random.key(seed), batch_size=size, **more)


def host(tree):
    return np.concatenate([placement.on_host(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def trained():
    """fit, resident and streamed; many models, whole on a device and divided; outputs; the bound of a distance."""
    settings = {"start": START, "epochs": 3, "optimizer": tj.adam(0.05)}
    fitted = tj.fit(linear, batches(), **settings, metrics={"accuracy": tj.metrics.accuracy})
    yield "fit", host(fitted.dw)
    yield "losses", np.array([row["loss"] for row in fitted.history])
    yield "measured", np.array([row["accuracy"] for row in fitted.history])
    yield "streamed", host(tj.fit(linear, batches(resident_bytes=300), **settings).dw)
    pairs = [(X[start : start + 7], Y[start : start + 7]) for start in range(0, 52, 7)]
    yield "pairs", host(tj.fit(linear, lambda epoch: pairs, **settings).dw)
    for count in (4, 3):
        runs = [Batches(X, Y, jax.random.key(s), rows=np.arange(s, 52, 4), batch_size=6) for s in range(count)]
        for s, many in enumerate(tj.fit_many(linear, runs, **settings)):
            yield f"many {count} {s}", host(many.dw)
    yield "outputs", tj.outputs(linear, fitted.dw, X, batch_size=7)
    yield "bound", np.array(tj.solver.distance_bound(linear, fitted.dw, batches(), tj.make_objective("ce", 0.1)))


def solved():
    """An optimum of a square loss of streamed inputs."""
    yield from optimum("streamed", linear, batches(resident_bytes=300), "rsl", START)


def factored():
    """An optimum with Kronecker factors, those of a ViT's block: processes that share a core take a minute."""
    predict, _ = predictor()
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((22, 6, 12)).astype(np.float32), rng.integers(0, 7, 22).astype(np.int32)
    yield from optimum("factors", predict, Batches(x, y, batch_size=6), "rsl", None)


def newton():
    yield from optimum("newton", linear, batches(), "ce", START)


def optimum(name, f, data, loss, dw):
    objective = tj.make_objective(loss, 0.3)
    solution = tj.solve(f, data, objective, start=dw, certificate=4e-5)  # two of them: within the tolerance
    yield f"solve {name}", host(solution.dw)
    yield f"solve {name} ends", np.array([float(solution.info.converged)])


def privately(folder):
    """The private trainer with a seed; with entropy: what each process drew, the noise in the steps; the ledger."""
    mechanism = tj.make_mechanism(3.0, 1e-5, 4)
    yield "private", host(tj.fit_private(linear, batches(size=8), mechanism=mechanism, start=START, seed=1).dw)
    streamed = batches(size=8, resident_bytes=300)
    yield "private streamed", host(tj.fit_private(linear, streamed, mechanism=mechanism, start=START, seed=1).dw)
    long, square = tj.make_mechanism(3.0, 1e-5, 30), tj.make_objective(lambda z, y: (z[:, 0] - y) ** 2, 0.0)
    run = run_openly(linear, WIDE, batches(size=8), long, square)
    yield "noise", np.concatenate([host(z) for z in recovered_noise(linear, run, batches(size=8), long, square)])
    poisson = tj.privacy.Mechanism(1.0, 1.0, 3, 1e-5, sampling_rate=0.3)
    samples = [units.sample(len(batches(size=8)), poisson, None, step) for step in range(3)]
    yield "coins", np.concatenate(samples).astype(float)
    settings = {"mechanism": mechanism, "start": START, "ledger": tj.Ledger(folder / "private")}
    fitted = tj.fit_private(linear, batches(size=8), **settings)
    yield "paid", np.array([fitted.info.spent.steps_paid])
    yield "read again", host(tj.fit_private(linear, batches(size=8), **settings).dw) - host(fitted.dw)


def slowly(folder):
    """A private run of many steps, each of which it writes down once taken; only where it is asked for."""
    mechanism, log = tj.make_mechanism(3.0, 1e-5, 60), (folder / "steps").open("a")

    def write(row, dw):
        if hosts.is_writer():
            print(row["step"], file=log, flush=True)
        time.sleep(0.02)

    data, settings = batches(size=26), {"mechanism": mechanism, "start": START, "ledger": tj.Ledger(folder / "slow")}
    yield "slow steps", np.array([tj.fit_private(linear, data, on_step=write, **settings).info.spent.steps_paid])


def saved(folder):
    """A run with a checkpoint at every epoch; only where it is asked for."""
    train_checkpoints.CHECKPOINT_SECONDS = 0.0
    settings = {
        "start": START,
        "epochs": 60,
        "optimizer": tj.adam(0.05),
        "checkpoints": tj.Checkpoints(folder / "saved"),
    }
    fitted = tj.fit(linear, batches(), on_step=lambda row, dw: time.sleep(0.02), **settings)
    yield "saved", host(fitted.dw)
    yield "saved losses", np.array([row["loss"] for row in fitted.history])


def stopped(folder):
    """Runs that the last process is asked to stop in their second epoch, by a signal or not, and one not stopped."""
    settings = {"start": START, "epochs": 30, "optimizer": tj.adam(0.05)}
    whole = tj.fit(linear, batches(size=26), **settings)
    if jax.process_count() == 1:
        return
    # SIGTERM JAX takes, and tells the others
    asks = {"a handler": request_stop, "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM)}
    for name, ask in asks.items():
        run = {"checkpoints": tj.Checkpoints(folder / name), "progress": shown, **settings}

        def on_step(row, dw, ask=ask):
            if row["epoch"] == 2 and jax.process_index() == 1:
                ask()
            time.sleep(0.1 * (row["epoch"] >= 2))

        with suppress(KeyboardInterrupt):
            tj.fit(linear, batches(size=26), on_step=on_step, **run)
        (saved,) = hosts.from_writer(partial(checkpoints, folder / name))
        yield f"{name}: epochs saved", np.array(len(json.loads(saved)["history"]))
        yield f"{name}: went on", host(tj.fit(linear, batches(size=26), **run).dw) - host(whole.dw)


def checkpoints(folder):
    return [path.read_text() for path in folder.glob("*/checkpoint.json")]


def apart():
    """What two processes raise that do not do the same, or of which one fails: all of them, and none waits."""
    process = jax.process_index()
    if jax.process_count() == 1:
        return

    def fail(row, dw):
        if process == 1:
            raise ZeroDivisionError("one of two")

    calls = {
        "inputs": lambda: tj.fit(linear, Batches(X * (1 + process), Y, jax.random.key(0)), start=START),
        "order": lambda: tj.fit_private(linear, batches(process), mechanism=tj.make_mechanism(3.0, 1e-5), start=START),
        "on_step": lambda: tj.fit(linear, batches(), start=START, on_step=fail),
    }
    for name, call in calls.items():
        try:
            call()
        except (tj.InputError, ArithmeticError, RuntimeError) as error:
            yield f"raised: {name}", np.array(float(("all processes of a job" in str(error)) == (name != "on_step")))


def cached(folder):
    """Features that the processes compute part by part, and an error of one of them."""
    model, w = small()
    images = np.random.default_rng(1).integers(0, 256, (150, 8, 8, 3)).astype(np.uint8)
    examples = Examples(tuple(f"{i}" for i in range(150)), np.zeros(150, np.int32), lambda i: images[i])

    def unreadable(i):
        if i >= 100:
            raise tj.InputError(f"no image {i}")
        return images[i]

    bad = Examples(tuple(f"bad {i}" for i in range(150)), np.zeros(150, np.int32), unreadable)
    for name, own in {"features": "cache", "features apart": f"cache-{jax.process_index()}"}.items():
        yield name, np.asarray(tj.extract(Trunk(model, w, 1), examples, tj.Cache(folder / own)).inputs)
        assert (folder / own).is_dir()
        with suppress(tj.InputError):
            tj.extract(Trunk(model, w, 0), bad, tj.Cache(folder / own))
            raise AssertionError("unreadable images were taken")


def divided():
    """A tree that is too large for a device, by the stated rule."""
    tree = {"a": np.ones((3, 8), np.float32), "b": np.ones(5, np.float32)}
    before, placement.memory = placement.memory, lambda: 100
    try:
        placed = placement.place(tree)
        fitted = tj.fit(linear, batches(), start=START, epochs=3, optimizer=tj.adam(0.05))
    finally:
        placement.memory = before
    size = placement.mesh().size
    if size > 1:
        assert placed["a"].addressable_shards[0].data.shape == (3, 8 // size)
        assert placed["b"].is_fully_replicated
    yield "divided", host(fitted.dw)


def main():
    folder, place = Path(sys.argv[1]), [a for a in sys.argv[2:] if not a.startswith("--")]
    if "--soon" in sys.argv:
        job.START_SECONDS = 2
    if place:
        job.start(f"127.0.0.1:{place[1]}", 2, int(place[0]))
    parts = {
        "trained": trained, "solved": solved, "privately": lambda: privately(folder),
        "stopped": lambda: stopped(folder), "cached": lambda: cached(folder), "divided": divided, "apart": apart,
        "factored": factored, "newton": newton, "slowly": lambda: slowly(folder), "saved": lambda: saved(folder),
    }  # fmt: skip
    chosen = [name for name in parts if f"--{name}" in sys.argv] or [*parts][:-4]
    results = {}
    for name in chosen:
        began = time.perf_counter()
        results.update(parts[name]())
        print(f"{name} {time.perf_counter() - began:.1f} s", file=sys.stderr)
    name = "results" if hosts.is_writer() else f"results-{jax.process_index()}"
    np.savez(folder / f"{name}.npz", **results)


if __name__ == "__main__":
    main()

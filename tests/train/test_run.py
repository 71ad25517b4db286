"""One frame and one result for every trainer."""

import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tqdm import tqdm

from tangent_jax.audit.canaries import Audited, make_canaries
from tangent_jax.audit.one_run import fit_audited
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io import progress
from tangent_jax.io.checkpoints import Checkpoints
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.progress import request_stop, show_progress, shown
from tangent_jax.privacy.mechanism import make_mechanism
from tangent_jax.privacy.train import Private, fit_private
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.optimum import Solved, solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.fit import fit
from tangent_jax.train.fit_many import fit_many
from tangent_jax.train.objective import make_objective
from tangent_jax.train.run import Fitted, Run

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 3)).astype(np.float32), RNG.integers(0, 3, 40)
START = {"kernel": np.zeros((3, 3), np.float32)}
DATA, ORDERED, SQUARE = Batches(X, Y), Batches(X, Y, jax.random.key(0)), make_objective("mse", 0.1)
MECHANISM = make_mechanism(3.0, 1e-5, 3)


def linear(dw, x):
    return x @ dw["kernel"]


def of_solve(**options):
    return solve(linear, DATA, SQUARE, start=START, **options)


def audited(folder):
    canaries = make_canaries(DATA, 3, 20)
    return fit_audited(linear, DATA, canaries, mechanism=MECHANISM, start=START, folder=folder)


RUNS = {
    "fit": lambda folder, **options: fit(
        linear, ORDERED, start=START, epochs=3, checkpoints=Checkpoints(folder), **options
    ),
    "fit_many": lambda folder: fit_many(linear, [ORDERED], start=START, epochs=2)[0],
    "solve": lambda folder, **options: of_solve(checkpoints=Checkpoints(folder), **options),
    "solve_many": lambda folder: next(
        solve_many(linear, DATA, SQUARE, example_weights=np.ones((1, 40)), start=of_solve())
    ),
    "fit_private": lambda folder, **options: fit_private(
        linear, DATA, mechanism=MECHANISM, start=START, ledger=Ledger(folder), **options
    ),
    "fit_audited": audited,
}


INFOS = {
    "fit": type(None),
    "fit_many": type(None),
    "solve": Solved,
    "solve_many": Solved,
    "fit_private": Private,
    "fit_audited": Audited,
}


@pytest.mark.parametrize("name", RUNS)
def test_trainers_return_one_type(tmp_path, name):
    fitted = RUNS[name](tmp_path)
    assert type(fitted) is Fitted
    assert {*fitted.dw} == {"kernel"}
    assert fitted.steps >= len(fitted.history) > 0
    assert fitted.seconds > 0
    assert type(fitted.info) is INFOS[name]
    saved = name in ("fit", "solve", "fit_private", "fit_audited")
    assert [path.parent.name for path in tmp_path.glob("*/checkpoint.json")] == ([fitted.run] if saved else [])


def test_path_is_no_checkpoints(tmp_path):
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(InputError, match=rf"checkpoints must be tj.Checkpoints\(folder\); got '{tmp_path}'. Pass"):
            solve(linear, DATA, SQUARE, start=START, checkpoints=folder)


@pytest.mark.parametrize(
    ("name", "done"), [("fit", "epoch 1 of 3"), ("solve", "pass 1 of 200"), ("fit_private", "step 1 of 3")]
)
def test_continued_run_is_told_once(tmp_path, capsys, name, done):
    line = f"{name}: resuming after {done}"
    with show_progress(name) as progress:
        with pytest.raises(KeyboardInterrupt):
            RUNS[name](tmp_path, on_step=lambda *_: request_stop(), progress=progress)
        assert "resuming" not in capsys.readouterr().err
        RUNS[name](tmp_path, progress=progress)
        assert [text for text in capsys.readouterr().err.splitlines() if "resuming" in text] == [line]
        RUNS[name](tmp_path, progress=progress)
        assert "resuming" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fit", "solve", "fit_private"])
def test_late_stop_loses_no_row(tmp_path, name):
    """In a job of processes a signal is known at one of both moments, by chance."""

    def late(**options):
        bar = shown(**options)
        update = bar.update

        def update_late(n=1):
            if n:  # at the end of a row
                request_stop()
            update(n)

        bar.update = update_late
        return bar

    with pytest.raises(KeyboardInterrupt):
        RUNS[name](tmp_path, progress=late)
    (saved,) = tmp_path.glob("*/checkpoint.json")
    assert len(json.loads(saved.read_text())["history"]) == 1
    whole = RUNS[name](tmp_path / "whole")
    if name != "fit_private":  # whose noise differs
        assert trees.fingerprint(RUNS[name](tmp_path).dw) == trees.fingerprint(whole.dw)


def test_progress_is_like_tqdm():
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(**options, disable=True)
            self.count = 0
            bars.append((options, self))

        def update(self, n=1):
            self.count += n

    fit(linear, ORDERED, start=START, epochs=3, progress=Bar)
    solved = of_solve(progress=Bar)
    assert [options["unit"] for options, _ in bars] == ["epoch", "pass"]
    assert [bar.count for _, bar in bars] == [3, solved.steps]


@pytest.mark.parametrize(("name", "value"), [("fit", "loss"), ("solve", "certificate")])
def test_progress_shows_its_own_step(tmp_path, capsys, monkeypatch, name, value):
    monkeypatch.setattr(progress, "EVERY", 1e-9)
    with progress.show_progress(name) as shown:
        fitted = RUNS[name](tmp_path, progress=shown)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(fitted.history)
    for line, row in zip(lines, fitted.history, strict=True):
        (said,) = re.findall(rf"{value if value in row else 'estimate'}=([0-9.e+-]+)", line)
        assert float(said) == pytest.approx(row.get(value, row.get("estimate")), rel=1e-2)


def test_any_result_is_a_start_of_a_solver():
    fitted = fit(linear, ORDERED, start=START, epochs=2)
    first, last = (solve(linear, DATA, SQUARE, start=start, certificate=1e-4) for start in (fitted, fitted.dw))
    assert trees.fingerprint(first.dw) == trees.fingerprint(last.dw)


def stops(run):
    try:
        run.check_stop()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("saved", [None, 0, 1])
def test_run_stops_amid_row_only_when_saved(saved):
    with Run(progress=shown) as run:
        run.show(3, "epoch")
        run.history.add({"epoch": 1})
        run.saved = None if saved is None else SimpleNamespace(steps=saved)
        request_stop()
        assert stops(run) == (saved != 0)
        if saved == 0:
            run.saved.steps = 1
            assert stops(run)

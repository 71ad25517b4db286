"""The log: a row for each step, once, whatever stopped the run; the same bits; private values alone."""

import csv
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.checkpoints import Checkpoints, Saver
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.log import Csv, log_steps, run_folder
from tangent_jax.io.packages import import_extra
from tangent_jax.io.progress import is_stopping, request_stop, shown
from tangent_jax.privacy.mechanism import make_mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.optimum import solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import Measure, accuracy
from tangent_jax.train.fit import fit
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam
from tangent_jax.train.run import OWN

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((44, 3)).astype(np.float32), RNG.integers(0, 3, 44)
START = {"kernel": np.zeros((3, 3), np.float32)}
CE, KEY = make_objective("ce", 0.1), jax.random.key(0)


def linear(dw, x):
    return x @ dw["kernel"]


def data(key=None):
    return Batches(X, Y, key, batch_size=8)


def kept(folder):
    return None if folder is None else Checkpoints(folder)


def by_adam(folder=None, **options):
    settings = {"optimizer": adam(0.1), "epochs": 4, "metrics": {"train_accuracy": accuracy}}
    return fit(linear, data(KEY), CE, start=START, checkpoints=kept(folder), **settings, **options)


def privately(folder=None, **options):
    ledger = None if folder is None else Ledger(folder)
    mechanism = make_mechanism(3.0, 1e-5, 6)
    return fit_private(linear, data(), CE, mechanism=mechanism, start=START, seed=0, ledger=ledger, **options)


def solved(folder=None, **options):
    return solve(linear, data(), CE, start=START, certificate=1e-4, checkpoints=kept(folder), **options)


RUNS = {"fit": by_adam, "fit_private": privately, "solve": solved}


def rows(folder):
    """The rows of the one run that a folder holds, without what a clock says."""
    (path,) = folder.glob("metrics/*/steps.csv")
    with path.open(newline="") as file:
        return [{name: v for name, v in row.items() if name != "examples_per_second"} for row in csv.DictReader(file)]


def logged(run, folder, writers=("csv",), **options):
    with log_steps(folder, writers) as log:
        return run(folder / "run", on_step=Measure(linear, data()), log=log, **options)


@pytest.mark.parametrize("name", RUNS)
def test_a_log_changes_no_bit_and_no_identity(tmp_path, name):
    plain = RUNS[name](tmp_path / "plain")
    watched = logged(RUNS[name], tmp_path / "logged")
    assert trees.fingerprint(watched.dw) == trees.fingerprint(plain.dw)
    assert watched.run == plain.run
    steps = [int(row["step"]) for row in rows(tmp_path / "logged")]
    assert steps == sorted({*steps})
    assert len(steps) == (24 if name == "fit" else len(watched.history))
    assert not (tmp_path / "plain/metrics").exists()


def test_the_rows_of_fit_are_its_steps(tmp_path):
    fitted, seen = logged(by_adam, tmp_path), rows(tmp_path)
    assert [int(row["step"]) for row in seen] == [*range(1, 25)]
    assert [int(row["epoch"]) for row in seen] == [e for e in (1, 2, 3, 4) for _ in range(6)]
    sizes = np.array([8, 8, 8, 8, 8, 4])
    for name in ("loss", "train_accuracy"):
        of_steps = np.array([float(row[name]) for row in seen]).reshape(4, 6)
        np.testing.assert_allclose((of_steps * sizes).sum(1) / 44, [row[name] for row in fitted.history], rtol=1e-12)
    measured = [row["test_accuracy"] for row in seen]
    assert [float(v) for v in measured[5::6]] == [row["test_accuracy"] for row in fitted.history]
    assert not any(measured[:5])


def scalars(folder, files="metrics/*/events.*"):
    """The (name, step) that TensorBoard shows of event files: by its Python reader, a restart hides the later steps."""
    shown = []
    for path in sorted(folder.glob(files)):
        raw = path.read_bytes()
        while raw:
            length = int.from_bytes(raw[:8], "little")
            event, raw = Event.FromString(raw[12 : 12 + length]), raw[16 + length :]
            if event.session_log.status == SessionLog.START:
                shown = [(name, step) for name, step in shown if step < event.step]
            shown += [(value.tag, event.step) for value in event.summary.value]
    return sorted(shown)


@pytest.mark.parametrize("name", RUNS)
def test_twice_stopped_run_keeps_its_rows(tmp_path, monkeypatch, name):
    """Once after a save; once, as by a kill, when rows were written that no save holds, the last of them cut."""
    writers = "csv", "tensorboard"
    whole = logged(RUNS[name], tmp_path / "whole", writers)
    monkeypatch.setattr(Saver, "is_due", lambda self, last: last or is_stopping())
    calls = []

    class Stops(Measure):
        def __call__(self, row, dw):
            calls.append(1)
            if len(calls) == 2:
                request_stop()
            if len(calls) == 4 and name != "fit_private":  # what its ledger paid for is not taken again
                raise RuntimeError
            return super().__call__(row, dw)

    with log_steps(tmp_path / "stopped", writers) as log:
        for _ in range(3):
            try:
                again = RUNS[name](tmp_path / "stopped/run", on_step=Stops(linear, data()), log=log, progress=shown)
            except (KeyboardInterrupt, RuntimeError):
                (path,) = tmp_path.glob("stopped/metrics/*/steps.csv")
                with path.open("a") as file:
                    file.write("1,9")
    assert len(calls) >= len(whole.history) + 1 * (name != "fit_private")
    assert trees.fingerprint(again.dw) == trees.fingerprint(whole.dw)
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    assert scalars(tmp_path / "stopped") == scalars(tmp_path / "whole")
    assert len({*scalars(tmp_path / "whole")}) == len(scalars(tmp_path / "whole")) > 20


def test_a_private_log_holds_private_values_alone(tmp_path):
    """No loss, no norm before clipping, no count of what is not finite; epsilon is what was paid so far."""
    fitted, seen = logged(privately, tmp_path), rows(tmp_path)
    names = {"step", "gradient_norm", "noise_multiplier", "epsilon", "test_accuracy"}
    assert {*seen[0]} == names
    assert float(seen[-1]["epsilon"]) == fitted.info.spent.compute_epsilon() == pytest.approx(3.0)
    epsilons = [float(row["epsilon"]) for row in seen]
    assert epsilons == sorted(epsilons)
    # as noise is, so is the norm of the gradient that is logged: of the noisy one
    sigma, norms = fitted.info.spent.mechanism.noise_multiplier, [float(row["gradient_norm"]) for row in seen]
    assert np.mean(norms) == pytest.approx(sigma * 3 / 44, rel=0.5)


@pytest.mark.parametrize("changes", [{"sampling_rate": 0.5}, {"unit": "owner"}])
def test_private_run_logs_no_sample_size(tmp_path, changes):
    of_owners = Batches(X, Y, batch_size=8, owners=np.arange(len(Y)) // 4)
    mechanism = make_mechanism(3.0, 1e-5, 3, **changes)
    with log_steps(tmp_path) as log:
        fit_private(linear, of_owners, CE, mechanism=mechanism, start=START, seed=0, log=log)
    (path,) = tmp_path.glob("metrics/*/steps.csv")
    assert path.read_text().splitlines()[0].split(",") == [
        "step", "gradient_norm", "noise_multiplier", "epsilon"
    ]  # fmt: skip


def test_other_settings_log_to_other_files(tmp_path):
    with log_steps(tmp_path) as log:
        for _ in range(2):
            by_adam(log=log)  # without a folder: never resumed
        fit(linear, data(jax.random.key(1)), CE, start=START, epochs=1, checkpoints=kept(tmp_path / "run"), log=log)
    assert len([*tmp_path.glob("metrics/*/steps.csv")]) == 3


def test_simultaneous_runs_have_own_folders(tmp_path, monkeypatch):
    """As two processes may do, none of which sees the other's folder yet."""
    monkeypatch.setattr(type(tmp_path), "exists", lambda self: False)
    assert [run_folder(tmp_path, None).name for _ in range(2)] == ["1", "2"]
    assert run_folder(tmp_path, "0123456789") == run_folder(tmp_path, "0123456789")


@pytest.fixture
def wandb(monkeypatch):
    """What a stand-in for Weights & Biases receives: the options of `init`, then (step, values)."""
    logs = []
    run = SimpleNamespace(log=lambda values, step: logs.append((step, values)), finish=lambda: logs.append("ended"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: logs.append(options) or run))
    return logs


@pytest.mark.parametrize("name", RUNS)
def test_wandb_id_is_of_resumable_run(tmp_path, wandb, name):
    """Two scripts without checkpoints write into folders of one name: as one run they would lose rows."""
    with log_steps(tmp_path, ["wandb"]) as log:
        RUNS[name](log=log)
        fitted = RUNS[name](tmp_path / "run", log=log)
    given = [options for options in wandb if isinstance(options, dict)]
    assert [(options.get("id"), options.get("resume")) for options in given] == [
        (None, None),
        (fitted.run[:8], "allow"),
    ]
    assert {options["reinit"] for options in given} == {"create_new"}  # a run that the script has begun goes on


def test_wandb_gets_each_row_at_its_step(tmp_path, wandb):
    fitted = logged(solved, tmp_path, ["wandb"])
    *logs, ended = wandb
    assert [step for step, _ in logs[1:]] == [row["passes"] for row in fitted.history]
    assert "step" not in logs[1][1]
    assert ended == "ended"


def test_a_writer_that_is_named_twice_writes_once(tmp_path):
    logged(solved, tmp_path, ["csv", "csv"])
    steps = [row["step"] for row in rows(tmp_path)]
    assert len(steps) == len({*steps})


@pytest.mark.parametrize("name", RUNS)
def test_on_step_replaces_no_own_value(tmp_path, name):
    for own in ("loss", "epsilon", "certificate", "step", *["train_accuracy"] * (name == "fit")):
        refused = pytest.raises(InputError, match=f"on_step must return other names than the run's own; got {own}. Re")
        with log_steps(tmp_path) as log, refused:
            RUNS[name](log=log, on_step=lambda row, dw, own=own: {own: 0.0, "other": 1.0})


@pytest.mark.parametrize("own", ["loss", "step", "gradient_norm"])
def test_metrics_replace_no_own_value(own):
    with pytest.raises(InputError, match=f"metrics must have other names than the run's own; got {own}. Rename"):
        fit(linear, data(KEY), CE, start=START, epochs=1, metrics={own: accuracy})
    with pytest.raises(InputError, match=f"metrics must have other names than the run's own; got {own}. Rename"):
        Measure(linear, data(), {own: accuracy})  # before a private run pays for its first step


@pytest.mark.parametrize("name", RUNS)
def test_every_row_name_is_the_runs(tmp_path, name):
    fitted = logged(RUNS[name], tmp_path)
    named = {*rows(tmp_path)[0], *(name for row in fitted.history for name in row)}
    assert named - {"train_accuracy", "test_accuracy"} <= {*OWN}
    assert "examples_per_second" in OWN


def test_new_value_becomes_a_column(tmp_path):
    writer = Csv(tmp_path, 0, None)
    writer.write([{"step": 1, "loss": 0.5}])
    writer.write([{"step": 2, "loss": 0.25, "accuracy": 1.0}])
    writer.close()
    assert (tmp_path / "steps.csv").read_text().splitlines() == ["step,loss,accuracy", "1,0.5,", "2,0.25,1.0"]


def test_asked_steps_are_traced(tmp_path, capsys):
    with log_steps(tmp_path, (), (2, 3)) as log:
        solved(log=log)
    assert "profile: steps 2 to " in capsys.readouterr().err
    assert len([*tmp_path.glob("profile/**/*.xplane.pb")]) == 1
    assert not (tmp_path / "metrics").exists()


def test_unloggable_is_refused_early(tmp_path):
    for options, message in (
        ({"writers": ["tsv"]}, "writers must be one of csv, tensorboard, wandb; got tsv"),
        ({"profile": (3, 2)}, "profile must be steps"),
        ({"profile": (0, 2)}, "profile must be steps"),
    ):
        with pytest.raises(InputError, match=message), log_steps(tmp_path, **options):
            pytest.fail("it began")
    with (
        pytest.raises(InputError, match="profile must end by step 6, the run's last; got 7"),
        log_steps(tmp_path, profile=(2, 7)) as log,
    ):
        privately(log=log)
    with pytest.raises(
        InputError, match=r"it needs no_such_module, which is not installed\. pip install .tangent-jax\[data\]"
    ):
        import_extra("it", "no_such_module", "data")

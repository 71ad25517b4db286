"""A private run's ledger and checkpoint: each names the other; where they do not fit nothing is trained."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io import ledger
from tangent_jax.io.files import fingerprint
from tangent_jax.io.ledger import Ledger
from tangent_jax.privacy import train as module
from tangent_jax.privacy.mechanism import Mechanism, make_mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.train.batches import Batches

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 3)).astype(np.float32), RNG.integers(0, 3, 40)
START = {"kernel": jnp.zeros((3, 3))}


def linear(dw, x):
    return x @ dw["kernel"]


def train(folder, steps=5, seed=None, **changes):
    options = {} if folder is None else {"ledger": Ledger(folder)}
    data, mechanism = Batches(X, Y), make_mechanism(3.0, 1e-5, steps)
    return fit_private(linear, data, mechanism=mechanism, start=START, seed=seed, **options, **changes)


def interrupted(folder, monkeypatch, after=3, **changes):
    """A run that was killed after some steps, each of them saved."""
    taken, real = [], module.take_step

    def step(*arguments, **options):
        taken.append(1)
        if len(taken) > after:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "take_step", step)
        patch.setattr(ledger, "SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            train(folder, **changes)


def edit(path, **changes):
    """Edits fields of a sealed record, without its seal."""
    record = json.loads(path.read_text())
    for name, value in changes.items():
        places = [record, *([record["spent"], record["spent"]["mechanism"]] if "spent" in record else [])]
        next(place for place in places if name in place)[name] = value
    path.write_text(json.dumps(record))


def reseal(path):
    """The seal computed anew, as an owner of the disk could."""
    record = json.loads(path.read_text())
    record.pop("sha256")
    path.write_text(json.dumps({**record, "sha256": fingerprint(json.dumps(record).encode())}) + "\n")


def checkpoint(folder):
    return next(folder.glob("*/checkpoint.json"))


def state_file(folder):
    return max((p for p in folder.glob("*/*/state/**/*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.parametrize(("delta", "count"), [(0.4, 2), (1 / 4, 1000), (0.1, None)])
def test_delta_is_below_one_in_all_units(delta, count):
    """A public count of 2 allowed delta 0.4 on 60 images, at epsilon 0."""
    mechanism = Mechanism(1.0, 50.0, 1, delta, count=count)
    with pytest.raises(InputError, match="delta must be < 1 / examples"):
        fit_private(linear, Batches(X, Y), mechanism=mechanism, start=START)


HARM = {
    "ledger deleted": lambda folder: (folder / "ledger.json").unlink(),
    "steps lowered": lambda folder: edit(folder / "ledger.json", steps_paid=0),
    "steps negative": lambda folder: edit(folder / "ledger.json", steps_paid=-5),
    "steps a word": lambda folder: edit(folder / "ledger.json", steps_paid="ten"),
    "noise raised": lambda folder: edit(folder / "ledger.json", noise_multiplier=100.0),
    "private claimed": lambda folder: edit(folder / "ledger.json", private=True),
    "ledger torn": lambda folder: (folder / "ledger.json").write_text((folder / "ledger.json").read_text()[:30]),
    "ledger a list": lambda folder: (folder / "ledger.json").write_text("[]"),
    "ledger binary": lambda folder: (folder / "ledger.json").write_bytes(b"\xff\xfe\x00\x80"),
    "checkpoint deleted": lambda folder: shutil.rmtree(checkpoint(folder).parent),
    "history edited": lambda folder: checkpoint(folder).write_text(checkpoint(folder).read_text().replace("1", "2")),
    "state altered": lambda folder: state_file(folder).write_bytes(state_file(folder).read_bytes()[::-1]),
    "state deleted": lambda folder: shutil.rmtree(next(folder.glob("*/*/state"))),
}


@pytest.mark.parametrize("resume", [False, True], ids=["finished", "interrupted"])
@pytest.mark.parametrize("harm", HARM)
def test_edited_ledger_trains_nothing(tmp_path, monkeypatch, harm, resume):
    seed = 3 if harm == "private claimed" else None
    interrupted(tmp_path, monkeypatch, seed=seed) if resume else train(tmp_path, seed=seed)
    HARM[harm](tmp_path)
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "ledger.lock"}
    monkeypatch.setattr(module, "take_step", lambda *_, **__: pytest.fail("a step was taken"))
    with pytest.raises(InputError) as error:
        train(tmp_path, seed=seed)
    assert "\n" not in str(error.value)
    assert left == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "ledger.lock"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps_paid": 0}, "must have paid the 5 steps taken; it has paid 0"),
        ({"steps_paid": 6}, r"steps_paid must be a whole number in 0\.\.5"),
        ({"steps": 6}, "must state the mechanism of this run; it states another"),
        ({"noise_multiplier": 100.0}, "must state the mechanism of this run; it states another"),
        ({"private": False}, "the mechanism of this run"),
    ],
)
def test_resealed_edit_contradicts_run(tmp_path, changes, match):
    train(tmp_path)
    edit(tmp_path / "ledger.json", **changes)
    reseal(tmp_path / "ledger.json")
    with pytest.raises(InputError, match=match):
        train(tmp_path)


@pytest.mark.parametrize("which", ["ledger.json", "checkpoint"])
def test_half_restored_backup_is_told(tmp_path, monkeypatch, which):
    interrupted(tmp_path / "run", monkeypatch, after=2)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    train(tmp_path / "run")
    if which == "ledger.json":
        shutil.copy(tmp_path / "backup/ledger.json", tmp_path / "run/ledger.json")
    else:
        folder = checkpoint(tmp_path / "run").parent
        shutil.rmtree(folder)
        shutil.copytree(checkpoint(tmp_path / "backup").parent, folder)
    with pytest.raises(InputError, match="older than the other"):
        train(tmp_path / "run")


def test_deleted_lock_stops_before_payment(tmp_path, monkeypatch):

    def delete(row, dw):
        (tmp_path / "ledger.lock").unlink()

    monkeypatch.setattr(ledger, "SAVE_SECONDS", 1e9)
    with pytest.raises(InputError, match="deleted while it was held"):
        train(tmp_path, on_step=delete)
    assert json.loads((tmp_path / "ledger.json").read_text())["spent"]["steps_paid"] == 1


def test_other_image_or_label_is_another_run(tmp_path):
    """The identity covers every row: version 0.1's sampled 64."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((500, 3)).astype(np.float32), rng.integers(0, 3, 500)
    options = {"ledger": Ledger(tmp_path), "seed": 0}
    mechanism = make_mechanism(3.0, 1e-5, 2)
    fit_private(linear, Batches(x, y), mechanism=mechanism, start=START, **options)
    for change in ("input", "label", "one less"):
        other, labels = x.copy(), y.copy()
        other[251, 1] += 1e-3 * (change == "input")
        labels[251] = (labels[251] + (change == "label")) % 3
        rows = np.arange(499 if change == "one less" else 500)
        with pytest.raises(InputError, match="another data set or setting"):
            fit_private(linear, Batches(other, labels, rows=rows), mechanism=mechanism, start=START, **options)
    fit_private(linear, Batches(x, y), mechanism=mechanism, start=START, **options)


def test_non_finite_count_survives_reading(tmp_path):
    x = X.copy()
    x[[5, 7]] = np.nan
    for _ in range(2):
        fitted = fit_private(
            linear, Batches(x, Y), mechanism=make_mechanism(3.0, 1e-5, 4), start=START, seed=0, ledger=Ledger(tmp_path)
        )
        assert sum(row["non_finite"] for row in fitted.history) == 8
    assert not any(row["non_finite"] for row in train(None).history)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: fit_private(linear, Batches(X, Y + 1), mechanism=make_mechanism(3.0, 1e-5), start=START),
            "class indices must be below 3, the number of classes",
        ),
        (
            lambda: fit_private(
                linear, Batches(X, Y), mechanism=make_mechanism(3, 1e-5), start={"kernel": jnp.zeros((3, 3), "float16")}
            ),
            "float32 or float64; got float16",
        ),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_overflowing_step_stops_the_run():
    with pytest.raises(InputError, match="the step must be finite; got a norm of inf after step 1"):
        train(None, optimizer=optax.sgd(1e30))

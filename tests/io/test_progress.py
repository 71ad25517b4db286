"""A bar's lines where stderr is no terminal, as in a job's log."""

import io
import sys

import numpy as np
import pytest

from tangent_jax.io import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(monkeypatch, stream, seconds, total=None):
    """The text that a bar writes when its steps take these seconds each."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.show_progress("training"), progress.progress_bar(total or len(seconds), "step") as bar:
        monkeypatch.setattr(bar, "_time", lambda: now[0])
        bar.start_t = bar.last_print_t = 0.0
        for of_step in seconds:
            now[0] += of_step
            bar.set_postfix(loss=now[0])
            bar.update()
    return stream.getvalue()


def test_log_has_a_line_every_30_seconds(monkeypatch):
    text = written(monkeypatch, io.StringIO(), [3.0] * 100)
    lines = text.splitlines()
    assert 9 <= len(lines) <= 11
    assert all(line.startswith("training: ") and "loss=" in line for line in lines)
    assert "\r" not in text
    assert "100/100" in lines[-1]


def test_log_keeps_lines_of_slow_steps(monkeypatch):
    """tqdm by itself waits for as many steps as it saw before."""
    lines = written(monkeypatch, io.StringIO(), [0.01] * 6000 + [10.0] * 12).splitlines()
    seconds = [float(line.partition("loss=")[2].rstrip("]")) for line in lines]
    assert max(np.diff([0.0, *seconds])) <= 40


@pytest.mark.parametrize("total", [3, 200])
def test_a_log_has_its_last_line_once(monkeypatch, total):
    """Also where a solver needs fewer passes than it may take."""
    lines = written(monkeypatch, io.StringIO(), [40.0] * 3, total).splitlines()
    assert len(lines) == 3
    assert all(f"{i}/{total} " in line and f"loss={40 * i}" in line for i, line in enumerate(lines, 1))


def test_short_work_leaves_nothing_in_a_log(monkeypatch):
    assert written(monkeypatch, io.StringIO(), [0.2] * 100) == ""


def test_a_terminal_has_a_bar_that_is_drawn_over(monkeypatch):
    assert written(monkeypatch, Terminal(), [0.2] * 100).count("\r") > 10


class Bare:
    """A stream that can be written to and no more, as programs that copy stderr make it."""

    def __init__(self):
        text = io.StringIO()
        self.write, self.flush, self.getvalue = text.write, text.flush, text.getvalue


def test_a_stderr_that_is_no_file_has_lines(monkeypatch):
    bare = Bare()
    assert len(written(monkeypatch, bare, [3.0] * 100).splitlines()) > 8
    bare.isatty = lambda: True
    assert "training: 100%" in written(monkeypatch, bare, [3.0] * 100)

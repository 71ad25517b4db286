"""A bar's lines where stderr is no terminal, as in a job's log."""

import contextlib
import io
import os
import sys

from tangent_jax.io import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(monkeypatch, stream, seconds, steps=100):
    """The text that a bar of some steps writes when each takes a hundredth of `seconds`."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.show_progress("training"), progress.progress_bar(steps, "step") as bar:
        monkeypatch.setattr(bar, "_time", lambda: now[0])
        bar.start_t = bar.last_print_t = 0.0
        for _ in range(steps):
            now[0] += seconds / steps
            bar.update()
            bar.set_postfix(loss=now[0])
    return stream.getvalue()


def test_a_log_has_one_plain_line_every_thirty_seconds(monkeypatch):
    text = written(monkeypatch, io.StringIO(), 300.0)
    lines = text.splitlines()
    assert 9 <= len(lines) <= 11
    assert all(line.startswith("training: ") and "loss=" in line for line in lines)
    assert "\r" not in text
    assert "100/100" in lines[-1]


def test_short_work_leaves_nothing_in_a_log(monkeypatch):
    assert written(monkeypatch, io.StringIO(), 20.0) == ""


def test_a_terminal_has_a_bar_that_is_drawn_over(monkeypatch):
    assert written(monkeypatch, Terminal(), 20.0).count("\r") > 10


def test_a_terminal_that_does_not_say_its_size_has_a_bar(monkeypatch):
    """A new pseudo-terminal has 0 rows and columns; `script` and containers may leave it so."""
    reader, writer = os.openpty()
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.show_progress("training"), progress.progress_bar(2, "step") as bar:
            bar.update(2)
    text = b""
    with contextlib.suppress(OSError):  # the end of what a closed pseudo-terminal holds
        while piece := os.read(reader, 1 << 16):
            text += piece
    os.close(reader)
    assert "training: 100%" in text.decode()

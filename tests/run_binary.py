"""Runs a binary as a user does, in a fork of one process that has imported what all of them import.

A start spends four seconds on imports; a fork does not. The server imports and computes nothing,
so a fork starts as a fresh process would, but for its modules. What ends in one line before any work needs no
process of its own (`refused`).
"""

import contextlib
import io
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import flagsaver

from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import EFFECTS

ROOT = Path(__file__).resolve().parents[1]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["dp_accounting", "matplotlib.pyplot", "orbax.checkpoint", "scipy.stats", "sklearn.datasets", "tangent_jax._public"]
)


def fork(module, arguments, stdout, stderr, environment):
    """What a fork does: `module`, a name or code, as `__main__`, with its output in two files."""
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    warnings.simplefilter("ignore")
    os.environ.update(environment)
    sys.argv = ["", *arguments]
    if "\n" in module:
        exec(compile(module, "code", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def module_of(binary):
    """The module of a binary: a command of the library, or an experiment such as "bench step"."""
    return f"{'tangent_jax.commands' if binary in COMMANDS else 'experiments'}.{binary.replace(' ', '.')}"


def start(module, *arguments, stdout=os.devnull, stderr=os.devnull, **environment):
    """The process of `python -m MODULE ARGUMENTS`, or `-c CODE`, in the checkout; the rest changes its environment."""
    request = (module, [os.fspath(a) for a in arguments], os.fspath(stdout), os.fspath(stderr), environment)
    process = SERVER.Process(target=fork, args=request)
    with contextlib.chdir(ROOT):
        process.start()
    return process


def output(binary, *arguments, code=0):
    """(stdout, stderr) of a binary started from the checkout, which must exit with `code`."""
    return output_of(module_of(binary), *arguments, code=code)


def output_of(module, *arguments, code=0):
    """(stdout, stderr) of a module or of code, as `output`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = start(module, *arguments, stdout=out, stderr=err)
        process.join()
        stderr = err.read_text()
        assert process.exitcode == code, stderr[-3000:]
        return out.read_text(), stderr


def run(binary, *arguments, code=0):
    """(last line of stdout, stderr), as `output`."""
    stdout, stderr = output(binary, *arguments, code=code)
    return stdout.strip().rpartition("\n")[2], stderr


def refused(binary, *arguments):
    """stderr of a binary that ends with exit code 1 before any work, run in this process with flags of its own."""
    err, handlers = io.StringIO(), {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with contextlib.ExitStack() as inside:
        for number, handler in handlers.items():
            inside.callback(signal.signal, number, handler)
        for remembered in (value for value in vars(setup).values() if hasattr(value, "cache_clear")):
            remembered.cache_clear()  # what other flags named
            inside.callback(remembered.cache_clear)
        inside.enter_context(flagsaver.flagsaver())
        inside.enter_context(mock.patch.dict(EFFECTS))
        inside.enter_context(mock.patch("absl.app.run", lambda main, flags_parser: main(flags_parser(sys.argv))))
        inside.enter_context(mock.patch.object(sys, "argv", ["", *map(os.fspath, arguments)]))
        inside.enter_context(contextlib.chdir(ROOT))
        inside.enter_context(contextlib.redirect_stdout(io.StringIO()))
        inside.enter_context(contextlib.redirect_stderr(err))
        inside.enter_context(warnings.catch_warnings(action="ignore"))
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module_of(binary), run_name="__main__", alter_sys=True)
    code = ended.value.code
    assert code == 1 or isinstance(code, str), code
    return err.getvalue() + (code if isinstance(code, str) else "")


def wait_until(process, condition, seconds=300):
    """Waits until the condition holds, the process has ended, or time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.exitcode is None and not condition():
        time.sleep(0.02)

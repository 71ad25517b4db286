"""Runs a binary as a user does, in a fork of one process that has imported what all of them import.

A start spends four seconds on imports; a fork does not. The server imports and computes nothing,
so a fork starts as a fresh process would, but for its modules.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tangent_jax.commands.shared.dispatch import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["dp_accounting", "matplotlib.pyplot", "orbax.checkpoint", "scipy.stats", "sklearn.datasets", "tangent_jax._public"]
)


def fork(module, arguments, stdout, stderr, environment):
    """What a fork does: `module` as `__main__`, with its output in two files."""
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    warnings.simplefilter("ignore")
    os.environ.update(environment)
    sys.argv = ["", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def module_of(binary):
    """The module of a binary: a command of the library, or an experiment such as "bench step"."""
    return f"{'tangent_jax.commands' if binary in COMMANDS else 'experiments'}.{binary.replace(' ', '.')}"


def start(module, *arguments, stdout=os.devnull, stderr=os.devnull, **environment):
    """The process of `python -m MODULE ARGUMENTS` in the checkout; its environment differs in what is given."""
    request = (module, [os.fspath(a) for a in arguments], os.fspath(stdout), os.fspath(stderr), environment)
    process = SERVER.Process(target=fork, args=request)
    with contextlib.chdir(ROOT):
        process.start()
    return process


def output(binary, *arguments, code=0):
    """(stdout, stderr) of a binary started from the checkout, which must exit with `code`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = start(module_of(binary), *arguments, stdout=out, stderr=err)
        process.join()
        stderr = err.read_text()
        assert process.exitcode == code, stderr[-3000:]
        return out.read_text(), stderr


def run(binary, *arguments, code=0):
    """(last line of stdout, stderr), as `output`."""
    stdout, stderr = output(binary, *arguments, code=code)
    return stdout.strip().rpartition("\n")[2], stderr


def wait_until(process, condition, seconds=300):
    """Waits until the condition holds, the process has ended, or time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.exitcode is None and not condition():
        time.sleep(0.02)

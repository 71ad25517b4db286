"""Runs a binary as a user does: in this process, with flags and caches of its own, or in a fork.

`make test` runs it here, so that runs share their compiled programs. `make test-all` (TANGENT_JAX_FORKS) forks one
process that has imported what all of them import: a start spends four seconds on imports, a fork does not. The server
computes nothing, so a fork starts as a fresh process would, but for its modules. What is killed, or has devices or an
environment of its own, is always a fork (`start`).
"""

import contextlib
import gc
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

import jax
from absl.testing import flagsaver

from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.core import placement

ROOT = Path(__file__).resolve().parents[1]
REMEMBER = ("tangent_jax.commands", "tangent_jax.io.progress", "experiments")
OF_ITS_PROCESS = ("--compilation_cache", "--help")
"""Flags that change the process of a binary."""
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "dp_accounting",
        "matplotlib.pyplot",
        "orbax.checkpoint",
        "scipy.stats",
        "sklearn.datasets",
        "tangent_jax.exports.folder",
        "tangent_jax.privacy.train",
        "tangent_jax.store.removal",
    ]
)


def fork(module, arguments, stdout, stderr, environment):
    """What a fork does: `module`, a name or code, as `__main__`, with its output in two files."""
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    warnings.simplefilter("ignore")
    gc.set_threshold(100_000, 20, 50)  # as conftest.py says
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
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")} | environment
    request = (
        module,
        [os.fspath(a) for a in arguments],
        os.fspath(stdout),
        os.fspath(stderr),
        {name: os.fspath(value) for name, value in environment.items()},
    )
    process = SERVER.Process(target=fork, args=request)
    with contextlib.chdir(ROOT):
        process.start()
    return process


def output(binary, *arguments, code=0):
    """(stdout, stderr) of a binary started from the checkout, which must exit with `code`."""
    if os.environ.get("TANGENT_JAX_FORKS") or any(str(word).startswith(OF_ITS_PROCESS) for word in arguments):
        return output_of(module_of(binary), *arguments, code=code)
    got, stdout, stderr = run_here(binary, *arguments)
    assert got == code, stderr[-3000:]
    return stdout, stderr


def output_of(module, *arguments, code=0, **environment):
    """(stdout, stderr) of a module or of code, as `output`; the rest changes its environment."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = start(module, *arguments, stdout=out, stderr=err, **environment)
        process.join()
        stderr = err.read_text()
        assert process.exitcode == code, stderr[-3000:]
        return out.read_text(), stderr


def run(binary, *arguments, code=0):
    """(last line of stdout, stderr), as `output`."""
    stdout, stderr = output(binary, *arguments, code=code)
    return stdout.strip().rpartition("\n")[2], stderr


def refused(binary, *arguments):
    """stderr of a binary that ends with exit code 1 before any work."""
    code, _, stderr = run_here(binary, *arguments)
    assert code == 1, code
    return stderr


def run_here(binary, *arguments):
    """(exit code, stdout, stderr) of a binary that runs in this process and leaves nothing behind in it."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.ExitStack() as inside:
        leave_as_found(inside)
        inside.enter_context(mock.patch("absl.app.run", lambda main, flags_parser: main(flags_parser(sys.argv))))
        inside.enter_context(mock.patch.object(sys, "argv", ["", *map(os.fspath, arguments)]))
        inside.enter_context(contextlib.chdir(ROOT))
        inside.enter_context(contextlib.redirect_stdout(out))
        inside.enter_context(contextlib.redirect_stderr(err))
        inside.enter_context(warnings.catch_warnings(action="ignore"))
        try:
            runpy.run_module(module_of(binary), run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
    said = f"{code}\n" if isinstance(code, str) else ""
    return 1 if said else code or 0, out.getvalue(), err.getvalue() + said


def leave_as_found(inside):
    """Flags, signals and what functions remember are a fresh process's inside, and later as they were."""
    for number in (signal.SIGINT, signal.SIGTERM):
        inside.callback(signal.signal, number, signal.getsignal(number))
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(REMEMBER)]
    for function in {id(value): value for module in modules for value in vars(module).values()}.values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()  # what other flags named, or what was said once
            inside.callback(function.cache_clear)
    inside.callback(placement.use_devices, None)
    inside.enter_context(jax.enable_x64(False))
    inside.enter_context(flagsaver.flagsaver())


def wait_until(process, condition, seconds=300):
    """Waits until the condition holds, the process has ended, or time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.exitcode is None and not condition():
        time.sleep(0.02)

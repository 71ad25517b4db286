"""Runs a binary as a user does, in a fork of one process that has imported what all of them import.

`python -m experiments.NAME` spends four seconds on imports; a fork does not. The server imports and computes nothing,
so a fork starts as a fresh process would, but for its modules.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVER = """
import json, os, runpy, sys, traceback
import dp_accounting, matplotlib.pyplot, orbax.checkpoint, scipy.stats, sklearn.datasets, tangent_jax
for line in sys.stdin:
    module, arguments, stdout, stderr = json.loads(line)
    pid = os.fork()
    if pid == 0:
        for number, path in ((1, stdout), (2, stderr)):
            os.dup2(os.open(path, os.O_WRONLY), number)
        sys.argv, code = ["", *arguments], 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@functools.cache
def server():
    """One for each worker, ended with it."""
    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def output(binary, *arguments, code=0):
    """(stdout, stderr) of a binary started from the checkout, which must exit with `code`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        out.touch()
        err.touch()
        request = [f"experiments.{binary}", [os.fspath(a) for a in arguments], str(out), str(err)]
        server().stdin.write(json.dumps(request) + "\n")
        server().stdin.flush()
        answer, stderr = server().stdout.readline(), err.read_text()
        assert int(answer) == code, stderr[-3000:]
        return out.read_text(), stderr


def run(binary, *arguments, code=0):
    """(last line of stdout, stderr), as `output`."""
    stdout, stderr = output(binary, *arguments, code=code)
    return stdout.strip().rpartition("\n")[2], stderr

"""A worker that submitit pickles and runs; it imports nothing heavy, as it only waits for a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tangent_jax.commands.shared.codes import of_signal


class Worker:
    """A command in a process of its own; `visible`: the GPUs of a local one, as CUDA_VISIBLE_DEVICES."""

    def __init__(self, command: Sequence[str], visible: str | None) -> None:
        self.command, self.visible, self.child = [*command], visible, 0

    def __call__(self) -> int:
        """Runs the command and returns its exit code, below 0 for a signal."""
        environment = dict(os.environ)
        if environment.get("SUBMITIT_EXECUTOR") == "local":  # submitit's local executor hides every GPU
            environment.pop("CUDA_VISIBLE_DEVICES", None)
            environment |= {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(of_signal(number)))  # submitit ignores it
        # in its own session: a scheduler's signal to the group would kill it instead of asking it to stop
        process = subprocess.Popen(self.command, env=environment, start_new_session=True)
        self.child = process.pid
        try:
            os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT)
        except BaseException:
            self.stop()
            raise
        return process.wait()

    def stop(self) -> None:
        """Asks the process to stop at its next safe point, and waits for it."""
        with suppress(ProcessLookupError, ChildProcessError):
            if not self.child:
                return  # not started: pid 0 would be this process's whole group
            os.kill(self.child, signal.SIGTERM)
            os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT)

    def checkpoint(self) -> Any:
        """The submission that submitit requeues before the job's time limit or preemption."""
        from submitit.helpers import DelayedSubmission

        self.stop()
        return DelayedSubmission(Worker(self.command, self.visible))

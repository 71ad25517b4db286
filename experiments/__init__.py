"""absl binaries, one per claim of the paper: `python -m experiments.NAME --help`."""

import os
import signal
import sys


def _interrupted(number: int, _: object) -> None:
    """While the libraries are imported nothing has begun, and an exception might be swallowed: end at once."""
    os.write(2, b"\ninterrupted before anything began\n")
    os._exit(128 + number)


if "pytest" not in sys.modules:
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, _interrupted)

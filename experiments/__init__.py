"""absl binaries, one per claim of the paper: `python -m experiments.NAME --help`."""

import os
import signal
import sys


def _interrupted(number: int, _: object) -> None:
    """Ends at once: while the libraries are imported nothing has begun, and they might swallow an exception."""
    os.write(2, b"\ninterrupted before anything began\n")
    os._exit(128 + number)


if "pytest" not in sys.modules:
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, _interrupted)

"""Where a command's time goes: the seconds of each phase, for result.json and for a line on stderr at the end."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
LOADED = time.monotonic()
SECONDS: defaultdict[str, float] = defaultdict(float)


def begin() -> None:
    """Starts the count of a command: what was before it is the phase `import`."""
    SECONDS.clear()
    SECONDS["import"] = age()


def count_compiled(event: str, duration_secs: float, **_: str | int) -> None:
    """Adds the seconds that XLA compiled, in any thread."""
    if event == COMPILED:
        SECONDS["compiling"] += duration_secs


jax.monitoring.register_event_duration_secs_listener(count_compiled)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Adds the seconds of a block, or of a function that it decorates, to a phase."""
    began = time.monotonic()
    try:
        yield
    finally:
        SECONDS[name] += time.monotonic() - began


def seconds() -> dict[str, float]:
    """The seconds of each phase until now; `compiling` lies within the others, `total` began with the process."""
    return {name: round(value, 2) for name, value in (*SECONDS.items(), ("total", age()))}


def age() -> float:
    """Seconds since this process began; where the system does not say when, since this module was loaded."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic() - LOADED

"""Settings of job scripts for any binary: a cache of compiled programs, a log of its steps, a trace of some."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import jax

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core.checks import require
from tangent_jax.io.files import expand_path


@contextmanager
def asked_for() -> Iterator[None]:
    """Within the `with` block, keeps compiled programs, and writes the log and the trace of the flags."""
    if F.compilation_cache is not None:
        keep_programs(F.compilation_cache)
    if "metrics" not in F:
        yield
        return
    with tj.log_steps(F.out, [name for name in F.metrics if name], profile_steps(F.profile_steps)):
        yield


def keep_programs(folder: str) -> None:
    """Makes JAX store every compiled program in a folder, for later starts.

    Raises: OSError if the folder cannot be written; JAX would only warn, at each program.
    """
    path = expand_path(folder).absolute()
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()
    jax.config.update("jax_compilation_cache_dir", str(path))
    # JAX's default stores programs that took a second; most here take less, and a run has dozens
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def profile_steps(text: str | None) -> tuple[int, int] | None:
    """The steps of --profile_steps=FIRST:LAST; InputError for other text."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    good = colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)
    require(good, "flags", "--profile_steps=FIRST:LAST with 1 <= FIRST <= LAST, such as 10:20", text)
    return int(first), int(last)

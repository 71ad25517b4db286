"""Settings of job scripts for any binary: a cache of compiled programs, a log of its steps, a trace of some."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

import tangent_jax as tj
from tangent_jax.commands.shared.settings import Job, Results, Settings
from tangent_jax.core.checks import InputError


@contextmanager
def asked_for(config: Settings) -> Iterator[None]:
    """Within the `with` block, keeps compiled programs, and writes the log and the trace of the flags."""
    if config.compilation_cache is not None:
        keep_programs(config.path("compilation_cache"))
    if not (isinstance(config, Job) and isinstance(config, Results)):
        yield
        return
    writers = [name for name in config.metrics if name]
    with tj.log_steps(config.out, writers, profile_steps(config.profile_steps)):
        yield


def keep_programs(folder: Path) -> None:
    """Makes JAX store every compiled program in a folder, for later starts.

    Raises:
        OSError: If the folder cannot be written; JAX would only warn, at each program.
    """
    path = folder.absolute()
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
    if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise InputError(f"--profile_steps must be FIRST:LAST with 1 <= FIRST <= LAST, such as 10:20; got {text}")
    return int(first), int(last)

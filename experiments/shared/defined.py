"""The binaries, and the flags that each defines, read without running them."""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from absl import flags
from absl.testing import flagsaver

from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.settings import Settings

EXPERIMENTS = Path(__file__).parents[1]


def binaries() -> dict[str, str]:
    """The module of each binary by its name, such as "bench step": of the commands, then of the experiments."""
    paths = sorted(path for path in EXPERIMENTS.rglob("*.py") if "\n    command.run(main" in path.read_text())
    own = [path.relative_to(EXPERIMENTS).with_suffix("").parts for path in paths]
    modules = {" ".join(parts): f"experiments.{'.'.join(parts)}" for parts in own}
    return {name: f"tangent_jax.commands.{name}" for name in COMMANDS} | modules


@contextmanager
def definitions(binary: str) -> Iterator[tuple[str, dict[str, flags.Flag], type[Settings]]]:
    """Within the `with` block flags are those of a binary: (its docstring, its flags by name, its Config)."""
    with flagsaver.flagsaver(), mock.patch("absl.app.run"):
        module = runpy.run_module(binaries()[binary], run_name="__main__", alter_sys=True)
        files = (module["__file__"], sys.argv[0])
        known = {flag.name: flag for file in files for flag in flags.FLAGS.get_key_flags_for_module(file)}
        yield module["__doc__"].strip(), dict(sorted(known.items())), module["Config"]


def defined(binary: str) -> tuple[str, dict[str, flags.Flag]]:
    """A binary's docstring, and its flags by name."""
    with definitions(binary) as (about, known, _):
        return about, known

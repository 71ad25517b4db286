"""The binaries, and the flags that each defines as it starts, read off the binaries; nothing of them runs."""

import runpy
import sys
from pathlib import Path
from unittest import mock

from absl import flags
from absl.testing import flagsaver

from tangent_jax.commands.main import COMMANDS

EXPERIMENTS = Path(__file__).parents[1]


def binaries() -> dict[str, str]:
    """The module of each binary by its name: of the commands, then of the experiments."""
    own = sorted(path.stem for path in EXPERIMENTS.glob("*.py") if "command.run(main" in path.read_text())
    return {name: f"tangent_jax.commands.{name}" for name in COMMANDS} | {name: f"experiments.{name}" for name in own}


def defined(binary: str) -> tuple[str, dict[str, flags.Flag]]:
    """A binary's docstring, and its flags by name."""
    with flagsaver.flagsaver(), mock.patch("absl.app.run"):
        module = runpy.run_module(binaries()[binary], run_name="__main__", alter_sys=True)
        files = (module["__file__"], sys.argv[0])
        known = {flag.name: flag for file in files for flag in flags.FLAGS.get_key_flags_for_module(file)}
    return module["__doc__"].strip(), dict(sorted(known.items()))

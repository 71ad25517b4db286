"""tangent-jax COMMAND --flags: lists the commands, or runs one."""

import sys

from tangent_jax import __version__
from tangent_jax.commands.shared.dispatch import COMMANDS, dispatch


def main() -> None:
    """The installed script tangent-jax."""
    if sys.argv[1:] == ["--version"]:
        return print(f"tangent-jax {__version__}")
    dispatch("tangent-jax", "tangent_jax.commands", COMMANDS)

"""tangent-jax COMMAND --flags: lists the commands, or runs one; only the one that runs is imported."""

import ast
import os
import runpy
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from tangent_jax._version import __version__

COMMANDS = ("finetune", "compose", "tasks", "private", "store", "inspect")


def main() -> None:
    """Runs the command that the arguments name; a wrong one is one line on stderr and exit code 1."""
    given = sys.argv[1] if len(sys.argv) > 1 else "none"
    if given in ("--help", "-h"):
        return print(listing())
    if given == "--version":
        return print(f"tangent-jax {__version__}")
    if given not in COMMANDS:
        sys.exit(f"tangent-jax: expected a command of {', '.join(COMMANDS)}; got {given}. Try tangent-jax --help.")
    end_at_a_signal()
    del sys.argv[1]
    try:
        runpy.run_module(f"{__package__}.{given}", run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if (error.name or "tangent_jax").startswith("tangent_jax"):
            raise
        sys.exit(f"{given}: expected the package {error.name}; got none. Install tangent-jax[data].")


def listing() -> str:
    """The text of --help: each command with the first sentence of its module."""
    lines = ["tangent-jax COMMAND --flags; tangent-jax COMMAND --help explains every flag of one.\n"]
    for name in COMMANDS:
        spec = find_spec(f"{__package__}.{name}")
        assert spec is not None
        assert spec.origin is not None
        about = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
        lines.append(f"{name:<9} {about.splitlines()[0]}")
    return "\n".join([*lines, "\ntangent-jax --version says the version."])


def end_at_a_signal() -> None:
    """Ends the process at once at a signal, until `command.run` takes over: while libraries are imported nothing has
    begun, and they might swallow an exception.
    """

    def end(number: int, _: object) -> None:
        os.write(2, b"\ninterrupted before anything began\n")
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

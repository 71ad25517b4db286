"""COMMAND --flags: lists the commands of a program, or imports and runs one of them."""

import ast
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tangent_jax.commands.shared.codes import of_signal

COMMANDS = ("finetune", "compose", "tasks", "private", "store", "inspect")
"""The commands of `tangent-jax`."""


def dispatch(program: str, package: str, names: Sequence[str]) -> None:
    """Runs the module of a package that the first argument names, as `python -m` would; --help lists them.

    Args:
        program: The name it is called by.
        names: The names of the modules.

    Raises:
        SystemExit: With one line for an unknown name, or a package that is not installed.
    """
    given = sys.argv[1] if len(sys.argv) > 1 else "none"
    if given in ("--help", "-h"):
        return print(listing(program, package, names))
    if given not in names:
        sys.exit(f"{program}: the first argument must be one of {', '.join(names)}; got {given}. Try {program} --help.")
    end_at_a_signal()
    del sys.argv[1]
    try:
        runpy.run_module(f"{package}.{given}", run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if (error.name or "tangent_jax").startswith("tangent_jax"):
            raise
        extra = "data" if package.startswith("tangent_jax") else "experiments"
        sys.exit(f"{given}: the package {error.name} must be installed; it is missing. Install tangent-jax[{extra}].")


def listing(program: str, package: str, names: Sequence[str]) -> str:
    """The text of --help: each command with the first line of its module."""
    lines = [f"{program} COMMAND --flags; {program} COMMAND --help explains every flag of one.\n"]
    for name in names:
        spec = find_spec(f"{package}.{name}")
        assert spec is not None
        assert spec.origin is not None
        about = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
        lines.append(f"{name:<{max(map(len, names))}}  {about.splitlines()[0]}")
    return "\n".join(lines)


def end_at_a_signal() -> None:
    """Ends the process at once at a signal, until `command.run` handles signals.

    While libraries are imported no work has begun, and they might swallow an exception.
    """

    def end(number: int, _: object) -> None:
        os.write(2, b"\ninterrupted before anything began\n")
        os._exit(of_signal(number))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

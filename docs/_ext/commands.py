"""The flags of every binary, read off the binaries, below the table in binaries.md."""

import functools
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

from absl import flags
from absl.testing import flagsaver

from tangent_jax.commands.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def binaries() -> list[str]:
    """The names of all binaries."""
    own = (p.stem for p in (ROOT / "experiments").glob("*.py") if "command.run(main" in p.read_text())
    return [*COMMANDS, *sorted(own)]


def defined(binary: str) -> tuple[str, dict[str, flags.Flag]]:
    """A binary's docstring and its flags by name, as it defines them when it starts; nothing of it runs."""
    with flagsaver.flagsaver(), mock.patch("absl.app.run"):
        package = "tangent_jax.commands" if binary in COMMANDS else "experiments"
        module = runpy.run_module(f"{package}.{binary}", run_name="__main__", alter_sys=True)
        files = (module["__file__"], sys.argv[0])
        known = {flag.name: flag for file in files for flag in flags.FLAGS.get_key_flags_for_module(file)}
    return module["__doc__"].strip(), dict(sorted(known.items()))


def row(flag: flags.Flag) -> str:
    """A line of the table: the flag, its default and its values, what it means."""
    default = (flag.default_as_str or "").strip("'")
    values = " ".join(f"`{value}`" for value in getattr(flag.parser, "enum_values", None) or ())
    about = re.sub(r"^<[^>]*>: ", "", flag.help or "")  # absl puts an enum's values before what it means
    text = re.sub(r"([*<|\[])", r"\\\1", about)
    return f"| `--{flag.name}` | {f'`{default}`' if default else ''} | {text} {values} |\n"


def table(known: dict[str, flags.Flag]) -> str:
    """Flags as a table in Markdown."""
    return "| flag | default | |\n|---|---|---|\n" + "".join(map(row, known.values()))


@functools.cache
def text() -> str:
    """The sections of all binaries, in Markdown."""
    all_of_them = {binary: defined(binary) for binary in binaries()}
    shared = set.intersection(*({*known} for _, known in all_of_them.values()))
    first = next(iter(all_of_them.values()))[1]
    parts = ["\n## Flags of every binary\n", table({name: first[name] for name in sorted(shared)})]
    for binary, (about, known) in all_of_them.items():
        own = {name: flag for name, flag in known.items() if name not in shared}
        parts += [f"\n## {binary}\n", f"```text\n{about}\n```\n", table(own)]
    return "\n".join(parts)


def append(app, docname: str, source: list[str]) -> None:
    """What Sphinx calls with every page that it reads, to change its text in place."""
    if docname == "binaries":
        source[0] += text()


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("source-read", append)
    return {"parallel_read_safe": True}

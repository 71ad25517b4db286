"""The exit codes and the flags of every command, read off the commands, at the end of reference/commands.md."""

import functools
import re

from absl import flags

from experiments.shared.defined import binaries, defined
from tangent_jax.commands.shared.codes import MEANINGS

PAGE = "reference/commands"


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


def codes() -> str:
    """The table of exit codes, in Markdown."""
    rows = [(" or ".join(map(str, row.codes)), row.means, row.stderr, row.again) for row in MEANINGS]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n| exit code | means | on stderr | start it again? |\n|---|---|---|---|\n{lines}"


@functools.cache
def text() -> str:
    """The exit codes and the sections of all commands, in Markdown."""
    all_of_them = {binary: defined(binary) for binary in binaries()}
    shared = set.intersection(*({*known} for _, known in all_of_them.values()))
    first = next(iter(all_of_them.values()))[1]
    parts = [codes(), "\n## Flags of every command\n", table({name: first[name] for name in sorted(shared)})]
    for binary, (about, known) in all_of_them.items():
        own = {name: flag for name, flag in known.items() if name not in shared}
        parts += [f"\n## {binary}\n", f"```text\n{about}\n```\n", table(own)]
    return "\n".join(parts)


def append(app, docname: str, source: list[str]) -> None:
    """What Sphinx calls with every page that it reads, to change its text in place."""
    if docname == PAGE:
        source[0] += text()


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("source-read", append)
    return {"parallel_read_safe": True}

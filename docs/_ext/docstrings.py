"""Our docstrings (the template in STYLE: prose, equations indented, `Args:` and its like) as reStructuredText.

Args:       x: the input;        ->    :Args:
            y: its label.              - **x**: the input;
                                       - **y**: its label.
"""

import inspect
import re
from collections.abc import Iterable, Iterator

SECTION = re.compile(r"(Args|Source|Returns|Yields|Guarantees|Edge cases|Raises):\s+(.*)")
FIELDS = re.compile(r"(?:^|(?<=[;.] ))(`\w+`(?:, `\w+`)*): ")
SPECIAL = re.compile(r"([\\*|_<>`])")


def escaped(text: str) -> str:
    """The text, of which no sign means anything to reStructuredText."""
    return SPECIAL.sub(r"\\\1", text)


def inline(text: str) -> str:
    """One paragraph: code between backticks stays code, all other signs stand for themselves."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    parts[::2] = map(escaped, parts[::2])
    parts[1::2] = [rf"\ ``{part}``\ " for part in parts[1::2]]
    return "".join(parts)


def listed(text: str, names: Iterable[str]) -> list[str]:
    """The lines of a section: a list where it names parameters (`a, b: what; c: what`), else one paragraph."""
    known = "|".join(map(re.escape, names)) or "(?!)"
    parts = re.split(rf"(?:^|(?<=[;.] ))((?:{known})(?:, (?:{known}))*): ", " ".join(text.split()))
    lines = [inline(parts[0])] if parts[0].strip() else []
    for name, what in zip(parts[1::2], parts[2::2], strict=True):
        lines += ["", f"- **{escaped(name)}**: {inline(what.strip().rstrip(';'))}"]
    return lines


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """A docstring's paragraphs, equations, examples and sections, each a list of its lines."""
    block: list[str] = []
    for line in lines:
        if not line.strip() or SECTION.match(line):
            if block:
                yield block
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield block


def converted(lines: Iterable[str], names: Iterable[str] = ()) -> list[str]:
    """The docstring as lines of reStructuredText; `names`: the parameters that its sections may explain."""
    rest: list[str] = []
    for block in blocks(lines):
        if section := SECTION.match(block[0]):
            body = listed(" ".join([section[2], *block[1:]]), names if section[1] == "Args" else ())
            rest += [f":{section[1]}:", *(f"    {line}" for line in body)]
            continue
        if block[0].startswith(">>>"):
            rest += ["", ".. rubric:: Example", "", *block, ""]
        elif block[0].startswith(" "):
            rest += ["", ".. code-block:: text", "", *(f"    {line}" for line in block), ""]
        elif len(fields := re.split(FIELDS, " ".join(" ".join(block).split()))) > 3 and not fields[0]:
            items = zip(fields[1::2], fields[2::2], strict=True)
            rest += ["", *(f"- {inline(name)}: {inline(what.strip().rstrip(';'))}" for name, what in items), ""]
        else:
            rest += ["", inline(" ".join(block)), ""]
    return rest


def process(app, what: str, name: str, value: object, options, lines: list[str]) -> None:
    """What autodoc calls with every docstring, to change its lines in place."""
    try:
        names = [*inspect.signature(value).parameters] if callable(value) else []
    except ValueError:
        names = []
    lines[:] = converted(lines, names)

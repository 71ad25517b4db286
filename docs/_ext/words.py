"""The glossary, read off the table of words in design.md."""

import re
from pathlib import Path

import reference

DOCS = Path(__file__).resolve().parents[1]


def words() -> dict[str, tuple[str, str]]:
    """{word: (what it means, what it is never used for)}, by the table's rows."""
    section = (DOCS / "design.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    return {word: (means, never) for word, means, never, _ in rows[2:] if means != "no subject"}


def text() -> str:
    """The page, in Markdown."""
    parts = ["# Glossary\n", "One word has one meaning, in these pages, in every docstring and in every message.\n"]
    parts.append("```{glossary}")
    for word, (means, never) in sorted(words().items(), key=lambda item: item[0].lower()):
        parts += [
            *word.split(", "),
            f"    {means[0].upper()}{means[1:]}.",
            *([f"\n    *Never for* {never}."] if never else []),
            "",
        ]
    return "\n".join(parts) + "```\n"


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("builder-inited", lambda _: reference.write(DOCS / "reference/glossary.md", text()))
    return {"parallel_read_safe": True}

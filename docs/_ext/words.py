"""The glossary, read off the table of words in design.md."""

import re
from pathlib import Path

import reference

DOCS = Path(__file__).resolve().parents[1]
FIELD = """
| the field says | here also |
|---|---|
| linearized model, NTK regime | tangent; TAFT in tables |
| fine-tuning | non-linear; NLFT in tables |
| linear probe | head alone; FC in tables |
| machine unlearning | removal |
| retraining from scratch (gold model) | paragon |
| model merging | composition; `compose`, `merge` |
| model soup | the mean of non-linear models |
| RegMean | `--merge=inputs` |
| sufficient statistics | statistics; `--method=exact`, `ridge`, `lda`, `ranpac` |
| user-level privacy | `--unit=owner` |
| DP-SGD | `private`, `tj.fit_private` |
| influence of an example | effect |
| class-incremental learning | heads joined over classes; `--head=named` |
"""


def words() -> dict[str, tuple[str, str]]:
    """{word: (what it means, what it is never used for)}, by the table's rows."""
    section = (DOCS / "design.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    return {word: (means, never) for word, means, never in rows[2:]}


def text() -> str:
    """The page, in Markdown."""
    parts = ["# Glossary\n", "The field's terms, and the words of this library. Here a word has one meaning.\n", FIELD]
    parts.append("## Words of this library\n")
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

"""The pages of the documentation as text: Markdown, and notebooks with their code as blocks."""

import json
import re
from pathlib import Path

CELL = re.compile(r"^```(?:python|\{code-cell\} ipython3)\n(?::\w+:[^\n]*\n)*(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    """A page as Markdown; cells of code in a notebook become blocks of Python."""
    if page.suffix != ".ipynb":
        return page.read_text()
    parts = []
    for cell in json.loads(page.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts)


def code_of(page: Path) -> list[str]:
    """The Python of a page, block by block."""
    return CELL.findall(text_of(page))


def prose_of(page: Path) -> str:
    """The Markdown of a page, without its blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def pages(folder: Path) -> list[Path]:
    """All pages below a folder, Markdown and notebooks."""
    return sorted(path for end in ("*.md", "*.ipynb") for path in folder.rglob(end))

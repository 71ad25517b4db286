"""Links to files of the repository that are no pages, such as CONTRIBUTING.md, become downloads."""

import re

NAMES = ("CONTRIBUTING", "SECURITY", "CHANGELOG", "design")
LINK = re.compile(rf"\]\(((?:\.\./)*(?:{'|'.join(NAMES)})\.md)(?:#[\w-]+)?\)")


def downloads(app, docname: str, source: list[str]) -> None:
    """What Sphinx calls with every page that it reads, to change its text in place."""
    source[0] = LINK.sub(r"](path:\1)", source[0])


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("source-read", downloads)
    return {"parallel_read_safe": True}

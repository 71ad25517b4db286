"""llms.txt, a map of the pages with a line each, and llms-full.txt, all of their text (https://llmstxt.org)."""

import re
from collections.abc import Iterator
from pathlib import Path

import commands
import reference
from docutils import nodes
from sphinx import addnodes

INCLUDED = re.compile(r"^```{(?:literal)?include} (\S+)\n.*?^```\n", re.MULTILINE | re.DOTALL)


def sections(env) -> Iterator[tuple[str, list[str]]]:
    """(caption, pages) of each table of contents of the first page; pages below pages stand after them."""

    def below(page: str) -> list[str]:
        return [page, *(inner for child in env.toctree_includes.get(page, []) for inner in below(child))]

    for tree in env.get_doctree(env.config.root_doc).findall(addnodes.toctree):
        yield tree["caption"], [page for _, first in tree["entries"] if first in env.all_docs for page in below(first)]


def summary(env, page: str) -> str:
    """The first sentence of a page."""
    paragraph = next(iter(env.get_doctree(page).findall(nodes.paragraph)), None)
    text = " ".join(paragraph.astext().split()) if paragraph else ""
    return text.partition(". ")[0].rstrip(".:") + "." if text else ""


def full(env, page: str) -> str:
    """A page as text: its source, and what is read off the library."""
    if page.startswith("reference/api/"):
        values = reference.places().get(page.removeprefix("reference/api/"), {})
        return "\n".join(f"## {name}\n\n{reference.docstring(name, value)}\n" for name, value in values.items())
    path = Path(env.doc2path(page))
    text = INCLUDED.sub(lambda of: (path.parent / of[1]).read_text(), path.read_text())
    return text + (commands.text() if page == commands.PAGE else "")


def write(app, exception: Exception | None) -> None:
    """Writes both files into the root of the site."""
    if exception or app.builder.name != "html":
        return
    env, listing, texts = app.env, [f"# {app.config.project}\n\n> {app.config.html_short_title}"], []
    for caption, pages in sections(env):
        lines = [f"- [{env.titles[page].astext()}]({page}.html): {summary(env, page)}" for page in pages]
        listing.append(f"## {caption}\n\n" + "\n".join(lines))
        texts += [full(env, page) for page in pages]
    Path(app.outdir, "llms.txt").write_text("\n\n".join(listing) + "\n")
    Path(app.outdir, "llms-full.txt").write_text("\n\n".join(texts))


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}

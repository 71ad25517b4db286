"""The notebooks of docs/guide: they parse, lead to pages that are there, and run from an install alone."""

import ast
import re
from pathlib import Path

import pytest
from run_binary import ROOT

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "guide").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\} ipython3\n((?::\w+:[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]+))?\)")
NOTEBOOKS = [page for page in PAGES if CELL.search(page.read_text())]


def cells(page: Path) -> list[str]:
    return [code for _, code in CELL.findall(page.read_text())]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_notebook_parses_and_needs_an_install_alone(page):
    text = page.read_text()
    assert text.startswith("---\njupytext:")
    assert "kernelspec:" in text.split("---")[1]
    assert text.count("{code-cell}") == len(cells(page))
    assert cells(page)[0].startswith("# %pip install '.[")
    for code in cells(page):
        names = {node.module for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)}
        assert not any((name or "").startswith("experiments") for name in names)
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"^## (Next|What to read next)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_the_guide_leads_to_a_page_and_a_heading(page):
    for target, heading in LINK.findall(page.read_text()):
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), target
        assert not heading or heading in anchors(to), f"{target}#{heading}"


def run(page, folder, monkeypatch):
    """The names that the cells of a notebook leave, run in order in an empty folder and an empty home."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    names: dict = {}
    with plt.rc_context():
        for number, code in enumerate(cells(page)):
            exec(compile(code, f"{page.name}, cell {number}", "exec"), names)
    return names


@pytest.mark.slow
def test_the_first_notebook_runs(tmp_path, monkeypatch, capsys):
    run(DOCS / "guide/start.md", tmp_path, monkeypatch)
    accuracies = re.findall(r"training: ([\d.]+)", capsys.readouterr().out)
    before, after = map(float, accuracies)
    assert before < 0.3 < 0.85 < after


@pytest.mark.long
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_every_notebook_runs(page, tmp_path, monkeypatch):
    run(page, tmp_path, monkeypatch)

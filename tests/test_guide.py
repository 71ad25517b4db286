"""Tutorials and how-to pages: notebooks are valid and need an install alone; links lead somewhere; all code runs."""

import re
from pathlib import Path

import numpy as np
import pytest
from pages import code_of, pages, prose_of
from run_binary import ROOT

DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))
HOWTO = sorted((DOCS / "howto").glob("*.md"))
LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]+))?\)")
# Pages of explanation that compute what they show.
COMPUTED = [page for page in sorted((DOCS / "explanation").glob("*.md")) if "{code-cell}" in page.read_text()]
NOTEBOOKS = [*TUTORIALS, *COMPUTED]
PAGES = [ROOT / "README.md", *pages(DOCS)]


def name(page):
    return page.stem


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them, and of a page that it includes."""
    whole = re.search(r"^```\{include\} (\S+)$", page.read_text(), re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose_of((page.parent / whole[1]) if whole else page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_is_a_valid_notebook_without_outputs(page):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is absent: it comes with the extra docs")
    notebook = nbformat.read(page, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in codes)
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_page_and_a_heading(page):
    for target, heading in LINK.findall(prose_of(page)):
        to = (page.parent / target).resolve() if target else page
        assert to.exists() or to.is_relative_to(DOCS / "reference/api"), target  # `make docs` writes these
        assert not heading or heading in anchors(to), f"{target}#{heading}"


def run(page, folder, monkeypatch):
    """The names that the code of a page leaves, run in order in an empty folder and an empty home."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    names: dict = {}
    with plt.rc_context():
        plt.rcdefaults()  # a command that ran in this process has set its style
        for number, block in enumerate(code_of(page)):
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    return names


@pytest.mark.slow
def test_the_first_tutorial_runs(tmp_path, monkeypatch, capsys):
    run(DOCS / "tutorials/quickstart.ipynb", tmp_path, monkeypatch)
    accuracies = re.findall(r"training: ([\d.]+)", capsys.readouterr().out)
    untrained, probe, before, after = map(float, accuracies)
    assert untrained == before < 0.3 < 0.85 < probe < after


@pytest.mark.long
@pytest.mark.parametrize("page", NOTEBOOKS, ids=name)
def test_every_notebook_runs(page, tmp_path, monkeypatch):
    run(page, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in HOWTO if code_of(page)], ids=name)
def test_the_code_of_a_page_runs_and_prints_the_figures_beside_it(page, tmp_path, monkeypatch, capsys):
    """A line `print(...)  # 0.46 0.25` prints these numbers, about: noise of a private run is fresh."""
    run(page, tmp_path, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^print\(.*\)  # ([\d. ]*\d)\b", "\n".join(code_of(page)), re.MULTILINE)
    numbers = [line for line in printed if re.fullmatch(r"[\d. ]+", line)]
    assert len(numbers) == len(said)
    for got, want in zip(numbers, said, strict=True):
        np.testing.assert_allclose([*map(float, got.split())], [*map(float, want.split())], rtol=0.15, atol=0.05)

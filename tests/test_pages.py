"""README, tutorials and how-to pages: their code runs, their links lead somewhere, their commands and flags exist."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from absl.testing import flagsaver
from run_binary import ROOT

import tangent_jax as tj
from experiments.shared.defined import binaries, definitions
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import F, parse, read

DOCS = ROOT / "docs"
README = ROOT / "README.md"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))
PAGES = [README, *sorted(path for end in ("*.md", "*.ipynb") for path in DOCS.rglob(end))]
ROOTS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
CELL = re.compile(r"^```(?:python|\{code-cell\} ipython3)\n(?::\w+:[^\n]*\n)*(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]+))?\)")


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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def name(page):
    return page.stem


# Pages whose code runs from top to bottom: explanations that compute what they show, how-to pages, README.
COMPUTED = [page for page in sorted((DOCS / "explanation").glob("*.md")) if "{code-cell}" in page.read_text()]
HOWTO = [page for page in sorted((DOCS / "howto").glob("*.md")) if code_of(page)]


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_tutorial_has_no_outputs(page):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is absent: it comes with the extra docs")
    notebook = nbformat.read(page, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in codes)
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("page", [*PAGES, *ROOTS], ids=name)
def test_links_lead_somewhere_and_code_compiles(page):
    for target, heading in LINK.findall(prose_of(page)):
        to = (page.parent / target).resolve() if target else page
        assert to.exists() or to.is_relative_to(DOCS / "reference/api"), target  # `make docs` writes these
        assert not heading or heading in anchors(to), f"{target}#{heading}"
    for block in code_of(page):
        compile(block, page.name, "exec")
        for public in re.findall(r"\btj\.(\w+)", block):
            assert hasattr(tj, public), f"tj.{public}"


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


@pytest.mark.long
def test_the_first_tutorial_runs(tmp_path, monkeypatch, capsys):
    run(DOCS / "tutorials/quickstart.ipynb", tmp_path, monkeypatch)
    accuracies = re.findall(r"training: ([\d.]+)", capsys.readouterr().out)
    untrained, probe, before, after = map(float, accuracies)
    assert untrained == before < 0.3 < 0.85 < probe < after


@pytest.mark.long
@pytest.mark.parametrize("page", [*TUTORIALS, *COMPUTED], ids=name)
def test_a_notebook_runs(page, tmp_path, monkeypatch):
    run(page, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("page", [README, *HOWTO], ids=name)
def test_page_code_prints_its_figures(page, tmp_path, monkeypatch, capsys):
    """A line `print(...)  # 0.46 0.25` prints these numbers, about: noise of a private run is fresh."""
    run(page, tmp_path, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    stated = re.findall(r"^print\(.*\)  # ([\d. ]*\d)\b", "\n".join(code_of(page)), re.MULTILINE)
    numbers = [line for line in printed if re.fullmatch(r"[\d. ]+", line)]
    assert len(numbers) == len(stated)
    for got, want in zip(numbers, stated, strict=True):
        np.testing.assert_allclose([*map(float, got.split())], [*map(float, want.split())], rtol=0.15, atol=0.05)


GROUPS = sorted({binary.split()[0] for binary in binaries() if " " in binary})
WORDS = rf"(?:python -m experiments\.|(?:tangent-jax|python -m tangent_jax) (?=(?:{'|'.join(COMMANDS)})\b))"
LINE = re.compile(rf"{WORDS}((?:(?:{'|'.join(GROUPS)}) )?[a-z]\w+)((?:\\\n|[^\n`])*)")


def test_page_commands_parse():
    """All lines of one binary in turn, with its flags defined once."""
    commands: dict[str, list[str]] = {}
    for binary, arguments in LINE.findall("".join(map(text_of, PAGES))):
        commands.setdefault(binary, []).append(arguments.partition(" #")[0].replace("\\\n", " "))
    assert sum(map(len, commands.values())) >= 100
    assert {*commands} - {*binaries()} <= {*GROUPS, "count"}  # which have no flags
    for binary in {*commands} & {*binaries()}:
        with definitions(binary) as (_, _, config):
            for line in commands[binary]:
                with flagsaver.flagsaver():
                    for flag in F:
                        F[flag].unparse()
                    parse([binary, *(word for word in shlex.split(line) if word.startswith("--"))])
                    read(config).check_effects()


def test_the_page_of_commands_lists_every_binary():
    text = (DOCS / "reference/commands.md").read_text()
    listed = "".join(re.findall(r"^## (?:Commands|Experiments)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^\| (`[\w ]+`(?:, `[\w ]+`)*) \|", listed, re.MULTILINE)
    assert {*re.findall(r"`([\w ]+)`", " ".join(rows))} == {*binaries()}


def counted(section: str) -> str:
    """How many comparisons of a section of the report hold, as the page on the paper says it."""
    held, failed = section.count("\n- yes: "), section.count("\n- no: ")
    return f"{held} of {held + failed}" if held + failed else "not run"


def test_paper_verdicts_are_of_report():
    report = (DOCS / "paper/report.md").read_text()
    sections = {part.partition(":")[0]: part for part in re.split(r"^## ", report, flags=re.MULTILINE)[1:]}
    page = (DOCS / "paper.md").read_text()
    rows = re.findall(
        r"^\| \[([^]]+)\]\(paper/report\.md#\S+\) \|[^|]+\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE
    )
    assert {name for name, *_ in rows} == {name for name in sections if not name.startswith("Digits, ")}
    said = dict.fromkeys(("holds", "in part", "does not hold", "not run"), 0)
    for name, photographs, digits, verdict in rows:
        both = sections[name] + sections[f"Digits, {name}"]
        held, failed = "\n- yes: " in both, "\n- no: " in both
        want = {(True, False): "holds", (True, True): "in part", (False, True): "does not hold"}
        assert (photographs, digits) == (counted(sections[name]), counted(sections[f"Digits, {name}"])), name
        assert verdict == want.get((held, failed), "not run"), name
        said[verdict] += 1
    run = sum(said.values()) - said["not run"]
    assert f"Of {run} claims that were run {said['holds']} hold, {said['in part']} hold in part" in page
    assert f"{said['does not hold']} do not hold" in page

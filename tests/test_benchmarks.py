"""Figures stand in one place, and claims carry their tallies: docs/benchmarks.md, docs/paper.md and its reports."""

import re

import pytest
from run_binary import ROOT

from experiments.report.claims import CLAIMS
from experiments.report.findings import better

DOCS = ROOT / "docs"
HOLD_FIGURES = ("benchmarks.md", "paper.md", "paper/", "accelerators/", "changelog.md", "reference/api/")
PAGES = sorted(
    name
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    if not (name := path.relative_to(DOCS).as_posix()).startswith(HOLD_FIGURES)
)
FIGURE = r"(?<![\w.])0\.\d{3}(?!\d)"
"""An accuracy, AUC or correlation as benchmarks give it."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_beside_the_benchmarks_holds_no_measured_figure(page):
    """Settings (a learning rate, a penalty) have one or two digits; what code prints is in an output, not in a page."""
    assert re.findall(FIGURE, (DOCS / page).read_text()) == []


DATED = r"[Vv]ersions? 0\.\d|0\.\d, 20\d\d-\d\d|Nothing of this"


def test_every_section_with_figures_says_version_and_command():
    sections = re.split(r"^### |^## ", (DOCS / "benchmarks.md").read_text(), flags=re.MULTILINE)[3:]
    measured = [section for section in sections if re.search(FIGURE, section)]
    assert len(measured) >= 20
    for section in measured:
        title = section.partition("\n")[0]
        assert re.search(DATED, section), f"{title}: of which version?"
        assert re.search(r"--|python -m|tangent-jax", section) or "](#" in section, f"{title}: by which command?"


def tally(report, claim):
    """(comparisons that hold, all of them) of a claim in a report; None where it was not run."""
    section = re.search(rf"^## {claim}: .*?(?=^## |\Z)", (DOCS / report).read_text(), re.MULTILINE | re.DOTALL)
    marks = re.findall(r"^- (yes|no): ", section[0], re.MULTILINE) if section else []
    return (marks.count("yes"), len(marks)) if marks else None


def test_the_page_of_the_paper_has_the_tally_of_each_claim_as_its_reports():
    page = (DOCS / "paper.md").read_text()
    rows = re.findall(r"^\| (\w+ \w+) \| .* \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [claim.name for claim in CLAIMS]
    for name, photographs, digits, verdict in rows:
        full = "anchors" if name in ("Table 7", "Table 9") else "digits"
        counts = [tally(f"paper/{report}/report.md", name) for report in ("photographs", full)]
        assert [photographs, digits] == [f"{c[0]} of {c[1]}" if c else "not run" for c in counts], name
        first = next(filter(None, counts), None)
        words = {None: "not run", True: "holds", False: "in part" if first and first[0] else "does not hold"}
        assert verdict == words[first and first[0] == first[1]], name
    ran = [verdict for *_, verdict in rows if verdict != "not run"]
    said = re.findall(r"Of the (\d+) claims that were run (\d+) hold, (\d+) hold in part, (\d+) do not hold", page)
    counts = [len(ran), *map(ran.count, ("holds", "in part", "does not hold"))]
    assert [[int(number) for number in numbers] for numbers in said] == [counts]


def test_the_tally_of_private_training_is_that_of_its_table():
    """17 of 24 by the means, 3 beyond the noise, 1 the other way: in benchmarks, the paper's page and the README."""
    page, (cub, clothing) = (DOCS / "benchmarks.md").read_text(), (1389, 372)
    (table,) = re.findall(r"^\| data set \| epsilon \| full, NLFT .*?\n\n", page, re.MULTILINE | re.DOTALL)
    above = beyond = other = cells = 0
    for row in table.strip().splitlines()[2:]:
        name, _, *values = [each.strip(" *") for each in row.strip("|").split("|")]
        pairs = [dict(zip(("mean", "spread"), map(float, value.split(" ± ")), strict=True)) for value in values]
        tests = cub if name == "cub50" else clothing
        for network, tangent in zip(pairs[::2], pairs[1::2], strict=True):
            cells += 1
            above += tangent["mean"] > network["mean"]
            lead = abs(tangent["mean"] - network["mean"])
            noise = max(tangent["spread"], network["spread"], (network["mean"] * (1 - network["mean"]) / tests) ** 0.5)
            assert better("", tangent, network, tests)[1] == (tangent["mean"] - network["mean"] > noise)
            beyond += better("", tangent, network, tests)[1]
            other += lead > noise and tangent["mean"] < network["mean"]
    assert (cells, above, beyond, other) == (24, 17, 3, 1)
    said = {"benchmarks.md": ("of 24 cells TAFT has the higher mean in 17", "20 are within"), "paper.md": ("20 are",)}
    for name, words in said.items():
        text = " ".join((DOCS / name).read_text().split())
        assert all(each in text for each in words), name
    assert "3 of 24 settings" in " ".join((ROOT / "README.md").read_text().split())

"""Figures stand in one place, and claims carry their tallies: docs/benchmarks.md, docs/paper.md and its reports."""

import re

import pytest
from run_binary import ROOT

from experiments.report.claims import CLAIMS
from experiments.report.findings import RULE, Check, Finding, better

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
    """(comparisons that hold, all that were run) of a claim in a report; None where none was."""
    section = re.search(rf"^## {claim}: .*?(?=^## |\Z)", (DOCS / report).read_text(), re.MULTILINE | re.DOTALL)
    marks = re.findall(r"^- (yes|no): ", section[0], re.MULTILINE) if section else []
    return (marks.count("yes"), len(marks)) if marks else None


@pytest.mark.parametrize("report", ["photographs", "digits", "anchors"])
def test_the_verdict_of_each_claim_is_that_of_its_comparisons_and_follows_the_rule_at_the_head(report):
    text = (DOCS / f"paper/{report}/report.md").read_text()
    assert RULE in text
    heads = dict(re.findall(r"^\| \[(\w+ \w+)\]\(\S+\) \| .* \| (.*?) \|$", text, re.MULTILINE))
    for name, section in re.findall(r"^## (\w+ \w+): (.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        held = re.findall(r"^- (yes|no|not run): ", section, re.MULTILINE)
        marks = [{"yes": True, "no": False, "not run": None}[mark] for mark in held]
        verdict = Finding([], [], [Check("", mark) for mark in marks]).verdict
        assert heads[name] == verdict, name
        assert f"**Verdict: {verdict}.**" in section or "**Not run.**" in section, name


def test_the_page_of_the_paper_has_the_tally_of_each_claim_as_its_reports():
    page = (DOCS / "paper.md").read_text()
    rows = re.findall(r"^\| \[(\w+ \w+)\]\(\S+\) \| .* \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [claim.name for claim in CLAIMS]
    for name, photographs, digits, verdict in rows:
        full = "anchors" if name in ("Table 7", "Table 9") else "digits"
        counts = [tally(f"paper/{report}/report.md", name) for report in ("photographs", full)]
        assert [photographs, digits] == [f"{c[0]} of {c[1]}" if c else "not run" for c in counts], name
        first = next(filter(None, counts), None)
        words = {None: "not run", True: "holds", False: "in part" if first and first[0] else "does not hold"}
        assert verdict == words[first and first[0] == first[1]], name
    ran = [verdict for *_, verdict in rows if verdict != "not run"]
    said = re.findall(r"(\d+) claims were run: (\d+) hold, (\d+) hold in part, (\d+) do not hold", page)
    counts = [len(ran), *map(ran.count, ("holds", "in part", "does not hold"))]
    assert [[int(number) for number in numbers] for numbers in said] == [counts]


TESTS = {"cub50": 1389, "clothing10": 372, "gtsrb43": 516, "mnist10": 600, "textures10": 400}
"""The number of test images, by data set."""


def table(head):
    """The rows of a table of the benchmarks, each a list of its cells."""
    page = (DOCS / "benchmarks.md").read_text()
    (found,) = re.findall(rf"^{re.escape(head)}.*?\n\n", page, re.MULTILINE | re.DOTALL)
    return [[each.strip(" *") for each in row.strip("|").split("|")] for row in found.strip().splitlines()[2:]]


def cell(text):
    """An accuracy with its spread, as reports hold it."""
    mean, _, spread = text.partition(" ± ")
    return {"mean": float(mean), "spread": float(spread or 0)}


def compare(pairs):
    """(comparisons, wins by the means, wins beyond the noise, losses beyond it) of (a, b, number of test images)."""
    pairs = [*pairs]
    wins = [a["mean"] > b["mean"] for a, b, _ in pairs]
    beyond = [bool(better("", a, b, n).holds) for a, b, n in pairs]
    losses = [not better("", a, b, n, strictly=False).holds for a, b, n in pairs]
    return len(pairs), sum(wins), sum(beyond), sum(losses)


def says(page, *words):
    """True where a page holds all of these words, however its lines break."""
    text = " ".join((ROOT / page).read_text().split())
    return all(each in text for each in words)


def test_the_tally_of_private_training_is_that_of_its_table():
    pairs, compared = [], []
    for name, _, *values in table("| data set | epsilon | full, NLFT "):
        cells = [cell(value) for value in values]
        own = [(tangent, network, TESTS[name]) for network, tangent in zip(cells[::2], cells[1::2], strict=True)]
        pairs, compared = pairs + own, compared + own[:3]  # without fc, the last
    assert compare(pairs) == (24, 17, 3, 0)
    assert compare(compared) == (18, 11, 2, 0)
    assert says(
        "docs/benchmarks.md",
        *(
            "of 24 cells TAFT has the higher mean in 17",
            "In 3 its lead exceeds",
            "in none NLFT's does, and 21 are within",
        ),
        "TAFT has the higher mean in 11, beyond the noise in 2",
    )
    assert says(
        "docs/paper.md",
        *("TAFT has the higher mean in 17, beyond the noise in 3", "in none; 21 are within the noise"),
        "TAFT has the higher mean in 11, beyond the noise in 2",
    )
    assert says("README.md", "3 of 24 settings favour the first beyond the noise, none the second")
    assert says(
        "docs/explanation/privacy.md", "17 of 24 cells. Three of these", "none in the other", "The other 21 do not"
    )


def test_the_tally_of_the_cells_that_were_measured_twice_is_that_of_both_tables():
    first = {(name, eps): [*map(cell, v)] for name, eps, *v in table("| data set | epsilon | full, NLFT ")}
    gaps, crossed = [], []
    for epsilon, *values in table("| cub50, epsilon | fc, NLFT"):
        again, before = [*map(cell, values)], first["cub50", epsilon]
        before = before[6:8] + before[4:6]  # fc, layernorm
        gaps += [abs(a["mean"] - b["mean"]) for a, b in zip(again, before, strict=True)]
        for i, subset in ((0, "fc"), (2, "layernorm")):
            old, new = (better("", cells[i + 1], cells[i], 1389).holds for cells in (before, again))
            crossed += [(subset, epsilon)] * (old != new)
    assert max(gaps) == pytest.approx(0.034)
    assert crossed == [("layernorm", "1"), ("fc", "3"), ("layernorm", "3")]
    assert says("docs/paper.md", "differ by up to 0.034")
    assert says("docs/benchmarks.md", "cells cross the noise: layernorm at epsilon 1", "layernorm and fc at epsilon 3")


def test_the_tally_of_exact_composition_is_that_of_its_table():
    rows = [row for row in table("| data set | exact | ridge | RanPAC | LDA |") if row[0] in TESTS]
    against = [[(cell(row[1]), cell(row[column]), TESTS[row[0]]) for row in rows] for column in (4, 5)]
    assert [compare(pairs) for pairs in against] == [(5, 5, 2, 0), (5, 4, 2, 1)]
    assert says("docs/benchmarks.md", "above LDA on all five, beyond the noise on two")
    assert says("docs/benchmarks.md", "above the network with one trained block on four, beyond the noise on two")

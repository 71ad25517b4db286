"""The README's code runs, in order, as its reader would run it; its commands name binaries and flags that exist."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from run_binary import ROOT

import tangent_jax as tj
from experiments.shared.defined import binaries, definitions
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import F, check_effects

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(
    p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")) if "api" not in p.parts
)

GROUPS = sorted({name.split()[0] for name in binaries() if " " in name})
WORDS = rf"(?:python -m experiments\.|(?:tangent-jax|python -m tangent_jax) (?=(?:{'|'.join(COMMANDS)})\b))"
LINES = re.findall(rf"{WORDS}((?:(?:{'|'.join(GROUPS)}) )?[a-z]\w+)((?:\\\n|[^\n`])*)", PAGES)


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_blocks(text, name, home, monkeypatch):
    """The names that a page's python blocks leave, run in order, as a new user would with an empty home."""
    monkeypatch.setenv("HOME", str(home))
    names: dict = {}
    assert len(blocks(text)) >= 4
    for block in blocks(text):
        exec(compile(block, name, "exec"), names)
    return names


@pytest.mark.long
def test_the_python_blocks_run(tmp_path, monkeypatch, capsys):
    names = run_blocks(README, "README.md", tmp_path, monkeypatch)
    assert names["fitted"].spent.private
    printed = [[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    said = [
        [float(word) for word in line.split()] for line in re.findall(r"^print.*# ([\d. ]+)$", README, re.MULTILINE)
    ]
    assert len(said) == len(printed) == 4
    for got, want in zip(printed, said, strict=True):  # the figures beside the code; noise of the private run
        np.testing.assert_allclose(got, want, rtol=0.1, atol=0.03)


@pytest.mark.long
def test_the_page_on_regression_runs_and_gives_what_it_says(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/regression.md").read_text()
    run_blocks(page, "regression.md", tmp_path, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    assert abs(float(printed[0]) - float(re.findall(r"tj.metrics.squared_error\)\)  # ([\d.]+),", page)[0])) < 0.02
    assert abs(float(printed[3]) - float(re.findall(r"\)  # ([\d.]+) away", page)[0])) < 0.1


@pytest.mark.long
def test_the_page_on_models_of_other_frameworks_runs_and_gives_what_it_says(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/your_model.md").read_text()
    assert max(len(block.splitlines()) for block in blocks(page)) <= 40
    run_blocks(page, "your_model.md", tmp_path, monkeypatch)
    printed = [[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    said = [[float(word) for word in line.split()] for line in re.findall(r"  # ([\d. ]*\d)\b", page)]
    assert [len(line) for line in printed] == [len(line) for line in said] == [3, 3, 2, 3, 1]
    for got, want in zip(printed, said, strict=True):  # the last of three is private: its noise is fresh
        np.testing.assert_allclose(got[:2], want[:2], rtol=0.1, atol=0.05)


def test_the_pages_name_what_exists():
    """Each block compiles, and each name of the library in it is one: `make test-all` runs them."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in blocks(page.read_text()):
            compile(block, page.name, "exec")
            for name in re.findall(r"\btj\.(\w+)", block):
                assert hasattr(tj, name), f"{page.name}: tj.{name}"


def test_the_commands_name_binaries_and_flags_that_exist_and_each_has_an_effect_beside_the_others():
    assert len(LINES) >= 100
    commands: dict[str, list[str]] = {}
    for binary, arguments in LINES:
        commands.setdefault(binary, []).append(arguments.partition(" #")[0].replace("\\\n", " "))
    assert {*commands} - {*binaries()} <= {*GROUPS, "count"}  # which have no flags
    for binary in {*commands} & {*binaries()}:
        with definitions(binary):
            for line in commands[binary]:
                for name in F:
                    F[name].unparse()
                F([binary, *(word for word in shlex.split(line) if word.startswith("--"))])
                check_effects()


def test_every_binary_is_listed():
    rows = re.findall(r"^\| (`[\w ]+`(?:, `[\w ]+`)*) \|", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE)
    assert {*re.findall(r"`([\w ]+)`", " ".join(rows))} == {*binaries()}


def test_every_link_and_picture_of_the_pages_is_there():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in (p for p in pages if p != ROOT / "docs/index.md"):  # the site's; its build follows its links
        for target in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
            assert (page.parent / target).exists(), f"{page}: {target}"
    for name in re.findall(r"`(tests/[\w/.]+)`", PAGES):
        assert (ROOT / Path(name.split("::")[0])).exists(), name


def test_the_first_page_is_short():
    assert len(README.splitlines()) <= 120

"""The README's code runs, in order, as its reader would run it; its commands name binaries and flags that exist."""

import re
import shlex

import numpy as np
import pytest
from absl.testing import flagsaver
from pages import pages, text_of
from run_binary import ROOT

import tangent_jax as tj
from experiments.shared.defined import binaries, definitions
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import F, check_effects, parse

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(text_of(page) for page in pages(ROOT / "docs"))

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
    assert names["fitted"].info.spent.private
    printed = [[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    said = [
        [float(word) for word in line.split()] for line in re.findall(r"^print.*# ([\d. ]+)$", README, re.MULTILINE)
    ]
    assert len(said) == len(printed) == 4
    for got, want in zip(printed, said, strict=True):  # the figures beside the code; noise of the private run
        np.testing.assert_allclose(got, want, rtol=0.1, atol=0.03)


def test_the_pages_name_what_exists():
    """Each block compiles, and each name of the library in it is one: `make test-all` runs them."""
    for page in (ROOT / "README.md", *pages(ROOT / "docs")):
        for block in blocks(text_of(page)):
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
                with flagsaver.flagsaver():
                    for name in F:
                        F[name].unparse()
                    parse([binary, *(word for word in shlex.split(line) if word.startswith("--"))])
                    check_effects()


def test_every_binary_is_listed():
    text = (ROOT / "docs/reference/commands.md").read_text()
    listed = "".join(re.findall(r"^## (?:Commands|Experiments)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^\| (`[\w ]+`(?:, `[\w ]+`)*) \|", listed, re.MULTILINE)
    assert {*re.findall(r"`([\w ]+)`", " ".join(rows))} == {*binaries()}

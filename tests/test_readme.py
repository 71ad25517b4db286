"""The README's code runs, in order, as its reader would run it; its commands name binaries and flags that exist."""

import functools
import re
from pathlib import Path

import pytest
from run_binary import ROOT, output

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))


@pytest.mark.slow
def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # an empty home, as a new user's
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    test = names["test"]
    assert names["tj"].accuracy(names["task"], names["fitted"].dw, test.inputs, test.labels) > 0.88
    assert names["private"].spent.private


@functools.cache
def flags_of(binary):
    """The flags that --help explains."""
    text = output(binary, "--help", code=1)[0]
    return {flag.replace("[no]", "") for flag in re.findall(r"^\s*(?:-\w,)?--([\[\]\w]+):", text, re.MULTILINE)}


@pytest.mark.slow
def test_the_commands_name_binaries_and_flags_that_exist():
    commands = re.findall(r"python -m experiments\.([a-z]\w+)((?:\\\n|[^\n`])*)", PAGES)
    assert len(commands) >= 15
    for binary, arguments in commands:
        used = {re.sub(r"^no(?=search_anchor|retrain)", "", flag) for flag in re.findall(r"--(\w+)", arguments)}
        assert used <= flags_of(binary), (binary, arguments)


def test_every_binary_is_listed():
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    binaries = {path.stem for path in (ROOT / "experiments").glob("*.py") if "command.run(main" in path.read_text()}
    assert listed == binaries


def test_every_link_and_picture_of_the_pages_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
    for name in re.findall(r"`(tests/[\w/.]+)`", PAGES):
        assert (ROOT / Path(name.split("::")[0])).exists(), name


def test_the_first_page_is_short():
    assert len(README.splitlines()) <= 160

"""The bounds that pyproject.toml states are those that are tried."""

import re
import tomllib

from run_binary import ROOT


def numbers(version):
    """A version as numbers of one length, so that 0.12 is 0.12.0."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def test_lowest_versions_are_pyprojects():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    text = (ROOT / "lowest.txt").read_text()
    lowest = dict(re.findall(r"^([\w-]+)==([\d.]+)(?:; python_version < .*)?$", text, re.MULTILINE))
    bounds = {re.match(r"[\w-]+", entry)[0]: re.search(r">=([\d.]+)", entry)[1] for entry in stated}
    assert {name: numbers(v) for name, v in bounds.items()} == {name: numbers(v) for name, v in lowest.items()}

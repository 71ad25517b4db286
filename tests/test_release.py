"""What a release holds, and that it works without a checkout; `make release` does it in an empty environment."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from first_steps import commands, first_steps
from run_binary import ROOT

import tangent_jax as tj

LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "build", "out", "__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist of this checkout, the wheel built from the sdist."""
    root = tmp_path_factory.mktemp("release")
    shutil.copytree(ROOT, root / "checkout", ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", root / "dist", root / "checkout"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return root / "dist"


def files(folder, *kinds):
    return {path.relative_to(ROOT).as_posix() for kind in kinds for path in (ROOT / folder).rglob(kind)}


@pytest.mark.long
def test_the_wheel_holds_the_library_and_no_more(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    own = {name for name in names if ".dist-info/" not in name}
    assets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tangent_jax/assets").iterdir() if path.is_file()}
    pages = files("tangent_jax/commands/report/templates", "*.html", "*.css")
    assert len(pages) == 2
    assert own == files("tangent_jax", "*.py", "*.pyi") | assets | pages | {"tangent_jax/py.typed"}
    assert [name for name in names - own if name.endswith("licenses/LICENSE")]
    command = [sys.executable, "-m", "check_wheel_contents", wheel]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip().endswith("OK")


@pytest.mark.long
def test_the_sdist_holds_what_a_packager_tests(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files("tests", "*.py", "*.npz") | files("experiments", "*.py") | files("docs", "*.md", "*.ipynb", "*.png")
    assert wanted <= names
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "constraints.txt", "lowest.txt"} <= names
    command = [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("PASSED") == 2


@pytest.mark.long
def test_readme_runs_from_the_wheel(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path, wheel], check=True)
    accuracy, *_, where = first_steps(sys.executable, PYTHONPATH=str(tmp_path))
    assert float(accuracy) == pytest.approx(0.91, abs=0.03)
    assert where.startswith(f"{tj.__version__} {tmp_path}/tangent_jax/")
    assert (tmp_path / "bin/tangent-jax").exists()
    (trained, added, inspected, composed, listed), pages = commands(sys.executable, PYTHONPATH=str(tmp_path))
    assert trained["accuracy"] > 0.5
    assert composed["shards"]["3"]["taft"] > 0.3
    assert [row["name"] for row in listed["components"]] == [added["added"]] == ["finetune"]
    assert inspected["verified"]
    assert pages == ["index.html", "result.json"]


def test_the_version_is_the_same_everywhere():
    citation, changelog = (ROOT / "CITATION.cff").read_text(), (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == tj.__version__
    released = re.search(r'^date-released: "(.*)"$', citation, re.MULTILINE)[1]
    dated = re.search(r"^## (\S+ \(\d.*)$", changelog, re.MULTILINE)[1]  # what is not released stands above it
    assert dated == f"{tj.__version__} ({released})"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "tangent_jax._version.__version__"


def test_the_makefile_names_tests_that_exist():
    named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / "Makefile").read_text()))
    assert "tests/core" in named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_install_table_has_every_extra():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    page = (ROOT / "docs/reference/commands.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    assert {*re.findall(r"`\[(\w+)\]`", page)} == {*settings["project"]["optional-dependencies"]}
    assert f"tangent_jax-{tj.__version__}-py3" in page

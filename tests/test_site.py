"""The site: every public name on one page, every flag; it builds without network, warnings as errors."""

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import tangent_jax as tj
from experiments.shared.names import public_names
from tangent_jax.commands.shared.codes import MEANINGS

ROOT = Path(tj.__file__).parents[1]
sys.path.append(str(ROOT / "docs/_ext"))

import commands  # noqa: E402
import reference  # noqa: E402

EXAMPLE = """The sum of *both* x_i.

    y = x_1 + x_2

Args:
    a: The first, |a| < 1.

Guarantees:
    Exact, as `f(a_1)` is.

>>> 1 * 1
1"""

MARKED = r"""The sum of \*both\* x\_i.

::

    y = x_1 + x_2

Args:
    a: The first, \|a\| < 1.

Guarantees:
    Exact, as `f(a_1)` is.

>>> 1 * 1
1"""


def test_every_public_name_is_on_one_page():
    listed = [name for values in reference.places().values() for name in values]
    assert sorted(name for name in listed if ".rules." not in name) == sorted(
        f"tangent_jax.{n}" for n in public_names()
    )
    assert len({*listed}) == len(listed)
    for package, values in reference.places().items():
        entries = re.findall(r"^\.\. (?:auto\w+|py:data):: ", reference.page(package, values), re.MULTILINE)
        assert len(entries) == len(values)


def test_equations_are_literal_signs_escaped():
    assert reference.marked(EXAMPLE) == MARKED


SPHINXS = ("index", "genindex", "search", "py-modindex")


def pages_of(site):
    """The pages of the site, without the theme's own files."""
    return [path for path in site.rglob("*.html") if "_static" not in path.parts]


def anchors_and_links(text):
    """The identifiers of a page, and the targets of its links, pictures, scripts and styles."""
    tags = re.findall(r"<(?!!)[^>]+>", re.sub(r"<script(?![^>]*\bsrc=).*?</script>", "", text, flags=re.DOTALL))
    names = {html.unescape(name) for tag in tags for name in re.findall(r'\bid="([^"]*)"', tag)}
    links = [
        (tag.split()[0], html.unescape(link)) for tag in tags for link in re.findall(r'\b(?:href|src)="([^"]*)"', tag)
    ]
    return names, links


def check_links(site):
    """No link leads nowhere, and a page reads nothing that is not in the site's folder."""
    pages = {path: anchors_and_links(path.read_text()) for path in pages_of(site)}
    assert len(pages) > 30
    for page, (_, links) in pages.items():
        for tag, link in links:
            if re.match(r"\w+:|//", link):
                assert tag == "<a" or link.startswith("data:"), f"{page}: {tag} {link} is not here"
                continue
            path, _, name = unquote(link).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            assert not name or target not in pages or name in pages[target][0], f"{page}: {link}"


@pytest.mark.long
def test_site_builds_without_dead_links(tmp_path):
    """In a process of its own, as `make docs`, but that notebooks are not executed. One test: a build takes 25 s."""
    site = tmp_path / "site"
    options = ["-b", "html", "-E", "-W", "--keep-going", "-q", "-D", "nb_execution_mode=off", "-d"]
    command = [sys.executable, "-m", "sphinx", *options, str(tmp_path / "read"), "docs", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    check_links(site)
    flags = (site / "reference/commands.html").read_text()
    for binary in commands.binaries():
        assert f'id="{binary.replace(" ", "-")}"' in flags
    assert flags.count("--seed<") > 10
    table = flags.partition('id="exit-codes"')[2].partition("</table>")[0]
    assert table.count("<tr") == len(MEANINGS) + 1
    assert flags.count("--devices<") == 1
    for package, values in reference.places().items():
        page = (site / f"reference/api/{package}.html").read_text()
        for name, value in values.items():
            place = value.__name__ if inspect.ismodule(value) else name
            assert page.count(f'id="{"module-" * inspect.ismodule(value)}{place}"') == 1, name

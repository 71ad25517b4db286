"""One page for each package: every public name with its docstring; `tj.NAME` in a text becomes a link to it."""

import inspect
import re
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import NoUri
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform

from experiments.shared.names import public_names
from tangent_jax import rules

NAMESPACES = {name.partition(".")[0] for name in public_names() if "." in name}
API = Path(__file__).resolve().parents[1] / "reference/api"

DEMO = """The examples
------------

Every example runs as a test. It uses ``jax``, ``jnp``, ``np``, ``tj``, and ``demo``, a model of three dense layers with
its data, which is made so:

.. literalinclude:: ../../../tests/demo.py
   :language: python
"""


def places() -> dict[str, dict[str, Any]]:
    """{package: {qualified name: value}}: every public name once, and the rules, of which a model's own are made."""
    packages = {"rules": {f"tangent_jax.rules.{name}": getattr(rules, name) for name in rules.__all__}}
    for name, value in public_names().items():
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "tangent_jax.core")
        packages.setdefault(module.split(".")[1], {})[f"tangent_jax.{name}"] = value
    return dict(sorted(packages.items()))


def docstring(name: str, value: Any) -> str:
    """The docstring of a public name; of a number, text or table the one below its assignment."""
    if callable(value) or inspect.ismodule(value):
        return inspect.getdoc(value) or ""
    for module in [*sys.modules]:
        if module.startswith("tangent_jax.") and getattr(sys.modules[module], "__file__", None):
            lines = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name.rpartition(".")[2]))
            if lines:
                return "\n".join(lines).strip()
    return ""


def first_line(text: str) -> str:
    """The first line of a docstring."""
    return text.partition("\n")[0]


def escaped(text: str) -> str:
    """The text, in which only backticks mean anything to reStructuredText."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def marked(text: str) -> str:
    """A docstring whose indented paragraphs are literal blocks; examples stay, all else is escaped."""
    paragraphs = re.split(r"\n{2,}", text)
    for place, paragraph in enumerate(paragraphs):
        if paragraph.startswith(" ") and not paragraphs[place - 1].endswith("::"):
            paragraphs[place] = f"::\n\n{paragraph}"
        elif not paragraph.startswith((" ", ">>>")):
            paragraphs[place] = escaped(paragraph)
    return "\n\n".join(paragraphs)


def mark(app, what: str, name: str, value: Any, options, lines: list[str]) -> None:
    """What autodoc calls with every docstring, to change its lines in place, before napoleon reads its sections."""
    lines[:] = marked("\n".join(lines)).split("\n")
    if what in ("attribute", "property"):
        lines.insert(0, "\\")  # an empty word: napoleon takes the words before a colon in the first line for a type


def heading(title: str) -> str:
    """A title and the line under it."""
    return f"{title}\n{'=' * len(title)}\n"


def entry(name: str, value: Any) -> str:
    """What autodoc needs to know to describe one public name."""
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n   :member-order: bysource\n"
    if inspect.isclass(value):
        foreign = [base.__name__ for base in value.__mro__ if not base.__module__.startswith("tangent_jax")]
        return (
            f".. autoclass:: {name}\n   :members:\n   :special-members: __call__, __getitem__\n"
            f"   :inherited-members: {', '.join(foreign)}\n   :member-order: bysource\n"
        )
    if callable(value):
        return f".. autofunction:: {name}\n"
    module, _, short = name.rpartition(".")
    return f".. py:data:: {short}\n   :module: {module}\n\n{indent(escaped(docstring(name, value)), '   ')}\n"


def page(package: str, values: dict[str, Any]) -> str:
    """The page of one package: its docstring, a table of its names, then each name."""
    rows, values = [], dict(sorted(values.items(), key=lambda item: item[0].lower()))
    for name, value in values.items():
        role = f":py:mod:`tj.shards <{value.__name__}>`" if inspect.ismodule(value) else f":py:obj:`~{name}`"
        rows.append(f"   * - {role}\n     - {escaped(first_line(docstring(name, value)))}\n")
    about = marked(inspect.getdoc(sys.modules[f"tangent_jax.{package}"]) or "")
    table = ".. list-table::\n   :widths: 30 70\n\n" + "".join(rows)
    parts = [heading(package), about, "", table, *(entry(name, value) for name, value in values.items())]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Writes a page where it is not there with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def generate(app) -> None:
    """Writes docs/reference/api/: one page for each package, and their list."""
    packages = places()
    for old in {*API.glob("*.rst")} - {API / f"{name}.rst" for name in (*packages, "index")}:
        old.unlink()
    for package, values in packages.items():
        write(API / f"{package}.rst", page(package, values))
    listing = "".join(f"   {package}\n" for package in packages)
    about = "Every public name of ``import tangent_jax as tj``, package by package, from its docstring.\n"
    tree = f".. toctree::\n   :maxdepth: 2\n\n{listing}"
    write(API / "index.rst", f"{heading('API')}\n{about}\n{tree}\n{DEMO}")


def skip(app, what: str, name: str, value: Any, skipped: bool, options) -> bool | None:
    """True for a field of a named tuple, whose docstring says only its position."""
    return True if type(value).__name__ == "_tuplegetter" else None


class Links(SphinxTransform):
    """`tj.NAME` or `tj.NAME(...)` in a text becomes a link to that name; one that does not exist is a warning."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Replaces the literals of one page."""
        names = public_names()
        for literal in [*self.document.findall(nodes.literal)]:
            name = re.match(r"tj\.((?:shards|\w+(?:\.\w+)?))", literal.astext())
            known = name and (name[1] in names or name[1] not in NAMESPACES)
            if name and known and not isinstance(literal.parent, (addnodes.pending_xref, nodes.reference)):
                target = "tangent_jax.data.shards" if name[1] == "shards" else f"tangent_jax.{name[1]}"
                options = {"refdomain": "py", "reftype": "obj", "reftarget": target, "refwarn": True}
                link = addnodes.pending_xref("", refdoc=self.env.docname, refexplicit=True, **options)
                literal.replace_self(link)
                link += literal


def resolve(app, env, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Element | None:
    """The link of a type in a signature, which names the file that defines it, to its public name."""
    public = public_names().items()
    origins = {f"{getattr(value, '__module__', '')}.{name.rpartition('.')[2]}": name for name, value in public}
    name = origins.get(node["reftarget"])
    if node["refdomain"] != "py" or name is None:
        return None
    try:
        return env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"tangent_jax.{name}", node, content
        )
    except NoUri:
        return None


def setup(app) -> dict[str, bool]:
    """Registers all of it with Sphinx."""
    app.connect("builder-inited", generate)
    app.connect("autodoc-process-docstring", mark, priority=400)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    app.add_transform(Links)
    return {"parallel_read_safe": True}

"""Docstrings and pages are plain English; each word of the table in docs/design.md has one row."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path

import tangent_jax
from experiments.shared.names import public_names
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.table import TABLE
from tangent_jax.data import shards

ROOT = Path(tangent_jax.__file__).parents[1]
QUESTIONS = ("What", "Where", "Whether", "How", "Which", "Who")


def below(path, places):
    """True where a file is one of the places, or lies below one; all relative to the root."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


FILES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in ("tangent_jax", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
NAMES = ["tangent_jax", *(m.name for m in pkgutil.walk_packages(tangent_jax.__path__, "tangent_jax."))]
DEFINE_FLAGS = {f"tangent_jax.commands.{name}" for name in COMMANDS}
MODULES = {name: importlib.import_module(name) for name in NAMES if name not in DEFINE_FLAGS}


def table():
    """The rows of the table of words, each a list of its cells."""
    section = (ROOT / "docs/design.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    assert rows[0] == ["word", "means", "so never for"]
    return rows[2:]


def test_each_word_of_the_table_has_one_row():
    words = [word.strip() for word, *_ in table() for word in word.split(",")]
    assert len(words) >= 40
    assert len({*words}) == len(words)
    assert all(len(row) == 3 and row[1] for row in table())


def test_no_docstring_begins_with_a_question_word():
    documented = 0
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                words = re.findall(r"\w+", ast.get_docstring(node) or "")
                documented += bool(words)
                assert not words or words[0] not in QUESTIONS, f"{name}: {ast.get_docstring(node).splitlines()[0]}"
    assert documented > 500


def public(body):
    """The public functions and classes among statements."""
    return [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]


def inherited(kind, method):
    """The docstring of a method in a base of the class, or in a protocol of the library whose members it all has."""
    if inspect.getdoc(getattr(kind, method)):
        return True
    values = [value for module in MODULES.values() for value in vars(module).values()]
    for protocol in (value for value in values if getattr(value, "_is_protocol", False)):
        members = [name for name in vars(protocol) if not name.startswith("_")]
        if method in members and all(hasattr(kind, name) for name in members):
            return inspect.getdoc(getattr(protocol, method))
    return False


def test_every_public_function_class_and_method_has_a_docstring():
    count = 0
    for name, tree in FILES.items():
        module = MODULES.get(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for node in public(tree.body) if module else ():
            assert ast.get_docstring(node), f"{name}: {node.name}"
            for method in public(node.body) if isinstance(node, ast.ClassDef) else ():
                documented = ast.get_docstring(method) or inherited(getattr(module, node.name), method.name)
                assert documented, f"{name}: {node.name}.{method.name}"
                count += 1
            count += 1
    assert count > 300
    assert all(module.__doc__ for module in MODULES.values())


def test_a_public_name_is_one_object_and_an_object_has_one_public_name():
    names = public_names()
    assert len(tangent_jax.__all__) <= 46  # 45, and the version
    assert len(names) > 100
    assert len({id(value) for value in names.values()}) == len(names)


def test_no_name_hides_a_module():
    """`import tangent_jax.pretrained.load as load` gives the module, for every module of the library (FOUND, 65)."""
    for name, module in MODULES.items():
        parent, _, last = name.rpartition(".")
        assert not parent or getattr(MODULES[parent], last) is module, name
        assert sys.modules[name] is module


OPENING = re.compile(r"(?:\A|\n\s*\n|[.!?]\s+)(Of|What|Where|Whoever|Whose)\b[^?\n]*")
RULE = "begin a sentence with its subject, not with Of, What, Where, Whoever or Whose; avoid the phrases of PHRASES"
PHRASES = re.compile(
    r"\b(of which|of whom|in the place of|anew|what is left|whoever|his|him|betrays?|[Hh]e(?! et al| 20))\b",
    re.IGNORECASE,
)


def prose(text):
    """A docstring or page without code, examples, equations, tables of what files hold, and citations of plain text."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(>>>|\.\.\.) .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`|^    .*$|\]\([^)]*\)|<[^>]*>", "", text, flags=re.MULTILINE)


def violations(text):
    """The openings and phrases in a text that plain English avoids."""
    text = prose(text)
    return [match.group(0).strip() for rule in (OPENING, PHRASES) for match in rule.finditer(text)]


def test_docstrings_and_help_texts_are_plain_english():
    """Subject first; no riddle: STYLE's rules that a machine can tell."""
    assert violations("Of many, one.") == ["Of many, one."]
    assert violations("He takes what is left anew.") == ["He", "what is left", "anew"]
    assert not violations("Source: He et al. 2016. Copies are found.")
    assert not violations("The rows of the other model, in place.")
    texts = {}
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                texts[f"{name}: {getattr(node, 'name', '')}"] = ast.get_docstring(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                texts[f"{name}:{node.lineno}"] = str(node.value.value)
    texts |= {f"--{flag}": entry.keywords["help"] for flag, entry in TABLE.items()}
    assert len(texts) > 2000
    assert not {name: violations(text) for name, text in texts.items() if violations(text)}, RULE


def markdown(path):
    """The text of a page; the text cells of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_pages_are_plain_english():
    """All but the changelog, and the reports that commands write."""
    pages = [path for kind in ("*.md", "*.ipynb") for path in sorted((ROOT / "docs").rglob(kind))]
    pages = [path for path in pages if not below(path.relative_to(ROOT).as_posix(), ["docs/paper"])]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    assert len(pages) > 25
    wrong = {page.relative_to(ROOT).as_posix(): violations(markdown(page)) for page in pages}
    assert not {page: lines for page, lines in wrong.items() if lines}, RULE


def test_every_path_that_contributing_names_is_there():
    """Paths from the root; NAME stands for a name."""
    paths = re.findall(r"`([\w.-]+/[\w./-]*(?:\.\w+|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len({*paths}) > 20
    assert not [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]


NO_EXAMPLE = {"InputError"}
"""Public functions and classes whose example would show nothing."""


def test_every_public_function_and_class_has_an_example_that_runs():
    """Pytest runs it (`--doctest-modules`), with the small model of tests/demo.py."""
    values = {**public_names(), **{f"shards.{name}": value for name, value in vars(shards).items()}}
    own = {
        name: value for name, value in values.items() if callable(value) and value.__module__.startswith("tangent_jax.")
    }
    own = {name: v for name, v in own.items() if "shards." not in name or v.__module__ == shards.__name__}
    assert len(own) > 150
    assert {name for name, value in own.items() if ">>> " not in (value.__doc__ or "")} == NO_EXAMPLE

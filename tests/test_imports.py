"""Imports go strictly down the packages, in one order, and never in a circle.

The library knows nothing of its commands and of experiments: it imports none, its messages name none of their flags.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from run_binary import output_of

import tangent_jax
from experiments.shared.names import deep_imports
from tangent_jax.pretrained.load import FAMILIES

ROOT = Path(tangent_jax.__file__).parent
ORDER = [
    "_version",
    "_xla",
    "core",
    "rules",
    "linearization",
    "linear",
    "data",
    "train",
    "losses",
    "metrics",
    "models",
    "solver",
    "privacy",
    "store",
    "audit",
    "exports",
    "programs",
    "_public",
    "__init__",
    "commands",
    "__main__",
]
MODULES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
LIBRARY = {name: path for name, path in MODULES.items() if not name.startswith("tangent_jax.commands.")}
EXPERIMENTS = [*(ROOT.parent / "experiments").rglob("*.py")]


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """The modules of this library that a file imports, inside functions too."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner in MODULES or f"{inner}.__init__" in MODULES
                found.append(inner if is_module else node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def edges():
    names = {name.removesuffix(".__init__"): name for name in MODULES}
    for name, path in MODULES.items():
        for target in imports(path):
            if target.split(".")[0] == "tangent_jax":
                yield name, names[target]


def package(module):
    return ORDER.index(module.split(".")[1])


def test_imports_go_strictly_down():
    arrows = set(edges())
    assert len(arrows) > 150
    for module, target in arrows:
        same = package(target) == package(module)
        assert same or package(target) < package(module), f"{module} imports {target}"
        assert not (same and package(module) == ORDER.index("_version"))


def test_no_circle_of_imports():
    graph: dict = {}
    for module, target in edges():
        graph.setdefault(module, set()).add(target)
    assert len([*TopologicalSorter(graph).static_order()]) > 50  # raises CycleError with the circle


def test_experiments_and_tests_are_imported_by_nothing_in_the_library():
    for name, path in MODULES.items():
        assert not {target.split(".")[0] for target in imports(path)} & {"experiments", "tests"}, name


COMMANDS = [path for name, path in MODULES.items() if name.startswith("tangent_jax.commands.")]


@pytest.mark.parametrize("path", [*COMMANDS, *EXPERIMENTS], ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_commands_and_experiments_take_public_names_alone(path):
    assert [*deep_imports(path)] == []


@pytest.mark.parametrize(
    ("line", "deep"),
    [
        ("from tangent_jax.store.claims import Claims", [("tangent_jax.store.claims", "Claims")]),
        ("from tangent_jax.store import Store, Claims", [("tangent_jax.store", "Store")]),
        ("from tangent_jax import store, core", [("tangent_jax", "core")]),
        ("import tangent_jax.core", [("tangent_jax.core", "")]),
        ("from tangent_jax.commands.main import main", [("tangent_jax.commands.main", "main")]),
        ("tj.store.claims.Claims(tj.store.Claims(tj.Store('x')))", [("tangent_jax.store", "claims")]),
        ("from tangent_jax.commands.shared import plots; tj.fit(tj.metrics.accuracy)", []),
    ],
)
def test_a_deep_import_is_told(tmp_path, line, deep):
    (tmp_path / "file.py").write_text(line)
    assert [*deep_imports(tmp_path / "file.py")] == deep


def test_no_message_of_the_library_names_a_flag():
    text = "".join(path.read_text() for path in [*EXPERIMENTS, *COMMANDS])
    flags = {*re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text), *re.findall(r'^ +"(\w+)": flag\(', text, re.MULTILINE)}
    assert {"retrain", "skip_unreadable"} <= flags
    for name, path in LIBRARY.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not {*re.findall(r"--(?:no)?(\w+)", node.value)} & flags, f"{name}: {node.value}"


NO_FLAGS = """
import importlib, pkgutil
from absl import app
from absl.flags import FLAGS
import experiments.report, experiments.shared, tangent_jax.commands.report, tangent_jax.commands.shared
own, count = {*FLAGS}, 0
shared = experiments.report, experiments.shared, tangent_jax.commands.report, tangent_jax.commands.shared
for package in shared:
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        count += 1
print(count, *({*FLAGS} - own))
"""


def test_no_flag_appears_by_importing_what_the_binaries_share():
    """Of all that they share, in a process that has imported none of it; each binary defines its flags itself."""
    assert int(output_of(NO_FLAGS)[0]) >= 30


def test_nothing_but_the_list_knows_a_family():
    """Neither by an import nor by a name; the package's own names and each family's files apart."""
    named = {family.name for family in FAMILIES} | {family.model.__name__ for family in FAMILIES}
    own = tuple(f"tangent_jax.models.{family.name}" for family in FAMILIES)
    for name, path in MODULES.items():
        if name.startswith(own) or name in ("tangent_jax.models.__init__", "tangent_jax.pretrained.load"):
            continue
        assert not [target for target in imports(path) if target.startswith(own)], name
        texts = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
        assert not texts & (named | {"bottleneck"}), name

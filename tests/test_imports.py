"""The library knows no command, no experiment, and no family by its name; a module loads few others.

The rings and layers are contracts of import-linter in pyproject.toml: `make lint`.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from run_binary import output_of

import tangent_jax
from tangent_jax.pretrained.load import FAMILIES

ROOT = Path(tangent_jax.__file__).parent
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


COMMANDS = [path for name, path in MODULES.items() if name.startswith("tangent_jax.commands.")]


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


def test_imports_define_no_flag():
    """Of all that they share, in a process that has imported none of it; each binary defines its flags itself."""
    assert int(output_of(NO_FLAGS)[0]) >= 30


def test_no_file_but_the_list_names_a_family():
    """Neither by an import nor by a name; the package's own names and each family's files apart."""
    named = {family.name for family in FAMILIES} | {family.model.__name__ for family in FAMILIES}
    own = tuple(f"tangent_jax.{ring}.{family.name}" for family in FAMILIES for ring in ("models", "pretrained"))
    for name, path in MODULES.items():
        if name.startswith(own) or name == "tangent_jax.pretrained.load":
            continue
        assert not [target for target in imports(path) if target.startswith(own)], name
        texts = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
        assert not texts & (named | {"bottleneck"}), name


LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sum(name.partition(".")[0] == "tangent_jax" for name in sys.modules), "jax" in sys.modules)
"""
MOST = {"rules": 10, "linear.operator": 20, "privacy.clipping": 25, "features": 20, "features.row_store": 20}
MOST |= {"composition.compose": 27, "store.recipe": 34, "store.provenance": 42, "store.store": 67}


def loaded(module):
    """(how many files of this library a fresh process loads for a module, whether it loads JAX)."""
    command = [sys.executable, "-c", LOADED, module]
    count, jax = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True).stdout.split()
    return int(count), jax == "True"


@pytest.mark.parametrize(("module", "most"), MOST.items(), ids=MOST)
def test_a_module_loads_few_files_of_this_library(module, most):
    assert loaded(f"tangent_jax.{module}")[0] <= most


def test_jax_is_loaded_at_first_use():
    assert loaded("tangent_jax") == (4, False)

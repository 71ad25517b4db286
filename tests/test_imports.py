"""Imports go strictly down the floors, and siblings of the rules import only what is below them."""

import ast
from pathlib import Path

import tangent_jax

ROOT = Path(tangent_jax.__file__).parent
FLOORS = [
    {"notation", "checks", "trees", "progress", "files", "_version"},
    {"rules", "linearize", "losses"},
    {
        "config",
        "vit",
        "names",
        "weights",
        "subsets",
        "tangent_vit",
        "predict",
        "checkpoints",
        "fit",
        "many",
        "compose",
        "journal",
        "provenance",
        "exports",
        "privacy",
    },
    {"data", "store"},
    {"__init__"},
]
ORDER = {
    "notation": 0,
    "checks": 0,
    "progress": 0,
    "trees": 1,
    "config": -1,
    "vit": 0,
    "weights": 1,
    "subsets": 1,
    "tangent_vit": 1,
    "names": 0,
    "predict": 2,
    "checkpoints": 0,
    "fit": 3,
    "many": 4,
    "compose": 0,
    "files": 0,
    "journal": 0,
    "provenance": 2,
    "exports": 2,
    "privacy": 4,
    "store": 0,
    "linearize": 0,
    "losses": 0,
    "rules": 0,
    "data": 0,
    "_version": 0,
    "__init__": 0,
}


def floor(module):
    return next(i for i, names in enumerate(FLOORS) if module in names)


def edges():
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tangent_jax"):
                parts = node.module.split(".")[1:]
                for target in [parts[0]] if parts else [alias.name for alias in node.names]:
                    if target != module:
                        yield module, target


def test_imports_go_strictly_down():
    found = set(edges())
    assert len(found) > 20
    for module, target in found:
        assert (floor(target), ORDER[target]) < (floor(module), ORDER[module]), f"{module} imports {target}"


def test_every_file_holds_one_idea():
    for path in [*ROOT.rglob("*.py"), *(ROOT.parent / "experiments").glob("*.py")]:
        assert len(path.read_text().splitlines()) <= 330, path

"""The public names of the library, and the deeper imports of commands and experiments."""

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tangent_jax as tj

ROOT = Path(tj.__file__).parents[1]
LIBRARY, COMMANDS = ROOT / "tangent_jax", ROOT / "tangent_jax/commands"


def public_names() -> dict[str, Any]:
    """Every public value by its name below `tangent_jax`, such as "fit" and "privacy.epsilon_of"."""
    names = {}
    for name in tj.__all__:
        value = getattr(tj, name)
        inner = getattr(value, "__all__", None) if inspect.ismodule(value) else None
        names |= {name: value} if inner is None else {f"{name}.{each}": getattr(value, each) for each in inner}
    return names


@functools.cache
def namespaces() -> dict[str, frozenset[str]]:
    """The names that the top and each module or package directly below it hold in `__all__`, by module.

    Besides those of `tj` there are core, data, linear and programs, for authors of commands, and rules, for models.
    """
    below = [path for path in LIBRARY.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    modules = [f"tangent_jax.{path.stem}" for path in sorted(below) if not path.stem.startswith("_")]
    names = {module: getattr(importlib.import_module(module), "__all__", None) for module in modules}
    held = {module: frozenset(own) for module, own in names.items() if own is not None}
    return {"tangent_jax": frozenset(tj.__all__), **held}


def deep_imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a file of commands or experiments that no namespace holds.

    Commands may take what commands hold, experiments what `tangent_jax.commands.shared` does.
    """
    own = "tangent_jax.commands" if COMMANDS in path.parents else "tangent_jax.commands.shared"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("tangent_jax."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tangent_jax":
            module = node.module or ""
            is_own = f"{module}.".startswith(f"{own}.")
            yield from ((module, a.name) for a in node.names if not (is_own or holds(module, a.name)))
        elif isinstance(node, ast.Attribute):
            module, _, name = ast.unparse(node).replace("tj.", "tangent_jax.", 1).rpartition(".")
            if ast.unparse(node).startswith("tj.") and module in namespaces() and not holds(module, name):
                yield module, name


def holds(module: str, name: str) -> bool:
    """True if a namespace holds a name, or every module has it."""
    return name.startswith("__") or name in namespaces().get(module, ())

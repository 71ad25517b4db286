"""The public names of packages, each imported at its first use (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def public(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub `__init__.pyi` beside its file.

    Each line of a stub, `from MODULE import NAME as NAME`, is a public name. Type checkers read the same lines.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text()).body
    imports = [line for line in stub if isinstance(line, ast.ImportFrom) and line.module]
    modules = {alias.name: str(line.module) for line in imports for alias in line.names}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(__import__(modules[name], fromlist=[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return attribute, names, sorted(modules)

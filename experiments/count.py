"""Counts what is there: lines, public names, binaries, flags, imports of modules that are not public, result types.

    python -m experiments.count

Prints a table; the last line of stdout is the same as one JSON object. Lines are those of Python files, by folder.
Deep imports: names that commands and experiments take from the library and no namespace holds (shared/names.py).
Result types: public named tuples.
"""

import ast
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tangent_jax as tj
from experiments.shared.defined import binaries, defined
from experiments.shared.names import COMMANDS as FOLDER
from experiments.shared.names import LIBRARY, ROOT, deep_imports, namespaces, public_names
from tangent_jax.commands.shared.dispatch import COMMANDS


def lines() -> dict[str, int]:
    """The lines of Python files in each folder: packages of the library, experiments, tests."""
    count = Counter()
    for folder in ("tangent_jax", "experiments", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT).parts
            name = "/".join(inner[:2]) if folder == "tangent_jax" and len(inner) > 2 else folder
            count[name] += len(path.read_text().splitlines())
    return dict(sorted(count.items()))


def names_in_all() -> int:
    """The functions, classes and constants of the library's modules without commands that begin with no underscore."""
    modules = [path for path in LIBRARY.rglob("*.py") if FOLDER not in path.parents]
    return sum(not name.startswith("_") for path in modules for name in bound(ast.parse(path.read_text())))


def bound(module: ast.Module) -> Iterator[str]:
    """The names that a module binds at its top, but for those that it imports."""
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def deep() -> Counter[str]:
    """The number of names that commands and experiments take from below the namespaces, by module."""
    paths = [*FOLDER.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    return Counter(module for path in paths for module, _ in deep_imports(path))


def is_for_commands(module: str) -> bool:
    """True for a namespace that `tj` does not have."""
    return module.removeprefix("tangent_jax.") not in {*tj.__all__, "tangent_jax"}


def result_types() -> list[str]:
    """The public named tuples: what runs, audits and tangents give back."""
    return sorted(name for name, value in public_names().items() if inspect.isclass(value) and issubclass(value, tuple))


def main() -> None:
    """Prints the counts."""
    flags = {binary: [*defined(binary)[1]] for binary in binaries()}
    inner, results = deep(), result_types()
    counts: dict[str, Any] = {f"lines of {folder}": count for folder, count in lines().items()}
    counts |= {
        "public names at the top": len(tj.__all__),
        "public names in all": names_in_all(),
        "public names by namespace": len(public_names()),
        "names for commands": sum(len(own) for module, own in namespaces().items() if is_for_commands(module)),
    }
    own = [name for name in flags if name not in COMMANDS]
    counts |= {"commands": len(COMMANDS), "experiments": len({name.split()[0] for name in own}), "modes": len(own)}
    counts |= {"different flags": len({name for own in flags.values() for name in own})}
    counts |= {"flags of all binaries": sum(map(len, flags.values()))}
    counts |= {"deep imports": sum(inner.values())}
    counts |= {"result types": len(results)}
    width = max(map(len, counts))
    print("\n".join(f"{name:<{width}} {count:>7,}" for name, count in counts.items()))
    print(json.dumps(counts | {"results": results, "inner": dict(inner.most_common())}))


if __name__ == "__main__":
    main()

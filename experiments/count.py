"""Counts the lines, public names, binaries, flags, deep imports and result types of the code.

    python -m experiments.count
    python -m experiments.count MODULE ...      the cost of these libraries, if they are installed

Prints a table; the last line of stdout is the same as one JSON object. Lines are those of Python files, by folder.
Deep imports: names that commands and experiments take from the library and no namespace holds (shared/names.py).
Result types: public named tuples.
Costs: the megabytes of a distribution with all that it needs, those that tangent-jax and tangent-jax[data] have not,
and the seconds to import the module once tangent-jax is imported, the least of three.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

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
    """The functions, classes and constants in the library's modules, without commands and private names."""
    modules = [path for path in LIBRARY.rglob("*.py") if FOLDER not in path.parents]
    return sum(not name.startswith("_") for path in modules for name in bound(ast.parse(path.read_text())))


def bound(module: ast.Module) -> Iterator[str]:
    """The names that a module defines at its top level, without imported ones."""
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
    """The public named tuples: the results of runs, audits and tangents."""
    return sorted(name for name, value in public_names().items() if inspect.isclass(value) and issubclass(value, tuple))


def requirements(name: str, extra: str = "") -> set[str]:
    """The installed distributions that a distribution needs, including itself and an extra's."""
    names, seen = [(name, extra)], set()
    while names:
        entry = names.pop()
        try:
            needed = [] if entry in seen else map(Requirement, metadata.requires(entry[0]) or ())
        except metadata.PackageNotFoundError:  # requirements that this platform does not need
            continue
        seen.add(entry)
        for need in needed:
            if need.marker is None or need.marker.evaluate({"extra": entry[1]}):
                names += [(re.sub("[-_.]+", "-", need.name).lower(), extra) for extra in ("", *need.extras)]
    return {name for name, _ in seen}


def megabytes(names: set[str]) -> float:
    """The size of the installed files of distributions, without compiled Python."""
    files = [file.locate() for name in names for file in metadata.files(name) or () if file.suffix != ".pyc"]
    return round(sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 1e6, 1)


def cost(module: str) -> dict[str, float]:
    """The cost of a module in an installation of tangent-jax."""
    names = requirements(metadata.packages_distributions()[module.partition(".")[0]][0].lower())
    setup = "import time; from tangent_jax import Store; start = time.perf_counter()"
    clock = f"{setup}; import {module}; print(time.perf_counter() - start)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", clock], cwd=ROOT)) for _ in range(3)]
    return {
        "MB": megabytes(names),
        "MB beyond tangent-jax": megabytes(names - requirements("tangent-jax")),
        "MB beyond tangent-jax[data]": megabytes(names - requirements("tangent-jax", "data")),
        "seconds to import": round(min(seconds), 3),
    }


def main() -> None:
    """Prints the counts, or the costs of modules."""
    if sys.argv[1:]:
        costs = {module: cost(module) for module in sys.argv[1:]}
        for module, values in costs.items():
            print(f"{module:<16} " + "; ".join(f"{value} {name}" for name, value in values.items()))
        print(json.dumps(costs))
        return
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

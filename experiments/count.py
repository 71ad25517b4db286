"""Counts lines of code, files that an import loads, public names, flags, and questions of a predictor's kind.

    python -m experiments.count
    python -m experiments.count MODULE ...      the cost of these libraries, if they are installed

Prints a table; the last line of stdout is the same as one JSON object. Lines are those of Python files, blank ones too.
The inner ring is the mathematics (INNER), which imports no file, URL, flag or global state of the outer ring.
Files of `finetune`: those of the library that are loaded, and those with a function that is called once all are loaded,
while a network is fine-tuned on a folder of a few images. Questions of a kind: comparisons of a method's name, and
isinstance of a type that predicts; Python code asks them where a protocol could answer.
Costs: the megabytes of a distribution with all that it needs, those that tangent-jax and tangent-jax[data] have not,
and the seconds to import the module once tangent-jax is imported, the least of three.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from PIL import Image

import tangent_jax as tj
from experiments.shared.defined import binaries, defined
from experiments.shared.names import COMMANDS as FOLDER
from experiments.shared.names import LIBRARY, ROOT, public_names
from tangent_jax.commands.shared.dispatch import COMMANDS

INNER = (
    *("core", "rules", "linearization.py", "linear", "models", "train", "solver", "privacy", "composition"),
    *("losses.py", "metrics.py"),
)
"""The packages and modules of the inner ring."""
IMPORTS = ("tangent_jax.rules", "tangent_jax.solver", "tangent_jax.store")
PREDICTS = {"Predictor", "FeatureMap", "Contribution", "MappedOnce"}
"""The types that map parameters and inputs to outputs."""
METHODS = {"taft", "nlft", "fc"}

LOADED = """
import importlib, sys
importlib.import_module({module!r})
print(sum(name.partition(".")[0] == "tangent_jax" and bool(module.__file__) for name, module in sys.modules.items()))
"""
CALLED = """
import atexit, inspect, json, runpy, sys, threading
from absl import app

seen = set()
run = app.run

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:  # a function, no class
        seen.add(code.co_filename)

def run_noted(*arguments, **options):
    threading.setprofile(note)
    sys.setprofile(note)
    run(*arguments, **options)

def report():
    sys.setprofile(None)
    files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "tangent_jax"]
    loaded = {{file for file in files if file}}
    with open({file!r}, "w") as written:
        json.dump([len(loaded), len(loaded & seen)], written)

atexit.register(report)
sys.argv[1:] = {flags!r}
app.run = run_noted
runpy.run_module("tangent_jax.commands.finetune", run_name="__main__", alter_sys=True)
"""


def main() -> None:
    """Prints the counts, or the costs of modules."""
    if sys.argv[1:]:
        costs = {module: cost(module) for module in sys.argv[1:]}
        for module, values in costs.items():
            print(f"{module:<16} " + "; ".join(f"{value} {name}" for name, value in values.items()))
        print(json.dumps(costs))
        return
    counts = lines() | loaded_files() | names_and_flags()
    counts["questions of a predictor's kind"] = len(questions())
    width = max(map(len, counts))
    print("\n".join(f"{name:<{width}} {count:>7,}" for name, count in counts.items()))
    print(json.dumps(counts))


def lines() -> dict[str, int]:
    """The lines of Python files: of the library, its inner ring and its packages, of experiments and of tests."""
    of_part = Counter()
    for path in LIBRARY.rglob("*.py"):
        of_part[path.relative_to(LIBRARY).parts[0]] += count_lines(path)
    counts = {"lines of the library": of_part.total(), "lines of its inner ring": sum(of_part[part] for part in INNER)}
    packages = {f"lines of tangent_jax/{part}": count for part, count in sorted(of_part.items()) if count}
    folders = ("tests", "experiments")
    others = {f"lines of {folder}": sum(map(count_lines, (ROOT / folder).rglob("*.py"))) for folder in folders}
    return counts | others | packages


def count_lines(path: Path) -> int:
    """The lines of a file, blank ones too."""
    return len(path.read_text().splitlines())


def loaded_files() -> dict[str, int]:
    """The library's files that imports load, each in a process of its own, and those of a run of `finetune`."""
    counts = {}
    for module in IMPORTS:
        printed = subprocess.check_output([sys.executable, "-c", LOADED.format(module=module)], cwd=ROOT)
        counts[f"files loaded by {module}"] = int(printed)
    with tempfile.TemporaryDirectory() as folder:
        loaded, called = files_of_finetune(Path(folder))
    return counts | {"files loaded by finetune": loaded, "files that an image passes in finetune": called}


def files_of_finetune(folder: Path) -> tuple[int, int]:
    """(the number of the library's files that `finetune` loads, of those with a function that it calls)."""
    rng = np.random.default_rng(0)
    for name in ("train/a", "train/b", "test/a", "test/b"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
    flags = [f"--dataset=folder:{folder / 'images'}", f"--out={folder / 'out'}", f"--cache_dir={folder / 'cache'}"]
    file = folder / "files.json"
    program = CALLED.format(file=str(file), flags=[*flags, "--epochs=1", "--batch_size=2"])
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"finetune must end with exit code 0; got {ended.returncode}: {ended.stderr[-2000:]}")
    loaded, called = json.loads(file.read_text())
    return loaded, called


def names_and_flags() -> dict[str, int]:
    """The numbers of public names, commands, experiments and flags."""
    flags = {binary: [*defined(binary)[1]] for binary in binaries()}
    modes = [name for name in flags if name not in COMMANDS]
    return {
        "public names at the top": len(tj.__all__),
        "public names by namespace": len(public_names()),
        "public names in all modules": names_in_all(),
        "commands": len(COMMANDS),
        "experiments": len({name.split()[0] for name in modes}),
        "modes of experiments": len(modes),
        "different flags": len({name for names in flags.values() for name in names}),
        "flags of all binaries": sum(map(len, flags.values())),
    }


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


def questions() -> list[str]:
    """The places, FILE:LINE, at which the library asks for the kind of a predictor."""
    places = []
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.expr) and (asks_a_type(node) or asks_a_method(node)):
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def asks_a_type(node: ast.AST) -> bool:
    """True for isinstance(_, T) with a type of PREDICTS."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"):
        return False
    return bool(PREDICTS & {*re.findall(r"\w+", ast.unparse(node.args[1]))})


def asks_a_method(node: ast.AST) -> bool:
    """True for a comparison of something called method with a name of METHODS."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
    is_method = any(side.rpartition(".")[2] == "method" for side in sides)
    return is_method and bool(METHODS & {*re.findall(r"\w+", " ".join(sides))})


# The cost of another library


def requirements(name: str, extra: str = "") -> set[str]:
    """The installed distributions that a distribution needs, including itself and an extra's."""
    names = [(name, extra)]
    seen = set()
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


if __name__ == "__main__":
    main()

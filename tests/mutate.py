"""Mutates the files on which guarantees rest, with cosmic-ray, and lists the mutants that no test sees: `make mutate`.

FILES says which files and which tests. Each mutant is one changed place in a copy of the repository, and one run of
the file's tests. `build/mutate/survivors.txt` lists the mutants with which all tests pass, each with its line: write a
test, or leave it.

A run takes minutes for a small file and hours for all, and continues where it was stopped: build/mutate holds the
results. A file that changed, or whose tests changed, begins again.

mutmut was tried and is not used: it switches mutants in forked processes, in which JAX keeps the programs that it
traced before the switch, and it leaves decorated functions (`jax.jit`) alone.

    python tests/mutate.py [words in files' names, such as journal]
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/mutate"
COPY = BUILD / "copy"
SURVIVORS = BUILD / "survivors.txt"
FILES = {
    "tangent_jax/rules/class_query.py": "tests/rules/test_rules.py tests/models/test_tangent_vit.py",
    "tangent_jax/privacy/norms.py": "tests/privacy/test_clipping.py",
    "tangent_jax/privacy/clipping.py": "tests/privacy/test_clipping.py",
    "tangent_jax/privacy/noise.py": "tests/privacy/test_train.py",
    "tangent_jax/privacy/accounting.py": "tests/privacy/test_accounting.py",
    "tangent_jax/io/journal.py": "tests/io/test_journal.py",
    "tangent_jax/store/keys.py": "tests/store/test_keys.py tests/store/test_hidden.py",
    "tangent_jax/store/receipts.py": "tests/store/test_receipts.py tests/store/test_removal.py",
    "tangent_jax/store/erasure.py": " ".join(
        f"tests/store/test_{name}.py" for name in ("erasure", "requests", "plans", "foreign", "removal")
    ),
}
"""The files, and the fast tests of each."""

EXCLUDED = [
    "core/ReplaceBinaryOperator_.*_(RShift|LShift|BitOr|BitAnd|BitXor|FloorDiv|Mod|Pow)",
    "core/ReplaceBinaryOperator_BitOr_.*",
]  # annotations use |; +, -, * and / are enough
CONFIG = """
[cosmic-ray]
module-path = "{file}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider -m 'not slow and not long' {tests}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = {excluded}
"""


def run(*command: str) -> None:
    """Runs a module of cosmic-ray in the copy of the repository, with the repository's cache of compiled programs."""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": f"{ROOT}/.pytest_cache/jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant of the same size in the same second would be taken for the last one
    }
    environment.pop("PYTHONPATH", None)  # tests import the copy
    subprocess.run([sys.executable, "-m", *command], cwd=COPY, env=environment, check=True)


def copy_repository() -> None:
    """Makes the copy anew: a run that was killed leaves a mutant in it."""
    shutil.rmtree(COPY, ignore_errors=True)
    ignored = shutil.ignore_patterns(".*", "build", "out", "__pycache__", "*.egg-info", "pictures")
    shutil.copytree(ROOT, COPY, ignore=ignored)


def make_session(file: str, tests: str) -> tuple[Path, Path]:
    """The configuration and the session of a file; a new session if the file or its tests changed."""
    texts = [Path(ROOT, path).read_bytes() for path in [file, *tests.split(), "tests/mutate.py"]]
    version = hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
    name = f"{Path(file).parent.name}-{Path(file).stem}-{version}"
    config, session = BUILD / f"{name}.toml", BUILD / f"{name}.sqlite"
    if not session.exists():
        settings = {"file": file, "python": sys.executable, "tests": tests, "excluded": EXCLUDED}
        config.write_text(CONFIG.format(**settings, timeout=600.0))
        begin = time.monotonic()
        run("cosmic_ray.cli", "baseline", f"{config}")  # the tests pass without a mutant
        seconds = time.monotonic() - begin
        config.write_text(CONFIG.format(**settings, timeout=round(30 + 4 * seconds, 1)))
        part = session.with_suffix(".part")
        run("cosmic_ray.cli", "init", "--force", f"{config}", f"{part}")
        run("cosmic_ray.tools.filters.operators_filter", f"{part}", f"{config}")
        part.rename(session)
    return config, session


def survivors(file: str, session: Path) -> list[str]:
    """One line for each mutant of a file that all tests pass: line, what stood there, what stands there now."""
    lines = []
    with use_db(session, WorkDB.Mode.open) as work:
        for item, result in work.completed_work_items:
            if result.test_outcome == TestOutcome.SURVIVED:
                old = re.search(r"^-(?!--)(.*)", result.diff, re.MULTILINE)
                new = re.search(r"^\+(?!\+\+)(.*)", result.diff, re.MULTILINE)
                mutation = item.mutations[0]
                before, after = (side[1].strip() if side else "(none)" for side in (old, new))
                lines.append((mutation.start_pos, f"{file}:{mutation.start_pos[0]}: {before}  ->  {after}"))
    return [line for _, line in sorted(lines)]


def write_survivors(file: str, session: Path) -> None:
    """Replaces the section of a file in build/mutate/survivors.txt."""
    with use_db(session, WorkDB.Mode.open) as work:
        total = sum(result.worker_outcome != WorkerOutcome.SKIPPED for _, result in work.results)
        pending = len([*work.pending_work_items])
    found = survivors(file, session)
    counts = f"{len(found)} of {total} mutants survive" + (f"; {pending} not run yet" if pending else "")
    text = SURVIVORS.read_text() if SURVIVORS.exists() else ""
    parts = re.split(r"^# ", text, flags=re.MULTILINE)[1:]  # a line of code may hold one, too
    sections = {part.partition(": ")[0]: part for part in parts}
    sections[file] = "\n".join([f"{file}: {counts}", *found]) + "\n\n"
    SURVIVORS.write_text("".join(f"# {sections[name]}" for name in FILES if name in sections).rstrip() + "\n")
    print(f"{file}: {counts}", flush=True)


def main() -> None:
    """Mutates each chosen file, and writes its survivors also when it is stopped."""
    words = sys.argv[1:] or [""]
    unknown = [word for word in words if not any(word in file for file in FILES)]
    if unknown:
        sys.exit(f"each word must be in the name of one of {', '.join(FILES)}; got {unknown[0]}")
    chosen = {file: tests for file, tests in FILES.items() if any(word in file for word in words)}
    BUILD.mkdir(parents=True, exist_ok=True)
    copy_repository()
    for file, tests in chosen.items():
        config, session = make_session(file, tests)
        try:
            run("cosmic_ray.cli", "exec", f"{config}", f"{session}")
        except KeyboardInterrupt:
            sys.exit("stopped; the next run continues")
        finally:
            write_survivors(file, session)
            shutil.copy(ROOT / file, COPY / file)


if __name__ == "__main__":
    main()

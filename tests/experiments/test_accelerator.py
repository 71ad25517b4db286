"""The page of a device: written section by section, also where most of what is optional is absent."""

import json
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from run_binary import ROOT

from experiments.shared import timing

ABSENT = """
import runpy, sys
for name in "array_record dp_accounting grain huggingface_hub matplotlib sklearn tensorflow_datasets".split():
    sys.modules[name] = None
runpy.run_module("experiments.bench.accelerator", run_name="__main__", alter_sys=True)
"""
TITLES = ["Agreement", "Peak", "Steps", "Private", "Solver", "Models", "Trunk", "Attention"]


def measure(folder, *flags):
    """(last line, sections) of the small form where optional packages are absent."""
    command = [sys.executable, "-c", ABSENT, "--quick", f"--out={folder}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    result = json.loads(done.stdout.strip().rpartition("\n")[2])
    assert (result["right"], result["failed"]) == (True, 0)
    return result, json.loads((folder / "sections.json").read_text())["sections"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "sections", "rows"),
    [
        ("peak", ["peak", "trunk", "attention"], ["jax.nn's, xla"]),
        pytest.param(
            "agreement,private",
            ["agreement", "private", "peak", "steps", "solver", "models", "trunk"],
            ["outputs, bfloat16", "TAFT-1 step", "private step, norms in closed form", "a step of 50 models at once"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_small_form_writes_its_page(tmp_path, first, sections, rows):
    _, stored = measure(tmp_path, f"--only={first}")
    assert [*stored] == first.split(",")
    _, more = measure(tmp_path, f"--only={','.join(sections)}")
    assert [*more] == sections
    assert {name: more[name] for name in stored} == stored  # not measured again
    page = (tmp_path / "cpu.md").read_text()
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == [f"## {title}" for title in TITLES if title.lower() in sections]
    for row in rows:
        assert f"| {row}" in page, row
    trunk = more["trunk"]["rows"][-1]
    assert float(trunk["images/s"]) > 0
    assert trunk["of peak"].endswith("%")


def test_failed_measurement_is_a_line():
    def no_memory():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")

    def no_kernel():
        raise NotImplementedError("no such kernel")

    good = partial(timing.compiled, "one", lambda x: x + 1, jnp.ones(3))
    makes = {"first": good, "large": no_memory, "new": no_kernel, "last": good}
    rows = {row["name"]: row for row in timing.measured(makes, time.monotonic() + 60, 0.01)}
    assert [*rows] == [*makes]
    assert min(rows["first"]["seconds"], rows["last"]["seconds"]) > 0
    assert rows["large"]["failed"] == "out of memory"
    assert rows["new"]["failed"] == "NotImplementedError: no such kernel"
    assert timing.measured(makes, time.monotonic() - 1, 0.01)[0] == {"name": "first", "failed": "no time left"}

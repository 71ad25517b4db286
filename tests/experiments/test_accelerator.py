"""The page of a device: written section by section, also where most of what is optional is absent."""

import json
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_binary import ROOT

import tangent_jax as tj
from experiments.bench import accelerator
from experiments.shared import behaviour, timing

ABSENT = """
import runpy, sys
for name in "array_record dp_accounting grain huggingface_hub matplotlib sklearn tensorflow_datasets".split():
    sys.modules[name] = None
runpy.run_module("experiments.bench.accelerator", run_name="__main__", alter_sys=True)
"""
TITLES = ["Agreement", "Peak", "Steps", "Private", "Features", "Solver", "Models", "Trunk", "Attention", "Behaviour"]


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
            ["agreement", "private", "features", "peak", "steps", "solver", "models", "trunk"],
            [
                "outputs, bfloat16",
                "TAFT-1 step",
                "private step, norms in closed form, blocks: 2",
                "features of `exact`, bfloat16",
                "a step of 50 models at once",
            ],
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


REMOVAL = "removal: the same bits as without the component from the start"
QUESTIONS = {
    **{"fit": 1, "solve": 1, "composition": 2, "removal": 1, "feature": 3, "default precision": 8},
    **{f"random {name}": 1 for name in ("bits", "uniform", "normal", "permutation", "categorical")},
    **{"temporary memory": 5, "loop over blocks": 1, "scan over blocks": 1},
}


@pytest.mark.slow
def test_behaviour_answers_every_question(tmp_path):
    _, stored = measure(tmp_path, "--only=behaviour")
    rows = {row["name"]: row["answer"] for row in stored["behaviour"]["rows"]}
    assert Counter(name.split(":")[0].split(",")[0] for name in rows) == QUESTIONS
    for name, answer in rows.items():
        match name.split(":")[0].split(",")[0]:
            case "fit" | "solve" | "composition" | "removal":
                assert answer == "yes, 10 of 10", name
            case "temporary memory":
                assert 0 < float(answer.removesuffix(" MiB")) < 10
            case "default precision":
                assert answer.startswith("no change: error "), name
            case "loop over blocks" | "scan over blocks":
                assert min(float(part) for part in answer.split(" and ")) > 0
            case "feature":
                assert answer.startswith("of 8: "), name
            case _:
                assert answer == "0 of 1000 differ", name
    assert f"| {REMOVAL} | yes, 10 of 10 | yes |" in (tmp_path / "cpu.md").read_text()


def test_behaviour_tells_what_differs(monkeypatch):
    count = iter(range(100))
    assert behaviour.same_bits(lambda: {"w": np.full(3, next(count) // 5)}) == {
        "answer": "no, 2 distinct results",
        "right": "NO, promised",
    }
    assert (
        behaviour.different(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))
        == "1 of 3 differ, relative at most 5e-01"
    )

    def rough(a):
        return a if jax.config.jax_default_matmul_precision == "highest" else a * 1.5

    assert behaviour.precision(rough, np.abs, (np.ones(3),))["answer"].startswith("changes: error 5e-01")
    ask = behaviour.bits(accelerator.vit(accelerator.Config(quick=True), "S"))[REMOVAL]
    assert ask()["right"] == "yes"
    monkeypatch.setattr(tj, "compose", lambda parts: {"w": np.full(3, next(count))})  # depends on earlier calls
    assert ask()["right"] == "NO, promised"


def test_behaviour_says_what_it_lacks(monkeypatch):
    pretrained = accelerator.vit(accelerator.Config(quick=True), "S")
    late = [*behaviour.answers(pretrained, True, time.monotonic() - 1)]
    assert (len(late), {row["failed"] for row in late}) == (sum(QUESTIONS.values()), {"no time left"})

    def unknown():
        raise NotImplementedError("no memory analysis")

    for name in ("bits", "precisions", "memory", "compilation"):
        monkeypatch.setattr(behaviour, name, lambda *_: {})
    monkeypatch.setattr(behaviour, "draws", lambda *_: {"first": unknown, "last": lambda: {"answer": "yes"}})
    assert [*behaviour.answers(pretrained, True, time.monotonic() + 60)] == [
        {"name": "first", "failed": "NotImplementedError: no memory analysis"},
        {"name": "last", "answer": "yes"},
    ]

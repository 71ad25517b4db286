"""`tangent-jax`: its list of commands, and how a command starts; what each does is tested in tests/experiments."""

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from absl.flags import Error
from run_binary import ROOT, output_of, refused
from test_imports import MODULES, imports

from experiments.shared.defined import binaries, defined, definitions
from experiments.shared.table import TABLE
from tangent_jax import __version__
from tangent_jax.commands import main as module
from tangent_jax.commands.main import main
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import F, parse
from tangent_jax.commands.shared.settings import FIELD_OF
from tangent_jax.commands.shared.table import PRESETS
from tangent_jax.data.folders import question_of
from tangent_jax.data.layouts import Asked
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.store.recipe import Recipe


def call(*words, code=""):
    """The process of `tangent-jax WORDS`, after Python code in which `module` is that of main."""
    start = f"import os, sys; from tangent_jax.commands import main as module; {code or 'pass'}\nmodule.main()"
    command = [sys.executable, "-W", "ignore", "-c", start, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_script_and_module_are_main():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"tangent-jax": f"{module.__name__}:main"}
    done = subprocess.run([sys.executable, "-m", "tangent_jax", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"tangent-jax {__version__}\n"


def test_help_lists_commands_without_jax():
    said = "lambda: print(*{'jax', 'numpy', 'absl'} & {*sys.modules})"
    done = call("--help", code=f"import atexit; atexit.register({said})")
    assert done.returncode == 0, done.stderr
    head, _, *lines, heavy = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*COMMANDS]
    assert all(line.endswith(".") and 40 < len(line) <= 130 for line in lines)
    assert head.startswith("tangent-jax COMMAND --flags")
    assert heavy == ""


@pytest.mark.parametrize(
    ("words", "unbuffered", "said", "code"),
    [
        ((), "", b"1 device: cpu\n", codes.FAILED),
        (("--help",), "", b"", codes.DONE),
        (("--help",), "1", b"", codes.FAILED),
    ],
)
def test_closed_stdout_costs_no_message(words, unbuffered, said, code):
    prints = (
        "from tangent_jax.commands.shared import command; command.run(lambda _: [print('x' * 99) for _ in range(9999)])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", prints, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as child:
        child.stdout.close()  # as `| head` does
        assert child.stderr.read() == said
        assert child.wait() == code


SAYS = """
import logging
from tangent_jax.commands.shared import command

def main(config):
    for level in ("info", "warning", "error"):
        getattr(logging.getLogger("jax._src.xla_bridge"), level)(f"{level} of JAX")

command.run(main)
"""


@pytest.mark.parametrize(
    ("flags", "levels"),
    [([], ["warning", "error"]), (["--verbosity=-2"], ["error"]), (["--verbosity=0"], ["info", "warning", "error"])],
)
def test_verbosity_shows_package_warnings(flags, levels):
    """Such as JAX's: that it falls back to the CPU, for a driver or a package that is missing."""
    _, err = output_of(SAYS, *flags)
    assert re.findall("(info|warning|error) of JAX", err) == levels


@pytest.mark.parametrize(
    ("code", "line"), [("", "1 device: cpu"), ("jax.config.update('jax_num_cpu_devices', 2)", "2 devices: cpu")]
)
def test_first_stderr_line_names_devices(code, line):
    _, err = output_of(f"import jax\n{code}\n{SAYS}")
    assert err.splitlines()[0] == line


@pytest.mark.parametrize("flag", ["--nofactors=true", "--stderrthreshold=x", "--verbosity=loud"])
def test_a_wrong_flag_of_absl_is_one_line(flag):
    name = flag.partition("=")[0]
    assert re.fullmatch(f"finetune: .*{name}.* Try finetune --help.\n", refused("finetune", flag))


def test_missing_stderr_adds_nothing_to_stdout(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m tangent_jax store list --store={tmp_path} 2>&-", shell=True, cwd=ROOT, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (codes.FAILED, b"", b"")


@pytest.mark.parametrize("words", [["finetun"], ["--seed=1"], []])
def test_a_wrong_command_is_one_line(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tangent-jax", *words])
    got = words[0] if words else "none"
    with pytest.raises(
        SystemExit, match=f"^tangent-jax: the first argument must be one of finetune, .*; got {got}. Try tangent"
    ):
        main()


def test_missing_package_is_one_line():
    done = call("inspect", code="sys.modules['jinja2'] = None")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "inspect: the package jinja2 must be installed; it is missing. Install tangent-jax[data].\n"


def test_signal_at_import_is_one_line():
    sent = f"lambda *_, **__: os.kill(os.getpid(), {int(signal.SIGTERM)})"
    done = call("store", code=f"import runpy; runpy.run_module = {sent}")
    assert (done.returncode, done.stderr.strip()) == (128 + signal.SIGTERM, "interrupted before anything began")


ENDED = {
    "UNKNOWN: Gloo AllGather failed: [external/gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:4311": (
        "Connection closed by peer"
    ),
    "UNKNOWN: Gloo AllGather failed: [external/gloo/pair.cc:547] Read error: Connection reset by peer": (
        "Connection reset by peer"
    ),
    "INTERNAL: NCCL operation failed: remote process exited or there was a network error.\nLast error:": (
        "remote process exited"
    ),
}


@pytest.mark.parametrize("kind", [ValueError, jax.errors.JaxRuntimeError, ConnectionResetError])
@pytest.mark.parametrize("text", ENDED)
def test_ended_neighbour_is_one_line(kind, text):
    line = command.in_one_line(kind(text), is_job=True)
    ended = f"another process of the job ended ({ENDED[text]})"
    assert line == f"{ended}. Start all again: they resume from what is saved"


def test_error_is_a_line_and_bug_a_traceback():
    full = OSError(28, "No space left on device", "out")
    for is_job in (False, True):
        assert command.in_one_line(full, is_job) == "[Errno 28] No space left on device: 'out'"
        assert command.in_one_line(MemoryError(), is_job) == "there is not enough memory: MemoryError"
    assert command.in_one_line(KeyError("name"), False) is None
    assert command.in_one_line(ValueError("a\nb"), True) == "ValueError: a b"
    assert command.in_one_line(ValueError("Connection reset by peer"), False) is None


def test_every_exit_has_a_code_of_the_table():
    """A text is code 1; `parent.join(), os._exit(1)` and the like lie below the commands, and give that number."""
    known = {code for row in codes.MEANINGS for code in row.codes}
    named = {f"codes.{name}" for name in ("DONE", "FAILED", "STOPPED")}
    found = set()
    experiments = {f"experiments/{path.name}": path for path in (ROOT / "experiments").rglob("*.py")}
    for name, path in (MODULES | experiments).items():
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("sys.exit", "os._exit", "leave"):
                text = ast.unparse(node.args[0])
                signal_of = re.fullmatch(r"(codes\.)?of_signal\(number\)", text)
                below = not name.startswith(("tangent_jax.commands", "experiments")) and text == "1"
                said = isinstance(node.args[0], ast.JoinedStr | ast.Constant) and "'" in text
                assert text in named | {"code"} or signal_of or below or said, f"{name}:{node.lineno} {text}"
                found |= {text} & named
    assert found == named
    assert (
        known == {0, 1, 130, 143, 137} == {codes.DONE, codes.FAILED, codes.STOPPED, *map(codes.of_signal, (2, 15, 9))}
    )


def test_command_imports_no_other():
    own = {f"tangent_jax.commands.{name}" for name in COMMANDS}
    assert own <= {*MODULES}
    for name, path in MODULES.items():
        assert not {*imports(path)} & own, name
    programs = {name for name, path in MODULES.items() if "\n    command.run(main" in path.read_text()}
    assert programs == own
    for name in own:
        assert ast.get_docstring(ast.parse(MODULES[name].read_text())), name


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_defaults_that_flags_change(name):
    own = PRESETS[name]
    with definitions("compose"):
        parse(["compose", f"--preset={name}"])
        assert {flag: F[flag].serialize() for flag in own} == {flag: f"--{flag}={value}" for flag, value in own.items()}
        assert not any(F[flag].present for flag in own)
    with definitions("compose"):
        parse(["compose", "--method=fc", f"--preset={name}"])
        assert F.method == ["fc"]
    with definitions("compose"):
        parse(["compose"])
        assert {flag: F[flag].serialize() for flag in own} != {flag: f"--{flag}={value}" for flag, value in own.items()}


FROM_PYTHON = """
import json, sys
from pathlib import Path
from tangent_jax.commands.finetune import Config, main
from tangent_jax.core.checks import InputError

def refusal(call):
    try:
        call()
    except InputError as error:
        return str(error)

out = Path(sys.argv[1])
main(Config(blocks=0, epochs=1, cache_dir=f"{out}/cache", out=f"{out}/out"))
epochs = json.loads((out / "out/result.json").read_text())["recipe"]["epochs"]
said = [refusal(Config(certificate=0.1).check_effects), refusal(lambda: main(Config(solver="optimum")))]
print(json.dumps([epochs, Config(penalty=0.1).gave("penalty"), Config().gave("penalty"), *said]))
"""


def test_a_command_runs_from_python(tmp_path):
    """Another value than the default counts as given."""
    result, line = map(json.loads, output_of(FROM_PYTHON, tmp_path)[0].splitlines())
    assert (result["method"], result["subset"]) == ("taft", "blocks-0")
    assert line[:3] == [1, True, False]
    assert line[3] == "--certificate has an effect only with --solver=optimum; got --solver=adam"
    assert line[4].startswith("--penalty must be given with --solver=optimum")


def test_folders_of_splits_are_the_data_set():
    """Any character may stand in a folder's name."""
    with definitions("finetune"):
        parse(["finetune", "--train=a,b/c++ & 100%", "--test=/d e?"])
        assert question_of(F.dataset.removeprefix("folder:")) == (
            "",
            Asked({"train": "a,b/c++ & 100%", "test": "/d e?"}),
        )


@pytest.mark.parametrize("words", [["--test=x"], ["--train="], ["--train=x", "--dataset=digits"]], ids=" ".join)
def test_wrong_split_folders_are_refused(words):
    with definitions("finetune"), pytest.raises(Error, match="--train"):
        parse(["finetune", *words])


def test_class_of_removed_images_is_said(monkeypatch, capsys):
    """The other classes train on; a test split says nothing."""
    labels = np.array([0, 1, 1], np.int32)
    train = Examples(tuple("abc"), labels, lambda i: f"train {i}".encode())
    test = Examples(tuple("abc"), labels, lambda i: f"test {i}".encode())
    data = Dataset("set", ("cat", "hat"), {"train": train, "test": test})
    gone = {part.identifiers()[0] for part in (data.train, data.test)}
    monkeypatch.setattr(setup, "removed_images", lambda *_: gone)
    config: Any = SimpleNamespace(store="s")
    assert len(setup.without_removed(config, data.train, "train inputs")) == 2
    assert "train inputs: no image of cat is left to train on" in capsys.readouterr().err
    assert len(setup.without_removed(config, data.test, "test inputs")) == 2
    assert "left to train on" not in capsys.readouterr().err


def test_flags_are_of_the_table_with_help():
    own = {binary: defined(binary)[1] for binary in binaries()}
    assert {name for flags in own.values() for name in flags} == {*TABLE}
    for name, make in TABLE.items():
        about = make.keywords["help"].removesuffix(".")
        assert all(about in flags[name].help for flags in own.values() if name in flags), name


def test_flag_sets_a_stated_recipe_field():
    """`delta` of a budget must not fill a field `delta` of another meaning."""
    assert {*FIELD_OF} <= {*TABLE}
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert {*FIELD_OF.values()} <= fields
    assert fields & {*TABLE} <= {*FIELD_OF}, "rename the setting, or state in FIELD_OF that the flag sets it"

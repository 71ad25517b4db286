"""The README's code runs, in order, as its reader would run it; its commands name binaries and flags that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_python_blocks_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for block in blocks:
        exec(compile(block.replace("/tmp/tangent_jax_cache", str(tmp_path)), "README.md", "exec"), names)
    assert names["logits"].shape == (2, 10)


def test_the_commands_name_binaries_and_flags_that_exist():
    commands = re.findall(r"python -m experiments\.([a-z]\w+)([^\n`]*)", README)
    assert len(commands) >= 2
    common = "".join((ROOT / f"experiments/{name}.py").read_text() for name in ("common", "sharded"))
    for binary, arguments in commands:
        source = (ROOT / f"experiments/{binary}.py").read_text() + common
        defined = set(re.findall(r'flags\.DEFINE_\w+\(\s*"(\w+)"', source))
        assert set(re.findall(r"--(\w+)", arguments)) <= defined, (binary, arguments)


def test_every_binary_is_listed():
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    binaries = {path.stem for path in (ROOT / "experiments").glob("*.py") if "binary.run(main" in path.read_text()}
    assert listed == binaries

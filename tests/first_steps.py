"""Runs the README's first block and the commands by another Python, in an empty folder with an empty home:
`first_steps.py PYTHON`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHERE = "\nimport importlib.util\nprint(tj.__version__, tj.__file__, importlib.util.find_spec('experiments'))"


def first_steps(python, **environment):
    """(what the block printed, version and file of the library, whether experiments can be imported) as text."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "HOME": empty, **environment}
        command = [os.path.abspath(python), "-W", "ignore", "-c", block + WHERE]
        return subprocess.check_output(command, cwd=empty, env=environment, text=True).splitlines()


COMMANDS = (
    "finetune --epochs=2 --out=out/finetune",
    "store add --store=out/store --source=out/finetune",
    "inspect --store=out/store --out=out/pages",
    "compose --method=taft --shards=3 --epochs=1 --out=out/compose",
    "store list --store=out/store",
)


def commands(python, **environment):
    """The results of COMMANDS, run one after another."""
    results = []
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "HOME": empty, **environment}
        for words in COMMANDS:
            command = [os.path.abspath(python), "-W", "ignore", "-m", "tangent_jax", *words.split()]
            stdout = subprocess.check_output(command, cwd=empty, env=environment, text=True)
            results.append(json.loads(stdout.strip().splitlines()[-1]))
        pages = sorted(path.name for path in Path(empty, "out/pages").iterdir())
    return results, pages


if __name__ == "__main__":
    accuracy, *_, where = first_steps(sys.argv[1])
    print(f"accuracy {accuracy}; tangent_jax {where}")
    results, pages = commands(sys.argv[1])
    print(*map(json.dumps, results), pages, sep="\n")
    sys.exit(not float(accuracy) > 0.85 or str(ROOT / "tangent_jax") in where or not where.endswith("None"))

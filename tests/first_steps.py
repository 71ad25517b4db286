"""Runs the README's first block by another Python, in an empty folder with an empty home: `first_steps.py PYTHON`."""

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


if __name__ == "__main__":
    accuracy, where = first_steps(sys.argv[1])
    print(f"accuracy {accuracy}; tangent_jax {where}")
    sys.exit(not float(accuracy) > 0.85 or str(ROOT / "tangent_jax") in where or not where.endswith("None"))

"""A disk that takes no more: one line, exit code 1, and nothing half written. Here the size of a file is limited."""

import os
import resource
import subprocess
import sys

import pytest
from helpers import origin, part
from run_binary import ROOT, module_of, run

from tangent_jax.store.files import write_component
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify

LIMIT = 60_000  # bytes of a file: less than a step, a checkpoint or the cached rows


def limited(binary, *flags):
    """A binary that can write no file of more than LIMIT bytes."""
    command = [sys.executable, "-W", "ignore", "-m", module_of(binary), *map(os.fspath, flags)]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))

    child = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, preexec_fn=limit, check=False
    )
    assert child.returncode == 1, child.stderr[-2000:]
    assert "Traceback" not in child.stderr, child.stderr[-3000:]
    assert "File too large" in child.stderr.strip().splitlines()[-1]


def partial_files(root):
    return [path for path in root.rglob("*") if "partial" in path.name or path.name in ("reserved", "rows.bin")]


@pytest.mark.long
@pytest.mark.parametrize(("binary", "subset"), [("private", "head"), ("finetune", "head")])
def test_checkpoints(tmp_path, binary, subset):
    cache = f"--cache_dir={tmp_path / 'cache'}"
    run("finetune", cache, "--subset=head", "--epochs=1", f"--out={tmp_path / 'first'}")  # fills the cache
    limited(binary, cache, f"--subset={subset}", "--epochs=2", f"--out={tmp_path / binary}")
    assert partial_files(tmp_path / binary) == []


@pytest.mark.slow
def test_the_cache(tmp_path):
    limited("finetune", f"--cache_dir={tmp_path / 'cache'}", "--subset=head", "--epochs=1", f"--out={tmp_path / 'out'}")
    assert partial_files(tmp_path) == []


@pytest.mark.slow
def test_the_store(tmp_path):
    big = {"head": {"kernel": part(0)["head"]["kernel"].repeat(600, 0)}}
    (tmp_path / "source").mkdir()
    made = origin(0, subset=("head/kernel",))
    write_component(tmp_path / "source/dw.safetensors", big, {"provenance": made.to_json()})
    limited("store", "add", f"--store={tmp_path / 'store'}", f"--source={tmp_path / 'source'}")
    assert [*Store(tmp_path / "store")] == []
    assert partial_files(tmp_path) == []
    assert verify(Store(tmp_path / "store")) == []

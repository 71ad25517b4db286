"""SIGINT and SIGTERM end a run at its next step, with what is done saved and one line; the same command goes on."""

import json
import os
import re
import signal

import pytest
from run_binary import run, start, wait_until


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_stopped_run_saves_and_goes_on(tmp_path, number):
    cache, out = f"--cache_dir={tmp_path / 'cache'}", tmp_path / "out"
    flags, said = [cache, "--subset=head", f"--out={out}"], tmp_path / "stderr"
    child = start("talkative", "tangent_jax", "finetune", *flags, "--epochs=60000", stderr=said)
    try:
        wait_until(child, lambda: said.exists() and re.search(r" [1-9]\d*/60000", said.read_text()), 120)
        os.kill(child.pid, number)
        child.join(60)
    finally:
        child.kill()
    err = said.read_text()
    assert child.exitcode == 130, err[-2000:]
    assert "Traceback" not in err
    assert "the same command resumes from what is saved" in err
    (saved,) = out.glob("checkpoints/*/checkpoint.json")
    assert len(json.loads(saved.read_text())["history"]) >= 1
    assert json.loads(run("finetune", *flags, "--epochs=60")[0])["accuracy"] > 0.5

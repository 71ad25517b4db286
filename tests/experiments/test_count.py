"""The counts of what is there."""

import json

from run_binary import run

import tangent_jax as tj
from tangent_jax.commands.main import COMMANDS


def test_what_is_there_is_counted():
    counts = json.loads(run("count")[0])
    assert counts["public names at the top"] == len(tj.__all__) < counts["public names in all"]
    assert counts["commands"] == len(COMMANDS)
    assert counts["different flags"] < counts["flags of all binaries"]
    assert "Fitted" in counts["results"]
    assert counts["names imported of them"] == sum(counts["inner"].values())
    assert "tangent_jax.core" in counts["inner"]
    assert counts["lines of tangent_jax/core"] > 1000 < counts["lines of experiments"]

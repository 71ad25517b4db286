"""Methods that compose exactly give one accuracy, however many shards there are and whatever each holds."""

import json

import pytest
from helpers import in_long
from run_binary import run

METHODS = ("exact", "ridge", "ranpac", "lda")


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["class", *in_long("uniform")])
def test_exact_methods_have_one_accuracy_for_any_shards(tmp_path, sharding):
    flags = [f"--method={','.join(METHODS)}", "--shards=1,5", f"--sharding={sharding}", "--width=64", "--held_out"]
    result = json.loads(run("compose", *flags, f"--out={tmp_path}", f"--cache_dir={tmp_path / 'cache'}")[0])
    assert [*result["shards"]] == ["1", "5"]
    for name in METHODS:
        one, several = (result["shards"][count][name] for count in ("1", "5"))
        assert one == several == result["full"][name] > 0.7
        assert result["methods"][name]["searched"] == (18 if name == "exact" else 6)
    assert (tmp_path / "compose.png").exists()

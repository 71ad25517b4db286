"""Rounds from the command line: composed, federated averaging beside them, a removal, an anchor of public images."""

import json
from pathlib import Path

import pytest
from photos import photographs
from run_binary import run

from tangent_jax.store.rounds import round_stores
from tangent_jax.store.store import Store


@pytest.fixture
def flags(tmp_path, tiny):
    photographs(tmp_path / "photos", count=8)
    places = [f"--cache_dir={tmp_path}/cache", f"--store={tmp_path}/stores", f"--out={tmp_path}/out"]
    return [tiny, f"--dataset=folder:{tmp_path}/photos", *places, "--merge=inputs", "--epochs=3", "--batch_size=4"]


@pytest.mark.slow
def test_rounds_compose_and_repeat_without_what_is_removed(tmp_path, tiny, flags):
    line, _ = run("compose", *flags, "--shards=2,3", "--method=taft,soup", "--rounds=3")
    result = json.loads(line)["rounds"]
    assert {count: {*row} for count, row in result.items()} == {"2": {"taft", "soup"}, "3": {"taft", "soup"}}
    assert all(0.5 <= value <= 1 for value in result["2"]["taft"])
    assert len(result["2"]["soup"]) == 3
    assert run("compose", *flags, "--shards=2,3", "--method=taft,soup", "--rounds=3")[0] == line
    assert (tmp_path / "out/rounds.md").read_text().startswith("| round | taft, 2 | soup, 2 | taft, 3 | soup, 3 |")
    assert (tmp_path / "out/rounds.png").exists()
    root = tmp_path / "stores/photos-taft-uniform-2-rounds-seed0"
    first = round_stores(root)[0]
    recipe = first.provenance("shard 0").recipe
    assert (recipe.output, recipe.solver, recipe.penalty, recipe.passes) == ("total", "optimum", 0.1, 12)
    gone = first.provenance("shard 1").examples[0]
    (tmp_path / "ids.txt").write_text(gone[0])
    asked, where = f"--examples={tmp_path}/ids.txt", [f"--store={root}", f"--cache_dir={tmp_path}/cache"]
    _, error = run("store", "remove", *where, asked, code=1)
    assert "expected --examples or --owner, with --retrain or --exact, without --dry_run, of the rounds" in error
    line, _ = run("store", "remove", *where, asked, "--retrain", tiny)
    removed = json.loads(line)
    assert len(removed["receipts"]) == removed["rounds"] == len(round_stores(root))
    seen = [store.provenance(name).images_seen for store in round_stores(root) for name in store]
    assert seen
    assert not any(gone in pairs for pairs in seen)
    assert json.loads(Path(removed["receipts"][-1]).read_text())["anchors"] == []


@pytest.mark.slow
def test_an_anchor_of_public_images_is_the_network_that_they_trained(tmp_path, flags):
    settings = ["--shards=2", "--method=taft", "--solver=optimum", "--penalty=0.1", "--anchor_images=0.25"]
    line, _ = run("compose", *flags, *settings, "--merge_penalty=0.1")
    assert {"taft", "taft_inputs", "taft_single"} <= {*json.loads(line)["shards"]["2"]}
    stores = tmp_path / "stores"
    origin = Store(stores / "photos-taft-uniform-2-factors-seed0-0.25").provenance("shard 0")
    assert len(origin.public) == 4
    assert [move.public for move in origin.moves] == [True]
    assert origin.output == "total"
    assert not {*origin.public} & {*origin.examples}
    _, error = run("compose", *flags, *settings, "--anchor_images=1.5", code=1)
    assert "expected" in error


def test_flags_that_no_rounds_can_have_are_refused(tmp_path, flags):
    for flag, expected in {
        "--output=tangent": "expected --output=total beside --rounds",
        "--method=taft,exact": "expected --method of components that train, beside --rounds; got exact",
        "--head=named": "one head for all components beside --rounds",
        "--lr=1e-3,1e-2": "expected one --lr beside --rounds",
    }.items():
        _, error = run("compose", *flags, "--rounds=2", "--method=taft", flag, code=1)
        assert expected in error

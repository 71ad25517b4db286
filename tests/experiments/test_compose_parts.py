"""`compose --shard=I/N`: parts are killed, go on, and end with the bits of one process."""

import json

import pytest
from helpers import content_of_stores
from run_binary import run, start, wait_until

from tangent_jax.commands.shared.shards import delete_part
from tangent_jax.store.store import Store

FLAGS = ["--method=fc", "--shards=3", "--at_once=1"]
STORE = "digits-fc-uniform-3-seed0"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(flags of all runs, the last line and the folder of the stores of one process)."""
    folder = tmp_path_factory.mktemp("alone")
    flags = [*FLAGS, f"--cache_dir={folder / 'cache'}"]
    line, _ = run("compose", *flags, "--epochs=1", f"--store={folder / 'stores'}", f"--out={folder / 'out'}")
    return flags, line, folder / "stores"


def at(folder, flags):
    return [*flags, f"--store={folder / 'stores'}", f"--out={folder / 'out'}"]


def test_compose_takes_over_parts(alone, tmp_path):
    """Of four groups (three shards, all images) in five parts: one is empty, and one is not trained before."""
    flags, line, stores = alone
    flags = at(tmp_path, [*flags, "--epochs=1"])
    said = [json.loads(run("compose", *flags, f"--shard={part}/5")[0]) for part in (0, 1, 3, 4)]
    assert said == [{"shard": part, "of": 5, "groups": int(part < 4)} for part in (0, 1, 3, 4)]
    assert not (tmp_path / "out/result.json").exists()
    assert [*Store(tmp_path / "stores/part-1-of-5" / STORE)] == ["shard 1"]
    assert run("compose", *flags)[0] == line
    assert not [*tmp_path.glob("stores/part-*")]  # no copy of a component stays, which no removal would reach
    assert content_of_stores(tmp_path / "stores") == content_of_stores(stores)


def test_part_of_other_flags_is_refused(alone, tmp_path):
    flags, _, _ = alone
    flags = at(tmp_path, flags)
    run("compose", *flags, "--epochs=1", "--shard=0/4")
    part = tmp_path / "stores/part-0-of-4" / STORE
    _, err = run("compose", *flags, "--epochs=2", code=1)
    assert f"{part} must be a part of this run; shard 0 has epochs 1, here 2. Give all parts" in err
    assert [*Store(part)] == ["shard 0"]


def test_a_killed_part_goes_on(alone, tmp_path):
    flags, line, _ = alone
    flags = at(tmp_path, [*flags, "--epochs=1"])
    part = tmp_path / "stores/part-0-of-1" / STORE
    child = start("tangent_jax", "compose", *flags, "--shard=0/1")
    wait_until(child, lambda: [*part.glob("components/*")])
    child.kill()
    child.join()
    kept = {name: Store(part).state.components[name].id for name in Store(part)}
    run("compose", *flags, "--shard=0/1")
    store = Store(part)
    assert len(store) == 3
    assert {name: store.state.components[name].id for name in kept} == kept
    assert run("compose", *flags)[0] == line


def test_killed_deletion_of_part_is_finished(alone, tmp_path):
    flags, line, _ = alone
    flags = at(tmp_path, [*flags, "--epochs=1"])
    left = tmp_path / "stores/part-0-of-4" / f".{STORE}"
    left.mkdir(parents=True)
    (left / "HEAD").write_text("of a store that is half deleted")
    assert run("compose", *flags)[0] == line
    assert not left.exists()


def test_linked_part_goes_with_its_folder(tmp_path):
    """As where stores lie on another disk."""
    folder, part = tmp_path / "disk/store", tmp_path / "stores/part-0-of-2/store"
    for parent in (folder, part.parent):
        parent.mkdir(parents=True)
    part.symlink_to(folder)
    delete_part(part)
    assert not folder.exists()
    assert not part.parent.exists()


def test_a_search_is_not_left_to_parts(alone, tmp_path):
    flags, _, _ = alone
    _, err = run("compose", *at(tmp_path, flags), "--lr=1e-3,3e-3", "--shard=0/2", code=1)
    assert "--shard needs settings that were searched before" in err


def test_parts_of_sums_are_one_process(tmp_path):
    """Each shard is a group; the sum of all images is left to the last command, which reads kept features."""
    flags = ["--method=place", "--shards=3", "--settings=lda,0.3", f"--cache_dir={tmp_path / 'cache'}"]
    said = [json.loads(run("compose", *at(tmp_path, flags), f"--shard={part}/2")[0]) for part in (0, 1)]
    assert said == [{"shard": 0, "of": 2, "groups": 2}, {"shard": 1, "of": 2, "groups": 1}]
    line, _ = run("compose", *at(tmp_path, flags))
    (tmp_path / "alone").mkdir()
    assert run("compose", *at(tmp_path / "alone", flags))[0] == line
    assert content_of_stores(tmp_path / "stores") == content_of_stores(tmp_path / "alone/stores")

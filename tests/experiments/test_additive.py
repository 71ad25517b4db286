"""Methods that compose exactly give one accuracy, however many shards there are and whatever each holds."""

import dataclasses
import json

import pytest
from photos import photographs
from run_binary import refused, run

from tangent_jax.commands.shared import additive, setup
from tangent_jax.commands.shared.codes import STOPPED
from tangent_jax.data.registry import open_dataset
from tangent_jax.features import mapped
from tangent_jax.io import progress
from tangent_jax.store import training
from tangent_jax.store.store import Store

METHODS = ("exact", "ridge", "ranpac", "lda")


def places(folder):
    return [f"--{name}={folder / name}" for name in ("out", "store", "cache_dir")]


@pytest.mark.long  # of the same sums as the store's below; solver/test_statistics.py adds them up in any order
@pytest.mark.parametrize("sharding", ["class", "uniform"])
def test_exact_methods_ignore_sharding(tmp_path, sharding):
    flags = [f"--method={','.join(METHODS)}", "--shards=1,5", f"--sharding={sharding}", "--width=64", "--held_out"]
    result = json.loads(run("compose", *flags, *places(tmp_path))[0])
    assert [*result["shards"]] == ["1", "5"]
    for name in METHODS:
        one, several = (result["shards"][count][name] for count in ("1", "5"))
        assert one == several == result["full"][name] > 0.7
        assert result["methods"][name]["searched"] >= 7
    assert not [*(tmp_path / "out").glob("*.png")]


def test_owner_settings_ignore_removed_images(tmp_path, monkeypatch):
    """Folds keep owners whole; each image left out chooses the settings of all images, as long as nobody is removed."""
    counts, choose = [], additive.choose_settings
    monkeypatch.setattr(
        additive, "choose_settings", lambda all_, *rest: (counts.append(all_.counts.sum()), choose(all_, *rest))[1]
    )
    folds, folded = [], additive.choose_by_folds
    monkeypatch.setattr(additive, "choose_by_folds", lambda *of: (folds.append(of[3]), folded(*of))[1])
    (tmp_path / "who.csv").write_text("file,owner\n" + "".join(f"digit {i},owner {i % 3}\n" for i in range(898)))
    flags, owners = ["--method=ridge", *places(tmp_path)], [f"--owners={tmp_path / 'who.csv'}", "--sharding=owner"]
    chosen = {}
    for how in ("held_out", "leave_one_out"):
        said = json.loads(run("compose", *flags, *owners, f"--settings={how}")[0])
        chosen[how] = said["methods"]["ridge"]
        assert (chosen[how]["searched"], [*said["shards"]], said["full"]) == (7, ["3"], {})
        (root,) = (tmp_path / "store").iterdir()
        assert [*Store(root)] == ["owner 0", "owner 1", "owner 2"]
    said = json.loads(run("compose", *flags, "--shards=1", "--settings=leave_one_out")[0])
    assert said["methods"]["ridge"] == chosen["leave_one_out"]
    assert folds[0].tolist() == [2 + i % 3 for i in range(898)]
    run("store", "remove", f"--store={root}", "--owner=owner 1", f"--cache_dir={tmp_path / 'cache_dir'}")
    run("compose", *flags, *owners, "--settings=leave_one_out")
    assert counts == [898, 898, 898 - 299]


def test_owner_without_images_is_no_shard(tmp_path, tiny):
    photographs(tmp_path / "photos", count=4)
    names = [str(path.relative_to(tmp_path / "photos")) for path in (tmp_path / "photos/train").rglob("*.png")]
    whose = dict.fromkeys(names, "ann")
    for name in ("cat", "dog"):
        (tmp_path / f"photos/train/{name}/broken.png").write_bytes(b"no picture")
        whose[f"train/{name}/broken.png"] = "bob"
    (tmp_path / "who.csv").write_text("".join(f"{name},{owner}\n" for name, owner in whose.items()))
    data = [f"--dataset=folder:{tmp_path}/photos", "--sharding=owner", f"--owners={tmp_path}/who.csv"]
    flags = ["--method=lda", "--settings=leave_one_out", "--skip_unreadable", *places(tmp_path)]
    line, stderr = run("compose", tiny, *data, *flags)
    assert "all 2 images of owner bob cannot be read: no component is of bob" in stderr
    assert [*json.loads(line)["shards"]] == ["1"]


def test_tested_split_chooses_no_settings():
    data = open_dataset("digits")
    train, test = data.splits["train"], data.splits["test"]
    for splits, chosen in (
        ({"train": train, "validation": test}, None),
        ({"train": train, "test": test}, None),
        ({"train": train, "validation": test, "test": train}, test),
    ):
        found = setup.validation_images(dataclasses.replace(data, splits=splits))
        assert (found and found.names) == (chosen and chosen.names)


@pytest.mark.slow
def test_settings_keep_groups_and_cache(tmp_path, tiny, monkeypatch):
    photographs(tmp_path / "photos", count=12)
    every, choose = [], additive.choose_by_folds
    monkeypatch.setattr(additive, "choose_by_folds", lambda *of: (every.append(of[3]), choose(*of))[1])
    flags = ["--method=exact", "--width=16", "--shards=2", *places(tmp_path)]
    spec = f"--dataset=folder:{tmp_path}/photos"
    run("compose", tiny, spec, *flags)
    cached = sorted((tmp_path / "cache_dir").glob("*-*"))
    assert every[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1] * 2
    _, stderr = run("compose", tiny, f"{spec}?group=[a-z]+/[0-9]", *flags)  # 1, 10 and 11 are of one group
    assert "20 groups of 24 training images are held out whole" in stderr
    assert every[1].tolist() == [0, 1, 1, 1, 2, 3, 4, 0, 1, 2, 3, 4] * 2  # 0, 1, 10, 11, 2, ...
    assert sorted((tmp_path / "cache_dir").glob("*-*")) == cached


@pytest.mark.slow
def test_feature_depth_is_chosen_by_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(additive, "SAMPLE", 60)
    flags = ["--method=exact", "--feature_blocks=auto", "--width=16", "--shards=2", "--settings=lda,0.3"]
    exact = json.loads(run("compose", *flags, *places(tmp_path))[0])["methods"]["exact"]
    assert [*exact["depths"]] == ["0", "1", "4"]  # the model has 6 blocks
    assert exact["feature_blocks"] == int(min(exact["depths"], key=exact["depths"].get))
    photographs(tmp_path / "photos", count=12)
    folds, choose = [], additive.choose_by_folds
    monkeypatch.setattr(additive, "choose_by_folds", lambda *of: (folds.append(of[3]), choose(*of))[1])
    run("compose", f"--dataset=folder:{tmp_path}/photos?group=[a-z]+/[0-9]", *flags, *places(tmp_path))
    assert [fold.tolist() for fold in folds] == [[0, 1, 1, 1, 2, 3, 4, 0, 1, 2, 3, 4] * 2] * 3  # 1, 10, 11: a group
    assert "--feature_blocks=auto reads the labels of images that --held_out tests on" in refused(
        "compose", *flags, "--held_out"
    )


@pytest.mark.slow
def test_store_of_statistics_removes_a_shard(tmp_path, monkeypatch):
    flags = ["--method=lda,exact", "--shards=5", "--width=64", "--settings=leave_one_out", *places(tmp_path)]
    first = json.loads(run("compose", *flags)[0])
    root = next(path for path in (tmp_path / "store").iterdir() if "h-ntk-place-uniform-5" in path.name)
    with monkeypatch.context() as patch:
        patch.setattr(training, "sum_features", lambda *_: pytest.fail("computed again"))
        again = json.loads(run("compose", *flags)[0])
    assert again["shards"] == first["shards"]
    where, cache = f"--store={root}", f"--cache_dir={tmp_path / 'cache_dir'}"
    listed = json.loads(run("store", "list", where)[0].splitlines()[-1])["components"]
    assert {row["method"] for row in listed} == {"statistics"}
    removed = json.loads(run("store", "remove", where, "--name=shard 2", cache)[0])
    assert removed["removed"] == ["shard 2"]
    assert json.loads(run("store", "verify", where, f"--receipt={removed['receipt']}")[0])["verified"]
    left = Store(root).statistics().counts.sum()
    after = json.loads(run("compose", *flags)[0])
    assert Store(root).statistics().counts.sum() == left  # nobody's images come back
    how, shrinkage, weights = after["methods"]["exact"]["chosen"].values()
    solve = ",".join(map(str, [how, shrinkage, *weights]))
    to = [f"--to={tmp_path / 'model'}", f"--settings={solve}", "--dataset=digits"]
    exported = json.loads(run("store", "export", where, *to, cache)[0])
    assert exported["components"] == [f"shard {i}" for i in (0, 1, 3, 4)]
    said = json.loads((tmp_path / "model/provenance.json").read_text())
    assert said["accuracy"]["digits"] == pytest.approx(after["shards"]["5"]["exact"], abs=1e-6)
    assert said["features"]["parts"] == ["h", "ntk", "place"]
    run("inspect", where, f"--out={tmp_path / 'pages'}")
    assert "statistics" in (tmp_path / "pages/index.html").read_text()


def test_stopped_test_features_go_on(tmp_path, monkeypatch):
    """No image's features are computed twice, the result is that of one run, and each long phase has a bar."""
    flags = ["--method=exact", "--shards=2", "--width=64"]
    with monkeypatch.context() as patch:
        patch.setattr(progress, "EVERY", 0.0)  # a line for each update
        line, err = run("compose", *flags, *places(tmp_path / "once"))
    once = json.loads(line)
    bars = [line.partition(": 100%")[0] for line in err.splitlines() if ": 100%" in line]
    store = "digits-h-ntk-place-uniform-2-seed0"
    phases = [f"{store}: features", f"{store}: sums", f"{store}: total", "exact: features, test"]
    assert [phase for phase in dict.fromkeys(bars) if phase in phases] == phases
    passes, compute = [], mapped.compute_rows

    def stopped(map_, data, batch):
        if sum(passes) > 898 + 300:
            raise KeyboardInterrupt
        passes.append(len(data))
        return compute(map_, data, batch)

    again = [*flags, *places(tmp_path / "again")]
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "compute_rows", stopped)
        assert "resumes from what is saved" in run("compose", *again, code=STOPPED)[1]
    monkeypatch.setattr(
        mapped, "compute_rows", lambda map_, data, batch: passes.append(len(data)) or compute(map_, data, batch)
    )
    assert json.loads(run("compose", *again)[0]) == once
    assert sum(passes) == 898 + 899


@pytest.mark.slow
def test_a_lost_class_is_left_out_of_accuracy(tmp_path, tiny):
    """The only owner of a class has left: the model knows the other classes, and is measured on their images."""
    photos = photographs(tmp_path / "photos", classes=("ape", "bee", "cat"))
    flags = ["--method=lda", "--sharding=class", "--shards=3", "--settings=lda,0.3", *places(tmp_path)]
    run("compose", tiny, f"--dataset=folder:{photos}", *flags)
    where = f"--store={next((tmp_path / 'store').iterdir())}"
    cache, spec = flags[-1], f"--dataset=folder:{photos}"
    run("store", "remove", where, "--name=shard 1", cache)
    line, err = run("store", "compose", where, spec, cache, "--settings=lda,0.3")
    (name,) = json.loads(line)["accuracy"]
    assert (name, json.loads(line)["merge"]) == ("photos, 2 of 3 classes", "sum")
    assert "6 test images are left out: no component has the class bee" in err
    assert "test accuracy on photos, 2 of 3 classes, 12 images: " in err
    run("store", "remove", where, "--name=shard 0", cache)
    assert "two or more; the model has cat, and photos has ape, bee, cat" in refused("store", "compose", where, spec)
    for flag in ("--settings=lda", "--settings=lda,0.1"):
        assert "--settings has an effect only with --dataset in compose" in refused("store", "compose", where, flag)

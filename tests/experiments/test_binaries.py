"""The binaries, as a user runs them: results, files, and one clear line for what they cannot use."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import in_long
from photos import photographs
from PIL import Image
from run_binary import refused, run

from experiments.shared import drawn
from tangent_jax.core import trees
from tangent_jax.data.registry import open_dataset
from tangent_jax.exports.folder import load_export
from tangent_jax.features.extract import Cache, extract
from tangent_jax.io.files import file_fingerprint
from tangent_jax.models.predict import tangent
from tangent_jax.pretrained.load import load, save
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.store import Store
from tangent_jax.train.evaluate import evaluate


@pytest.mark.slow
def test_finetune_beats_chance_by_default(tmp_path):
    line, _ = run("finetune", "--epochs=3", f"--cache_dir={tmp_path}/cache", f"--out={tmp_path}/out")
    result = json.loads(line)
    assert result["accuracy"] > 0.6
    assert (result["method"], result["blocks"], result["dataset"], result["steps"], result["seed"]) == (
        "taft",
        1,
        "digits",
        87,
        0,
    )
    assert result["trainable_parameters"] == 113002
    assert min(result["train_seconds"], result["examples_per_second"]) > 0
    stored = json.loads((tmp_path / "out/result.json").read_text())
    assert stored["accuracy"] == result["accuracy"]
    assert len(stored["history"]) == 3
    taken = stored["phases"]
    assert {*taken} >= {"import", "data", "weights", "features", "training", "evaluation", "writing", "compiling"}
    assert 0 < sum(taken.values()) - taken["compiling"] - taken["total"] <= taken["total"] + 0.1
    dw, metadata = read_component(tmp_path / "out/dw.safetensors")
    assert sum(leaf.size for leaf in jax.tree.leaves(dw)) == 113002
    assert Provenance.from_json(metadata["provenance"]).recipe.learning_rate == 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--method=nlft", "--blocks=2"],
        ["--linearization=autodiff", "--new_class_token", "--reset", "--image_size=24x16"],
        *in_long(["--method=fc"], ["--subset=everything", "--dtype=bfloat16"]),
        *in_long(["--subset=bitfit", "--blocks=2", "--loss=ce"]),
    ],
)
def test_finetune_runs_methods_and_subsets(tmp_path, tiny, flags):
    photographs(tmp_path / "photos")
    cache, out = f"--cache_dir={tmp_path}/cache", f"--out={tmp_path}/out"
    line, _ = run(
        "finetune", tiny, f"--dataset=folder:{tmp_path}/photos", "--epochs=15", "--batch_size=5", cache, out, *flags
    )
    assert json.loads(line)["accuracy"] >= 0.75


@pytest.mark.slow
def test_tasks_share_a_body_and_one_is_subtracted(tmp_path, tiny):
    photographs(tmp_path / "pets")
    photographs(tmp_path / "cars", classes=("van", "bus", "cab"))
    flags = [
        tiny,
        f"--dataset=folder:{tmp_path}/pets,folder:{tmp_path}/cars",
        *("--epochs=6", "--batch_size=4", "--merge=mean,curvature", "--merge_penalty=1e-3"),
        *(f"--cache_dir={tmp_path}/cache", f"--store={tmp_path}/stores", "--negate=cars"),
    ]
    line, _ = run("tasks", *flags, f"--out={tmp_path}/out")
    result = json.loads(line)
    ways = {"single", "mean", "scaled", "curvature", "soup_single", "soup", "soup_scaled", "joint"}
    assert {name: {*row} for name, row in result["tasks"].items()} == {"pets": ways, "cars": ways}
    assert {*result["normalised"]} == ways - {"single", "soup_single"}
    assert min(result["tasks"]["pets"][way] for way in ("single", "joint", "mean")) >= 0.75
    mean = [result["tasks"][name]["curvature"] / result["tasks"][name]["single"] for name in ("pets", "cars")]
    assert result["normalised"]["curvature"] == pytest.approx(np.mean(mean))
    assert result["negation"]["task"] == "cars"
    assert result["negation"]["coefficient"] in (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    store = Store(tmp_path / "stores/tasks-taft-seed0")
    assert {name: store.provenance(name).classes for name in store} == {
        "pets": ("cat", "dog"),
        "cars": ("bus", "cab", "van"),
    }
    assert (tmp_path / "out/tasks.md").read_text().startswith("| task | single | mean | scaled | curvature |")
    own = json.loads(run("tasks", *flags[:-1], "--method=ridge,lda", f"--out={tmp_path}/own")[0])
    assert {name: {*row} for name, row in own["tasks"].items()} == {key: {"ridge", "lda"} for key in ("pets", "cars")}
    assert own["tasks"]["pets"]["lda"] >= 0.75
    assert own["normalised"] == {}
    _, error = run("tasks", *flags[:1], "--dataset=digits", f"--out={tmp_path}/one", code=1)
    assert error.strip().endswith("tasks: --dataset must be two data sets or more; got 1")
    _, error = run("tasks", *flags[:2], "--method=exact", "--feature_blocks=auto", f"--out={tmp_path}/depth", code=1)
    assert "tasks: --feature_blocks must be a whole number in 0..2; got 'auto'" in error


@pytest.mark.long
def test_unknown_classes_leave_as_one_classifier(tmp_path, tiny):
    photos, names = photographs(tmp_path / "photos", classes=("ape", "bee", "cat")), ("ape", "bee", "cat")
    flags = ["--sharding=class", "--shards=3", "--head=named", "--method=taft", "--merge=mean,inputs", "--epochs=8"]
    flags += ["--merge_penalty=1e-3", "--batch_size=3", f"--store={tmp_path}/stores", f"--out={tmp_path}/out"]
    line, _ = run("compose", tiny, f"--dataset=folder:{photos}", f"--cache_dir={tmp_path}/cache", *flags)
    row = json.loads(line)["shards"]["3"]
    assert row["taft_inputs"] > 0.6 > row["taft_single"]
    store, to = tmp_path / "stores/photos-taft-class-3-factors-seed0-named", f"--to={tmp_path}/export"
    assert [Store(store).provenance(name).classes for name in Store(store)] == [(name,) for name in names]
    _, error = run("store", "export", f"--store={store}", to, tiny, code=1)
    assert error.strip().endswith("--head must be one of the components, or union; got none")
    run("store", "export", f"--store={store}", to, tiny, "--head=union", "--merge=inputs", "--merge_penalty=1e-3")
    pretrained, dw = load_export(tmp_path / "export")
    predict = tangent(pretrained, output="tangent")
    test = extract(predict, open_dataset(f"folder:{photos}").test, Cache(tmp_path / "cache"))
    assert evaluate(predict, dw, test) == row["taft_inputs"]
    assert "**Accuracy**: not measured" in (tmp_path / "export/README.md").read_text()
    own = f"--dataset=folder:{photos}"
    _, error = run("store", "export", f"--store={store}", f"--to={tmp_path}/own", tiny, "--head=shard 1", own, code=1)
    assert "two or more; the model has bee, and photos has ape, bee, cat" in error
    again = ["--head=union", "--merge=inputs", "--merge_penalty=1e-3", own, f"--cache_dir={tmp_path}/cache"]
    run("store", "export", f"--store={store}", f"--to={tmp_path}/measured", tiny, *again)
    said = json.loads((tmp_path / "measured/provenance.json").read_text())
    assert said["accuracy"] == {"photos": row["taft_inputs"]}
    assert f"photos, test images: {row['taft_inputs']:.4g}" in (tmp_path / "measured/README.md").read_text()
    run("store", "export", f"--store={store}", f"--to={tmp_path}/own", tiny, "--head=shard 1")
    assert load_export(tmp_path / "own")[0].model.classes == 1


def damaged(root, harm):
    """A folder of photographs, or a weights file, with one thing wrong; the flags that name it."""
    photos = photographs(root / "photos", 2, ("cat",) if harm == "one class" else ("cat", "dog"))
    flags = [f"--dataset=folder:{photos}"]
    if harm == "text":
        (photos / "train/cat/1.png").write_text("not an image")
    elif harm == "class only in test":
        (photos / "test/eel").mkdir()
        Image.new("RGB", (9, 9)).save(photos / "test/eel/1.png")
    elif harm in ("nan", "truncated", "wrong model"):
        path = root / "w.safetensors"
        pretrained = load("builtin")
        norm = {**pretrained.w["norm"], "bias": pretrained.w["norm"]["bias"].at[0].set(np.nan)}
        save(path, dataclasses.replace(pretrained, w={**pretrained.w, "norm": norm}) if harm == "nan" else pretrained)
        if harm == "truncated":
            path.write_bytes(path.read_bytes()[:-10])
        flags += [f"--weights={path}", *(["--architecture=B/16"] if harm == "wrong model" else [])]
    elif harm == "missing weights":
        flags += ["--weights=nowhere.safetensors"]
    return [*flags, f"--cache_dir={root}/cache", f"--out={root}/out"]


CLEAR = {  # the harm: words of the sentence that names it
    "text": ("train/cat/1.png", "picture"),
    "class only in test": ("training image", "eel"),
    "one class": ("two classes", "photos"),
    "nan": ("norm/bias", "finite"),
    "truncated": ("w.safetensors", "whole safetensors file"),
    "wrong model": ("B/16", "96"),
    "missing weights": ("nowhere.safetensors",),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", CLEAR)
def test_bad_input_writes_nothing(tmp_path, harm):
    stderr = refused("finetune", *damaged(tmp_path, harm))
    complaint = stderr.strip().splitlines()[-1]
    assert complaint.startswith("finetune: "), stderr
    assert all(word in complaint for word in CLEAR[harm]), stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_unreadable_images_are_skipped(tmp_path, tiny):
    line, stderr = run("finetune", tiny, *damaged(tmp_path, "text"), "--skip_unreadable", "--epochs=2")
    assert json.loads(line)["skipped"] == 1
    assert "train inputs: skipped 1 unreadable of 4 images: train/cat/1.png" in stderr


@pytest.mark.long
def test_tangent_beats_the_head_on_real_birds(vit_tiny, shared, tmp_path):
    """Default flags: TAFT-1 at least 0.850 on cub50's test split, FC at least 0.835 and below it."""
    data = [f"--weights={vit_tiny}", f"--dataset=folder:{shared}/data/cub50.zip", f"--cache_dir={tmp_path}/cache"]
    lines = {m: run("finetune", *data, f"--method={m}", f"--out={tmp_path}/{m}")[0] for m in ("taft", "fc")}
    accuracy = {method: json.loads(line)["accuracy"] for method, line in lines.items()}
    assert accuracy["taft"] >= 0.850
    assert 0.835 <= accuracy["fc"] < accuracy["taft"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, tiny):
    """Flags that make the sharded binaries small, with one folder of stores for all of them."""
    root = tmp_path_factory.mktemp("sharded")
    return root, ["--epochs=2", f"--cache_dir={root}/cache", f"--store={root}/stores", tiny]


def added(root):
    """The times at which the components of all stores were added."""
    journals = (root / "stores").glob("*/journal.jsonl")
    return {path.parent.name: re.findall(r'"op": "add".*?"time": "([^"]*)"', path.read_text()) for path in journals}


@pytest.mark.long
def test_compose_repeated_trains_nothing(sharded):
    root, flags = sharded
    line, _ = run("compose", *flags, "--shards=3", "--method=taft,soup", f"--out={root}/compose")
    trained = added(root)
    assert len(trained) == 4  # shards and full data of two methods
    result = json.loads(line)
    assert result["shards"].keys() == {"3"}
    for row in result["shards"].values():
        assert {"taft", "soup", "greedy", "taft_single"} <= row.keys()
        assert min(row.values()) > 0.05
    assert result["full"].keys() == {"taft", "soup"}
    drawn.composed(root / "compose.png", "digits", result)
    assert Image.open(root / "compose.png").size[0] > 500
    again, _ = run("compose", *flags, "--shards=3", "--method=taft,soup", f"--out={root}/compose")
    assert json.loads(again) == result
    assert added(root) == trained  # all of them came from the stores


@pytest.mark.slow
def test_the_store_from_the_command_line(sharded, tmp_path):
    root, flags = sharded
    flags = [flags[0], flags[1], flags[3], f"--store={tmp_path}"]
    run("compose", *flags, "--shards=3", "--method=taft", "--sharding=hash", f"--out={tmp_path}/out")
    where = f"--store={tmp_path}/digits-taft-hash-3-seed0"
    listed = json.loads(run("store", "list", where)[0])["components"]
    assert [row["name"] for row in listed] == [f"shard {s}" for s in range(3)]
    assert json.loads(run("store", "compose", where)[0])["composed"] == 3
    gone = Store(where[8:]).provenance("shard 2").data.examples[:5]
    (tmp_path / "ids.txt").write_text("".join(f"{identifier}\n" for identifier, _ in gone) + "f" * 64)
    asked = ["remove", where, f"--examples={tmp_path}/ids.txt", "--retrain", f"--cache_dir={root}/cache"]
    line, err = run("store", *asked, "--dry_run")
    assert json.loads(line)["removed"] == []
    assert "shard 2: 5 of its" in err
    assert "1 images that no component saw: their cached rows go, if any" in err
    done = json.loads(run("store", *asked)[0])
    assert done["removed"] == done["retrained"] == ["shard 2"]
    assert len(Store(where[8:]).provenance("shard 2").data.examples) == listed[2]["examples"] - 5
    assert json.loads(run("store", "verify", where, f"--receipt={done['receipt']}")[0])["verified"]
    run("store", "export", where, f"--to={tmp_path}/export")
    assert trees.fingerprint(load_export(tmp_path / "export")[1]) == done["composed_after"]
    card, receipt = (tmp_path / "export/README.md").read_text(), Path(done["receipt"])
    assert "**Removals**: 1 before this export, of 6 examples" in card
    assert not [name for identifier, name in gone if identifier in card or name in card]
    said = (tmp_path / "export/provenance.json").read_text()
    seen = Store(where[8:]).provenance("shard 2")
    assert json.loads(said)["of"]["components"] == len(Store(where[8:]))
    assert json.loads(said)["journal"] == len(Store(where[8:]).state.lines)
    assert json.loads(said)["removals"]["receipts"] == {receipt.stem: file_fingerprint(receipt)}
    told = (*seen.data.examples[0], str(tmp_path), *seen.training.folders)
    assert not [text for text in told if json.dumps(text)[1:-1] in said]
    assert json.loads(run("store", "export", where, f"--to={tmp_path}/served", "--format=stablehlo")[0])["exported"]
    assert {path.name for path in (tmp_path / "served").iterdir()} >= {"model.jax", "run.py", "provenance.json"}
    dropped = ["remove", where, "--name=shard 0,shard 1", f"--cache_dir={root}/cache"]
    line = json.loads(run("store", *dropped)[0])
    receipt = json.loads(Path(line["receipt"]).read_text())["predicate"]
    exports = [("export", f"{tmp_path}/{name}") for name in ("export", "served")]
    assert [(trace["kind"], trace["path"]) for trace in receipt["not_reached"] if trace["kind"] == "export"] == exports
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", receipt["time"])
    stored = next(Path(where[8:]).glob("components/*.safetensors"))
    stored.write_bytes(stored.read_bytes().replace(b"digit", b"digiT", 1))
    line, err = run("store", "verify", where, code=1)
    assert f"{stored.name}: altered" in err

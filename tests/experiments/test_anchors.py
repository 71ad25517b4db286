"""The anchor of a first session as a user makes it, composes at it, and removes images that are in it."""

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from photos import photographs
from run_binary import refused, run

from tangent_jax.core import trees
from tangent_jax.core.trees import body
from tangent_jax.data.registry import open_dataset
from tangent_jax.pretrained.load import load, save
from tangent_jax.store.files import read_component
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify_receipt


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with 24 photographs to train on, 12 of each class, and the cache of all runs."""
    root = tmp_path_factory.mktemp("sessions")
    photographs(root / "photos", count=12)
    return root


@pytest.fixture(scope="module")
def common(root, tiny):
    return [tiny, f"--dataset=folder:{root / 'photos'}", f"--cache_dir={root / 'cache'}"]


@pytest.fixture(scope="module")
def moved(root, common):
    """The anchor's file, fine-tuned on a quarter of the photographs."""
    file = root / "moved.safetensors"
    line, err = run("finetune", *common, f"--out={root / 'out'}", *MADE, f"--save_anchor={file}")
    assert json.loads(line)["anchor"] == str(file)
    assert f"{file}: the anchor was fine-tuned on 6 images of photos" in err
    return file


MADE = ["--method=nlft", "--images=0.25", "--epochs=2"]


def dataset(root):
    return open_dataset(f"folder:{root / 'photos'}")


def test_anchor_file_is_body_with_its_images(root, tiny, common, moved):
    before, anchor = load(tiny.partition("=")[2]), load(moved)
    dw, metadata = read_component(root / "out/dw.safetensors")
    own = {name: leaf for name, leaf in dw.items() if name != "head"}
    assert trees.fingerprint(anchor.w) == trees.fingerprint(trees.add(before.w, own))
    assert anchor.model == before.model
    session, train = anchor.session, dataset(root).train
    assert session.source == trees.fingerprint(body(before.w))
    assert (session.dataset, session.classes, session.command, session.paid) == (
        "photos",
        ("cat", "dog"),
        "finetune",
        None,
    )
    want = {
        "method": "nlft",
        "images": "0.25",
        "epochs": "2",
        "subset": "blocks",
        "blocks": "1",
        "loss": "rsl",
        "lr": "0.001",
    }
    assert want.items() <= session.settings.items()
    rows = np.sort(np.random.default_rng([0, 10]).permutation(24)[:6])
    pairs = [*zip(train.identifiers(), train.names, strict=True)]
    assert session.images == tuple(pairs[row] for row in rows)
    origin = Provenance.from_json(metadata["provenance"])
    assert {*origin.data.examples} == {*session.images}
    assert origin.session is None  # it was trained at the source


def test_images_are_listed_by_name_or_identifier(root, common, tmp_path):
    train = dataset(root).train
    words = ["train/cat/3.png", train.identifiers()[20], ".\\train\\dog\\5.png"]
    (tmp_path / "some.txt").write_text("\n".join(words))
    flags = [*common, f"--out={tmp_path / 'out'}", "--method=nlft", "--epochs=1", f"--images={tmp_path / 'some.txt'}"]
    run("finetune", *flags, f"--save_anchor={tmp_path / 'a.safetensors'}")
    names = {name for _, name in load(tmp_path / "a.safetensors").session.images}
    assert names == {"train/cat/3.png", train.names[20], "train/dog/5.png"}
    _, err = run("finetune", *flags[:-1], "--images=7")
    assert "photos: 7 train" in err
    (tmp_path / "some.txt").write_text("train/cat/3.png\nnobody.png\n")
    err = refused("finetune", *flags)
    assert "must name training images of photos, one a line; 1 of its 2 lines, such as nobody.png, name none" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method=taft", "--save_anchor=a.safetensors"], "--save_anchor needs --method=nlft, whose network has"),
        ([*MADE, "--save_anchor=a.npz"], "--save_anchor must be a file that ends in .safetensors; got a.npz"),
        ([*MADE, "--save_anchor=no/where/a.safetensors"], "in a folder that exists"),
        ([*MADE, "--save_anchor=a.safetensors", "--subset=head"], "below its head, such as blocks"),
        ([*MADE, "--save_anchor=a.safetensors", "--subset=lora"], "with a new head; got lora-1"),
        ([*MADE, "--save_anchor=a.safetensors", "--new_class_token"], "the network's own leaves"),
        ([*MADE, "--images=0"], "--images must be a number of the 24 images, a share below 1, or a file; got 0"),
        ([*MADE, "--images=25"], "a share below 1, or a file; got 25"),
        ([*MADE, "--images=2.5"], "a share below 1, or a file; got 2.5"),
        ([*MADE, "--images=nan"], "a share below 1, or a file; got nan"),
        ([*MADE, "--images=no.txt"], "a file of identifiers or names, one a line; no.txt does not exist"),
        (["--leave_out_anchor_images"], "--leave_out_anchor_images needs --weights of a first session"),
    ],
)
def test_wrong_use_is_refused_before_training(common, tmp_path, flags, message):
    err = refused("finetune", *common, f"--out={tmp_path}", *flags)
    assert message in err.splitlines()[-1]
    assert not Path("a.safetensors").exists()


def test_an_anchor_is_no_source_of_another(root, common, moved, tmp_path):
    flags = [
        *common[1:],
        f"--weights={moved}",
        f"--out={tmp_path}",
        *MADE,
        f"--save_anchor={tmp_path / 'b.safetensors'}",
    ]
    assert f"{moved} is the anchor of a first session already" in refused("finetune", *flags)


def composed(root, common, moved, folder, *flags):
    """The stores of a composition at the anchor, by their number of shards."""
    places = [f"--out={folder / 'out'}", f"--store={folder / 'stores'}"]
    settings = ["--method=lda", "--shards=1,3", "--settings=lda,0.3"]
    line, err = run("compose", *common[1:], f"--weights={moved}", *places, *settings, *flags)
    (store,) = (Store(path) for path in (folder / "stores").iterdir() if "3" in path.name.split("-"))
    return store, json.loads(line), err


@pytest.fixture(scope="module")
def store(root, common, moved):
    return composed(root, common, moved, root / "composed")[0]


def test_components_name_their_anchors_images(root, common, moved, store, tmp_path):
    anchor = load(moved)
    every = {*zip(dataset(root).train.identifiers(), dataset(root).train.names, strict=True)}
    assert {pair for origin in store.origins.values() for pair in origin.data.examples} == every
    assert all(origin.session == anchor.session for origin in store.origins.values())
    assert all(origin.anchor_images == anchor.session.images for origin in store.origins.values())
    alone, result, _ = composed(root, common, moved, tmp_path, "--leave_out_anchor_images")
    seen = {pair for origin in alone.origins.values() for pair in origin.data.examples}
    assert seen == every - {*anchor.session.images}
    assert all(origin.session == anchor.session for origin in alone.origins.values())
    assert "without_anchor_images" in alone.root.name
    assert result["shards"]["1"] == result["shards"]["3"]
    run(
        "finetune",
        *common[1:],
        f"--weights={moved}",
        f"--out={tmp_path / 'tuned'}",
        "--epochs=1",
        "--leave_out_anchor_images",
    )
    origin = Provenance.from_json(read_component(tmp_path / "tuned/dw.safetensors")[1]["provenance"])
    assert {*origin.data.examples} == seen
    assert origin.session == anchor.session


def test_pages_say_who_is_in_anchor(root, common, moved, store, tmp_path):
    said = "the anchor was fine-tuned on 6 images of photos"
    run("inspect", f"--store={store.root}", f"--out={tmp_path / 'pages'}")
    assert said in (tmp_path / "pages/index.html").read_text()
    run("store", "export", f"--store={store.root}", f"--to={tmp_path / 'export'}", f"--cache_dir={root / 'cache'}")
    assert said in (tmp_path / "export/README.md").read_text()
    again = load(tmp_path / "export/model.safetensors")
    assert (again.session.images, again.session.count) == ((), 6)
    whole = "".join(path.read_text("latin-1") for path in (tmp_path / "export").iterdir())
    assert not [text for image in load(moved).session.images for text in image if text in whole]
    assert str(root) not in whole


def listed(folder, moved):
    """A file of two images in the anchor and one that is not: by name, and by identifier."""
    images = load(moved).session.images
    (folder / "gone.txt").write_text(f"{images[0][1]}\n{images[1][0]}\n")
    return folder / "gone.txt"


def test_removal_remakes_the_anchor(root, common, moved, store, tmp_path):
    gone, before = listed(tmp_path, moved), load(moved).session
    flags = [f"--store={store.root}", f"--examples={gone}", f"--cache_dir={root / 'cache'}", "--retrain"]
    _, planned = run("store", "remove", *flags, "--dry_run")
    line, err = run("store", "remove", *flags)
    said = f"NOT removed: 2 of the removed images are in the anchor {moved}, which was fine-tuned on them: the anchor"
    assert said in planned
    assert said in err
    result = json.loads(line)
    (line,) = read_receipt(Path(result["receipt"]))[0].anchors
    assert said.removeprefix("NOT removed: ") in line
    assert verify_receipt(Store(store.root), Path(result["receipt"])) == []
    own = {identifier for origin in Store(store.root).origins.values() for identifier in origin.data.identifiers}
    assert own == {*dataset(root).train.identifiers()} - {before.images[0][0], before.images[1][0]}
    _, _, command = line.partition("make it again without them with: ")
    words = shlex.split(command)
    assert words[:2] == ["tangent-jax", "finetune"]
    assert f"--save_anchor={moved}" in words
    assert f"--store={store.root}" in words
    other = tmp_path / "again.safetensors"
    words = [word for word in words[2:] if not word.startswith("--save_anchor")]
    _, err = run(
        "finetune", *words, f"--save_anchor={other}", f"--out={tmp_path / 'out'}", f"--cache_dir={root / 'cache'}"
    )
    assert "2 images were removed from a store" in err
    assert load(other).session.images == before.images[2:]
    assert load(other).session.source == before.source


def test_image_in_anchor_alone_is_forgotten(root, common, moved, tmp_path):
    alone, _, _ = composed(root, common, moved, tmp_path, "--leave_out_anchor_images")
    identifier, name = load(moved).session.images[3]
    (tmp_path / "one.txt").write_text(name)
    line, err = run("store", "remove", f"--store={alone.root}", f"--examples={tmp_path / 'one.txt'}")
    assert f"NOT removed: 1 of the removed images is in the anchor {moved}, which was fine-tuned on it" in err
    receipt = read_receipt(Path(json.loads(line)["receipt"]))[0]
    hidden = Store(alone.root).key.hide(identifier)
    assert (receipt.removed, receipt.unseen, len(receipt.anchors)) == ({}, (hidden,), 1)
    assert Store(alone.root).has_forgotten(identifier)


def test_a_removal_of_others_names_no_anchor(store):
    now = Store(store.root)
    inside = {*load(next(iter(now.origins.values())).recipe.weights).session.identifiers}
    other = next(i for origin in now.origins.values() for i in origin.data.identifiers if i not in inside)
    plan = plan_removal(now, examples=[other])
    assert (len(plan.components), plan.anchors) == (1, ())


def test_private_session_spends_its_ledger(root, common, tiny, tmp_path):
    file = tmp_path / "private.safetensors"
    flags = [
        *common,
        f"--out={tmp_path / 'out'}",
        "--method=nlft",
        "--epochs=2",
        "--delta=0.01",
        f"--save_anchor={file}",
    ]
    line, err = run("private", *flags, "--part=0/2", "--epsilon=2")
    session, result = load(file).session, json.loads(line)
    assert (session.paid.epsilon, session.paid.delta) == (result["epsilon"], result["delta"])
    assert (session.paid.unit, session.paid.private, session.command) == ("example", True, "private")
    assert {"part": "0/2", "epsilon": "2.0", "delta": "0.01"}.items() <= session.settings.items()
    assert len(session.images) == result["examples"]
    assert "with epsilon 2.00 at delta 0.01 for each example" in err
    dw, before = read_component(tmp_path / "out/dw.safetensors")[0], load(tiny.partition("=")[2])
    own = {name: leaf for name, leaf in dw.items() if name != "head"}
    assert trees.fingerprint(load(file).w) == trees.fingerprint(trees.add(before.w, own))
    store, _, _ = composed(root, common, file, tmp_path)
    (line,) = plan_removal(store, examples=[session.images[0][1]]).anchors
    assert "which was fine-tuned on it and spent epsilon 2.00 at delta 0.01 for each example: the anchor does" in line
    assert "tangent-jax private --method=nlft" in line
    assert "--part=0/2" in line
    seen = [*common[1:], f"--weights={file}", "--epochs=1", "--delta=0.01"]
    message = refused("private", *seen, f"--out={tmp_path / 'more'}")
    assert f"which no epsilon of this run covers; {len(session.images)} are in {file}" in message
    run("private", *seen, f"--out={tmp_path / 'more'}", "--leave_out_anchor_images")
    origin = Provenance.from_json(read_component(tmp_path / "more/dw.safetensors")[1]["provenance"])
    assert origin.session == session
    assert len(origin.data.examples) == 24 - len(session.images)


def test_foreign_anchor_opens_nothing(root, common, moved, tmp_path):
    """Its settings name a data set and weights that are not there: nothing tries to open them."""
    anchor = load(moved)
    settings = {**anchor.session.settings, "weights": "/no/where.npz", "dataset": "folder:/no/where; rm -rf x"}
    session = dataclasses.replace(anchor.session, settings=settings)
    save(tmp_path / "foreign.safetensors", dataclasses.replace(anchor, session=session))
    store, _, _ = composed(root, common, tmp_path / "foreign.safetensors", tmp_path)
    (line,) = plan_removal(store, examples=[session.images[0][1]]).anchors
    assert "'--dataset=folder:/no/where; rm -rf x'" in line

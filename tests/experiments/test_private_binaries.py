"""private, table3, audit and bench private as a user runs them; the store adds up what private components spent."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from helpers import in_long
from photos import photographs, picture
from PIL import Image
from run_binary import run, run_here, start, wait_until

import tangent_jax as tj
from tangent_jax.exports.folder import load_export
from tangent_jax.io.ledger import Ledger
from tangent_jax.privacy import train
from tangent_jax.privacy.mechanism import spent_together
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.store import Store

KEYS = {"method", "subset", "accuracy", "epsilon", "delta", "noise_multiplier", "clip_norm", "steps", "neighbouring"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return f"--cache_dir={tmp_path_factory.mktemp('cache')}"


@pytest.mark.slow
def test_private_spends_once_and_says_so(cache, tmp_path):
    flags = [cache, f"--out={tmp_path}", "--epochs=30", "--subset=head"]
    line, err = run("private", *flags)
    result = json.loads(line)
    assert KEYS | {"private"} <= result.keys()
    assert result["accuracy"] > 0.7
    assert (result["private"], result["steps"], result["steps_paid"]) == (True, 30, 30)
    assert abs(result["epsilon"] - 3) < 1e-9
    assert "NOT private" not in err
    ledger = (tmp_path / "ledger.json").read_text()
    line, err = run("private", *flags)
    assert json.loads(line) == result  # read, not trained
    assert f"the same result as before: {tmp_path}/result.json is unchanged" in err
    assert (tmp_path / "ledger.json").read_text() == ledger
    for other in ("--epsilon=8", "--nowhiten"):
        _, err = run("private", *flags, other, code=1)
        assert "ledger" in err.splitlines()[-1]
    assert json.loads((tmp_path / "result.json").read_text())["epsilon"] == result["epsilon"]
    _, metadata = read_component(tmp_path / "dw.safetensors")
    assert (result["whitening"], json.loads(metadata["provenance"])["training"]["whitening"]) == ("norm", "norm")
    plain = json.loads(run("private", cache, f"--out={tmp_path}/plain", "--epochs=1", "--subset=head", "--nowhiten")[0])
    assert (plain["whitening"], plain["public"]) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--method=exact"], ["--method=place", "--width=64"]], ids=["exact", "place"])
def test_private_statistics_are_released_once(cache, tmp_path, how):
    flags = [cache, f"--out={tmp_path}", *how, "--epsilon=8"]
    result = json.loads(run("private", *flags)[0])
    assert KEYS | {"private"} <= result.keys()
    assert result["accuracy"] > 0.7
    assert (result["private"], result["steps"], result["steps_paid"]) == (True, 1, 1)
    assert abs(result["epsilon"] - 8) < 1e-9
    assert (result["learning_rate"], result["whitening"]) == (None, "norm")
    ledger = (tmp_path / "ledger.json").read_text()
    assert json.loads(run("private", *flags)[0]) == result  # read, not released again
    assert (tmp_path / "ledger.json").read_text() == ledger
    tree, about = read_component(tmp_path / "head.safetensors")
    pretrained, digits = tj.load("builtin"), tj.open_dataset("digits")
    map_ = tj.models.FeatureSettings(**json.loads(about["features"])).of(pretrained)
    test = tj.extract(map_.predict, digits.test)
    assert tj.evaluate(dataclasses.replace(map_, **tree["whitening"]), tree["head"], test) == result["accuracy"]
    _, err = run("private", *flags, "--lr=0.1", code=1)
    assert "--lr has an effect only with --method of taft,nlft" in err


@pytest.mark.long
def test_poisson_with_seed_is_not_private(cache, tmp_path):
    small = ["--subset=head", "--epochs=2", "--sampling=poisson", "--batch_size=100", "--epsilon=8", "--noise_seed=1"]
    line, err = run("private", cache, *small, f"--out={tmp_path}")
    result = json.loads(line)
    assert not result["private"]
    assert "NOT private" in err
    assert result["sampling_rate"] == pytest.approx(100 / 898)
    assert result["steps"] == 18
    assert result["epsilon"] <= 8


def test_private_says_steps_a_kill_lost(cache, tmp_path, monkeypatch):
    flags, taken, real = [cache, f"--out={tmp_path}", "--epochs=5", "--subset=head"], [], train.take_step

    def step(*arguments, **options):
        taken.append(1)
        if len(taken) == 3:
            raise KeyboardInterrupt  # after the third was paid, and before anything is saved
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(train, "take_step", step)
        patch.setattr(Ledger.__init__, "__defaults__", (1e9,))
        assert run_here("private", *flags)[0] == 130
    code, out, err = run_here("private", *flags)
    assert code == 0, err
    assert err.count("paid steps") == 1
    assert "ledger.json: a kill lost 3 of 3 paid steps, which stay paid\n" in err
    result = json.loads(out.splitlines()[-1])
    assert (result["steps"], result["steps_paid"]) == (2, 5)


@pytest.mark.long
def test_killed_private_run_keeps_budget(cache, tmp_path):
    flags, ledger = [cache, f"--out={tmp_path}", "--epochs=400", "--subset=head"], tmp_path / "ledger.json"
    child = start("tangent_jax", "private", *flags)
    try:
        wait_until(child, lambda: ledger.exists() and json.loads(ledger.read_text())["spent"]["steps_paid"] > 20)
    finally:
        child.kill()
        child.join()
    paid = json.loads(ledger.read_text())["spent"]["steps_paid"]
    result = json.loads(run("private", *flags)[0])
    assert result["steps_paid"] == 400
    assert 400 - paid <= result["steps"] <= 400
    assert result["epsilon"] <= 3 + 1e-9


@pytest.mark.slow
def test_private_components_add_up_in_the_store(cache, tmp_path):
    store = f"--store={tmp_path}/store"
    for name, more in {"a": ["--part=0/2", "--epsilon=1"], "b": []}.items():
        run("private", cache, "--subset=head", "--epochs=5", *more, f"--out={tmp_path}/{name}")
        run("store", "add", store, f"--source={tmp_path}/{name}")
    spent = json.loads(run("store", "compose", store)[0])["privacy"]
    assert 3 < spent["epsilon"] < 4  # half of the images are in both: less than the sum, more than either
    listed = json.loads(run("store", "list", store)[0])["components"]
    assert [row["epsilon"] for row in listed] == [1, 3]
    run("store", "export", store, f"--to={tmp_path}/export")
    assert load_export(tmp_path / "export")[1]["head"]["kernel"].shape == (96, 10)
    (tmp_path / "ids.txt").write_text(Store(tmp_path / "store").provenance("a").data.examples[0][0])
    _, err = run("store", "remove", store, f"--examples={tmp_path}/ids.txt", "--retrain", code=1)
    assert "without privacy" in err


ACCOUNT = ("epsilon", "delta", "noise_multiplier", "steps_paid", "neighbouring", "unit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subset", "trained"), [("lora", "lora_b-1"), *in_long(("adapter", "adapter-1"))], ids=["lora", "adapter"]
)
def test_private_new_leaves_are_stored(cache, tmp_path, subset, trained):
    """With the account of the head alone; composed, exported, and not retrained when an image is removed."""
    store, flags = f"--store={tmp_path}/store", [cache, "--epochs=1"]
    how = [f"--subset={subset}", "--rank=2"]
    head = json.loads(run("private", *flags, "--subset=head", "--part=0/2", f"--out={tmp_path}/head")[0])
    for part in "01":
        line, err = run("private", *flags, *how, f"--part={part}/2", f"--out={tmp_path}/{part}")
        run("store", "add", store, f"--source={tmp_path}/{part}")
        assert f"{trained} trains block_" in err
        assert err.count("; gradient norms in closed form; ") == 1
    result = json.loads(line)
    assert result["subset"] == trained
    assert [result[name] for name in ACCOUNT] == [head[name] for name in ACCOUNT]
    assert json.loads(run("store", "compose", store)[0])["privacy"]["epsilon"] == pytest.approx(3)  # no image in both
    run("store", "export", store, f"--to={tmp_path}/export")
    anchor, dw = load_export(tmp_path / "export")[:2]
    tj.tangent(anchor, 1, trained.partition("-")[0]).bind(dw)  # has its leaves, in their shapes
    assert all(np.any(leaf) for leaf in jax.tree.leaves(dw))
    (tmp_path / "ids.txt").write_text(Store(tmp_path / "store").provenance("0").data.examples[0][0])
    _, err = run("store", "remove", store, f"--examples={tmp_path}/ids.txt", "--retrain", code=1)
    assert "only components without privacy are trained again" in err
    run("private", *flags, *how, "--seed=1", f"--out={tmp_path}/other")  # another A at the anchor
    _, err = run("store", "add", store, f"--source={tmp_path}/other", code=1)
    assert "anchor" in err.splitlines()[-1]


@pytest.mark.slow
def test_private_protects_owners(cache, tmp_path):
    """Parts divide no owner, so that components compose in parallel over owners."""
    whose, table = [f"digit {i},owner {i // 9}" for i in range(898)], tmp_path / "owners.csv"
    table.write_text("\n".join(["file,owner", *whose]) + "\n")
    flags, origins = [cache, "--unit=owner", f"--owners={table}", "--subset=head", "--epochs=2"], []
    for part in "01":
        result = json.loads(run("private", *flags, f"--part={part}/2", f"--out={tmp_path}/{part}")[0])
        assert (result["unit"], result["neighbouring"]) == ("owner", "add-or-remove-one-owner")
        _, metadata = read_component(tmp_path / part / "dw.safetensors")
        origins.append(Provenance.from_json(metadata["provenance"]))
        assert (result["owners"], result["examples"]) == (len(origins[-1].protected_units()), None)
    assert sorted(map(len, (o.protected_units() for o in origins)))[0] > 30
    assert len(origins[0].protected_units() | origins[1].protected_units()) == 100
    together = spent_together(
        [(spent, frozenset(o.protected_units())) for o in origins if (spent := o.training.privacy)]
    )
    assert abs(together.epsilon - 3) < 1e-6  # no owner is in both
    table.write_text("\n".join([*whose, "digit 5000,bob"]) + "\n")
    _, err = run("private", *flags, f"--out={tmp_path}/out", code=1)
    assert "--owners must name owners of an image of digits; bob has none" in err.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--subset=head", "--epochs=1"), ("--method=exact",)], ids=["taft", "exact"])
def test_private_class_list_needs_no_image(cache, tmp_path, how):
    photos, table, listed = photographs(tmp_path / "photos"), tmp_path / "owners.csv", tmp_path / "listed.txt"
    (photos / "train/emu").mkdir()
    (photos / "train/emu/0.png").write_bytes(picture())
    owners = {f"train/{c}/{i}.png": f"owner {i}" for c in ("cat", "dog") for i in range(6)}
    table.write_text("".join(f"{name},{owner}\n" for name, owner in (owners | {"train/emu/0.png": "ann"}).items()))
    listed.write_text("emu\ndog\ncat\n")
    flags = [cache, f"--dataset=folder:{photos}", "--delta=1e-2", "--epsilon=1", *how]
    owned, given = ["--unit=owner", f"--owners={table}"], f"--classes={listed}"

    def numbers(out, *more, said=""):
        line, err = run("private", *flags, *more, f"--out={tmp_path}/{out}")
        assert said in err
        assert ("classes are public" in err) == bool(said)
        return json.loads(line)["trainable_parameters"]

    public = "names and number of the {} classes are public, and come from the private images"
    numbers("image", said=f"{public.format(3)}; images of one example alone show emu. Name the classes by --classes")
    whole = numbers("owner", *owned, said=f"{public.format(3)}; images of one owner alone show emu.")
    assert numbers("with", *owned, given) == whole
    shutil.rmtree(photos / "train/emu")
    table.write_text("".join(f"{name},{owner}\n" for name, owner in owners.items()))
    assert numbers("less", *owned, said=f"{public.format(2)}. Name") < whole
    assert numbers("without", *owned, given) == whole
    if "--method=exact" not in how:
        dw, metadata = read_component(tmp_path / "without/dw.safetensors")
        assert Provenance.from_json(metadata["provenance"]).classes == ("emu", "dog", "cat")
        assert np.abs(dw["head"]["kernel"]).max(0).all()  # noise for the class without an image, too


@pytest.mark.slow
def test_private_says_division_is_not_covered(cache, tmp_path):
    """And a head's classes are in the order of --classes, which its file keeps."""
    photos = photographs(tmp_path / "photos")
    flags = [cache, "--delta=1e-2", "--epsilon=3", "--method=exact", "--classes=dog,cat", f"--out={tmp_path}/out"]
    line, err = run("private", *flags, f"--dataset=folder:{photos}/train")
    assert "may move another of its class into training, which costs epsilon 7.871." in err
    tree, about = read_component(tmp_path / "out/head.safetensors")
    dataset = tj.open_dataset(f"folder:{photos}/train", classes=json.loads(about["classes"]))
    map_ = tj.models.FeatureSettings(**json.loads(about["features"])).of(tj.load("builtin"))
    own, test = dataclasses.replace(map_, **tree["whitening"]), tj.extract(map_.predict, dataset.test)
    assert (dataset.is_divided, dataset.classes) == (True, ("dog", "cat"))
    assert tj.evaluate(own, tree["head"], test) == json.loads(line)["accuracy"]
    flags[-1] = f"--out={tmp_path}/apart"
    assert "may move another" not in run("private", *flags, f"--dataset=folder:{photos}")[1]


def test_private_prints_epsilon_of_owner(cache, tmp_path):
    table = tmp_path / "owners.csv"
    table.write_text("".join(f"digit {i},owner {i // 8}\n" for i in range(898)))
    flags = [cache, "--subset=head", "--epochs=2", "--unit=example", f"--owners={table}"]
    line, err = run("private", *flags, f"--out={tmp_path}/full")
    assert "epsilon 40.34 for an owner of the most images, 8, which is private" in err
    assert json.loads(line)["owners"] is None
    assert "40.3" not in line
    assert "owner" not in run("private", *flags, "--sampling=poisson", f"--out={tmp_path}/sampled")[1]


@pytest.mark.long
def test_audit_exit_code_tells_broken_mechanism(cache, tmp_path):
    flags = [cache, "--subset=head", "--repeats=40", "--steps=2", "--confidence=0.999"]
    result = json.loads(run("privacy audit", *flags, f"--out={tmp_path}/good")[0])
    assert result["kept"]
    assert result["gaussian_epsilon_lower"] < 3
    assert Image.open(tmp_path / "good/audit.png").size[0] > 500
    more = ["--repeats=80", "--broken=half_noise"]  # of 40 one in fifty hides it
    line, err = run("privacy audit", *flags, *more, f"--out={tmp_path}/bad", code=1)
    assert json.loads(line)["noise_scale"][1] < 1
    assert "audit: " in err.splitlines()[-1]


@pytest.mark.slow
def test_private_run_is_audited_by_canaries(cache, tmp_path):
    flags = [cache, "--subset=head", "--epochs=4", "--canaries=100", f"--out={tmp_path}"]
    line, _ = run("private", *flags)
    result, coins = json.loads(line), (tmp_path / "coins.json").read_text()
    audit = result["audit"]
    assert (audit["canaries"], audit["confidence"], result["examples"]) == (100, 0.95, 898)
    assert min(audit["epsilon_lower"], audit["gaussian_epsilon_lower"]) >= 0
    assert 20 < audit["canaries_in"] < 80
    assert json.loads(run("private", *flags)[0]) == result
    assert (tmp_path / "coins.json").read_text() == coins


@pytest.mark.slow
def test_noiseless_runs_are_caught(cache, tmp_path):
    flags = ["--subset=head", "--epsilon=1", "--steps=2", "--repeats=2", "--canaries=300", "--broken=no_noise"]
    line, err = run("privacy audit", cache, *flags, f"--out={tmp_path}", code=1)
    result = json.loads(line)
    assert result["caught"] == {"epsilon_lower": 2, "gaussian_epsilon_lower": 2}
    assert "audit: " in err.splitlines()[-1]

"""Mistakes that an operator may type give one clear sentence, exit code 1, and nothing written."""

import json

import pytest
from photos import write
from run_binary import output, refused, run

from tangent_jax.commands.shared.additive import ADDITIVE
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core.checks import InputError
from tangent_jax.store import WEIGHTED
from tangent_jax.store.store import Store

METHODS = ", ".join(["taft, soup, fc, lora, adapter, tangent_lora, tangent_adapter", *ADDITIVE])
CASES = [
    # absl's own checks, and flags that a binary does not have
    ("finetune", "--seed=4294967296", "flag --seed="),
    ("finetune", "--lr=inf", "flag --lr=inf"),
    ("finetune", "--image_size=224x", "it must be pixels of a side, such as 224, or of height and width"),
    ("finetune", "--epoch=2", "Unknown command line flag 'epoch'. Did you mean: epochs? Try finetune --help."),
    ("store", "export --format=pickle", "flag --format=pickle"),
    ("compose", "--method=exact --feature_blocks=two", "it must be a number of blocks, such as 8, or auto"),
    # arguments
    ("finetune", "word", "finetune: all arguments must be flags, --NAME=VALUE; got word"),
    ("store", "forget", "store: the argument besides flags must be one of add, merge, list"),
    # lists
    ("compose", "--shards=", "compose: --shards must have an entry, and no empty one; got none"),
    ("compose", "--method=taft,tuft", f"--method must be of {METHODS}; got taft,tuft"),
    ("paper table3", "--epsilon=1,x", "table3: --epsilon must be numbers separated by commas; got 1,x"),
    ("influence effects", "--by=kernel --penalty=1,0", "--penalty must be above 0 and finite; got 1,0"),
    ("bench accelerator", "--size=XL", "--size must be of Ti, S, B, L; got XL"),
    # flags without effect beside the others
    ("finetune", "--certificate=0.1", "--certificate has an effect only with --solver=optimum; got --solver=adam"),
    ("finetune", "--rank=4", "--rank has an effect only with --subset of adapter,lora,lora_b; got --subset=blocks"),
    ("finetune", "--topology=v5e:2x2", "--topology has an effect only with --plan=True; got --plan=False"),
    ("compose", "--sharding=owner --shards=5", "--shards has an effect only with --sharding of uniform,hash"),
    ("compose", "--rank=4", "--rank has an effect only with --method of lora, adapter, tangent_lora"),
    ("compose", "--merge=ties --merge_penalty=1", f"only with --merge of {', '.join(WEIGHTED)}; got ties"),
    (
        "compose",
        "--settings=leave_one_out",
        f"--settings has an effect only with --method of {','.join(ADDITIVE)}",
    ),
    ("compose", "--method=exact,lda --epochs=5", "got --method=exact,lda"),
    ("private", "--method=exact --loss=rsl", "--loss has an effect only with --method of taft,nlft"),
    ("private", "--public=x --nowhiten", "--public has an effect only with --whiten=True; got --whiten=False"),
    ("influence effects", "--by=kernel --images=9", "--images has an effect only with --by=solver; got --by=kernel"),
    ("store", "compose --name=a", "store: --name has an effect only with add, remove; got it with compose"),
    # flags that exclude or need each other
    ("finetune", "--factors --method=nlft", "--factors needs --method=taft or fc"),
    ("compose", "--merge=inputs --method=fc", "--merge=inputs needs taft in --method; got fc"),
    ("compose", "--solver=optimum", "--solver=optimum needs --method of tangents and heads; got soup"),
    ("compose", "--sharding=owner", "--owners=CSV must be given with --sharding=owner; got none"),
    ("compose", "--shard=4/4", "--shard must be I/N with 0 <= I < N, the number of all parts; got 4/4"),
    ("compose", "--out=s3://b/x", "--out: a path must be one of this machine; got s3://b/x"),
    ("private", "--plan --part=0/2", "--plan must be without --part; got both"),
    ("finetune", "--solver=optimum", "--penalty must be given with --solver=optimum: at its default of 1e-05 no"),
    ("influence effects", "--by=solver", "--penalty must be given with --by=solver; got none"),
    ("private", "--unit=owner", "--owners=CSV and --unit must be given together"),
    ("private", "--owners=x.csv", "--owners=CSV and --unit must be given together: owner protects owners"),
    ("private", "--classes=0,1", "classes must name the class of every image of digits; they lack 2, 3, 4, 5, 6, ..."),
    (
        "private",
        "--classes=no/file.txt",
        "--classes must be a file of identifiers or names, one a line;",
    ),
    ("private", "--canaries=100 --noise_seed=1", "--canaries must be without --noise_seed"),
    ("paper table3", "--method=taft,public", "--public and --method=public must be given together"),
    ("store", "remove --name=a --exact --store={store}", "--retrain and --exact need --examples or --owner"),
    ("pretrain", "--network=resnet --scheme=mae", "--scheme=mae needs --network=vit; got resnet"),
    # numbers outside their range, or that the data do not allow
    ("private", "--delta=0.01", "--delta must be below 1 / images = 0.0011; got 0.01"),
    ("private", "--canaries=900", "--canaries must be at most 898, one for each image; got 900"),
    ("private", "--part=1.5/3", "--part must be I/N with 0 <= I < N, the number of all parts; got 1.5/3"),
    ("privacy audit", "--repeats=3", "--repeats must be 4 at least without --canaries; got 3"),
    ("removal unlearned", "--removed=180", "--removed must be at most 179, a tenth of 1797 images; got 180"),
    ("removal forget", "--penalty=0", "--penalty must be above 0, for the distance bound; got 0"),
    ("paper anchors", "--shards=899", "--shards must be in 1..898; got 899"),
    ("paper table1", "--blocks=7 --method=taft", "--blocks must be at most 6, the model's number; got 7"),
    ("paper report", "--finished=times=nowhere", "--finished must be JOB=FOLDER with a result.json in FOLDER"),
    ("paper report", "--weights=builtin,b,c", "--weights must be MODEL, MODEL,RESNET or"),
    ("compose", "--method=exact --feature_blocks=13", "--feature_blocks must be a whole number in 0..6; got 13"),
    ("finetune", "--lr=0", "finetune: learning_rate must be a finite number > 0 and at most 1e+06; got 0.0"),
    ("tasks", "--dataset=digits,digits --experts=a", "--experts must be one for each of the 2 data sets; got 1"),
    ("tasks", "--dataset=digits,x --experts=a,b --method=taft", "--experts has an effect only with --method=soup"),
    ("tasks", "--dataset=digits,digits", "--dataset must name data sets of different names; got digits. Rename one"),
    # texts
    (
        "compose",
        "--method=exact --settings=lda",
        "--settings must be HOW,SHRINKAGE or HOW,SHRINKAGE,WEIGHT,WEIGHT; got lda",
    ),
    ("compose", "--method=exact --settings=svm,1,1", "--settings: "),
    ("compose", "--method=exact,ridge --settings=lda,1", "--settings must be ridge,SHRINKAGE beside --method=ridge"),
    ("compose", "--method=place --settings=lda,1,1", "lda,SHRINKAGE,WEIGHT of h,WEIGHT of place beside --method=place"),
    ("finetune", "--profile_steps=10:5", "--profile_steps must be FIRST:LAST with 1 <= FIRST <= LAST, such as 10:20"),
    ("private", "--plan --topology=v5e:2by2", "--topology must be one such as v5e:2x2"),
    ("finetune", "--loss=hinge", "hinge"),
    # files and folders
    ("finetune", "--out=/dev/null/x", "--out must be in a folder that can be written to; got /dev/null/x"),
    ("finetune", "--out=", "--out"),
    ("finetune", "--out={store}/x", "--out must not be in a store"),
    ("finetune", "--compilation_cache=/dev/null/x", "finetune: [Errno 20] Not a directory"),
    ("compose", "--store=s3://bucket/x", "--store"),
    ("store", "list --store=/nowhere", "--store must be a store; /nowhere is not"),
    ("store", "merge --store=no/store --source=no/other", "--source must be a store; got no/other"),
    ("store", "merge --store=no/store", "--source must be a store; got none"),
    ("store", "add --source=/nowhere", "--source must be a folder with dw.safetensors; /nowhere has none"),
    ("store", "compose --store={store}", "--store must have a component at least"),
    ("data", "mnist10 --to=no/zip.zip", "--source=FOLDER must be given"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize(("binary", "flags", "message"), CASES, ids=lambda value: str(value)[:40])
def test_wrong_flag_is_refused_before_work(tmp_path, binary, flags, message):
    store = tmp_path / "store"
    if "{store}" in flags:
        Store(store)
    out = [] if binary in ("store", "data") or "--out" in flags else [f"--out={tmp_path / 'out'}"]
    err = refused(binary, *flags.format(store=store).split(), *out)
    assert message in err.strip().splitlines()[-1], err[-500:]
    assert len(err.strip().splitlines()) <= 4, err  # no bar of any work
    assert "Traceback" not in err
    assert not (tmp_path / "out/result.json").exists()


@pytest.mark.slow
def test_missing_test_images_are_refused_early(tmp_path):
    names = [f"{c}/{i}.png" for c in "ab" for i in range(5)]
    write(tmp_path, *(f"photos/{name}" for name in names))
    manifest = {"classes": ["a", "b"], "items": [[name, "train", "ab".index(name[0])] for name in names]}
    (tmp_path / "photos/manifest.json").write_text(json.dumps(manifest))
    for binary in ("paper table1", "compose", "private", "privacy owners"):
        err = refused(binary, f"--dataset=folder:{tmp_path / 'photos'}", f"--out={tmp_path}/out")
        assert "test" in err.splitlines()[-1]
        assert "photos" in err.splitlines()[-1]
        assert "inputs" not in err


@pytest.mark.slow
def test_copies_are_said_once(tmp_path, cache):
    write(
        tmp_path,
        *(f"photos/train/{c}/{i}.png" for c in "ab" for i in range(4)),
        "photos/test/a/x.png",
        "photos/test/b/y.png",
    )
    (tmp_path / "photos/train/a/again.png").write_bytes((tmp_path / "photos/train/a/0.png").read_bytes())
    (tmp_path / "photos/test/a/x.png").write_bytes((tmp_path / "photos/train/a/1.png").read_bytes())
    (tmp_path / "photos/train/a/._0.png").write_bytes(b"not an image")
    flags = [
        f"--dataset=folder:{tmp_path / 'photos'}",
        f"--cache_dir={cache}",
        f"--out={tmp_path / 'out'}",
        "--subset=head",
    ]
    line, err = run("private", *flags, "--epochs=2", "--noise_seed=1")
    for words in ("left out 1 file: hidden", "1 images of test are in train too", "an example has 2 copies"):
        assert err.count(words) == 1, err
    result = json.loads(line)
    assert (result["private"], result["examples"]) == (False, 9)
    assert {"copies", "non_finite", "run"}.isdisjoint(result)  # exact counts of private images, a hash of all of them
    store = f"--store={tmp_path / 'store'}"
    run("store", "add", store, f"--source={tmp_path / 'out'}")
    stdout, err = run("store", "compose", store)
    assert "NOT private" in err
    assert json.loads(stdout)["privacy"]["private"] is False
    assert json.loads(run("store", "list", store)[0])["components"][0]["epsilon"] == "not private"


@pytest.mark.slow
def test_changed_test_images_are_remeasured(tmp_path, cache):
    names = [f"photos/{split}/{c}/{i}.png" for split in ("train", "test") for c in "ab" for i in range(3)]
    write(tmp_path, *names)
    flags = [
        f"--dataset=folder:{tmp_path / 'photos'}",
        f"--cache_dir={cache}",
        f"--out={tmp_path / 'out'}",
        "--epochs=20",
        "--lr=0.01",  # learns any six pictures: those drawn here depend on the tests that ran before
    ]
    first = json.loads(run("finetune", *flags)[0])
    for split in ("a", "b"):
        for i in range(3):
            other = "b" if split == "a" else "a"
            source = tmp_path / f"photos/train/{other}/{i}.png"
            (tmp_path / f"photos/test/{split}/{i}.png").write_bytes(source.read_bytes())
    second = json.loads(run("finetune", *flags)[0])
    assert second["run"] == first["run"]  # the step does not depend on them: it is read, not trained
    assert second["accuracy"] <= 0.5  # every test image is a training image of the other class


def test_runs_repairs_torn_line_only(tmp_path):
    path = tmp_path / "runs.jsonl"
    runs, other = Runs(path), Runs(path)
    runs.add("a", 0.5)
    other.add("b", 0.25, 1.5)  # of another command with the same --out
    path.write_bytes(path.read_bytes() + b'{"key": "c", "accu')
    again = Runs(path)
    assert (again.done, again.norms) == ({"a": 0.5, "b": 0.25}, {"b": 1.5})
    again.add("c", 0.75)
    assert Runs(path).done == {"a": 0.5, "b": 0.25, "c": 0.75}
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9"))
    with pytest.raises(InputError, match="line 2"):
        Runs(path)


def test_help_is_no_error():
    assert "--epochs" in output("finetune", "--help")[0]


def test_add_of_a_mistyped_source_makes_no_store(tmp_path):
    _, err = run("store", "add", f"--store={tmp_path / 'new'}", f"--source={tmp_path / 'nothing'}", code=1)
    said = f"--source must be a folder with dw.safetensors; {tmp_path / 'nothing'} has none. Run finetune with --out"
    assert err.splitlines()[1:] == [f"store: {said}"]
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_settings_never_divide_groups(tmp_path):
    write(
        tmp_path, *(f"set/{s}/{c}/{t}_{f}.png" for s in ("train", "test") for c in "ab" for t in range(2) for f in "x")
    )
    spec, out = f"--dataset=folder:{tmp_path}/set", f"--out={tmp_path}/out"
    err = refused("compose", "--method=exact", "--settings=leave_one_out", f"{spec}?group=[ab]/[0-9]", out)
    assert "--settings=leave_one_out leaves out one image while others of its group train" in err
    err = refused("influence effects", "--by=solver", "--penalty=0.1", f"{spec}?group=[ab]/[0-9]", out)
    assert "--by=solver leaves out one image while others of its group train" in err
    for pattern, why in (
        ("[0-9]_y", "it gives none to 4 of 4, such as train/a/0_x.png"),
        ("(", "a regular expression"),
    ):
        assert why in refused("compose", "--method=lda", f"{spec}?group={pattern}", out).splitlines()[-1]
    flags = ["--method=lda", f"--store={tmp_path}/store", f"--cache_dir={tmp_path}/cache", out, "--shards=2"]
    assert "settings must be chosen on images of classes with another image that trains; got none" in refused(
        "compose", *flags, f"{spec}?group=[ab]/"
    )

"""Mistakes that an operator may type give one clear line, exit code 1, and nothing written."""

import json
import os

import pytest
from photos import write
from run_binary import output, refused, run

from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core.checks import InputError
from tangent_jax.losses import LOSSES
from tangent_jax.store import WEIGHTED

LONG = "9" * 20
METHODS = "taft, soup, fc, lora, adapter, tangent_lora, tangent_adapter, exact, ridge, ranpac, lda"
CASES = [
    ("finetune", ["--seed=" + LONG], "flag --seed="),
    ("finetune", ["--seed=4294967296"], "flag --seed="),
    ("finetune", ["--seed=-1"], "flag --seed="),
    ("finetune", ["--lr=inf"], "flag --lr=inf"),
    ("finetune", ["--lr=nan"], "learning_rate > 0"),
    ("finetune", ["--lr=0"], "learning_rate > 0"),
    ("finetune", ["--image_size=1000000"], "flag --image_size=1000000"),
    ("finetune", ["--image_size=224x"], "expected pixels of a side, such as 224, or of height and width"),
    ("finetune", ["--dataset=folder:~no_such_user/x"], "expected a path; got"),
    ("finetune", ["--weights=~no_such_user/x"], "load: expected a path"),
    ("finetune", ["--cache_dir=~no_such_user/x"], "Cache: expected a path"),
    ("finetune", ["--cache_dir="], "Cache: expected a folder at least; got none"),
    ("finetune", ["--out="], "flags, --out: expected a path"),
    (
        "finetune",
        ["--epoch=2"],
        "Unknown command line flag 'epoch'. Did you mean: epochs? Try finetune --help.",
    ),
    ("compose", ["--store=s3://bucket/x"], "flags, --store: expected a path of this machine; got s3://bucket/x"),
    ("compose", ["--farm=local", "--out=memory://b/x"], "flags: expected --out in a folder that the workers share"),
    ("finetune", ["--out=foo://b/x"], "flags, --out: expected a URL that fsspec can open"),
    ("store", ["push"], "store: expected push URL; got push"),
    ("store", ["pull", "a/folder"], "store: expected pull URL; got pull a/folder"),
    ("store", ["pull", "memory://b/nothing", "--store=nothing"], "store pull: expected a store at memory://b/nothing"),
    ("compose", ["--sharding=owner", "--owners=no.csv"], "read_owners: expected a CSV of file,owner in no.csv; got no"),
    ("compose", ["--shards="], "flags: expected --shards with an entry"),
    ("compose", ["--shards=10,"], "flags: expected --shards with an entry, no empty one; got 10,"),
    (
        "compose",
        ["--method="],
        f"flags: expected --method of {METHODS}; got none",
    ),
    (
        "compose",
        ["--method=taft,tuft"],
        f"flags: expected --method of {METHODS}; got taft,tuft",
    ),
    ("paper table1", ["--lr="], "flags: expected --lr with an entry"),
    ("paper table1", ["--dataset="], "flags: expected --dataset with an entry"),
    ("paper table3", ["--epsilon=1,x"], "flags: expected --epsilon as numbers"),
    ("paper table3", ["--method=nlft"], "table3: expected --method with taft, or norm or public alone; got nlft"),
    ("paper table3", ["--subset=blocks,all"], "flags: expected --subset of blocks, bitfit, layernorm, head"),
    ("privacy audit", ["--images=100000"], "audit: expected --images in 2..898"),
    ("influence attribution", ["--penalty=0.1,x"], "flags: expected --penalty as numbers"),
    ("removal remove", ["--removed=1,898"], "flags: expected --removed between 1 and 897 images; got 1,898"),
    ("removal unlearned", ["--shadows=20"], "flags: expected --shadows of at least 6, and of at least --attacked=24"),
    (
        "removal unlearned",
        ["--removed=180"],
        "flags: expected --removed of at most 179, a tenth of 1797 images; got 180",
    ),
    ("removal unlearned", ["--certificates=1,x"], "flags: expected --certificates as numbers"),
    (
        "removal unlearned",
        ["--owners=/dev/null"],
        "flags: expected --owners that names an image of digits; got none in /dev/null",
    ),
    ("finetune", ["--radius=0"], "project: expected radius > 0"),
    ("finetune", ["--subset=lora", "--rank=97"], "rank must be a whole number in 1..96; got 97"),
    ("finetune", ["--dataset=dtd:x@11"], "the split of dtd:PATH@SPLIT must be in 1..10"),
    ("finetune", ["--architecture=resnet50"], "load: expected resnet50, a ResNet; got a Vision Transformer"),
    ("finetune", ["--weights=builtin-resnet", "--architecture=L/16"], "a Vision Transformer; got a ResNet"),
    ("pretrain", ["--network=resnet", "--scheme=mae"], "flags: expected --network=vit for this --scheme"),
    ("paper anchors", ["--weights=mae.safetensors"], "mae.safetensors, which does not exist"),
    ("paper ablations", ["--only=lose"], "flags: expected --only of loss, pt, cls, radius; got lose"),
    ("paper ablations", ["--only=radius", "--radius=0"], "project: expected radius > 0"),
    ("private", ["--epsilon=1e9", "--sampling=poisson"], "expected epsilon in 0.001..100; got 1000000000.0"),
    ("private", ["--epsilon=nan"], "epsilon must be a finite number > 0; got nan"),
    ("private", ["--clip_norm=1e-40"], "expected clip_norm in 1e-12..1e+12; got 1e-40"),
    ("private", ["--delta=1e-300", "--sampling=poisson"], "expected delta in (1e-15, 1)"),
    ("private", ["--part=897/100000"], "private: expected two images or more in --part"),
    ("private", ["--unit=owner"], "private: expected --unit=owner with --owners=CSV; got one of the two"),
    ("private", ["--owners=who.csv"], "private: expected --unit=owner with --owners=CSV; got one of the two"),
    ("privacy owners", ["--shards=1"], "owners: expected --shards in 2..898, the images of train; got 1"),
    ("private", ["--part=1.5/3"], "private: expected --part=I/K"),
    ("finetune", ["--profile_steps=10:5"], "flags: expected --profile_steps=FIRST:LAST with 1 <= FIRST <= LAST"),
    ("finetune", ["--profile_steps=ten"], "such as 10:20; got ten"),
    ("finetune", ["--profile_steps=2:9999"], "fit: expected a profile of steps up to 870; got 9999"),
    ("finetune", ["--metrics=csv,tsv"], "log_steps: expected writers of csv, tensorboard, wandb; got tsv"),
    ("finetune", ["--compilation_cache=/dev/null/x"], "finetune: [Errno 20] Not a directory"),
    ("store", ["export", "--format=pickle"], "flag --format=pickle"),
    ("store", ["list", "--compilation_cache="], "flags, --compilation_cache: expected a path"),
    ("private", ["--plan", "--topology=v5e:2by2"], "plan: expected a --topology such as v5e:2x2"),
    ("compose", ["--worker=4/4"], "flags: expected --worker=I/N with I in 0..N-1; got 4/4"),
    ("compose", ["--worker=all"], "flags: expected --worker=I/N with I in 0..N-1; got all"),
    ("compose", ["--workers=2"], "flags: expected --farm with --workers; got none"),
    ("compose", ["--farm=local"], "flags: expected --workers=N with --farm; got none"),
    ("compose", ["--farm=slurm", "--workers=2"], "farm: expected Slurm's sbatch and srun on PATH; got none"),
    ("compose", ["--farm=local", "--workers=2", "--farm_options=time"], "flags: expected --farm_options=KEY=VALUE"),
    ("compose", ["--farm=local", "--workers=2", "--farm_options=timeout_min=1:00"], "expected whole minutes in"),
    ("compose", ["--farm=local", "--workers=2", "--farm_options=gpus=1"], "of timeout_min with --farm=local; got gpus"),
    (
        "compose",
        ["--worker=0/5", "--shards=3", "--method=fc", "--at_once=1", f"--store={os.devnull}"],
        "farm: expected at most 4 workers for 4 groups of 4 shards; got 5. Start fewer workers, or lower --at_once",
    ),
    (
        "compose",
        ["--worker=0/7", "--shards=4", "--method=taft,fc", "--at_once=2", f"--store={os.devnull}"],
        "farm: expected at most 6 workers for 6 groups of 10 shards; got 7",
    ),
    ("store", ["merge", "--store=no/store"], "store merge: expected --source=DIR; got none"),
    ("store", ["merge", "--store=no/store", "--source=no/other"], "store merge: expected a store in --source"),
    ("store", ["status", "--store=no/store"], "store: expected a store; got no/store"),
    # a flag that a binary does not read does not exist for it
    ("paper table3", ["--batch_size=8"], "Unknown command line flag 'batch_size'"),
    ("privacy audit", ["--epochs=8"], "Unknown command line flag 'epochs'"),
    ("store", ["list", "--epochs=3"], "Unknown command line flag 'epochs'"),
]
EARLY = [
    # a flag without effect beside the others is not ignored
    ("finetune", ["--certificate=0.1"], "flags: expected --solver of optimum beside --certificate; got adam"),
    ("finetune", ["--rank=4"], "flags: expected --subset of adapter, lora, lora_b beside --rank; got blocks"),
    ("finetune", ["--topology=v5e:2x2"], "flags: expected --plan of True beside --topology; got False"),
    ("compose", ["--concentration=0.1"], "flags: expected --sharding of dirichlet beside --concentration; got uniform"),
    ("compose", ["--sharding=owner", "--shards=5"], "beside --shards; got owner"),
    ("compose", ["--rank=4"], "flags: expected --method of lora, adapter, tangent_lora, tangent_adapter beside --rank"),
    (
        "compose",
        ["--merge_penalty=1"],
        f"flags: expected --merge of {', '.join(WEIGHTED)} beside --merge_penalty; got mean",
    ),
    ("compose", ["--merge=ties", "--merge_penalty=1"], "beside --merge_penalty; got ties"),
    ("compose", ["--merge=inputs", "--method=fc"], "expected --merge=mean without taft in --method; got inputs"),
    ("influence effects", ["--flip=0.1"], "flags: expected --by of kernel beside --flip; got component"),
    ("influence effects", ["--by=kernel", "--images=9"], "expected --by of solver, both beside --images; got kernel"),
    ("influence effects", ["--by=solver", "--penalty=1,2"], "flags: expected one --penalty beside --by=component"),
    ("private", ["--plan", "--part=0/2"], "private: expected --plan without --part; got both"),
    ("store", ["compose", "--name=a"], "store compose: expected --name only with add, remove; got it with compose"),
    ("store", ["merge", "--dry_run"], "store merge: expected --dry_run only with remove; got it with merge"),
    ("paper table1", ["--certificate=0.1"], "flags: expected --solver of optimum beside --certificate; got adam"),
    ("compose", ["--settings=leave_one_out"], "--method of exact, ridge, ranpac, lda beside --settings; got taft,soup"),
    ("compose", ["--width=64", "--method=ridge"], "flags: expected --method of exact beside --width; got ridge"),
    ("compose", ["--method=exact", "--head_scale=10"], "beside --head_scale; got exact"),
    ("finetune", ["--loss=hinge"], f"make_loss: expected a loss in {', '.join(LOSSES)}; got hinge"),
    ("influence attribution", ["--loss=rsl:kappa"], "make_loss: expected rsl:HYPER_PARAMETER=NUMBER; got rsl:kappa"),
    ("private", ["--method=exact", "--loss=rsl"], "flags: expected --method of taft, nlft beside --loss; got exact"),
    ("compose", ["--method=exact,lda", "--epochs=5"], "beside --epochs; got exact,lda"),
    ("compose", ["--method=exact", "--feature_blocks=two"], "expected a number of blocks, such as 8, or auto"),
    ("tasks", ["--directions=2"], "flags: expected --method of exact beside --directions; got taft,soup"),
    # what can be known before any image is read is said then
    (
        "compose",
        ["--method=exact", "--settings=lda,0,1"],
        "shrinkage must be a finite number > 1e-12; got 0",
    ),
    ("compose", ["--method=exact", "--settings=lda,1,1,1"], "expected --settings=HOW,SHRINKAGE,BALANCE; got lda,1,1,1"),
    ("compose", ["--method=exact", "--settings=svm,1,1"], "flags, --settings: expected how in lda, ridge; got svm"),
    (
        "compose",
        ["--method=exact,ridge", "--settings=lda,1,1"],
        "expected --settings=ridge,SHRINKAGE,BALANCE beside --method=ridge; got lda,1,1",
    ),
    ("finetune", [f"--out={os.devnull}/x"], "expected --out in a folder that can be written to; got /dev/null/x"),
    ("finetune", ["--factors", "--method=nlft"], "flags: expected --factors without --method=nlft; got both"),
    ("private", ["--part=4/4"], "private: expected --part=I/K with 0 <= I < K; got 4/4"),
    ("compose", ["--sharding=owner"], "flags: expected --owners=CSV with --sharding=owner; got none"),
    ("compose", ["--merge=inputs", "--merge_penalty=0"], "flags: expected --merge_penalty above 0; got 0"),
    ("compose", ["--solver=optimum"], "flags: expected --method of tangents and heads beside --solver=optimum"),
    ("removal forget", ["--penalty=0"], "flags: expected --penalty above 0, for the distance bound; got 0"),
    ("removal remove", ["--penalty=0"], "flags: expected --penalty above 0, for a certificate; got 0"),
    ("influence effects", ["--by=kernel", "--penalty=1,0"], "flags: expected --penalty above 0; got 1,0"),
    ("uncertainty", ["--other=folder:no/such"], "no/such"),
    ("removal unlearned", ["--certificates=1,0"], "flags: expected --certificates above 0; got 1,0"),
    ("removal unlearned", ["--shards=9999"], "flags: expected --shards of at most 1797 images; got 9999"),
    ("quickstart", ["--shards=899"], "flags: expected --shards of at most 898 images; got 899"),
    ("paper anchors", ["--weights=builtin,no.safetensors"], "no.safetensors, which does not exist"),
    ("paper anchors", ["--shards=899"], "flags: expected --shards in 1..898; got [899]"),
    (
        "paper ablations",
        ["--weights=builtin-resnet"],
        "flags: expected --only without cls for a network without a class",
    ),
    ("paper table1", ["--blocks=7", "--method=taft"], "table1: expected --blocks of at most 6, the model's; got 7"),
    ("paper table1", ["--dataset=digits,digits"], "flags: expected --dataset of different names; got digits"),
    ("paper report", ["--finished=tabel3=."], "flags: expected --finished"),
    ("tasks", ["--dataset=digits,digits"], "flags: expected --dataset of different names; got digits"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize(("binary", "flags", "message"), EARLY, ids=lambda value: str(value)[:40])
def test_what_a_flag_cannot_do_is_said_before_any_image_is_read(tmp_path, binary, flags, message):
    out = [] if binary == "store" or flags[0].startswith("--out") else [f"--out={tmp_path / 'out'}"]
    err = refused(binary, *out, *flags)
    assert message in err, err[-500:]
    assert len(err.strip().splitlines()) <= 3, err  # no bar of any work
    assert not (tmp_path / "out/result.json").exists()


@pytest.mark.slow
def test_a_data_set_without_test_images_is_refused_before_any_image_is_read(tmp_path):
    names = [f"{c}/{i}.png" for c in "ab" for i in range(5)]
    write(tmp_path, *(f"photos/{name}" for name in names))
    manifest = {"classes": ["a", "b"], "items": [[name, "train", "ab".index(name[0])] for name in names]}
    (tmp_path / "photos/manifest.json").write_text(json.dumps(manifest))
    for binary in ("paper table1", "compose", "private", "privacy owners"):
        err = refused(binary, f"--dataset=folder:{tmp_path / 'photos'}", f"--out={tmp_path}/out")
        assert "Dataset: expected a test or validation split in photos; got" in err
        assert "inputs" not in err


@pytest.mark.slow
@pytest.mark.parametrize(("binary", "flags", "message"), CASES, ids=lambda value: str(value)[:40])
def test_a_wrong_flag_is_one_clear_line(tmp_path, monkeypatch, cache, binary, flags, message):
    out = [] if any(flag.startswith("--out") for flag in flags) else [f"--out={tmp_path / 'out'}"]
    kept = [] if any(flag.startswith("--cache_dir") for flag in flags) else [f"--cache_dir={cache}"]
    kept, out = [] if binary in ("store", "pretrain") else kept, [] if binary == "store" else out
    monkeypatch.setenv("PATH", os.devnull)  # where Slurm is not, whatever this machine has
    err = run(binary, *kept, *out, *flags, code=1)[1]
    assert message in err, err[-500:]
    assert "Traceback" not in err
    assert not (tmp_path / "out/result.json").exists()


@pytest.mark.slow
def test_copies_and_what_is_left_out_are_said_once(tmp_path, cache):
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
    for words in (
        "left out 1 file: added by macOS",
        "1 images of test are in train too",
        "an example is there 2 times",
    ):
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
def test_test_images_that_change_are_measured_again(tmp_path, cache):
    names = [f"photos/{split}/{c}/{i}.png" for split in ("train", "test") for c in "ab" for i in range(3)]
    write(tmp_path, *names)
    flags = [
        f"--dataset=folder:{tmp_path / 'photos'}",
        f"--cache_dir={cache}",
        f"--out={tmp_path / 'out'}",
        "--epochs=2",
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


def test_a_torn_line_of_finished_runs_is_made_again_and_an_altered_one_is_told(tmp_path):
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
    with pytest.raises(InputError, match=f"Runs: expected an unaltered journal; got {path} altered at line 2"):
        Runs(path)


def test_help_is_no_error_and_a_mistyped_source_makes_no_store(tmp_path):
    assert "--epochs" in output("finetune", "--help")[0]
    _, err = run("store", "add", f"--store={tmp_path / 'new'}", f"--source={tmp_path / 'nothing'}", code=1)
    said = f"store add: expected dw.safetensors in {tmp_path / 'nothing'}; got no such file. Run finetune with --out."
    assert err == f"{said}\n"
    assert not (tmp_path / "new").exists()

"""Every experiment runs in its smallest form from the command line, and leaves its result and its files."""

import json

import jax
import pytest
from photos import photographs
from run_binary import run

from experiments.shared.defined import binaries, defined
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import save

HEAD = ("--blocks=0", "--epochs=2")
SEARCH = ("--blocks=1", "--lr=1e-3,3e-3", "--seed=0,1", "--epochs=2", "--search_epochs=1", "--batch_size=8")
PRIVATE = ("--subset=head", "--epsilon=8", "--lr=0.06", "--clip_norm=1")
CASES = {
    # name of the binary, or several of one: (flags besides data, cache and --out; keys of the result; files in --out)
    "bench experts": (("--epochs=2", "--merge=mean,ties,inputs"), {"tasks", "normalised"}, ["tasks.md", "experts"]),
    "bench export": (("--format=stablehlo", "--batch_size=1,2", "--repeats=1"), {"ours", "stablehlo"}, []),
    "bench features": (
        ("--width=16,36", "--feature_blocks=0,2", "--only=h,h+ntk", "--repeats=1"),
        {"settings", "mean", "best", "pass"},
        ["features.md", "features.png"],
    ),
    "bench job": (("--images=100", "--epochs=1", "--repeats=1"), {"ours", "device"}, ["job.md"]),
    "bench sizes": (("--only=h+place", "--width=36,16", "--ranks=8"), {"sizes"}, []),
    "bench private": (
        ("--size=Ti", "--batch_size=8", "--repeats=1"),
        {"private_over_ordinary", "vmapped_over_private"},
        ["bench_private.md"],
    ),
    "bench rivals": (
        (*SEARCH, "--shards=2", "--rounds=2", "--local_epochs=1,4", "--search_images=20"),
        {"rivals"},
        ["rivals.png", "runs.jsonl"],
    ),
    "bench scale": (("--quick", "--repeats=1"), {"measured", "cost", "phases", "component"}, ["scale.md"]),
    "bench session": ((*SEARCH[:1], "--lr=1e-2", "--epochs=4", "--shares=0,0.3", "--width=16"), {"session"}, []),
    "bench solve": (("--epochs=2", "--passes=4", "--width=16"), {"adam", "optimum", "statistics"}, []),
    "bench step": (
        ("--size=Ti", "--batch_size=1", "--blocks=1", "--repeats=2"),
        {"ratios", "machine"},
        ["bench.md", "roofline.png"],
    ),
    "bench store": (("--repeats=1",), set(), []),
    "bench times": (("--repeats=1",), {"from_images", "from_features", "spread"}, ["times.md", "times.png"]),
    "influence attribution": (
        (*HEAD, "--models=4", "--resolved=3", "--penalty=0.1"),
        {"scores", "loo_max_error"},
        ["attribution.png", "parts"],
    ),
    "influence effects": (
        (*HEAD, "--shards=3", "--repeats=3", "--penalty=0.1"),
        {"accuracy", "without", "movement"},
        ["influence.png"],
    ),
    "influence effects --by=solver": (
        ("--blocks=0", "--penalty=0.1", "--certificate=1e-3", "--resolved=2"),
        {"certificate", "loo_max_error"},
        ["report.html", "parts"],
    ),
    "paper ablations": (
        (*SEARCH, "--only=cls,radius", "--radius=0.5"),
        {"cls", "radius"},
        ["cls.png", "radius.md", "runs.jsonl"],
    ),
    "paper anchors": ((*SEARCH[1:], "--shards=2"), {"photos"}, ["runs.jsonl"]),
    "paper report": (("--quick", "--only=Table 8,Table 10"), {"verdicts"}, ["report.md", "report.html"]),
    "paper table1": (
        (*SEARCH, "--nosearch_anchor", "--solver=adam,optimum", "--penalty=0.1", "--passes=4"),
        {"photos", "gaps"},
        ["table1.md", "table1.png", "runs.jsonl"],
    ),
    "paper table3": ((*PRIVATE, "--seed=0,1", "--steps=2"), {"photos", "with_search"}, ["table3.png", "runs.jsonl"]),
    "pretrain": (("--images=64", "--epochs=1"), {"scheme"}, ["vit_builtin.safetensors"]),
    "pretrain --network=resnet": (("--images=64", "--epochs=1"), {"scheme"}, ["resnet_builtin.safetensors"]),
    "pretrain --scheme=mae": (("--images=64", "--epochs=1", "--batch_size=32"), {"scheme"}, []),
    "pretrain --scheme=contrastive": (("--images=64", "--epochs=1", "--batch_size=32"), {"scheme"}, []),
    "privacy audit": (
        ("--subset=head", "--repeats=8", "--steps=2", "--images=20", "--confidence=0.999"),
        {"epsilon_lower", "kept"},
        ["audit.png"],
    ),
    "privacy coverage": (("--repeats=2",), {"coverage", "width"}, []),
    "privacy owners": ((*PRIVATE, "--shards=4", "--steps=2", "--seed=0,1"), {"table", "sizes"}, ["owners.png"]),
    "privacy statistics": (("--epsilon=1,8", "--seed=0,1", "--only=h"), {"photos"}, ["statistics.png"]),
    "quickstart": (("--shards=3", "--epochs=2"), {"accuracy", "removal_is_exact"}, ["quickstart.png"]),
    "removal forget": (
        (*HEAD, "--shards=3", "--repeats=3", "--shadows=2"),
        {"curve", "retraining", "membership", "removal"},
        ["forget.png", "membership.png"],
    ),
    "removal remove": (
        (*HEAD, "--removed=1,0.25", "--certificate=0.01", "--shadows=2"),
        {"cold", "removed", "membership"},
        [],
    ),
    "removal unlearned": (
        (*HEAD[:1], "--shadows=6", "--attacked=5", "--known=2", "--removed=10", "--shards=2", "--certificates=1"),
        {"ways"},
        ["roc_images.png", "auc_shards.png", "parts"],
    ),
    "uncertainty": (("--blocks=0", "--penalty=0.1", "--models=2"), {"accuracy", "methods"}, ["uncertainty.png"]),
}
CHECKS = {
    "bench step": lambda result: result["ratios"]["full_block_step_over_class_query_step"] > 1,
    "privacy coverage": lambda result: result["width"]["normal"]["10 / 1000"]["3"] > 0.3,
    "influence attribution": lambda result: result["loo_max_error"] < 1e-4,
    "influence effects --by=solver": lambda result: result["loo_max_error"] <= 2e-3,
    "quickstart": lambda result: result["removal_is_exact"],
    "removal forget": lambda result: result["removal"]["bitwise"] and result["removal"]["receipt_verified"],
    "removal remove": lambda result: all(row["gap"] <= row["bound"] for row in result["removed"].values()),
}
"""What must hold of a result, whatever the data."""
OTHERS = {"bench accelerator", "bench contributors", "bench hog", "bench kernels", "data"}
"""Experiments with tests of their own: test_accelerator.py, test_rivals.py, test_kernels.py, test_data.py."""
QUICK = {"quickstart", "uncertainty", "removal remove", "influence effects"}
"""Those that run in `make test`; `make test-all` runs every one."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with photographs of two classes, and the weights of a small ViT and a small ResNet."""
    root = tmp_path_factory.mktemp("smoke")
    photographs(root / "photos", count=60)
    vit = VisionTransformer(ViTConfig(24, 2, 2, 48, patch_size=4, image_size=16, classes=10))
    resnet = ResNet(ResNetConfig((1, 1), True, 4, "small", 16, 10))
    for name, model in (("vit", vit), ("resnet", resnet)):
        save(root / f"{name}.safetensors", Pretrained(model, initial_weights(model, jax.random.key(0)), name))
    return root


def places(binary, root, folder):
    """The flags of data, weights, cache, store and --out that the binary has."""
    weights = [f"{root}/vit.safetensors", *[f"{root}/resnet.safetensors"] * (binary == "paper anchors")]
    data = [f"folder:{root}/photos", *["digits"] * (binary == "bench experts")]
    values = {"dataset": ",".join(data), "weights": ",".join(weights), "cache_dir": root / "cache"}
    values |= {"store": folder / "stores", "out": folder / "out"}
    _, known = defined(binary)
    return [f"--{name}={value}" for name, value in values.items() if name in known]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_experiment_writes_its_result(case, root, tmp_path):
    flags, keys, files = CASES[case]
    binary, *more = case.split(" --")
    flags = [*places(binary, root, tmp_path), *flags, *(f"--{flag}" for flag in more)]
    if binary == "bench export":
        where = [flag for flag in flags if flag.startswith(("--dataset", "--weights", "--cache_dir", "--store"))]
        run("compose", *where, "--shards=2", "--method=taft", "--epochs=1", f"--out={tmp_path}/compose")
        (store,) = (tmp_path / "stores").glob("*-2-seed0")
        flags = [flag for flag in flags if not flag.startswith("--store")] + [f"--store={store}"]
    line, _ = run(binary, *flags)
    result = json.loads(line)
    assert keys <= result.keys()
    assert CHECKS.get(case, bool)(result)
    stored = json.loads((tmp_path / "out/result.json").read_text())
    assert {name: stored[name] for name in result} == result
    for name in files:
        assert (tmp_path / "out" / name).exists(), name
    if "runs.jsonl" in files:  # the same command reads what it has measured
        assert run(binary, *flags)[0] == line


def test_every_experiment_has_a_case():
    assert {name.split(" --")[0] for name in CASES} | OTHERS == {*binaries()} - {*COMMANDS}

"""The report of the paper: its claims are read as its rule says, and its commands run once."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import in_long
from photos import photographs
from run_binary import run

from experiments.report.claims import CLAIMS, ablation, anchors, chosen_shards, class_token, composition, radius
from experiments.report.findings import Check, Finding, better
from experiments.report.published import TABLES
from experiments.shared import schemes
from tangent_jax.commands.shared.table import PRESETS
from tangent_jax.core import trees
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save


def cell(mean, spread=0.0, **more):
    return {"mean": mean, "spread": spread, **more}


def test_every_table_has_its_claim():
    names = [claim.name for claim in CLAIMS]
    assert len({*names}) == len(names) == 20
    assert {*names} == {*TABLES}
    reads = {job: [claim.name for claim in CLAIMS if claim.reads(job)] for job in ("compose-cub50", "textures-dtd1")}
    assert reads == {"compose-cub50": ["Table 2", "Table 6", "Table 11"], "textures-dtd1": ["Table 10"]}
    for columns, rows in TABLES.values():
        assert {len(row) for row in rows} == {len(columns)}


def test_noise_only_excuses_as_good():
    # 400 test images at 0.8: a standard error of 0.02, of a difference of 0.028
    assert better("", 0.83, 0.80, 400)[1]
    assert not better("", 0.81, 0.80, 400)[1]
    assert better("", 0.79, 0.80, 400, strictly=False)[1]
    assert not better("", 0.77, 0.80, 400, strictly=False)[1]
    assert not better("", cell(0.85, 0.06), 0.80, 400)[1]
    assert not better("", cell(0.83), cell(0.80, 0.04), 400)[1]


def test_the_noise_is_that_of_a_difference():
    assert not better("", 0.825, 0.80, 400).holds  # above the error of one accuracy, 0.02
    assert not better("", cell(0.835, 0.03), cell(0.80, 0.03), 400).holds  # above both spreads; 0.042 together
    assert better("", cell(0.845, 0.03), cell(0.80, 0.03), 400).holds


def test_a_verdict_is_of_all_comparisons():
    verdicts = {(True, True): "holds", (True, False): "holds in part", (False, False): "does not hold"}
    for held, verdict in verdicts.items():
        assert Finding([], [], [Check("", one) for one in held]).verdict == verdict
        assert Finding([], [], [Check("", one) for one in (*held, None)]).verdict == verdict
    assert Finding([], [], [Check("", None)]).verdict == "not run"


def composed(taft, soup):
    method = {"numbers": 10, "bytes": 40, "chosen": {}, "searched": 0}
    shards = {"50": {"taft": taft, "soup": soup, "taft_single": 0.1}}
    return {"shards": shards, "full": {"taft": 0.9, "soup": 0.9}, "methods": {"taft": method, "soup": method}}


def test_claims_read_every_data_set():
    results = {"compose-a": composed(0.8, 0.7), "compose-b": composed(0.7, 0.8)}
    finding = composition(("soup",))(results, {"a": 1000, "b": 1000})
    assert [holds for _, holds in finding.checks] == [True, False]
    assert finding.verdict == "holds in part"
    assert ["a", "50", "80.0", "70.0"] in finding.rows
    row = {"CE, R=1": cell(0.6, step_norm=1.0), "RSL, R=1": cell(0.7, step_norm=0.9)}
    row |= {"CE, R=10": cell(0.8, step_norm=10.5), "RSL, R=10": cell(0.7, step_norm=9.0)}
    row |= {"CE, R=100": cell(0.6, step_norm=90.0), "RSL, R=100": cell(0.7, step_norm=90.0)}
    found = radius({"ablations": {"radius": {"a": row}}}, {"a": 1000})
    assert [holds for _, holds in found.checks] == [True, True]  # of accuracies, not of norms; R = 10 is the paper's
    models = {"vit": {"alone": cell(0.8), "parameters": 5, "trained": 2}}
    models["resnet"] = {"alone": cell(0.6), "parameters": 5, "trained": 2}
    found = anchors("architectures", lambda names: [(names[0], names[1])])({"architectures": {"a": models}}, {"a": 500})
    assert found.verdict == "holds"


def test_claim_needs_its_subject():
    for rates, verdict in (([1e-3, 3e-3], "holds in part"), ([1e-2, 3e-3], "not run"), ([1e-3], "not run")):
        result = composed(0.8, 0.7)
        for name, rate in (("taft", rates[0]), ("soup", rates[-1])):
            chosen = {"chosen": {"learning_rate": rate}, "tried": {"learning_rate": rates}}
            result["methods"][name] = result["methods"][name] | chosen
        assert chosen_shards({"compose-a": result}, {}).verdict == verdict
    near, far = ({name: {"CLS=F": cell(0.5), "CLS=T": cell(0.7)}} for name in "ab")
    results = {"ablations": {"cls": near}}
    assert class_token(results, {"a": 1000}).verdict == "not run"
    finding = class_token(results | {"far": {"cls": far}}, {"a": 1000, "b": 1000})
    assert [check.holds for check in finding.checks] == [None, True]
    row = {f"{loss}, R=1": cell(0.6, step_norm=1.0) for loss in ("CE", "RSL")}
    found = radius({"ablations": {"radius": {"a": row}}}, {"a": 1000})
    assert [check.holds for check in found.checks] == [False, None]


def test_composition_search_holds_its_rate():
    rates = [float(rate) for rate in PRESETS["paper"]["lr"].split(",")]
    assert 1e-3 in rates
    assert len(rates) > 1


def test_average_claim_is_judged_on_average():
    table = {"a": {"RSL": cell(0.9), "CE": cell(0.8)}, "b": {"RSL": cell(0.74), "CE": cell(0.8)}}
    finding = ablation("loss", "RSL")({"ablations": {"loss": table}}, {"a": 1000, "b": 1000})
    assert [check.holds for check in finding.checks] == [True, False, True]  # 2 points, by a noise of 1.2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The flags that name photographs and a cache, and the files of a small ViT and a small ResNet."""
    root = tmp_path_factory.mktemp("paper")
    photographs(root / "photos")
    vit = VisionTransformer(ViTConfig(24, 2, 2, 48, patch_size=4, image_size=16, classes=10))
    resnet = ResNet(ResNetConfig((1, 1), True, 4, "small", 16, 10))
    for name, model in (("vit", vit), ("resnet", resnet)):
        save(root / f"{name}.safetensors", Pretrained(model, initial_weights(model, jax.random.key(0)), name))
    return (f"--dataset=folder:{root}/photos", f"--cache_dir={root}/cache"), root


@pytest.mark.long
def test_report_runs_each_command_once(places, tmp_path):
    flags, root = places
    given = (*flags, f"--weights={root}/vit.safetensors", f"--out={tmp_path}/out", "--quick", "--only=Table 8,Table 10")
    line, err = run("paper report", *given)
    assert "times: python -m experiments.bench times" in err
    result = json.loads(line.splitlines()[-1])
    assert result["verdicts"]["Table 10"] == "not run"
    measured = (tmp_path / "out/times/result.json").read_bytes()
    line, err = run("paper report", *given)
    assert "times: read" in err
    assert json.loads(line.splitlines()[-1]) == result
    assert (tmp_path / "out/times/result.json").read_bytes() == measured
    report, page = ((tmp_path / f"out/report.{kind}").read_text() for kind in ("md", "html"))
    assert re.findall("^## (.*):", report, re.M) == ["Table 8", "Table 10"]
    assert "| seconds an example, ViT-L/16 | 0.147 | 0.204 | 0.021 | 0.065 |" in report
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", report):
        assert (tmp_path / "out" / picture).exists()
    assert page.count('src="data:image/png;base64,') == 1
    for anchor in re.findall(r'href="#(.*?)"', page):
        assert f'<h2 id="{anchor}">' in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    _, err = run("paper report", *given, "--weights=nowhere.npz", "--only=Table 8", code=1)  # another command
    assert "report: times did not finish: " in err
    elsewhere = (*given[:-2], f"--finished=times={tmp_path}/out/times", "--only=Table 8", f"--out={tmp_path}/again")
    run("paper report", *elsewhere)
    assert "```\npython -m experiments.bench times --" in (tmp_path / "again/report.md").read_text()
    (tmp_path / "out/times/command.json").unlink()
    run("paper report", *elsewhere)
    assert f"# times: read from {tmp_path}/out/times" in (tmp_path / "again/report.md").read_text()
    assert (tmp_path / "again/pictures/times-times.png").exists()


@pytest.mark.long
def test_other_inputs_run_a_command_again(places, tmp_path):
    image, weights = photographs(tmp_path / "photos") / "train/cat/1.png", tmp_path / "vit.safetensors"
    weights.write_bytes((places[1] / "vit.safetensors").read_bytes())
    given = [f"--dataset=folder:{tmp_path}/photos", f"--weights={weights}", f"--cache_dir={tmp_path}/cache"]
    given += ["--quick", "--shards=2,3", "--only=Figure 4", f"--out={tmp_path}/out"]
    assert "influence-photos: python -m experiments.influence effects" in run("paper report", *given)[1]
    for path in (image, weights):
        whole = path.read_bytes()
        path.write_bytes(whole[:-10] if path == weights else b"text")
        _, err = run("paper report", *given, code=1)
        assert "report: influence-photos did not finish: " in err
        assert path.name in err.splitlines()[-1]
        path.write_bytes(whole)
    assert "influence-photos: read" in run("paper report", *given)[1]


TRAINED = [("contrastive", "vit"), *in_long(("mae", "vit"), ("classes", "vit"), ("classes", "resnet"))]


@pytest.mark.parametrize(("scheme", "kind"), TRAINED)
def test_scheme_loss_falls_and_model_loads(tmp_path, scheme, kind):
    images = np.random.default_rng(0).integers(0, 256, (128, 16, 16, 3)).astype(np.uint8)
    made = schemes.make_scheme(scheme, kind, jax.random.key(0), images)
    x, y = images[:8], jnp.arange(8) * made.has_classes

    @jax.jit
    def measure(dw, key):
        return jax.value_and_grad(lambda dw: made.objective(made.predict, dw, x, y, key=key))(dw)

    keys = jax.random.split(jax.random.key(1))
    value, gradient = measure(made.dw, keys[0])
    if scheme == "mae":  # another key, another mask
        assert abs(float(measure(made.dw, keys[1])[0] - value)) > 1e-4
    dw = jax.tree.map(lambda leaf: -1e-3 * leaf, gradient)
    assert float(measure(dw, keys[0])[0]) < float(value)
    assert max(float(jnp.abs(leaf).max()) for leaf in trees.leaves(gradient).values()) > 0
    pretrained = made.finish(dw)
    save(tmp_path / "model.safetensors", pretrained)
    again = load(tmp_path / "model.safetensors")
    assert again.model.classes == (52 if scheme == "classes" else 0)
    assert trees.fingerprint(again.w) == trees.fingerprint(pretrained.w)
    if kind == "resnet":  # fixed statistics of one batch are that batch's
        normal = schemes.PREPROCESSING.normalize(images)
        fixed, own = again.model.apply(again.w, normal), again.model.in_training(again.w, normal)[0]
        assert np.abs(fixed - own).max() < 1e-3 * np.abs(own).max()

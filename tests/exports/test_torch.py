"""The exported PyTorch module computes our f_lin: `make parity`, as CI has no PyTorch."""

import ast
import dataclasses
import importlib.util
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import images, small, tree_normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.torch_model import write_torch
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func's own
KEY = jax.random.key(0)
HEAD = FrozenHead(("a", "b"), np.random.default_rng(0).standard_normal((2, 7)), 5.0)
CASES = {
    "token": lambda: (plain(), "blocks"),
    "everything": lambda: (plain(class_token_at=1), "everything"),
    "average, LayerScale": lambda: (plain(pool="avg", layer_scale=True, activation="gelu_tanh"), "everything"),
    "DINOv2's classifier": lambda: (plain(pool="token_avg", layer_scale=True), "everything"),
    "DINOv2's with registers, gated": lambda: (
        plain(pool="token_avg", layer_scale=True, registers=3, gated=True, activation="silu"),
        "everything",
    ),
    "mean of normed patches": lambda: (plain(pool="norm_avg", registers=1), "everything"),
    "no head": lambda: (plain(pool="token_avg", classes=0), "blocks"),
    "CLIP, frozen head": lambda: (
        plain(pre_norm=True, activation="quick_gelu", eps=1e-5).with_frozen_head(HEAD),
        "blocks",
    ),
    "adapters": lambda: (plain().with_adapters(3, 2, KEY), "adapter"),
    "LoRA": lambda: (plain().with_lora(2, 2, KEY), "lora"),
    "builtin": lambda: (load("builtin"), "blocks"),
}


@dataclasses.dataclass(frozen=True)
class OtherConfig(ViTConfig):
    """A configuration with a setting of a later version."""

    windows: int = 4


def plain(**variant):
    return Pretrained(*small(**variant), "here")


def exported(folder, pretrained, kind):
    """(predictor, dw, the torch module of its export)."""
    pytest.importorskip("torch", reason="parity needs torch==2.13.0: make parity")
    new = trees.select(pretrained.w, lambda path: "lora" in path or "adapter" in path)
    moved = trees.add(pretrained.w, trees.scale(0.3, tree_normal(5, new)))
    predict = tangent(Pretrained(pretrained.model, moved, "here"), 2, kind)
    dw = trees.scale(0.02, tree_normal(7, predict.zeros()))
    write_torch(folder, predict, dw)
    spec = importlib.util.spec_from_file_location("tangent_torch", folder / "tangent_torch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return predict, dw, module.TangentViT(folder)


def close(got, want):
    return np.abs(got.detach().numpy() - np.asarray(want)).max() < 1e-5 * np.abs(np.asarray(want)).max()


def check(tmp_path, pretrained, kind, x):
    import torch

    predict, dw, model = exported(tmp_path, pretrained, kind)
    dual = jax.jit(lambda x: predict.model.dual(trees.pair(predict.w, dw), x))(x)
    theirs = torch.from_numpy(np.array(x).transpose(0, 3, 1, 2).copy())
    assert np.abs(dual.tangent).max() > 0.01 * np.abs(dual.primal).max()  # it counts
    for got, want in zip((*model.pair(theirs), model(theirs)), (*dual, dual.total), strict=True):
        assert close(got, want)
    return predict, dw, model, theirs


@pytest.mark.parametrize("case", CASES)
def test_pytorch_gives_our_outputs(tmp_path, case):
    pytest.importorskip("torch", reason="parity needs torch==2.13.0: make parity")
    pretrained, kind = CASES[case]()
    check(tmp_path, pretrained, kind, images(2, pretrained.model.image_size))


def test_pytorch_gives_our_outputs_with_real_weights(tmp_path, vit_tiny):
    pytest.importorskip("torch", reason="parity needs torch==2.13.0: make parity")
    check(tmp_path, load(vit_tiny), "blocks", images(2, 224))


def test_pytorch_answers_by_the_tangent_where_the_export_says_so(tmp_path):
    torch = pytest.importorskip("torch", reason="parity needs torch==2.13.0: make parity")
    _, _, model = exported(tmp_path, plain(), "blocks")
    x = torch.from_numpy(np.array(images(2)).transpose(0, 3, 1, 2).copy())
    (tmp_path / "provenance.json").write_text('{"output": "tangent"}')
    alone = type(model)(tmp_path)
    assert torch.equal(alone(x), model.pair(x)[1])
    assert not torch.equal(alone(x), model(x))


def test_pytorch_trains_the_tangent_weights_alone(tmp_path):
    torch = pytest.importorskip("torch", reason="parity needs torch==2.13.0: make parity")
    predict, dw, model, x = check(tmp_path, *CASES["LoRA"](), images(2))
    trained = {name.removeprefix("dw.") for name, leaf in model.named_parameters() if leaf.requires_grad}
    assert trained == {path.replace(".", "/") for path in predict.model.to_world(trees.leaves(dw))}
    torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 3])).backward()
    inputs = predict.model.apply(predict.w, images(2), 0, predict.subset.stage)

    def loss(dw):
        return -jnp.mean(jax.nn.log_softmax(predict(dw, inputs))[jnp.arange(2), jnp.array([0, 3])])

    for path, leaf in predict.model.to_world(trees.leaves(jax.jit(jax.grad(loss))(dw))).items():
        assert close(model.dw[path.replace(".", "/")].grad, leaf), path


def test_what_the_module_does_not_know_is_one_line(tmp_path):
    with pytest.raises(
        InputError, match=r"model must be a Vision Transformer for PyTorch; got a ResNet\. Export it as"
    ):
        write_torch(tmp_path, tangent(load("builtin-resnet")), {})
    model = VisionTransformer(OtherConfig(12, 2, 3, 20, patch_size=4, image_size=8, classes=7))
    with pytest.raises(InputError, match=r"windows of the model must be one that tangent_torch.py knows; got 4\."):
        write_torch(tmp_path, tangent(Pretrained(model, plain().w, "here")), {})
    predict: Predictor = nonlinear(plain())
    with pytest.raises(InputError, match="method must be taft, a tangent model; got nlft"):
        write_torch(tmp_path, predict, predict.zeros())


def test_a_model_with_another_setting_is_refused_in_pytorch(tmp_path):
    _, _, model = exported(tmp_path, *CASES["token"]())
    check_settings = type(model).__init__.__globals__["check"]
    for changes, got in (({"positions": "rotary"}, "positions rotary"), ({"pool": "attention"}, "pool attention")):
        with pytest.raises(ValueError, match=f"reads Vision Transformers of .*; got one with {got}"):
            check_settings({"family": "another", "config": {**model.config, **changes}})


def test_the_module_imports_torch_and_safetensors_alone():
    tree = ast.parse((resources.files("tangent_jax") / "assets/tangent_torch.py").read_text())
    names = [
        n.module if isinstance(n, ast.ImportFrom) else n.names[0].name
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
    ]
    assert {name.partition(".")[0] for name in names} == {"json", "pathlib", "torch", "safetensors"}

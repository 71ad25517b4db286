"""Adapters of PEFT are read as they are: as a linearized model, or as the adapter itself."""

import json

import jax
import numpy as np
import pytest
from helpers import images, normal, small, tree_normal
from safetensors.numpy import load_file, save_file

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.peft import MODULES, read_peft
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import nonlinear, tangent
from tangent_jax.models.subsets import make_subset

KEY = jax.random.key(0)
NAME = "base_model.model.vit.layers.1.attention.q_proj.lora_A.weight"


def write_adapter(folder, predict, dw):
    """Writes LoRA and the head at w + dw as PEFT does, under the names of transformers 5."""
    model, w = predict.model, {path: np.asarray(leaf) for path, leaf in trees.leaves(predict.w).items()}
    moved = w | {path: w[path] + np.asarray(step) for path, step in trees.leaves(dw).items()}
    base, tensors = "base_model.model.", {}
    for module in model.factor_shapes():
        block, _, name = module.partition("/")
        theirs = f"{base}vit.layers.{block.removeprefix('block_')}.{MODULES[name][0]}"
        tensors[f"{theirs}.lora_A.weight"] = moved[f"{module}/lora_a"].reshape(-1, model.rank).T.copy()
        tensors[f"{theirs}.lora_B.weight"] = moved[f"{module}/lora_b"].reshape(model.rank, -1).T.copy()
    tensors |= {f"{base}classifier.weight": moved["head/kernel"].T.copy(), f"{base}classifier.bias": moved["head/bias"]}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "bias": "none", "r": model.rank, "lora_alpha": model.rank, "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def adapted(folder, kind="lora_b", **variant):
    """(the plain model, the tangent predictor of its LoRA, dw), of which the folder holds the adapter."""
    plain = Pretrained(*small(**{"eps": 1e-12, **variant}), "here")
    predict = tangent(plain.with_lora(2, 1, KEY), 1, kind)
    dw = trees.scale(0.3, tree_normal(7, predict.zeros()))
    write_adapter(folder, predict, dw)
    return plain, predict, dw


def test_an_adapter_returns_with_every_bit(tmp_path):
    plain, predict, dw = adapted(tmp_path)
    made, step = read_peft(tmp_path, plain)
    assert made.model == predict.model
    w, flat = trees.leaves(made.w), trees.leaves(step)
    for path, leaf in trees.leaves(dw).items():
        if path.startswith("head/"):
            np.testing.assert_array_equal(w[path], leaf + trees.leaves(predict.w)[path])
            assert not flat[path].any()
        else:
            np.testing.assert_array_equal(flat[path], leaf)
    for path, leaf in trees.leaves(predict.w).items():
        assert path.startswith("head/") or (np.asarray(w[path]) == np.asarray(leaf)).all(), path
    assert {*flat} == {*make_subset(made.model, "lora_b", 1).paths}


def test_partial_adapter_has_no_other_factors(tmp_path):
    """Their factors are 0, and so are their tangents; files of transformers 4 are read too."""
    plain, *_ = adapted(tmp_path)
    tensors = {
        n: t for n, t in load_file(tmp_path / "adapter_model.safetensors").items() if "q_proj" in n or "fc2" in n
    }
    old = {"layers": "encoder.layer", "attention.q_proj": "attention.attention.query", "mlp.fc2": "output.dense"}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    for rename in (False, True):
        if rename:
            names = {n: n for n in tensors}
            for new, before in old.items():
                names = {n: name.replace(new, before) for n, name in names.items()}
            save_file({names[n]: t for n, t in tensors.items()}, tmp_path / "adapter_model.safetensors")
        made, dw = read_peft(tmp_path, plain)
        w, step = trees.leaves(made.w), trees.leaves(dw)
        for module in made.model.factor_shapes():
            block, _, name = module.partition("/")
            theirs = f"base_model.model.vit.layers.{block.removeprefix('block_')}.{MODULES[name][0]}.lora_{{}}.weight"
            factors = {"A": w[f"{module}/lora_a"].reshape(-1, 2).T, "B": step[f"{module}/lora_b"].reshape(2, -1).T}
            for factor, own in factors.items():
                np.testing.assert_array_equal(own, tensors.get(theirs.format(factor), np.zeros(own.shape)))


def test_fused_qkv_shares_its_first_factor(tmp_path):
    plain, *_ = adapted(tmp_path)
    a, b = normal(1, (2, 12), np.float32), normal(2, (36, 2), np.float32)
    name = "base_model.model.blocks.0.attn.qkv.lora_{}.weight"
    save_file({name.format("A"): np.array(a), name.format("B"): np.array(b)}, tmp_path / "adapter_model.safetensors")
    made, dw = read_peft(tmp_path, plain)
    w, step = trees.leaves(made.w), trees.leaves(dw)
    parts = [f"block_0/attention/{part}" for part in ("query", "key", "value")]
    deltas = [np.tensordot(w[f"{part}/lora_a"], step[f"{part}/lora_b"], 1).reshape(12, 12) for part in parts]
    np.testing.assert_allclose(np.concatenate(deltas, 1), (b @ a).T, rtol=1e-5, atol=1e-6)
    assert made.model.blocks == 2


@pytest.mark.parametrize(("use_rslora", "scale"), [(False, 4.0), (True, 8 / 2**0.5)])
def test_the_scale_of_an_adapter_is_in_its_step(tmp_path, use_rslora, scale):
    plain, _, dw = adapted(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    changed = {**config, "lora_alpha": 8, "use_rslora": use_rslora}
    (tmp_path / "adapter_config.json").write_text(json.dumps(changed))
    step = trees.leaves(read_peft(tmp_path, plain)[1])
    path = "block_1/attention/out/lora_b"
    np.testing.assert_array_equal(step[path], np.float32(scale) * trees.leaves(dw)[path])


def test_adapted_head_is_added(tmp_path):
    """As PEFT's target_modules="all-linear" adapts it."""
    plain, *_ = adapted(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    kept = {name: leaf for name, leaf in load_file(path).items() if "classifier" not in name}
    a, b = normal(1, (2, 12), np.float32), normal(2, (7, 2), np.float32)
    factors = {f"base_model.model.classifier.lora_{name}.weight": np.array(f) for name, f in (("A", a), ("B", b))}
    save_file(kept | factors, path)
    made, _ = read_peft(tmp_path, plain)
    want = np.asarray(plain.w["head"]["kernel"]) + np.asarray(b @ a).T
    np.testing.assert_allclose(made.w["head"]["kernel"], want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(made.w["head"]["bias"], plain.w["head"]["bias"])
    with pytest.raises(InputError, match=r"factors of head in .* must have shapes .*; got .*\(2, 7\)"):
        read_peft(tmp_path, plain.with_head(5, KEY))
    save_file(factors, path)
    with pytest.raises(InputError, match="must hold LoRA factors of a block; it holds none"):
        read_peft(tmp_path, plain)
    save_file(kept | dict([*factors.items()][:1]), path)
    with pytest.raises(InputError, match=r"factors of head in .* must have shapes"):
        read_peft(tmp_path, plain)


def test_adapter_tangent_is_first_order(tmp_path):
    """The non-linear network differs by O(|dB|^2): a quarter for half the step."""
    plain, *_ = adapted(tmp_path)
    made, dw = read_peft(tmp_path, plain)
    first, whole = tangent(made, 1, "lora_b"), nonlinear(made, 1, "lora_b")
    x = made.model.apply(made.w, images(), 0, first.subset.stage)
    apart = [np.linalg.norm(first(step, x) - whole(step, x)) for t in (0.2, 0.1) for step in [trees.scale(t, dw)]]
    assert 3.5 < apart[0] / apart[1] < 4.5


CONFIGS = {
    "peft_type": ("IA3", "peft_type in .* must be LORA; got IA3. Load the whole model"),
    "r": (3, r"factors of .* must have shapes \(\(12, 3\), \(3, 12\)\), by r in .*; got"),
    "init_lora_weights": ("pissa", "init_lora_weights in .* must be None, True, False, gaussian; got pissa. Load the"),
    "use_qalora": (True, "must not set use_qalora, .*; got True"),
    "use_dora": (True, "must not set use_dora, .*; got True. Load the whole model that PEFT's merge_and_unload gives"),
    "rank_pattern": ({"q": 4}, "must not set rank_pattern, .*; got"),
    "alpha_pattern": ({"q": 4}, "must not set alpha_pattern, .*; got"),
    "lora_alpha": (None, "lora_alpha of .* must be a finite number > 0; got None"),
}
TENSORS = {
    "another module": (
        "base_model.model.vit.layers.1.lora_A.weight",
        (2, 12),
        "got base_model.model.vit.layers.1.lora_A.weight. Load the whole model",
    ),
    "another block": (
        NAME.replace("1", "7"),
        (2, 12),
        "must adapt modules of this model; it also adapts block_7/attention/query/lora_a",
    ),
    "another width": (NAME, (2, 13), r"factors of block_1/attention/query in .* must have shapes .*; got .*\(13, 2\)"),
    "turned": (NAME, (12, 2), r"must have shapes .*; got \(\(2, 12\), \(2, 12\)\)"),
    "an axis": (NAME, (24,), r"must have 2 axes, .*; got shape \(24,\)"),
}


@pytest.mark.parametrize("field", CONFIGS)
def test_what_is_no_plain_lora_is_one_line(tmp_path, field):
    plain, *_ = adapted(tmp_path)
    path = tmp_path / "adapter_config.json"
    value, message = CONFIGS[field]
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(InputError, match=message):
        read_peft(tmp_path, plain)


@pytest.mark.parametrize("case", TENSORS)
def test_factors_of_another_model_are_one_line(tmp_path, case):
    plain, *_ = adapted(tmp_path)
    name, shape, message = TENSORS[case]
    path = tmp_path / "adapter_model.safetensors"
    save_file({**load_file(path), name: np.ones(shape, np.float32)}, path)
    with pytest.raises(InputError, match=message):
        read_peft(tmp_path, plain)


def hugging_face_model(plain):
    """The same network in transformers."""
    transformers = pytest.importorskip("transformers", reason="parity needs transformers and peft: make parity")
    from models.make_fixtures import fill, vit_names

    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=7)
    w = {path: np.array(leaf) for path, leaf in trees.leaves(plain.w).items()}
    return fill(transformers.ViTForImageClassification(config), w, vit_names)


def assert_close(model, want):
    import torch

    with torch.no_grad():
        got = model(torch.from_numpy(np.array(images()).transpose(0, 3, 1, 2).copy())).logits.numpy()
    assert np.abs(got - np.asarray(want)).max() < 1e-5 * np.abs(np.asarray(want)).max()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # theirs
@pytest.mark.parametrize(
    "given",
    [
        {"target_modules": ["q_proj", "fc2"], "modules_to_save": ["classifier"]},
        {"target_modules": ["q_proj", "fc2"], "use_rslora": True},
        {"target_modules": "all-linear"},
    ],
)
def test_adapter_gives_outputs_of_hugging_face(tmp_path, given):
    peft = pytest.importorskip("peft", reason="parity needs peft: make parity")
    plain, *_ = adapted(tmp_path)
    settings = {"r": 3, "lora_alpha": 5, "init_lora_weights": False, **given}
    theirs = peft.get_peft_model(hugging_face_model(plain), peft.LoraConfig(**settings))
    theirs.save_pretrained(tmp_path)
    made, dw = read_peft(tmp_path, plain)
    assert made.model.blocks == 2
    assert_close(theirs.eval(), made.model.apply(trees.add(made.w, dw), images()))

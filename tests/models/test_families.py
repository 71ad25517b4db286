"""A family is one entry, and a file says what its model is: what `save` and `export` write reads back, untold."""

import dataclasses
import json
import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import images, in_long, small, tree_normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, Preprocessing
from tangent_jax.exports.folder import export, load_export
from tangent_jax.io.tensors import encode, read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.parametrize import LoRA
from tangent_jax.models.predict import tangent
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained import load as module
from tangent_jax.pretrained.family import Family, Naming, any_name
from tangent_jax.pretrained.files import assemble
from tangent_jax.pretrained.load import METADATA, load, save

ROOT, KEY = Path(__file__).parents[2], jax.random.key(0)
NAMES = ", ".join(family.name for family in module.FAMILIES)
BASES = {
    **{family.name: lambda family=family: normal_weights(family.model(family.small)) for family in module.FAMILIES},
    "clip": lambda: small(pre_norm=True, eps=1e-5, activation="quick_gelu"),
    "layer scale, avg": lambda: small(layer_scale=True, pool="avg", activation="gelu_tanh"),
    "resnet, bottleneck": lambda: resnet((1, 1), True, 2, "small", 5, 7, slope=0.1, eps=3e-5),
    "resnet, large stem": lambda: resnet((2, 1), False, 3, "large", 13, 7),
}
NEW = {
    "plain": lambda p: p,
    "no head": lambda p: Pretrained(p.model.with_classes(0), {n: t for n, t in p.w.items() if n != "head"}, "here"),
    "lora": lambda p: p.with_lora(2, 1, KEY),
    "frozen head, lora": lambda p: p.with_frozen_head(FrozenHead(("a", "b"), np.eye(2, p.model.classes))).with_lora(
        2, 1, KEY
    ),
    "head, lora": lambda p: p.with_head(3, KEY).with_lora(1, 2, KEY),
}
OF_VIT = {
    "adapters": lambda p: p.with_adapters(3, 1, KEY),
    "adapters, lora": lambda p: p.with_adapters(3, 2, KEY).with_lora(2, 1, KEY),
    "resized": lambda p: p.with_image_size(12),
}
TOKEN = {"token": lambda p: p.with_class_token(1, KEY), "token, lora": lambda p: TOKEN["token"](p).with_lora(2, 2, KEY)}
CASES = [
    *((family.name, new) for family in module.FAMILIES for new in NEW),
    *((base, "head, lora") for base in BASES if base not in {family.name for family in module.FAMILIES}),
    *(("vit", new) for new in (*OF_VIT, *TOKEN)),
    *in_long(*((base, new) for base in BASES for new in ("plain", "no head", "lora", "frozen head, lora"))),
    *in_long(*((base, new) for base in ("clip", "layer scale, avg") for new in OF_VIT)),
    *in_long(*(("clip", new) for new in TOKEN)),
]


def resnet(*config, **fields):
    return normal_weights(ResNet(ResNetConfig(*config, **fields)))


def normal_weights(model):
    zeros = trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()})
    return model, tree_normal(11, zeros)


def pretrained(base="vit", new="plain"):
    """A model with preprocessing of its own, and weights of which no leaf is zero."""
    model, w = BASES[base]()
    model = dataclasses.replace(model, preprocessing=Preprocessing(*CLIP, crop=0.8, interpolation="bilinear"))
    made = {**NEW, **OF_VIT, **TOKEN}[new](Pretrained(model, w, "here"))
    return Pretrained(made.model, tree_normal(7, made.w), "here")


def assert_same(again, made):
    assert again.model == made.model
    assert again.model.preprocessing == made.model.preprocessing
    assert trees.fingerprint(again.w) == trees.fingerprint(made.w)


@pytest.mark.parametrize(("base", "new"), CASES)
def test_save_and_load_return_the_model(tmp_path, base, new):
    made = pretrained(base, new)
    save(tmp_path / "m.safetensors", made)
    assert_same(load(tmp_path / "m.safetensors"), made)


@pytest.mark.parametrize(("base", "new"), CASES)
def test_export_and_load_export_return_the_model(tmp_path, base, new):
    made = pretrained(base, new)
    predict = tangent(made, kind="everything")
    dw = tree_normal(9, predict.zeros())
    export(tmp_path / "out", predict, dw, {})
    again, step = load_export(tmp_path / "out")
    assert_same(again, made)
    assert trees.fingerprint(step) == trees.fingerprint(dw)


def test_loaded_model_keeps_compiled_program(tmp_path):
    made = pretrained("vit", "adapters, lora")
    save(tmp_path / "m.safetensors", made)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def answer(predict, dw, x):
        return predict(dw, x)

    x = made.model.apply(made.w, images(), 0, 2)
    before, after = (
        answer(predict, predict.zeros(), x)
        for predict in (tangent(found, 1, "lora") for found in (made, load(tmp_path / "m.safetensors")))
    )
    chex.assert_trees_all_equal(after, before)


# Version 0.3


def test_settings_are_those_of_version_0_3():
    preprocessing = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop": 1.0, "interpolation": "bicubic", "resize": "short"}
    vit, residual = load("builtin").model, load("builtin-resnet").model
    for model in (vit, residual):
        assert json.loads(json.dumps(model.preprocessing.settings)) == preprocessing
    assert json.dumps(vit.settings) == (
        '{"width": 96, "depth": 6, "heads": 3, "mlp_width": 384, "patch_size": 4, "image_size": 16, "classes": 52, '
        '"pool": "token", "pre_norm": false, "layer_scale": false, "activation": "gelu", "eps": 1e-06, '
        '"class_token_at": null}'
    )
    assert json.dumps(residual.settings) == (
        '{"blocks": [1, 2, 2], "bottleneck": true, "width": 28, "stem": "small", "image_size": 16, "classes": 52, '
        '"slope": 0.0, "eps": 1e-05}'
    )
    assert json.dumps(LoRA(residual, 2, 1).settings).endswith('"eps": 1e-05, "lora_rank": 2, "lora_blocks": 1}')
    with_adapters = vit.replace(adapter_width=4, adapter_from=5).settings
    assert with_adapters == {**vit.settings, "adapter_width": 4, "adapter_from": 5}


# A family is one entry


@dataclasses.dataclass(frozen=True)
class Other(VisionTransformer):
    """A model of another family."""


def of_other(file):
    leaves = {name.removeprefix("mine."): value for name, value in file.tensors.items()}
    config = ViTConfig(12, 2, 3, 20, patch_size=4, image_size=8, classes=leaves["head/kernel"].shape[-1])
    return assemble(Other(config), leaves, file.path)


OTHER = Family(
    "other",
    "another network",
    Other,
    ViTConfig,
    (Naming("me", any_name(r"mine\."), of_other),),
    {"other-2": ViTConfig(12, 2, 3, 20, patch_size=4, image_size=8)},
    ("depth",),
    {},
    None,
)


def test_a_family_is_added_by_one_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FAMILIES", (*module.FAMILIES, OTHER))
    model, w = small()
    path, made = tmp_path / "model.safetensors", Pretrained(Other(model.config), w, "here")
    path.write_bytes(encode({f"mine.{name}": np.asarray(leaf) for name, leaf in trees.leaves(w).items()}, {}))
    assert_same(load(tmp_path, "other-2"), made)
    with pytest.raises(InputError, match="builtin must be other-2, another network; got a Vision Transformer"):
        load("builtin", "other-2")
    assert load("random:other-2").model == Other(model.config.replace(classes=1000))
    save(path, made.with_lora(2, 1, KEY))
    assert load(path).model == LoRA(made.model, 2, 1)
    export(tmp_path / "out", tangent(made), {}, {})
    assert_same(load_export(tmp_path / "out")[0], made)


@pytest.mark.parametrize("family", module.FAMILIES, ids=lambda family: family.name)
def test_family_has_tests_and_a_row(family):
    assert (ROOT / f"tests/models/test_{family.name}.py").exists()
    title = family.title.partition(" ")[2].lower()
    assert f"\n| {title}" in (ROOT / "docs/reference/models.md").read_text().lower()


# Refusals


@dataclasses.dataclass(frozen=True)
class MyConfig(ViTConfig):
    """A user's own configuration."""


@dataclasses.dataclass(frozen=True)
class Mine(VisionTransformer):
    """A user's own model."""


def test_save_refuses_what_load_could_not_read(tmp_path, untyped):
    made, path = pretrained(), tmp_path / "m.safetensors"
    mine, w = Mine(made.model.config), made.w
    cases = [
        (path, Pretrained(mine, w, ""), "model must be a Vision Transformer or a ResNet.*, alone or .*; got Mine. "
         r"Export a model of your own with its step, and read it by load_export\(folder, model=\.\.\.\)"),
        (path, Pretrained(mine, w, "").with_lora(1, 1, KEY), "alone or with LoRA; got Mine"),
        (tmp_path / "m.bin", made, r"path must end in \.safetensors; got .*m\.bin"),
        (path, Pretrained(made.model.replace(pre_norm=0), w, ""), "pre_norm of config of .* must be true or false"),
        (path, Pretrained(made.model.replace(eps=np.float32(1e-6)), w, ""), "settings of the model must fit JSON"),
        (path, Pretrained(VisionTransformer(MyConfig(**dataclasses.asdict(made.model.config))), w, ""),
         r"model must be the one that its settings make, .*; got VisionTransformer\(config=MyConfig"),
    ]  # fmt: skip
    for target, given, match in cases:
        with pytest.raises(InputError, match=match) as error:
            save(target, given)
        assert "\n" not in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_weights_beyond_32_bits_are_not_written(x64, tmp_path):
    model, w = small()
    with pytest.raises(InputError, match=r"leaves must fit float32; got .* in float64\. Cast them"):
        save(tmp_path / "m.safetensors", Pretrained(model, w, "here"))
    assert not [*tmp_path.iterdir()]


def test_half_weights_read_back_in_float32(tmp_path):
    made = pretrained()
    half = Pretrained(made.model, trees.cast(made.w, jnp.bfloat16), "here")
    save(tmp_path / "m.safetensors", half)
    chex.assert_trees_all_equal(load(tmp_path / "m.safetensors").w, trees.cast(half.w, jnp.float32))


def test_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    made = pretrained()
    save("~/m.safetensors", made)
    assert_same(load("~/m.safetensors"), made)
    export("~/out", tangent(made), {}, {})
    assert_same(load_export("~/out")[0], made)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"family": "vat"}, f"family in the metadata of .* must be one of {NAMES}; got vat"),
        ({"family": None}, r"got None\. Read a model of your own by load_export\(folder, model=\.\.\.\)"),
        ({"family": "resnet"}, "config of the metadata .* must hold the fields of a ResNetConfig alone"),
        ({"config": {"width": 12}}, "must hold the field depth"),
        ({"config": 7}, "config of the metadata .* must be an object"),
        ({"names": "theirs"}, "names of the metadata .* must be ours or world"),
        ({"names": "world"}, "names of a Vision Transformer; got the extra tensor block_0/attention"),
        ({"wrappers": [{"lore": {}}]}, "wrappers in the metadata of .* must be of frozen_head, lora; got lore"),
        ({"wrappers": [{"lora": {"rank": 1}}]}, "lora of the metadata .* must hold the field blocks"),
        ({"wrappers": [{"lora": {"rank": 1, "blocks": 9}}]}, r"blocks must be a whole number in 1\.\.2; got 9"),
        ({"wrappers": [{"lora": {"rank": 1, "blocks": 1}}] * 2}, "the model must have no LoRA yet"),
        (
            {"wrappers": [{"lora": {"rank": 1, "blocks": 1}}]},
            "must hold the tensor of block_1/.*lora_a.*; it does not",
        ),
    ],
)
def test_wrong_description_is_refused(tmp_path, changes, match):
    path = tmp_path / "m.safetensors"
    save(path, pretrained())
    tensors, metadata = read_tensors(path)
    described = {**json.loads(metadata[METADATA]), **changes}
    content = encode({name: np.array(value) for name, value in tensors.items()}, {METADATA: json.dumps(described)})
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_file_of_no_family_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(encode({"my_norm.weight": np.ones(3, np.float32)}, {}))
    titles = "; ".join(re.escape(naming.title) for family in module.FAMILIES for naming in family.namings)
    with pytest.raises(InputError, match=f"{titles}. The nearest is timm, .*"):
        load(path)
    with pytest.raises(InputError, match=r"architecture must be one of Ti/8, .*resnet152.*; got XL/16"):
        load("random:XL/16")
    with pytest.raises(InputError, match=r"architecture must be one of .*; got resnet51"):
        load("builtin", "resnet51")


def test_own_model_is_exported_and_read(tmp_path):
    made = pretrained()
    mine = Pretrained(Mine(made.model.config), made.w, "here").with_lora(2, 1, KEY)
    predict = tangent(mine, 1, "lora")
    dw = tree_normal(9, predict.zeros())
    export(tmp_path / "out", predict, dw, {})
    again, step = load_export(tmp_path / "out", mine.model)
    assert_same(again, mine)
    assert trees.fingerprint(step) == trees.fingerprint(dw)
    with pytest.raises(InputError, match=r"got None\. Read a model of your own by load_export"):
        load_export(tmp_path / "out")
    with pytest.raises(InputError, match=r"head/bias.* shape \(3,\); got .*\(7,\)"):
        load_export(tmp_path / "out", mine.model.with_classes(3))

"""One tree from every layout, and one line for every broken file."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close
from models.layouts import google, hugging_face, model, said, timm
from safetensors.numpy import load_file, save_file

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, IMAGENET, INCEPTION, Preprocessing
from tangent_jax.data.sources import Examples
from tangent_jax.exports.folder import export
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.heads import restrict
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.architectures import architectures
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.load import load, save
from tangent_jax.pretrained.vit.stated import by_shapes
from tangent_jax.pretrained.vit.timm_names import with_timm_names
from tangent_jax.pretrained.vit.weights import from_hugging_face
from tangent_jax.store.provenance import make_provenance


@pytest.mark.parametrize("changes", [{}, {"layer_scale": True}, {"pre_norm": True, "eps": 1e-5}])
def test_timm_names_give_our_tree(tmp_path, changes):
    config, w = model(**changes)
    save_file(timm(config, w), tmp_path / "model.safetensors")
    said(tmp_path, "vit_base_patch16_clip_224" if config.pre_norm else "vit_tiny_patch16_224")
    found = load(tmp_path / "model.safetensors")
    assert found.model.config == config
    assert_rel_close(found.w, w)
    assert found.model.preprocessing.mean == (CLIP if config.pre_norm else INCEPTION)[0]
    assert_rel_close(load(tmp_path).w, w)  # the folder


@pytest.mark.parametrize("pool", ["avg", "norm_avg"])
def test_norm_name_says_the_mean(tmp_path, pool):
    """LN(mean) was computed for both."""
    config, w = model(pool=pool)
    after = {"norm.": "fc_norm."} if pool == "avg" else {}
    tensors = {k.replace("norm.", after.get("norm.", "norm.")) if k.startswith("norm.") else k: v
               for k, v in timm(config, w).items()}  # fmt: skip
    save_file(tensors, tmp_path / "m.safetensors")
    assert load(said(tmp_path, global_pool="avg") / "m.safetensors").model.config == config
    both = {**tensors, "norm.weight": np.ones(128, np.float32), "fc_norm.weight": np.ones(128, np.float32)}
    save_file(both, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=r"must have one norm after the blocks; got norm and fc_norm"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"global_pool": "max"}, "pool of .* must be token, avg, or .* map; got max"),
        ({"global_pool": "map"}, "got map"),
        ({"act_layer": "relu"}, "activation must be one of gelu"),
        ({"qk_norm": True}, "no qk_norm in model_args of config.json"),
        ({"mlp_layer": "GluMlp"}, "no mlp_layer in model_args"),
        ({"num_heads": 3}, "width must be a multiple of heads; got width 128"),
        ({"embed_dim": None}, "192 features, as vit_tiny_patch16_224 has"),
        ({"final_norm": False}, "no final_norm in model_args"),
        ({"img_size": 12}, "image size of .* must give 4 patches of 4 pixels; got 12"),
        ({"depth": 3}, "depth of .* must be 3, as config.json says; got 2 by its tensors"),
        ({"patch_size": [8, 8]}, r"patch_size of .* must be \[8, 8\], as config.json says; got 4"),
        ({"class_token": False}, "class_token of .* must be False, as config.json says; got True"),
        ({"reg_tokens": 4}, "reg_tokens of .* must be 4, as config.json says; got 0"),
        ({"pre_norm": True}, "pre_norm of .* must be True, as config.json says; got False"),
        ({"num_classes": 9}, "num_classes of .* must be 9, as config.json says; got 7"),
        ({"config": {"num_classes": 8}}, "num_classes of .* must be 8, as config.json says; got 7"),
        (
            {"config": {"pretrained_cfg": {"crop_mode": "border"}}},
            "crop_mode must be center or squash in .*; got border",
        ),
    ],
)
def test_unbuildable_config_is_refused(tmp_path, args, match, untyped):
    save_file(timm(*model()), tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=match) as error:
        load(said(tmp_path, **args) / "m.safetensors")
    assert "\n" not in str(error.value)


def test_registers_may_have_positions(tmp_path):
    """As timm's have without no_embed_class: each register is the sum of its token and its position."""
    config, w = model()
    tensors, rng = timm(config, w), np.random.default_rng(0)
    tokens, rows = (rng.normal(size=(1, 4, 128)).astype(np.float32) for _ in range(2))
    first, patches = np.split(tensors["pos_embed"], [1], 1)
    tensors |= {"reg_token": tokens, "pos_embed": np.concatenate([first, rows, patches], 1)}
    save_file(tensors, tmp_path / "m.safetensors")
    found = load(said(tmp_path, reg_tokens=4) / "m.safetensors")
    assert found.model.config == config.replace(registers=4)
    assert_rel_close(found.w, {**w, "registers": (tokens + rows)[0]})
    save_file({**tensors, "pos_embed": first}, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=r"must hold a position of each registers token; got positions \(1, 128\)"):
        load(tmp_path / "m.safetensors")


def test_head_without_bias_is_refused(tmp_path):
    """It was read as a linear one; it may be of cosines."""
    for names, kind in ((timm, "head"), (hugging_face, "classifier")):
        tensors = names(*model(eps=1e-6 if names is timm else 1e-12))
        del tensors[f"{kind}.bias"]
        save_file(tensors, tmp_path / "m.safetensors")
        said(tmp_path)
        if names is hugging_face:
            (tmp_path / "config.json").write_text('{"model_type": "vit", "num_attention_heads": 2}')
        with pytest.raises(InputError, match=r"must have a bias, .* If it is linear, add a bias of zeros"):
            load(tmp_path / "m.safetensors")


def test_classifier_of_an_own_class_is_told(tmp_path, capsys):
    """It may read the pooler's output or the mean, where transformers' reads the class token."""
    tensors = hugging_face(*model(eps=1e-12))
    save_file(tensors, tmp_path / "m.safetensors")
    for name in ("ViTModel", "ViTForImageClassification"):
        fields = {"model_type": "vit", "num_attention_heads": 2, "architectures": [name]}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        load(tmp_path / "m.safetensors")
        assert ("no config.json beside it names its class" in capsys.readouterr().err) == (name == "ViTModel")
    save_file({**tensors, "vit.pooler.dense.bias": np.ones(128, np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(
        InputError, match=r"below vit\. it has one .*, and beside it 2 other tensors, such as classifier"
    ):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("blocks.1.attn.qkv.bias", "must hold query/bias of attention in all blocks or in none; got 1 of 2"),
        ("patch_embed.proj.bias", "must hold the tensor of patch_embedding/bias"),
    ],
)
def test_a_lost_bias_is_missed(tmp_path, name, match):
    """It was zero, in silence."""
    tensors = timm(*model())
    del tensors[name]
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=match):
        load(said(tmp_path) / "m.safetensors")


def test_rectangle_keeps_the_class_position(tmp_path):
    """24 patches and the class token are 25 rows, a square."""
    config, w = model(eps=1e-12, position_filter="bicubic_plain", image_size=(16, 24))
    save_file(hugging_face(config, w), tmp_path / "m.safetensors")
    beside = {"model_type": "vit", "num_attention_heads": 2, "image_size": [16, 24]}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    assert load(tmp_path / "m.safetensors").model.config == config


def test_config_says_heads_and_grid(tmp_path):
    """Heads were guessed by the width, and a row was invented for 3 x 5 patches, 16 rows with the class token's."""
    config, w = model()
    tensors = timm(config, w)
    tensors["pos_embed"] = np.ones((1, 16, 128), np.float32)
    save_file(tensors, tmp_path / "m.safetensors")
    found = load(said(tmp_path, num_heads=4, act_layer="quick_gelu", img_size=[12, 20]) / "m.safetensors").model.config
    assert (found.heads, found.activation, found.grid) == (4, "quick_gelu", (3, 5))
    found = load(said(tmp_path, no_embed_class=True, img_size=16) / "m.safetensors")
    assert found.model.config.grid == (4, 4)
    assert (found.w["position_embedding"][0] == 0).all()


def test_bare_file_is_one_architecture(tmp_path, capsys):
    """Or it is refused, with the names of those that are alike."""
    tensors = {n: np.zeros(s, np.float32) for n, s in tiny_shapes().items()}
    save_file(tensors, tmp_path / "m.safetensors")
    found = load(tmp_path / "m.safetensors")
    assert (found.model.config, found.model.preprocessing.mean) == (vit_config("Ti/16"), INCEPTION[0])
    assert "does not say how images are normalised" in capsys.readouterr().err  # AugReg's and DeiT's are alike
    assert load(tmp_path / "m.safetensors", "deit_tiny_patch16_224").model.preprocessing.mean == IMAGENET[0]
    for wrong, match in (
        ("vit_small_patch16_224", "must hold the tensors of vit_small_patch16_224; it holds others"),
        ("vit_base_patch16_rope_224", "must have parts that this library has; vit_base_patch16_rope_224 does not: Att"),
        ("swin_tiny", "must be one of timm's Vision Transformers; got swin_tiny"),
        (
            "vit_tiny_patch16_224.augreg_in21k",
            "Leave out the tag augreg_in21k, .*: the architecture is vit_tiny_patch16",
        ),
        ("S/16", "width of .* must be 384, as S/16 has; got 192"),
    ):
        with pytest.raises(InputError, match=match):
            load(tmp_path / "m.safetensors", wrong)
    clip = {n: (n, own) for n, own in architectures().items() if n.startswith("vit_base_patch16_clip")}
    assert clip["vit_base_patch16_clip_224"][1].key == clip["vit_base_patch16_clip_quickgelu_224"][1].key
    for few in (dict([*tensors.items()][:-1]), {**tensors, "blocks.12.norm1.weight": np.ones(192, np.float32)}):
        save_file(few, tmp_path / "m.safetensors")
        with pytest.raises(
            InputError, match=r"must hold tensors of one architecture of timm's; got names and shapes of none"
        ):
            load(tmp_path / "m.safetensors")


def test_ambiguous_bare_file_is_refused():
    """A DeiT III by its authors calls its gains gamma_1, as timm's vit_small_patch16_rope_ape_224 does."""
    shapes = {"cls_token": (1, 1, 384), "pos_embed": (1, 196, 384), "norm.weight": (384,), "norm.bias": (384,)}
    shapes |= {"patch_embed.proj.weight": (384, 3, 16, 16), "patch_embed.proj.bias": (384,)}
    for block in (f"blocks.{i}." for i in range(12)):
        shapes |= {f"{block}{name}": (384,) for name in ("gamma_1", "gamma_2", "norm1.weight", "norm1.bias")}
        shapes |= {f"{block}{name}": (384,) for name in ("norm2.weight", "norm2.bias", "attn.proj.bias")}
        shapes |= {f"{block}attn.qkv.weight": (1152, 384), f"{block}attn.qkv.bias": (1152,)}
        shapes |= {f"{block}attn.proj.weight": (384, 384), f"{block}mlp.fc1.weight": (1536, 384)}
        shapes |= {
            f"{block}mlp.fc1.bias": (1536,),
            f"{block}mlp.fc2.weight": (384, 1536),
            f"{block}mlp.fc2.bias": (384,),
        }
    tensors = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    file = with_timm_names(Tensors(tensors, {}, {}, "deit.pth"))
    with pytest.raises(InputError, match=r"deit3_small_patch16_224, vit_small_patch16_rope_ape_224, which are alike"):
        by_shapes(file)


def test_callers_name_keeps_config_json(tmp_path):
    save_file(timm(*model()), tmp_path / "m.safetensors")
    assert load(said(tmp_path, num_heads=4) / "m.safetensors").model.config.heads == 4
    with pytest.raises(InputError, match=r"width of .* must be 192, as Ti/16 has; got 128"):
        load(said(tmp_path, num_heads=4) / "m.safetensors", "Ti/16")
    with pytest.raises(InputError, match="no mlp_layer in model_args"):
        load(said(tmp_path, mlp_layer="GluMlp") / "m.safetensors", "Ti/16")
    save(tmp_path / "ours.safetensors", load("random:Ti/32"))
    for source in (tmp_path / "ours.safetensors", "random:Ti/32", "builtin"):
        with pytest.raises(InputError, match="architecture must be one of Ti/8"):
            load(source, "vit_tiny_patch16_224")
    (tmp_path / "config.json").unlink()
    after = {n.replace("norm.", "fc_norm.") if n.startswith("norm.") else n: v for n, v in timm(*model()).items()}
    save_file(after, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="must normalise before its pool, as Ti/16 does; got fc_norm"):
        load(tmp_path / "m.safetensors", "Ti/16")


def test_heads_of_hugging_face_file(tmp_path):
    config, w = model(eps=1e-12)
    save_file(hugging_face(config, w), tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=r"must say its number of heads; .*config.json with num_attention_heads"):
        load(tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')  # which has 12 in transformers 5.24.0
    with pytest.raises(InputError, match="width must be a multiple of heads; got width 128 and heads 12"):
        load(tmp_path / "m.safetensors")
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        InputError, match=r"width of .* must be 1024, as L/16 has; got 128"
    ):  # 16 heads fit 128 features
        load(tmp_path / "m.safetensors", "L/16")
    with pytest.raises(InputError, match="tensors under timm's names for deit_tiny_patch16_224"):
        load(tmp_path / "m.safetensors", "deit_tiny_patch16_224")
    for wrong, match in (
        ({"model_type": "dinov3_vit"}, "model_type in .* must be one of vit, .*; got dinov3_vit"),
        ({"model_type": "dinov2"}, "must hold tensors of dinov2, as config.json says; got no layer scales"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, **wrong}))
        with pytest.raises(InputError, match=match):
            load(tmp_path / "m.safetensors")


def test_named_architecture_has_family_eps(tmp_path):
    """Hugging Face's names: 1e-6, which Ti/16 states; a config.json that says nothing has transformers' 1e-12."""
    config = vit_config("Ti/16", depth=1)
    w = initial_weights(VisionTransformer(config), jax.random.key(0))
    save_file(hugging_face(config, w), tmp_path / "m.safetensors")
    file = Tensors(load_file(tmp_path / "m.safetensors"), {}, {}, "m.safetensors", "Ti/16")
    assert from_hugging_face(file).model.config.eps == 1e-6
    beside = {"config": {"model_type": "vit", "num_attention_heads": 3}}
    assert from_hugging_face(file._replace(beside=beside)).model.config.eps == 1e-12


def test_wrong_class_names_are_told(tmp_path, capsys):
    config, w = model(eps=1e-12)
    save_file(hugging_face(config, w), tmp_path / "m.safetensors")
    fields = {"model_type": "vit", "num_attention_heads": 2}
    for count in (3, config.classes):
        labels = {str(i): f"class {i}" for i in range(count)}
        (tmp_path / "config.json").write_text(json.dumps({**fields, "id2label": labels}))
        found = load(tmp_path / "m.safetensors")
        line = f"names 3 classes; the head has {config.classes}"
        assert (line in capsys.readouterr().err) == (count == 3)
        assert found.class_names == (() if count == 3 else tuple(labels.values()))


NAMES = tuple(f"class {i}" for i in range(7))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"id2label": {str(i): NAMES[i] for i in (6, 0, 5, 1, 4, 2, 3)}}, NAMES),
        ({"label_names": [*NAMES]}, NAMES),
        ({"labels": [*NAMES]}, NAMES),
        ({"pretrained_cfg": {"label_names": [*NAMES]}}, NAMES),
        ({"id2label": {str(i): f"LABEL_{i}" for i in range(7)}}, ()),
        ({"id2label": {str(i): "crane" for i in range(7)}}, ("crane",) * 7),
        ({"id2label": {"a": "b"}}, ()),
        ({"id2label": {str(i + 1): NAMES[i] for i in range(7)}}, ()),
        ({"id2label": 7}, ()),
        ({}, ()),
    ],
)
def test_class_names_of_config_json(tmp_path, fields, names):
    config, w = model()
    save_file(timm(config, w), tmp_path / "model.safetensors")
    found = load(said(tmp_path, config=fields))
    assert found.class_names == names
    save(tmp_path / "ours.safetensors", found)
    assert load(tmp_path / "ours.safetensors").class_names == names


def test_own_head_reads_classes_by_their_names(tmp_path, capsys):
    """The data set's classes are in the order of their names; the model's are not."""
    config, w = model()
    save_file(timm(config, w), tmp_path / "model.safetensors")
    names = ("c", "a", "g", "b", "d", "f", "e")
    made = load(said(tmp_path, config={"label_names": [*names]}))
    inputs = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), np.uint8)
    images = Examples(tuple("0123456"), np.arange(7, dtype=np.int32), inputs.__getitem__, classes=tuple("abcdefg"))
    features = extract(tangent(made, kind="everything"), images, Cache(tmp_path))
    assert [names[i] for i in features.targets] == [*images.classes]
    few = dataclasses.replace(images.take(np.array([0, 1])), classes=("e", "b"))
    assert extract(tangent(made, kind="everything"), few, Cache(tmp_path)).targets.tolist() == [6, 3]
    with pytest.raises(InputError, match="in their order, c, a, g"):
        restrict(tangent(made), images.classes, ("a",))
    with pytest.raises(InputError, match="in their order, c, a, g"):
        make_provenance(tangent(made), None, images.classes)
    head = tangent(made, kind="head")
    with pytest.raises(InputError, match="in their order, c, a, g"):
        export(tmp_path / "export", head, head.zeros(), {}, classes=images.classes)
    assert capsys.readouterr().err.count("are matched by name with the model's 7 outputs") == 2
    others = dataclasses.replace(images, classes=tuple("abcdefh"))
    assert extract(tangent(made, kind="everything"), others, Cache(tmp_path)).targets.tolist() == [*range(7)]
    line = "none of the model's 7 outputs alone is called h, as one of 7 classes of the data is: .* by their order"
    assert re.search(line, capsys.readouterr().err)
    drawn = made.with_head(7, jax.random.key(0))
    assert extract(tangent(drawn, kind="everything"), images, Cache(tmp_path)).targets.tolist() == [*range(7)]


def tiny_shapes():
    """Names and shapes of timm's vit_tiny_patch16_224."""
    model = VisionTransformer(vit_config("Ti/16"))
    zeros = {path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()}
    return {name: value.shape for name, value in model.to_world(zeros).items()}


def test_names_of_hugging_face_give_our_tree(tmp_path):
    config, w = model(eps=1e-12, activation="gelu_tanh")
    save_file(hugging_face(config, w), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_act": "gelu_new", "num_attention_heads": 2}))
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "resample": 2})
    )
    found = load(tmp_path)
    assert found.model.config == config.replace(position_filter="bicubic_plain")
    assert found.model.preprocessing == Preprocessing((0.1,) * 3, (0.2,) * 3, 1.0, "bilinear", "exact")
    assert_rel_close(found.w, w)


def test_npz_gives_our_tree(tmp_path):
    config, w = model(activation="gelu_tanh")
    np.savez(tmp_path / "m.npz", **google(config, w))
    found = load(tmp_path / "m.npz")
    assert found.model.config == config.replace(position_filter="linear_corners")
    assert_rel_close(found.w, w)
    np.savez(tmp_path / "m.npz", **google(config, w, heads_fused=True))
    with pytest.raises(InputError, match=r"m\.npz must say its number of heads; it does not\. Say architecture=NAME"):
        load(tmp_path / "m.npz")


def test_npz_class_position_is_zero(tmp_path):
    config, w = model(activation="gelu_tanh")
    tensors = google(config, w, positions="pos_embedding")
    tensors["pos_embedding"] = tensors["pos_embedding"][:, 1:]
    np.savez(tmp_path / "m.npz", **tensors)
    got = load(tmp_path / "m.npz").w["position_embedding"]
    assert (got[0] == 0).all()
    assert_rel_close(got[1:], w["position_embedding"][1:])


def test_old_representation_is_dropped(tmp_path):
    config, w = model(activation="gelu_tanh")
    np.savez(tmp_path / "m.npz", **google(config, w), **{"pre_logits/kernel": np.ones((128, 128))})
    assert load(tmp_path / "m.npz").model.config.classes == 0


def test_the_builtin_model_and_random_ones_load():
    builtin = load("builtin")
    assert (builtin.model.classes, builtin.source) == (52, "builtin")
    assert load("random:Ti/32", "Ti/32").model.config == vit_config("Ti/32")


def test_other_wrong_sources_are_one_clear_line(tmp_path):
    config, w = model()
    save_file(timm(config, w), tmp_path / "m.safetensors")
    np.savez(tmp_path / "object.npz", a=np.array([{}], object))
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.pth").touch()
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:-100])
    for source, match in {
        "nowhere.npz": "which does not exist",
        "~no_such_user/x.npz": "a path must be",
        tmp_path / "object.npz": "plain arrays",
        tmp_path / "empty": "must hold model.safetensors; it has no file",
        tmp_path / "m.pth": "pickle of PyTorch's; pickles are never loaded",
        tmp_path / "cut.safetensors": "must be a whole safetensors file",
        tmp_path / "m.safetensors": "must hold tensors of one architecture of timm's; got names and shapes of none",
    }.items():
        with pytest.raises(InputError, match=match):
            load(source)


@pytest.mark.long
def test_real_weights_classify_imagenet(vit_tiny, shared):
    """Top-1 0.80 and top-5 0.95, within 0.01 (PyTorch: 0.799, 0.949)."""
    from tangent_jax.data.decode import decode
    from tangent_jax.data.registry import open_dataset

    found = load(vit_tiny, "Ti/16")
    sample = open_dataset(f"folder:{shared}/data/imagenet_sample1000.zip").splits["train"]
    f = jax.jit(lambda x: found.model.apply(found.w, found.model.preprocessing.normalize(x)))
    ranks = []
    for start in range(0, 1000, 8):
        x = np.stack([decode(sample.read(i), "", 224, found.model.preprocessing) for i in range(start, start + 8)])
        ranks.append(np.argsort(-np.asarray(f(x)), -1)[:, :5])
    hits = np.concatenate(ranks) == sample.labels[:, None]
    assert abs(hits[:, 0].mean() - 0.80) <= 0.01
    assert abs(hits.any(1).mean() - 0.95) <= 0.01


def altered(folder, **changed):
    """The folder of a timm file with tensors that are changed, or None: left out."""
    tensors = timm(*model()) | changed
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")
    return said(folder)


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("blocks.1.norm2.weight", None, r"must hold the tensor of block_1/norm2/scale, \(128,\); it does not"),
        ("patch_embed.proj.weight", None, "must hold the tensor of patch_embedding/kernel; it does not"),
        ("blocks.1.mlp.fc2.bias", ones(3), r"block_1/mlp_out/bias in .* must have shape \(128,\); got \(3,\)"),
        ("norm.bias", np.nan * ones(128), "norm/bias in .* must be finite; got NaN or infinity"),
        ("norm.bias", np.ones(128, np.int8), "norm.bias must be in F64, F32, F16 or BF16; it is in int8"),
        ("norm.bias", np.ones(128, bool), "it is in bool"),
        ("pos_embed", ones(0, 128), "pos_embed must have at least"),
        ("pos_embed", ones(1, 128), "position_embedding in .* must have two rows or more; got 1"),
        ("pos_embed", ones(128), "position_embedding in .* must have 2 axes"),
        ("patch_embed.proj.weight", ones(3, 3), "128 features, as vit_tiny_patch16_224 has"),
        ("patch_embed.proj.weight", ones(), "128 features, as vit_tiny_patch16_224 has"),
        ("blocks.0.attn.qkv.weight", ones(), "must have at least 1 axes"),
        ("blocks.0.mlp.fc1.weight", ones(), "must have at least 1 axes"),
        ("blocks.999999999.norm1.bias", ones(128), "blocks in .* must be 0, 1, 2, ...; got block 999999999 of 3"),
    ],
)
def test_file_of_no_model_is_refused(tmp_path, name, value, match):
    with pytest.raises(InputError, match=match) as error:
        load(altered(tmp_path, **{name: value}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("beside", "content", "match"),
    [
        ("config.json", {"pretrained_cfg": {"std": [0.5, 0.0, 0.5]}}, "std must be three numbers above 0"),
        ("config.json", b"{not json", "config.json must be JSON"),
        ("config.json", b"[1]", "config.json must be a JSON object; got list"),
        ("config.json", b"\xff\xfe\x00", "text in UTF-8"),
        ("config.json", {"hidden_act": 7}, "hidden_act of config.json beside .* must be text or null"),
        ("config.json", {"architecture": 7}, "architecture of config.json .* must be text or null"),
        ("config.json", {"model_args": 7}, "model_args of config.json .* must be an object or null"),
        ("preprocessor_config.json", {"image_mean": "x"}, "image_processor_type; got none"),
    ],
)
def test_wrong_json_beside_a_file_is_refused(tmp_path, beside, content, match):
    path = altered(tmp_path) / beside
    if isinstance(content, dict):
        content = json.dumps((json.loads(path.read_text()) if path.exists() else {}) | content).encode()
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def described(config):
    """The header of a file of `save` whose model has these settings."""
    fields = {"family": "vit", "config": config, "preprocessing": {}, "wrappers": [], "names": "ours"}
    return {"__metadata__": {"tangent_jax": json.dumps(fields)}}


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, "must be a whole safetensors file"),
        ({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}}, "a whole safetensors file"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}, "a whole safetensors file"),
        ({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, "must be a whole safetensors file"),
        ({"a": 7}, "must be a whole safetensors file"),
        ({"__metadata__": {"tangent_jax": "{"}}, "the metadata of .* must be JSON"),
        ({"__metadata__": {"tangent_jax": "{}"}}, "the metadata of .* must hold the field family"),
        (described({"width": 1}), "must hold the field depth"),
        (described({"width": 1, "depth": 99999, "heads": 1, "mlp_width": 1}), "depth must be a whole number in"),
    ],
)  # fmt: skip
def test_header_is_checked_before_allocation(tmp_path, header, match):
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(InputError, match=match):
        load(tmp_path / "m.safetensors")


def test_clip_normalises_its_images(tmp_path):
    """Version 0.1's Predictor took AugReg's 0.5 for image inputs of any model."""
    config, w = model(pre_norm=True, eps=1e-5)
    save_file(timm(config, w), tmp_path / "clip.safetensors")
    task = tangent(load(said(tmp_path, "vit_base_patch16_clip_224") / "clip.safetensors"), kind="everything")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    mean, std = (jnp.array(values, jnp.float32) for values in CLIP)
    want = task.model.apply(task.w, (images.astype(np.float32) / 255 - mean) / std)
    assert_rel_close(task(task.zeros(), jnp.asarray(images)), want, 1e-4)

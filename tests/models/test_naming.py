"""A file is not refused for parts that change no output: prefixes, left out tensors, fields, shards, other names."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.serialization import msgpack_serialize
from helpers import assert_rel_close, images, small, tree_normal
from models.layouts import conversion, google, hugging_face, model, said, timm
from safetensors.numpy import load_file, save_file
from saved import modern

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.architectures import REFUSED
from tangent_jax.pretrained.left_out import KINDS, left_out
from tangent_jax.pretrained.load import load, save
from tangent_jax.pretrained.vit.weights import TORCHVISION_HEADS

ONES = np.ones(3, np.float32)


def write(folder, tensors):
    """The folder with these tensors and timm's config.json."""
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
    return said(folder)


# Prefixes


@pytest.mark.parametrize(
    "prefix",
    ["module.", "module._orig_mod.", "model.", "backbone.", "encoder.", "teacher.backbone.", "visual.", "a.b.c."],
)
def test_prefix_is_taken_off(tmp_path, capsys, prefix):
    config, w = model()
    found = load(write(tmp_path, {prefix + name: value for name, value in timm(config, w).items()}))
    assert found.model.config == config
    assert_rel_close(found.w, w)
    rest = prefix.replace("_orig_mod.", "")
    assert f"the prefix {rest} of its tensors is taken off" in capsys.readouterr().err


def test_torch_wrapper_names_are_taken_out(tmp_path):
    config, w = model()
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        tensors = {name.replace("blocks.1.", f"blocks.1.{wrapper}."): value for name, value in timm(config, w).items()}
        assert_rel_close(load(write(tmp_path, tensors)).w, w)
    with pytest.raises(
        InputError, match=r"once in .*; blocks\.0\.norm1\.bias is there with and without a wrapper's name"
    ):
        load(write(tmp_path, {**timm(config, w), "blocks.0._orig_mod.norm1.bias": ONES}))


def test_prefix_is_of_most_covering_naming(tmp_path):
    """DINOv3's blocks are below `model.` in transformers 5; a wrapper of that name must not hide the other tensors."""
    modern("dinov3", tmp_path)
    want = load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"model.{name}": value for name, value in tensors.items()}, tmp_path / "model.safetensors")
    found = load(tmp_path)
    assert found.model == want.model
    assert trees.fingerprint(found.w) == trees.fingerprint(want.w)


def test_network_beside_others_is_refused(tmp_path):
    config, w = model()
    tensors = timm(config, w)
    body = {f"backbone.{name}": value for name, value in tensors.items() if not name.startswith("head.")}
    with pytest.raises(InputError, match=r"below backbone\. it has one .* timm, and beside it 1 other .* top\.weight"):
        load(write(tmp_path, {**body, "top.weight": ONES}))
    both = {f"{who}.{name}": value for who in ("student", "teacher") for name, value in tensors.items()}
    with pytest.raises(InputError, match=r"Save the tensors below student\. or teacher\. alone"):
        load(write(tmp_path, both))
    with pytest.raises(InputError, match=r"below module\.student\. it has one .* below module\.student\. or module\.t"):
        load(write(tmp_path, {f"module.{name}": value for name, value in both.items()}))


def test_moving_average_is_left_out(tmp_path, capsys):
    config, w = model()
    tensors = timm(config, w)
    averaged = {f"module.{n}": v for n, v in tensors.items()} | {"n_averaged": np.array(9)}  # torch's AveragedModel
    assert_rel_close(load(write(tmp_path, averaged)).w, w)
    average = {f"model_ema.{name}": value + 1 for name, value in tensors.items()}
    assert_rel_close(load(write(tmp_path, {f"model.{n}": v for n, v in tensors.items()} | average)).w, w)
    assert "the moving average of its weights is left out" in capsys.readouterr().err
    assert_rel_close(load(write(tmp_path, {f"model_ema.{n}": v for n, v in tensors.items()})).w, w)


def test_unknown_names_name_the_nearest(tmp_path):
    save_file({"embed.weight": ONES, "norm.weight": ONES}, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=r"The nearest is timm, which lacks 1 of 2: embed\.weight"):
        load(tmp_path / "m.safetensors")
    save_file({"vit.layernorm.bias": ONES}, tmp_path / "m.safetensors")
    with pytest.raises(
        InputError, match=r"a whole network; it has 1 tensors under names of Hugging Face \(ViT, .*norm"
    ):
        load(tmp_path / "m.safetensors")
    save_file({"text_model.a": ONES}, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=r"all its tensors are left out, such as text_model\.a, which is a text tower"):
        load(tmp_path / "m.safetensors")
    for factor in ("lora_A.weight", "ia3_l", "boft_R"):
        save_file({f"base_model.model.vit.encoder.layer.0.{factor}": ONES}, tmp_path / "m.safetensors")
        with pytest.raises(InputError, match=f"it has factors of an adapter of PEFT, such as base_model.*{factor}"):
            load(tmp_path / "m.safetensors")


def test_arguments_beside_model_args_are_refused(tmp_path):
    """As huggingface_hub's mixin writes them: no tensor shows the number of heads."""
    config, w = model()
    write(tmp_path, timm(config, w))
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 6, "num_classes": config.classes}))
    with pytest.raises(InputError, match=r"under model_args, and the architecture; got num_heads beside them"):
        load(tmp_path)


# Tensors that are left out


EXTRA = {
    "num_batches_tracked": np.array(3),
    "embeddings.position_ids": np.arange(5)[None],
    "optimizer.state.0.step": np.array(3, np.int32),
    "global_step": np.array(3),
    "decoder.decoder_embed.weight": ONES,
    "decoder_blocks.0.norm1.weight": ONES,
    "decoder.0.weight": ONES,
    "mask_token": ONES,
    "text_model.embeddings.token_embedding.weight": ONES,
    "logit_scale": np.float32(3),
    "head.mlp.0.weight": ONES,
    "head.last_layer.weight_v": ONES,
    "initted": np.array(True),  # of ema_pytorch
    "accuracy.tp": np.ones(7, np.int64),  # of torchmetrics
    "val_loss.mean_value": np.float32(1),
    "criterion.weight": ONES,
    "pooler.dense.bias": ONES,
}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_unused_tensors_are_left_out(tmp_path, prefix):
    config, w = model()
    tensors = {prefix + name: value for name, value in {**timm(config, w), **EXTRA}.items()}
    assert_rel_close(load(write(tmp_path, tensors)).w, w)
    assert {*left_out(EXTRA)} == {*EXTRA}
    assert {*left_out(EXTRA).values()} <= {*KINDS}
    assert not left_out(timm(config, w))
    assert not left_out(hugging_face(config, w))
    assert not left_out(google(config, w))


@pytest.mark.parametrize("name", ["decoders.weight", "blocks.0.attn.rel_pos", "head.mlp.0.weight"])
def test_extra_tensor_refuses_the_file(tmp_path, name):
    """Also one that is named like those that are left out; no message advises to remove it."""
    with pytest.raises(InputError, match=rf"the extra tensor {re.escape(name)} \(3,\).*outputs may be others") as error:
        load(write(tmp_path, {**timm(*model()), name: ONES}))
    assert "emove" not in str(error.value)


@pytest.mark.parametrize("layer", ["head.fc", "head.1", "classifier", "fc"])
def test_head_of_another_name_may_be_renamed(tmp_path, layer):
    config, w = model()
    tensors = {name.replace("head.", f"{layer}."): value for name, value in timm(config, w).items()}
    with pytest.raises(InputError, match=f"if {layer} is its linear head, call it head; else pass a file"):
        load(write(tmp_path, tensors))
    assert_rel_close(load(write(tmp_path, {n.replace(f"{layer}.", "head."): v for n, v in tensors.items()})).w, w)


def test_masked_pre_training_of_hugging_face(tmp_path):
    config, w = model(eps=1e-12, position_filter="bicubic_plain")
    tensors = {name: value for name, value in hugging_face(config, w).items() if not name.startswith("classifier")}
    more = {
        "decoder.mask_token": ONES,
        "decoder.decoder_layers.0.mlp.fc1.weight": ONES,
        "vit.embeddings.mask_token": ONES,
    }
    save_file(tensors | more, tmp_path / "model.safetensors")
    fields = {"model_type": "vit_mae", "num_attention_heads": 2, "decoder_hidden_size": 8, "mask_ratio": 0.75}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = load(tmp_path)
    assert found.model.config == config.replace(classes=0)
    assert_rel_close(found.w, {name: leaf for name, leaf in w.items() if name != "head"})


# Google's npz


@pytest.mark.parametrize("prefix", ["params/img/", "opt/target/", "params/"])
@pytest.mark.parametrize("scanned", [False, True])
def test_big_vision_npz_is_read(tmp_path, prefix, scanned):
    config, w = model(activation="gelu_tanh", position_filter="linear_corners")
    rounded = {name: np.asarray(jnp.bfloat16(value)) for name, value in google(config, w).items()}
    want = {name: value.astype(np.float32) for name, value in rounded.items()}
    tensors = {name: value.view("V2") for name, value in rounded.items()}
    if scanned:
        root = "Transformer/encoderblock"
        inner = [name.removeprefix(f"{root}_0/") for name in tensors if name.startswith(f"{root}_0/")]
        blocks = {f"{root}/{name}": np.stack([tensors[f"{root}_{i}/{name}"] for i in range(2)]) for name in inner}
        tensors = {name: value for name, value in tensors.items() if "encoderblock_" not in name} | blocks
    beside = {"opt/state/step": np.array(7), "opt/0/mu": ONES}
    if "img" in prefix:
        beside |= {"params/t": ONES, "params/txt/Embed_0/embedding": ONES}
    np.savez(tmp_path / "m.npz", **{prefix + name: value for name, value in tensors.items()}, **beside)
    np.savez(tmp_path / "plain.npz", **want)
    found = load(tmp_path / "m.npz")
    assert found.model.config == config
    assert trees.fingerprint(found.w) == trees.fingerprint(load(tmp_path / "plain.npz").w)


@pytest.mark.parametrize("is_folder", [True, False])
def test_orbax_and_msgpack_are_converted(tmp_path, monkeypatch, is_folder):
    """By the program of docs/reference/models.md."""
    config, w = model(activation="gelu_tanh", position_filter="linear_corners")
    tree = trees.nest({f"params/{name}": value for name, value in google(config, w).items()})
    if is_folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "source", tree)
    else:
        (tmp_path / "source").write_bytes(msgpack_serialize(tree))
    monkeypatch.chdir(tmp_path)
    conversion("Orbax and Flax", tmp_path / "source")
    found = load(tmp_path / "FILE.npz")
    assert found.model.config == config
    assert_rel_close(found.w, w)


def test_npz_without_class_token_pools_norm_avg(tmp_path):
    """LN of the mean was computed, in silence."""
    config, w = model(activation="gelu_tanh", class_token=False, pool="avg")
    tensors = google(config, {**w, "class_token": np.zeros(128)})
    del tensors["cls"]
    np.savez(tmp_path / "m.npz", **tensors)
    assert load(tmp_path / "m.npz").model.config.pool == "norm_avg"


def test_blocks_in_one_of_two_depths_are_refused(tmp_path):
    tensors = {f"Transformer/encoderblock/LayerNorm_0/{n}": np.ones((d, 4)) for n, d in (("scale", 2), ("bias", 3))}
    np.savez(tmp_path / "m.npz", **tensors)
    with pytest.raises(InputError, match=r"a first axis of one depth, .*; got shape \(3, 4\)"):
        load(tmp_path / "m.npz")


# Fields of config.json


def opened(folder, fields):
    """The model of Hugging Face's names beside a config.json with more fields."""
    save_file(hugging_face(*model(eps=1e-12)), folder / "model.safetensors")
    whole = {"model_type": "vit", "num_attention_heads": 2, "hidden_size": 128, **fields}
    (folder / "config.json").write_text(json.dumps(whole))
    return load(folder).model.config


def test_fields_that_are_not_read_may_stand(tmp_path):
    fields = {"encoder_stride": 16, "max_length": 20, "attention_dropout": 0.5, "_name_or_path": "a", "of_2027": [1]}
    assert opened(tmp_path, fields) == opened(tmp_path, {name: None for name in REFUSED})


@pytest.mark.parametrize("name", REFUSED)
def test_field_that_changes_outputs_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=rf"no {name} in config\.json .*; got {{'0': \[1\]}}"):
        opened(tmp_path, {name: {"0": [1]}})


def test_model_args_must_be_an_object(tmp_path):
    with pytest.raises(InputError, match=r"model_args of config\.json .* must be an object or null; got \[1\]"):
        opened(tmp_path, {"model_args": [1]})


def test_vision_config_dict_wins(tmp_path):
    modern("clip", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    inner = config.get("vision_config", config)
    inner = {name: inner[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size")}
    whole = {"model_type": "clip", "text_config_dict": {}, "vision_config": {**inner, "hidden_act": "gelu"}}
    for of_dict, heads, activation in (
        ({"num_attention_heads": 4}, 4, "quick_gelu"),
        ({"hidden_act": "gelu"}, 12, "gelu"),
        (None, inner["num_attention_heads"], "gelu"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**whole, "vision_config_dict": of_dict}))
        found = load(tmp_path).model.config
        assert (found.heads, found.activation) == (heads, activation)


# Weights in several files, and other files


def sharded(folder, change=lambda index, shards: None):
    """The folder with timm's tensors in two files and an index, changed."""
    tensors = {name: np.asarray(value) for name, value in timm(*model()).items()}
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    places = {name: names[i % 2] for i, name in enumerate(tensors)}
    shards = {own: {name: tensors[name] for name in tensors if places[name] == own} for own in names}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    change(index, shards)
    for name, own in shards.items():
        save_file(own, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return said(folder)


def test_weights_in_several_files_are_one_model(tmp_path):
    config, w = model()
    folder = sharded(tmp_path)
    for path in (folder, folder / "model.safetensors.index.json"):
        found = load(path)
        assert found.model.config == config
        assert_rel_close(found.w, w)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda index, shards: shards.pop(SECOND), f"{SECOND} must exist, .* names it"),
        (lambda index, shards: shards[SECOND].update(cls_token=ONES), f"cls_token is in {FIRST} and {SECOND}"),
        (lambda index, shards: shards[FIRST].pop("cls_token"), f"{FIRST} must hold cls_token, as .* says"),
        (lambda index, shards: index["weight_map"].update(a="../x.safetensors"), "beside it; got '../x.safetensors'"),
        (lambda index, shards: index["weight_map"].update(a=r"..\x.safetensors"), "must name files of safetensors"),
        (lambda index, shards: index["weight_map"].update(a="x.bin"), "beside it; got 'x.bin'"),
        (lambda index, shards: index.pop("weight_map"), "weight_map of .* must be an object"),
        (lambda index, shards: index["weight_map"].clear(), "must name tensors; it has none"),
    ],
)
def test_wrong_index_is_refused(tmp_path, change, match):
    with pytest.raises(InputError, match=match):
        load(sharded(tmp_path, change))


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["pytorch_model.bin", "config.json"], "it has pytorch_model.bin, which is a pickle .* Convert it first"),
        (
            ["flax_model.msgpack", "optimizer.pt", "pytorch_model.bin", "tf_model.h5"],
            r"it has pytorch_model\.bin, .*Convert",
        ),
        (["optimizer.pt", "training_args.bin", "tf_model.h5"], r"it has tf_model\.h5"),
        (["flax_model.msgpack"], "it has flax_model.msgpack, which is Flax's format"),
        (["tf_model.h5"], "it has tf_model.h5, which is TensorFlow's format of transformers 4. Convert it first"),
        (["model.weights.h5", "task.json"], "it has model.weights.h5, which is Keras's or .* No program"),
        (["model.keras", "metadata.json"], "it has model.keras, which is Keras's or .* No program"),
        (["saved_model.pb", "variables/a.index"], "it has saved_model.pb, which is Keras's or TensorFlow's format"),
        (["m.gguf", "config.json"], "it has m.gguf, which is a network made for one program .*Take the weights that"),
        (["_CHECKPOINT_METADATA", "default/a"], "it has _CHECKPOINT_METADATA, which is a part of Orbax's format"),
        (["__0_0.distcp", ".metadata"], "it has __0_0.distcp, .*: accelerate merge-weights FOLDER NEW_FOLDER"),
        (["pytorch_model_fsdp_0/__0_0.distcp", "optimizer.bin"], "it has pytorch_model_fsdp_0/__0_0.distcp, .*FSDP"),
        (
            ["_METADATA", "manifest.ocdbt", "config.json"],
            "it has _METADATA, which is a part of Orbax's format. Convert",
        ),
        (["a.safetensors", "b.safetensors"], "it has 2 files, such as a.safetensors, b.safetensors"),
        (["README.md"], "must hold model.safetensors; it has README.md"),
    ],
)
def test_folder_without_weights_is_refused(tmp_path, names, match):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=match):
        load(tmp_path)


@pytest.mark.parametrize(
    ("source", "files", "match"),
    [
        ("hf-hub:org/tiny", ["model.safetensors"], None),
        ("hf-hub:org/tiny@v1.0", ["model.safetensors"], None),
        (f"hf-hub:org/tiny@{'0' * 40}", ["model.safetensors"], None),
        ("hf-hub:org/tiny", ["open_clip_model.safetensors"], None),
        ("hf-hub:org/tiny@v2", ["model.safetensors"], "reachable or in the hub's cache; got LocalEntryNotFoundError"),
        ("hf-hub:org", ["model.safetensors"], "must be OWNER/NAME or OWNER/NAME@REVISION"),
        ("hf-hub:org/tiny", ["pytorch_model.bin"], "its weights are of another format, often a pickle"),
    ],
)
def test_hub_revision_is_read_from_its_cache(tmp_path, monkeypatch, source, files, match):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept = tmp_path / "models--org--tiny"
    for folder in (kept / "refs", kept / "snapshots" / ("0" * 40)):
        folder.mkdir(parents=True)
    for name in ("main", "v1.0"):
        (kept / "refs" / name).write_text("0" * 40)
    config, w = model()
    folder = write(kept / "snapshots" / ("0" * 40), timm(config, w))
    (folder / "model.safetensors").rename(folder / files[0])
    if match is None:
        assert_rel_close(load(source, "vit_tiny_patch16_224").w, w)
        return
    with pytest.raises(InputError, match=match):
        load(source)


@pytest.mark.parametrize("name", ["model.safetensors", "open_clip_model.safetensors"])
def test_hub_files_of_weights_alone_are_fetched(tmp_path, monkeypatch, name):
    hub = pytest.importorskip("huggingface_hub")
    config, w = model()
    folder = write(tmp_path, timm(config, w))
    (folder / "model.safetensors").rename(folder / name)
    (folder / "pytorch_model.bin").touch()
    (folder / "cache").mkdir()
    own = {"model.safetensors", "config.json"}  # open_clip's weights are fetched where no others are

    def fetch(hub_id, revision, allow_patterns):
        for path in [path for path in folder.iterdir() if any(path.match(pattern) for pattern in allow_patterns)]:
            shutil.copy(path, folder / "cache" / path.name)
        return folder / "cache"

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert_rel_close(load("hf-hub:org/tiny").w, w)
    assert {path.name for path in (folder / "cache").iterdir()} == (own if name in own else {name, "config.json"})


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "MODEL.SAFETENSORS"])
def test_only_safetensors_file_is_weights(tmp_path, name):
    config, w = model()
    folder = write(tmp_path, timm(config, w))
    (folder / "model.safetensors").rename(folder / name)
    assert_rel_close(load(folder).w, w)


@pytest.mark.parametrize("name", ["m.npz", "M.NPZ"])
def test_json_beside_npz_is_read(tmp_path, name):
    config, w = model()
    np.savez(tmp_path / "m.npz", **timm(config, w))
    (tmp_path / "m.npz").rename(tmp_path / name)
    found = load(said(tmp_path, config={"pretrained_cfg": {"crop_pct": 0.8}}) / name)
    assert (found.model.config, found.model.preprocessing.crop) == (config, 0.8)
    np.savez(tmp_path / "m.npz", **google(config, w))
    assert load(tmp_path / "m.npz").model.preprocessing.crop == 0.8


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("m.safetensors", b"PK\3\4...", "got m.safetensors, which is a pickle of PyTorch's"),
        ("pytorch_model.bin.index.json", b"{}", "got pytorch_model.bin.index.json, which is a pickle"),
        ("config.json", b"{}", "got config.json. Pass such a file or its folder"),
    ],
)
def test_file_of_another_format_is_refused(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"must be a .npz or .safetensors file; {match}"):
        load(tmp_path / name)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize("name", ["model.safetensors", "part.safetensors", "model.npz", "config.json"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    config, w = model()
    folder = write(tmp_path, timm(config, w))
    (folder / name).write_bytes(POINTER)
    if name == "part.safetensors":
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"head.bias": name}}))
    with pytest.raises(InputError, match=rf"{name} must be the file itself; it is a pointer of Git LFS .*git lfs pull"):
        load(folder / name if name.endswith("npz") else folder)


# Other names of one network


def test_timm_model_in_transformers_is_timms(tmp_path):
    config, w = model()
    write(tmp_path, {f"timm_model.{name}": value for name, value in timm(config, w).items()})
    beside = json.loads((tmp_path / "config.json").read_text()) | {
        "model_type": "timm_wrapper", "architectures": ["TimmWrapperForImageClassification"], "do_pooling": True,
        "initializer_range": 0.02, "dtype": "float32", "label_names": ["a"] * 7, "problem_type": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(beside))
    assert_rel_close(load(tmp_path).w, w)
    (tmp_path / "config.json").write_text(json.dumps({**beside, "model_type": "swin"}))
    with pytest.raises(InputError, match=r"model_type in config.json .* must be one of timm_wrapper, .*; got 'swin'"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**beside, "model_type": "vit"}))
    with pytest.raises(InputError, match=r"model_type in config.json .* must be timm_wrapper, .*; got vit"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["swin", "beit", "convnext", "clip_text_model", ["vit"]])
@pytest.mark.parametrize("prefix", ["", "swin.", "text_model."])
def test_unknown_model_type_is_the_cause(tmp_path, capsys, kind, prefix):
    tensors = {f"{prefix}embeddings.norm.weight": ONES, f"{prefix}encoder.layers.0.blocks.0.norm1.weight": ONES}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "quantization_config": {"bits": 4}}))
    with pytest.raises(InputError, match=r"model_type in config\.json .* must be one of .*vit.*; got .*no network of"):
        load(tmp_path)
    assert "taken off" not in capsys.readouterr().err


def test_layer_scale_has_one_of_three_names(tmp_path):
    """timm's, Hugging Face's, and that of DeiT III's authors."""
    config, w = model(layer_scale=True)
    tensors = timm(config, w)
    deit = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", name): value for name, value in tensors.items()}
    assert_rel_close(load(write(tmp_path, deit)).w, w)
    spelled = {name.replace(".gamma", ".weight"): value for name, value in tensors.items()}
    assert_rel_close(load(write(tmp_path, spelled)).w, w)
    with pytest.raises(InputError, match=r"blocks.*ls1\.\w+ and blocks.*ls1\.\w+ are one under two names"):
        load(write(tmp_path, {**tensors, **spelled}))


def transformers_5(tensors):
    """Hugging Face's names as `save_pretrained(save_original_format=False)` writes them."""
    pairs = {"encoder.layer.": "layers.", "attention.attention.query": "attention.q_proj"}
    pairs |= {"attention.attention.key": "attention.k_proj", "attention.attention.value": "attention.v_proj"}
    pairs |= {"attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}
    return renamed(tensors, pairs)


def test_transformers_5_names_give_our_tree(tmp_path):
    config, w = model(eps=1e-12)
    tensors = transformers_5(hugging_face(config, w))
    assert "vit.layers.1.attention.o_proj.weight" in tensors
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "num_attention_heads": 2}))
    assert_rel_close(load(tmp_path).w, w)


@pytest.mark.parametrize("names", ["timm", "Hugging Face"])
def test_deit_heads_are_one_on_both_tokens(tmp_path, names):
    """Its logits are the mean of both heads', as a second model with the other head on the other token has them."""
    config, w = model(eps=1e-12 if names == "Hugging Face" else 1e-6)
    rng = np.random.default_rng(0)
    token, position, other = (
        rng.normal(size=shape).astype(np.float32) for shape in ((1, 1, 128), (1, 1, 128), (7, 128))
    )
    if names == "timm":
        tensors = timm(config, w)
        more = {"dist_token": token, "head_dist.weight": other, "head_dist.bias": np.ones(7, np.float32)}
        name = "pos_embed"
        write(tmp_path, tensors)
    else:
        tensors = {n.replace("vit.", "deit.").replace("classifier", "cls_classifier"): v
                   for n, v in hugging_face(config, w).items()}  # fmt: skip
        more = {"deit.embeddings.distillation_token": token, "distillation_classifier.weight": other}
        more["distillation_classifier.bias"] = np.ones(7, np.float32)
        name = "deit.embeddings.position_embeddings"
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "deit", "num_attention_heads": 2}))
    rows = np.concatenate([tensors[name][:, :1], position, tensors[name][:, 1:]], 1)
    save_file({**tensors, **more, name: rows}, tmp_path / "model.safetensors")
    found = load(tmp_path)
    assert (found.model.config.pool, found.model.config.registers) == ("token_register", 1)
    x = images(dtype=np.float32)
    tokens = found.model.replace(classes=0).apply({n: leaf for n, leaf in found.w.items() if n != "head"}, x)
    first, second = np.split(np.asarray(tokens), 2, -1)
    want = (first @ w["head"]["kernel"] + w["head"]["bias"] + second @ other.T + 1) / 2
    assert_rel_close(found.model.apply(found.w, x), want)
    broken = {**tensors, **more, name: rows}
    del broken["head_dist.weight" if names == "timm" else "distillation_classifier.weight"]
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="two heads of one shape"):
        load(tmp_path)


def test_clip_classifier_reads_patch_mean(tmp_path):
    """SigLIP's are normalised and its attention pool is not read; CLIP's are not."""
    for name, pool in (("siglip", "norm_avg"), ("clip", "plain_avg")):
        width = modern(name, tmp_path).model.config.width
        tensors = load_file(tmp_path / "model.safetensors")
        tensors = {name: value for name, value in tensors.items() if "projection" not in name}
        more = {"classifier.weight": np.ones((5, width), np.float32), "classifier.bias": np.ones(5, np.float32)}
        save_file(tensors | more, tmp_path / "model.safetensors")
        found = load(tmp_path).model.config
        assert (found.pool, found.classes) == (pool, 5)


def test_siglip_without_pool_reads_patch_mean(tmp_path):
    """As its classifier does, of normalised patches."""
    modern("siglip", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: own for name, own in tensors.items() if "head." not in name}, tmp_path / "model.safetensors")
    assert load(tmp_path).model.config.pool == "norm_avg"


FUSED = {"attn.qkv.": "attn.in_proj_", "attn.proj": "attn.out_proj"}
"""torch's nn.MultiheadAttention names of timm's attention."""


def renamed(tensors, pairs):
    spelled = {}
    for name, value in tensors.items():
        for old, new in pairs.items():
            name = name.replace(old, new)
        spelled[name] = value
    return spelled


def test_torchvision_names_need_their_heads(tmp_path, monkeypatch):
    config, w = model(position_filter="bicubic_corners")
    pairs = {"blocks.": "encoder.layers.encoder_layer_", "norm1": "ln_1", "norm2": "ln_2", "attn": "self_attention"}
    pairs |= {"mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3", "cls_token": "class_token", "pos_embed": "encoder.pos_embedding"}
    pairs |= {"patch_embed.proj": "conv_proj", "norm.": "encoder.ln.", "head.": "heads.head."}
    save_file(renamed(timm(config, w), FUSED | pairs), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"heads of .* must be known: .*\(128, 2, 24, 4\).* architecture=NAME"):
        load(tmp_path)
    monkeypatch.setitem(TORCHVISION_HEADS, (128, 2, 24, 4), 2)
    found = load(tmp_path)
    assert found.model.config == config
    assert_rel_close(found.w, w)


def open_clip(tmp_path, model_cfg=None, prefix="", **vision):
    config, w = model(pre_norm=True, eps=1e-5)
    pairs = {"blocks.": "transformer.resblocks.", "norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc"}
    pairs |= {"mlp.fc2": "mlp.c_proj", "cls_token": "class_embedding", "pos_embed": "positional_embedding"}
    pairs |= {"patch_embed.proj": "conv1", "norm_pre": "ln_pre", "norm.": "ln_post."}
    tensors = renamed(timm(config, w), FUSED | pairs)
    kernel = tensors.pop("head.weight")
    tensors |= {"proj": np.ascontiguousarray(kernel.T), "class_embedding": tensors["class_embedding"].reshape(-1)}
    del tensors["head.bias"], tensors["conv1.bias"]
    text = {} if not prefix else {"transformer.resblocks.0.ln_1.bias": ONES, "positional_embedding": ONES}
    text |= {} if not prefix else {"input_resolution": np.array(8)}  # OpenAI's
    save_file({prefix + name: value for name, value in tensors.items()} | text, tmp_path / "model.safetensors")
    said = {"layers": 2, "width": 128, "patch_size": 4, "image_size": 8, **vision}
    if model_cfg is not None:
        whole = {"model_cfg": {"embed_dim": 7, "vision_cfg": said, "text_cfg": {}, **model_cfg}}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(whole))
    w = jax.tree.map(lambda leaf: leaf, w)
    for path in ("head", "patch_embedding"):
        w[path] = {**w[path], "bias": jnp.zeros_like(w[path]["bias"])}
    return config, w


@pytest.mark.parametrize("prefix", ["", "visual."])
def test_open_clip_tower_is_read(tmp_path, prefix):
    config, w = open_clip(tmp_path, {"quick_gelu": True}, prefix)
    found = load(tmp_path)
    assert found.model.config == config.replace(activation="quick_gelu")
    assert_rel_close(found.w, w)


def test_open_clip_images_are_of_its_json(tmp_path):
    squash = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
    want = Preprocessing(crop=1.0, interpolation="bilinear", resize="exact")
    config = vit_config("Ti/16", classes=2, depth=12)
    w = initial_weights(VisionTransformer(config), jax.random.key(0))
    tensors = {f"visual.trunk.{name}": np.ascontiguousarray(value) for name, value in timm(config, w).items()}
    save_file(tensors, tmp_path / "open_clip_model.safetensors")
    vision = {"timm_model_name": "vit_tiny_patch16_224", "image_size": 224}
    for beside, own in (({"preprocess_cfg": squash}, want), ({}, Preprocessing(*CLIP, 1.0))):
        whole = {"model_cfg": {"embed_dim": 2, "vision_cfg": vision, "text_cfg": {}}} | beside
        (tmp_path / "open_clip_config.json").write_text(json.dumps(whole))
        assert load(tmp_path).model.preprocessing == own


def test_open_clip_images_may_be_rectangular(tmp_path):
    open_clip(tmp_path, {}, image_size=[16, 4])
    assert load(tmp_path).model.image_size == (16, 4)  # as many patches as 8 x 8


@pytest.mark.parametrize(
    ("model_cfg", "vision", "match"),
    [
        (None, {}, "the activation and heads of .* must be said"),
        ({"qk_norm": True}, {}, "no qk_norm in model_cfg of open_clip_config.json"),
        ({}, {"attentional_pool": True}, "no attentional_pool in vision_cfg"),
        ({}, {"pool_type": "avg"}, "pool_type of .* must be tok"),
        ({}, {"layers": 3}, "must be those of 3 layers of 128 features, .*; got 2 layers"),
    ],
)
def test_open_clip_config_is_refused(tmp_path, model_cfg, vision, match):
    open_clip(tmp_path, model_cfg, **vision)
    with pytest.raises(InputError, match=match):
        load(tmp_path)


def test_clip_classifier_trains_and_is_saved(tmp_path):
    """Without a last norm the last block's stage and the head are all that is trained."""
    network, w = small(pool="plain_avg")
    made = Pretrained(network, trees.cast(w, jnp.float32), "here")
    assert not [path for path in tangent(made, 1).subset.paths if path.startswith("norm/")]
    save(tmp_path / "m.safetensors", made)
    assert load(tmp_path / "m.safetensors").model == network


# timm's config.json


def test_flat_timm_config_is_pretrained_cfg(tmp_path):
    config, w = model()
    images = {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3, "crop_pct": 0.8, "interpolation": "bilinear"}
    names = {"first_conv": "patch_embed.proj", "classifier": "head", "url": "u", "labels": ["a"] * 7}
    write(tmp_path, timm(config, w))
    found = load(said(tmp_path, config={**images, **names, "num_features": 128})).model
    assert found == load(said(tmp_path, config={"pretrained_cfg": images})).model
    assert (found.preprocessing.mean, found.preprocessing.crop) == ((0.1, 0.2, 0.3), 0.8)


# Original programs of timm's networks


def test_dinov2_names_give_timm_network(tmp_path):
    config, w = model(layer_scale=True)
    plain = timm(config, w)
    registers = np.ones((1, 4, 128), np.float32)
    token = plain["cls_token"] + plain["pos_embed"][:, :1]
    of_timm = {**plain, "cls_token": token, "pos_embed": plain["pos_embed"][:, 1:], "reg_token": registers}
    own = {re.sub(r"^blocks\.", "blocks.0.", name): value for name, value in plain.items()}
    own |= {"register_tokens": registers, "mask_token": np.zeros((1, 128), np.float32)}
    found = []
    for name, tensors in (("timm", of_timm), ("own", own)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tensors)
        found.append(load(said(tmp_path / name, "vit_small_patch14_reg4_dinov2")))
    assert found[0].model == found[1].model
    assert found[0].model.config.registers == 4
    assert_rel_close(found[1].w, found[0].w)


OF_DINOV3 = {"layer_scale": True, "class_token": True, "registers": 4, "positions": "rotary", "eps": 1e-5, "classes": 0}


def own_dinov3(gated=False, theta=100.0):
    """(the configuration, the weights, the tensors that DINOv3's own program saves); keys have a masked bias."""
    config = ViTConfig(32, 2, 2, 24, patch_size=4, image_size=224, gated=gated, rope_theta=theta, **OF_DINOV3)
    config = config.replace(activation="silu" if gated else "gelu")
    w = tree_normal(0, initial_weights(VisionTransformer(config), jax.random.key(0)))
    for i in range(2):
        w[f"block_{i}"]["attention"]["key"]["bias"] = np.zeros((2, 16), np.float32)
    tensors = {"storage_tokens": w["registers"][None], "mask_token": np.ones((1, 32)), "local_cls_norm.weight": ONES}
    tensors |= {"rope_embed.periods": theta ** (np.arange(4) / 4), "projectors.a.0.weight": ONES}
    for name, value in timm(config.replace(positions="learned"), w | {"registers": w["registers"]}).items():
        if gated and ".mlp.fc1." in name:
            gate, other = np.split(value, 2)
            tensors |= {name.replace("fc1", "w1"): gate, name.replace("fc1", "w2"): other}
        elif name != "reg_token":
            tensors[name.replace("fc2", "w3") if gated else name] = value
        if name.endswith("qkv.bias"):
            tensors[f"{name}_mask"] = np.repeat([1, 0, 1], 32)
            tensors[name] = value + np.repeat([0, 9, 0], 32)
    return config, w, {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}


@pytest.mark.parametrize(("gated", "theta", "dtype"), [(False, 1e2, "f4"), (True, 1e4, "f4"), (False, 1e2, "f2")])
def test_dinov3_own_names_show_the_network(tmp_path, capsys, gated, theta, dtype):
    config, w, tensors = own_dinov3(gated, theta)
    tensors["rope_embed.periods"] = tensors["rope_embed.periods"].astype(dtype)
    save_file({f"teacher.backbone.{name}": value for name, value in tensors.items()}, tmp_path / "m.safetensors")
    found = load(tmp_path / "m.safetensors")
    assert found.model.config == config
    assert_rel_close(found.w, w)
    assert "for LVD-1689M (ImageNet's colours) is assumed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "name", "match"),
    [
        ({"rope_embed.periods": None}, None, "must hold rope_embed.periods, .* Say architecture=NAME"),
        ({"rope_embed.periods": ONES}, None, "must be powers of one number from 1 on, .* of 32; got .*, 3 in all"),
        ({"rope_embed.periods": np.float32([1, 2, 3, 9])}, None, "must be powers of one number"),
        ({"blocks.0.attn.qkv.bias_mask": ONES}, None, r"must have the shape of its mask, \(3,\); got \(96,\)"),
        ({}, "vit_small_patch16_dinov3", "width of .* must be 384, as vit_small_patch16_dinov3 has; got 32"),
        ({}, "dinov3-B/16", "width of .* must be 768, as dinov3-B/16 has; got 32"),
    ],
)
def test_wrong_dinov3_file_is_refused(tmp_path, change, name, match):
    tensors = {name: value for name, value in (own_dinov3()[2] | change).items() if value is not None}
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=match):
        load(tmp_path / "m.safetensors", name)

"""A frozen head: CLIP's logits, the tangent through its normalisation, and tasks that share one body."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import composed, small
from safetensors.numpy import save_file

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.predict import tangent
from tangent_jax.models.subsets import make_subset
from tangent_jax.models.trunk import Trunk
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.frozen_head import read_frozen_head
from tangent_jax.pretrained.load import load
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.fit import fit
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam

KEY = jax.random.key(0)
FIXTURE = np.load(Path(__file__).with_name("frozen_head.npz"))
NAMES = ("a cat", "a dog", "an owl")


def head(width=7, names=NAMES, seed=0, scale=3.0):
    """Embeddings drawn by their names, of lengths that differ."""
    rows = [np.random.default_rng([seed, *name.encode()]).standard_normal(width) for name in names]
    return FrozenHead(tuple(names), np.array(rows), scale)


def frozen(with_projection=True, **variant):
    """A small ViT below a frozen head, its last dense layer (7 outputs) or its final norm (12) giving embeddings."""
    model, w = small(**variant)
    if not with_projection:
        model, w = model.with_classes(0), {name: part for name, part in w.items() if name != "head"}
    made = Pretrained(model, w, "here").with_frozen_head(head(7 if with_projection else 12))
    return Pretrained(made.model, trees.cast(made.w, w["class_token"].dtype), "here")


@pytest.mark.parametrize("road", ["plain", "tangent"])
def test_logits_are_those_of_hugging_face_s_clip(x64, road):
    config = ViTConfig(24, 2, 3, 20, 4, 12, classes=8, eps=1e-5, pre_norm=True, activation="quick_gelu")
    paths = [path.removeprefix("clip/") for path in FIXTURE if path.startswith("clip/")]
    w = trees.nest({path: jnp.asarray(FIXTURE[f"clip/{path}"]) for path in paths})
    texts, x = FIXTURE["text embeddings"], jnp.asarray(FIXTURE["images"], float)
    lengths = np.arange(1, 6)[:, None]  # which say nothing
    embeddings = FrozenHead(("a", "b", "c", "d", "e"), lengths * texts, float(FIXTURE["scale"]))
    made = Pretrained(VisionTransformer(config), w, "here").with_frozen_head(embeddings)
    w, model = trees.cast(made.w, float), made.model
    got = model.apply(w, x) if road == "plain" else model.dual(trees.pair(w, {"norm": w["norm"]}), x).primal
    want = FIXTURE["logits"]
    assert np.abs(np.asarray(got) - want).max() < 2e-5 * np.abs(want).max()  # theirs is f32


def test_no_subset_trains_the_head():
    model = frozen().model
    for kind in ("blocks", "bitfit", "layernorm", "everything"):
        paths = make_subset(model, kind, 1).paths
        assert not [path for path in paths if path.startswith("head/")], kind
        assert ("projection/kernel" in paths) == (kind in ("blocks", "everything"))
        assert "projection/bias" not in paths  # CLIP has none
    assert "projection/kernel" not in frozen(with_projection=False).model.shapes()
    with pytest.raises(InputError, match=r"kind head must choose a leaf, .*; got none"):
        make_subset(model, "head")


def test_heads_of_tasks_share_features():
    model, w = small()
    plain = Pretrained(model, w, "here")
    one, other = (plain.with_frozen_head(head(names=names)) for names in (NAMES, ("left", "right")))
    anchors, heads = zip(*(fingerprints(made.w) for made in (one, other)), strict=True)
    assert anchors[0] == anchors[1]
    assert heads[0] != heads[1]
    keys = {Trunk(p.model, p.w, 2).key() for p in (plain, one, other)}
    assert len(keys) == 1
    assert tangent(one).subset == tangent(other).subset


def test_head_is_read_by_class_names(tmp_path):
    path, made = tmp_path / "head.safetensors", head()
    tensors = {"embeddings": made.embeddings.astype(np.float16), "logit_scale": np.array(3, np.float32)}
    save_file(tensors, path, {"classes": "\n".join(NAMES)})
    read = read_frozen_head(path)
    assert (read.classes, read.logit_scale, read.source) == (NAMES, 3.0, str(path))
    turned = read.of_classes(NAMES[::-1])
    assert turned.classes == NAMES[::-1]
    np.testing.assert_array_equal(turned.leaf()[:, ::-1], read.leaf())
    np.testing.assert_allclose(np.linalg.norm(read.leaf(), axis=0), 3, rtol=1e-6)
    save_file({"embeddings": tensors["embeddings"]}, path, {"classes": "\n".join(NAMES)})
    assert read_frozen_head(path).logit_scale == 100


BAD = {
    "names": ({}, {}, r"metadata of .*head.safetensors must name the classes, .*; got none"),
    "fewer": (
        {},
        {"classes": "a\nb"},
        r"embeddings must be \(classes, width\), of the 2 named classes; got \(3, 7\) in",
    ),
    "twice": ({}, {"classes": "a\nb\na"}, r"names of classes must differ; got \['a'\] twice in .*safetensors"),
    "other": ({"weight": np.ones(2)}, {}, "must hold tensors embeddings and logit_scale alone; got embeddings, weight"),
    "zero": (
        {"embeddings": np.eye(3, 7, 1) * 0},
        {"classes": "a\nb\nc"},
        r"embeddings must be finite, and not 0; got another of \['a'\]",
    ),
    "scale": (
        {"logit_scale": np.ones(2)},
        {"classes": "a\nb\nc"},
        r"logit_scale in .* must be one number; got shape \(2,\)",
    ),
    "scale 0": ({"logit_scale": np.zeros(1)}, {"classes": "a\nb\nc"}, "logit_scale must be a finite number > 0; got 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_head_is_one_line(tmp_path, case):
    changes, metadata, message = BAD[case]
    tensors = {"embeddings": head().embeddings} | changes
    save_file(tensors, tmp_path / "head.safetensors", metadata)
    with pytest.raises(InputError, match=message):
        read_frozen_head(tmp_path / "head.safetensors")


def test_wrong_head_is_refused():
    with pytest.raises(InputError, match=r"data set's 2 classes; got none of 'a fox' in the head\. Make"):
        head().of_classes(["a cat", "a fox"])
    with pytest.raises(InputError, match="data set's 1 classes alone; got those of 'a dog', 'an owl' too in the"):
        head().of_classes(["a cat"])
    plain = Pretrained(*small(), "here")
    with pytest.raises(InputError, match=r"embeddings must have width 7, .*; got width 5\. Take"):
        plain.with_frozen_head(head(5))
    for made in (plain.with_frozen_head(head()), plain.with_lora(2, 1, KEY)):
        with pytest.raises(InputError, match="the model must be as it was loaded; got"):
            made.with_frozen_head(head())
    made = plain.with_frozen_head(head())
    with pytest.raises(InputError, match="the model must have no frozen head; got one that has it"):
        made.with_head(4, KEY)
    with pytest.raises(InputError, match=r"needs a model that has it, .*Do it before with_lora and with_frozen_head"):
        made.with_image_size(12)


def test_frozen_head_bodies_add_up(tmp_path):
    """The eight tasks' way, small: two tasks, a file for each head, one body between them."""
    digits, body = open_dataset("digits"), load("builtin").with_head(16, KEY)
    bodies, tasks = {}, {}
    for name, classes in {"low": ("0", "1", "2"), "high": ("7", "8", "9")}.items():
        path = tmp_path / f"{name}.safetensors"
        made = head(16, classes[::-1], seed=1, scale=30.0)
        save_file(
            {"embeddings": made.embeddings, "logit_scale": np.array(30.0)}, path, {"classes": "\n".join(made.classes)}
        )
        predict = tangent(body.with_frozen_head(read_frozen_head(path).of_classes(classes)))
        rows = np.flatnonzero(np.isin(digits.train.labels, [digits.classes.index(c) for c in classes]))[:150]
        features = extract(predict, digits.train.take(rows), Cache(tmp_path / "cache"))
        labels = [classes.index(digits.classes[label]) for label in digits.train.labels[rows]]
        data = dataclasses.replace(features, targets=np.array(labels, np.int32))
        bodies[name] = fit(predict, data, make_objective("ce"), key=KEY, optimizer=adam(1e-3), epochs=4).dw
        tasks[name] = predict, data
    together = composed(bodies)
    for name, (predict, data) in tasks.items():
        assert evaluate(predict, predict.zeros(), data) < 0.7, name
        assert evaluate(predict, bodies[name], data) > 0.95, name
        assert evaluate(predict, together, data) > 0.8, name


def test_docs_snippet_makes_head_hugging_face(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="parity needs torch and transformers: make parity")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers: make parity")
    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, **{letter: 3 + i for i, letter in enumerate("abc")}}
    transformers.CLIPTokenizer(vocab=words, merges=[]).save_pretrained(tmp_path)
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20}
    text = {**sizes, "vocab_size": len(words), "eos_token_id": 1, "bos_token_id": 0}
    parts = {"text_config": text, "vision_config": {**sizes, "image_size": 8, "patch_size": 4}, "projection_dim": 7}
    transformers.CLIPModel(transformers.CLIPConfig(**parts)).save_pretrained(tmp_path)
    page = (Path(__file__).parents[2] / "docs/howto/merge.md").read_text()
    code = page.partition("```py\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(code.replace("openai/clip-vit-base-patch32", str(tmp_path)), {})
    read = read_frozen_head("eurosat.safetensors").of_classes(["annual crop land"])
    assert read.embeddings.shape == (1, 7)
    assert abs(read.logit_scale / np.exp(2.6592) - 1) < 1e-6

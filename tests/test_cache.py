"""The cache of tail inputs: computed once, continued, checked, and keyed by what decides it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, tree_normal

from tangent_jax import trees, vit, weights
from tangent_jax.checks import InputError
from tangent_jax.config import ViTConfig
from tangent_jax.data import cache
from tangent_jax.data.decode import decode
from tangent_jax.data.sources import Examples
from tangent_jax.predict import Predictor
from tangent_jax.subsets import IMAGES, make_subset

CONFIG = ViTConfig(12, 3, 3, 20, patch_size=4, image_size=8, classes=7)
MODEL = weights.Pretrained(CONFIG, vit.init(CONFIG, jax.random.key(0)), weights.Preprocessing(), "here")
PICTURES = np.random.default_rng(0).integers(0, 256, (150, 9, 9, 3), np.uint8)


def examples(reads=None, bad=()):
    def read(i):
        if reads is not None:
            reads.append(i)
        return b"text" if i in bad else PICTURES[i]

    return Examples(tuple(f"image {i}" for i in range(150)), np.arange(150, dtype=np.int32) % 7, read)


def expected(split):
    x = MODEL.preprocessing.normalize(np.stack([decode(p, "", 8, MODEL.preprocessing) for p in PICTURES]))
    return vit.ViT(CONFIG).apply({"params": MODEL.params}, x, split, method="trunk")


@pytest.mark.parametrize("split", [0, 2, 3])
def test_the_cache_holds_what_the_trunk_returns(tmp_path, split):
    got = cache.tail_inputs(MODEL, examples(), split, tmp_path)
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(split)))
    assert (got.labels == examples().labels).all()


def test_images_are_kept_as_decoded(tmp_path):
    got = cache.tail_inputs(MODEL, examples(), IMAGES, tmp_path)
    assert got.inputs.dtype == np.uint8
    assert (got.inputs[7] == decode(PICTURES[7], "", 8, MODEL.preprocessing)).all()


def count_trunk(monkeypatch):
    calls = []
    run = cache.in_batches
    monkeypatch.setattr(cache, "in_batches", lambda f, x: calls.append(len(x)) or run(f, x))
    return calls


def test_a_second_call_computes_nothing(tmp_path, monkeypatch):
    first = cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    calls = count_trunk(monkeypatch)
    again = cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    assert calls == []
    assert (np.asarray(first.inputs) == np.asarray(again.inputs)).all()


def test_an_interrupted_extraction_goes_on(tmp_path, monkeypatch):
    def interrupted(self, chunk, values, skipped, write=cache.Store.write):
        if chunk == 1:
            raise KeyboardInterrupt
        write(self, chunk, values, skipped)

    with monkeypatch.context() as patch:
        patch.setattr(cache.Store, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    calls = count_trunk(monkeypatch)
    got = cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    assert calls == [64, 22]
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(2)))


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "journal"])
def test_a_damaged_cache_is_noticed_and_rebuilt(tmp_path, monkeypatch, harm):
    cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    data, journal = next(tmp_path.glob("*/inputs.bin")), next(tmp_path.glob("*/journal.jsonl"))
    content = bytearray(data.read_bytes())
    if harm == "flip":
        content[70 * 5 * 12 * 4] ^= 1
        data.write_bytes(content)
    elif harm == "truncate":
        data.write_bytes(content[:-100])
    elif harm == "remove":
        data.unlink()
    else:
        journal.write_text(journal.read_text()[:-20])
    calls = count_trunk(monkeypatch)
    got = cache.tail_inputs(MODEL, examples(), 2, tmp_path)
    assert calls == {"flip": [64], "truncate": [22], "remove": [64, 64, 22], "journal": [22]}[harm]
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(2)))


def test_the_key_follows_what_decides_the_rows():
    def key(model=MODEL, data=None, split=2, dtype=None):
        return cache.keys(model, data or examples(), split, dtype)[split]

    def changed(path):
        moved = trees.replace(MODEL.params, trees.nest({path: trees.leaves(MODEL.params)[path] + 1}))
        return weights.Pretrained(CONFIG, moved, MODEL.preprocessing, "")

    same = [changed("block_2/mlp_in/bias"), changed("head/bias"), changed("norm/scale")]
    assert {key(model) for model in same} == {key()}
    other_crop = weights.Pretrained(CONFIG, MODEL.params, weights.Preprocessing(crop=1.0), "")
    others = [
        key(changed("block_1/mlp_in/bias")),
        key(changed("class_token")),
        key(other_crop),
        key(split=1),
        key(dtype="bfloat16"),
        key(data=examples().take(np.arange(149))),
    ]
    assert len({key(), *others}) == 7


def test_a_higher_split_continues_from_a_lower_one(tmp_path):
    cache.tail_inputs(MODEL, examples(), 1, tmp_path)
    reads = []
    got = cache.tail_inputs(MODEL, examples(reads), 3, tmp_path)
    assert len(reads) == 150  # once each, for their identifiers; none decoded
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(3)))


def test_a_damaged_lower_split_is_not_continued_from(tmp_path):
    cache.tail_inputs(MODEL, examples(), 1, tmp_path)
    data = next(tmp_path.glob("*/inputs.bin"))
    content = bytearray(data.read_bytes())
    content[99] ^= 1
    data.write_bytes(content)
    got = cache.tail_inputs(MODEL, examples(), 3, tmp_path)
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(3)))


def test_an_unreadable_image_is_named_or_skipped_and_counted(tmp_path):
    for _ in range(2):  # also once the cache knows
        with pytest.raises(InputError, match="image 70"):
            cache.tail_inputs(MODEL, examples(bad=(70, 80)), 2, tmp_path)
        got = cache.tail_inputs(MODEL, examples(bad=(70, 80)), 2, tmp_path, skip_unreadable=True)
        assert (got.skipped, len(got.inputs), len(got.labels)) == (2, 148, 148)
        assert "image 70" not in [name for _, name in got.examples]
        kept = np.setdiff1d(np.arange(150), [70, 80])
        assert_rel_close(np.asarray(got.inputs), np.asarray(expected(2))[kept])


def test_bfloat16_is_stored_as_such_and_moves_the_rows_little(tmp_path):
    got = cache.tail_inputs(MODEL, examples(), 2, tmp_path, dtype="bfloat16")
    assert got.inputs.dtype == "bfloat16"
    assert_rel_close(np.asarray(got.inputs, np.float32), np.asarray(expected(2)), 5e-2)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_half_precision_rows_move_the_outputs_within_their_rounding(tmp_path, stored, blocks):
    subset = make_subset(CONFIG, blocks=blocks)
    dw = tree_normal(5, subset.part(MODEL.params))
    predict = Predictor(MODEL.params, CONFIG, subset.split)
    whole, half = (cache.tail_inputs(MODEL, examples(), subset.split, tmp_path, stored=kind) for kind in (None, stored))
    assert half.inputs.dtype == stored
    assert 2 * half.inputs.nbytes == whole.inputs.nbytes
    # a rounding moves a number by at most epsilon / 2 of itself; ten of those leave room for what amplifies it
    assert_rel_close(predict(dw, half.inputs), predict(dw, whole.inputs), 5 * float(jnp.finfo(stored).eps))

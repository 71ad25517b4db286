"""Features: computed once, continued, checked, and keyed by what decides them."""

import dataclasses
import os
import pickle
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, small, tree_normal
from PIL import Image

from tangent_jax.commands.shared.settings import Results
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.decode import decode
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.features import extract as module
from tangent_jax.features import row_store
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.inputs import tell_of_small_model
from tangent_jax.features.row_store import erase
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.trunk import Trunk
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load
from tangent_jax.solver.optimum import solve
from tangent_jax.train.evaluate import evaluate, outputs
from tangent_jax.train.features import Features
from tangent_jax.train.fit import fit

MODEL = VisionTransformer(ViTConfig(12, 3, 3, 20, patch_size=4, image_size=8, classes=7))
W = initial_weights(MODEL, jax.random.key(0))
PICTURES = np.random.default_rng(0).integers(0, 256, (150, 9, 9, 3), np.uint8)


def examples(reads=None, bad=()):
    def read(i):
        if reads is not None:
            reads.append(i)
        return b"text" if i in bad else PICTURES[i]

    return Examples(tuple(f"image {i}" for i in range(150)), np.arange(150, dtype=np.int32) % 7, read)


def expected(stage):
    x = MODEL.preprocessing.normalize(np.stack([decode(p, "", 8, MODEL.preprocessing) for p in PICTURES]))
    return MODEL.apply(W, x, 0, stage)


def compute(stage, folder, data=None, skip=False, **options):
    dtype, stored = options.pop("dtype", None), options.pop("stored", None)
    data = examples() if data is None else data
    cache = Cache(folder, stored, skip_unreadable=skip, **options)
    return extract(Trunk(MODEL, W, stage, dtype), data, cache)


@pytest.mark.parametrize("stage", [1, 3, 4])
def test_the_cache_holds_what_the_trunk_returns(tmp_path, stage):
    got = compute(stage, tmp_path)
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(stage)))
    assert (got.targets == examples().labels).all()


def test_images_are_kept_as_decoded(tmp_path):
    got = compute(0, tmp_path)
    assert got.inputs.dtype == np.uint8
    assert (got.inputs[7] == decode(PICTURES[7], "", 8, MODEL.preprocessing)).all()


def count_trunk(monkeypatch):
    calls = []
    run = module.on_devices
    monkeypatch.setattr(module, "on_devices", lambda *trunk: calls.append(trunk) or run(*trunk))
    return calls


@pytest.mark.parametrize("stored", [None, "float16"])
@pytest.mark.parametrize("stage", [0, 1, 3, 4])
def test_no_example_gives_empty_features(tmp_path, stage, stored):
    """It was a ValueError of a reshape, of the program that was traced for rows of no example."""
    data = examples()
    got = compute(stage, tmp_path / "none", data.take(np.zeros(0, int)), stored=stored)
    some = compute(stage, tmp_path / "some", data.take(np.arange(2)), stored=stored)
    assert got.inputs.shape == (0, *some.inputs.shape[1:])
    assert got.inputs.dtype == some.inputs.dtype
    assert (len(got), got.targets.dtype, got.examples) == (0, some.targets.dtype, ())
    assert not (tmp_path / "none").exists()


def test_no_example_is_not_trained_on(tmp_path):
    predict = tangent(Pretrained(MODEL, W, "test"))
    none = extract(predict, examples().take(np.zeros(0, int)), Cache(tmp_path))
    assert predict(predict.zeros(), np.asarray(none.inputs)).shape == (0, 7)
    calls = (
        lambda: none.batches(jax.random.key(0)),
        lambda: evaluate(predict, predict.zeros(), none),
        lambda: outputs(predict, predict.zeros(), none),
        lambda: fit(predict, none, key=jax.random.key(0)),
        lambda: solve(predict, none),
    )
    for call in calls:
        with pytest.raises(InputError, match=r"data must have at least one example .*; got none"):
            call()


def test_a_second_call_computes_nothing(tmp_path, monkeypatch):
    first = compute(3, tmp_path)
    calls = count_trunk(monkeypatch)
    for name in ("find_lower", "read_inputs"):  # nor does it look for what it does not need
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a complete cache needs nothing"))
    again = compute(3, tmp_path)
    assert calls == []
    assert (np.asarray(first.inputs) == np.asarray(again.inputs)).all()


def test_the_key_follows_what_decides_the_rows():
    def key(model=MODEL, w=W, stage=3, dtype=None, kept="float32"):
        return Trunk(model, w, stage, dtype).key(kept)

    def changed(path):
        return trees.replace(W, trees.nest({path: trees.leaves(W)[path] + 1}))

    same = [key(w=changed(path)) for path in ("block_2/mlp_in/bias", "head/bias", "norm/scale")]
    assert {*same, key(MODEL.with_classes(9)), key(MODEL.replace(class_token_at=2))} == {key()}
    others = [
        key(w=changed("block_1/mlp_in/bias")),
        key(w=changed("class_token")),
        key(dataclasses.replace(MODEL, preprocessing=Preprocessing(crop=1.0))),
        key(MODEL.replace(eps=1e-5)),
        key(stage=2),
        key(dtype="bfloat16"),
        key(kept="float16"),
    ]
    assert len({key(), *others}) == 8


@dataclasses.dataclass(frozen=True)
class Users(VisionTransformer):
    """A model of a user's own, with a field that nothing but `apply` knows."""

    gain: float = 1.0
    said: tuple[int, ...] | None = None

    def apply(self, w, x, start=0, stop=None):
        return self.gain * super().apply(w, x, start, stop)

    def input_shape(self, stage):
        return self.said if self.said and stage else super().input_shape(stage)


class Mended(Users):
    def apply(self, w, x, start=0, stop=None):
        return super().apply(w, x, start, stop) + 1.0


def test_changed_model_gets_new_rows(tmp_path):
    """A field that `trunk_settings` forgot came back as the old code's rows."""
    models = [Users(MODEL.config), Users(MODEL.config, gain=2.0), Mended(MODEL.config)]
    for model in [*models, *models]:
        got = extract(Trunk(model, W, 2), examples().take(np.arange(5)), Cache(tmp_path))
        x = MODEL.preprocessing.normalize(np.stack([decode(p, "", 8, MODEL.preprocessing) for p in PICTURES[:5]]))
        assert_rel_close(np.asarray(got.inputs), np.asarray(model.apply(W, x, 0, 2)))
    assert len([*tmp_path.iterdir()]) == 3


def test_changed_code_gets_new_rows(tmp_path, monkeypatch):
    """JAX compiles a function once; the rows of a model whose code was mended are computed by the new code."""
    model = Users(MODEL.config)
    before = extract(Trunk(model, W, 2), examples().take(np.arange(5)), Cache(tmp_path))
    plain = VisionTransformer.apply
    monkeypatch.setattr(Users, "apply", lambda self, *arguments: 3.0 * plain(self, *arguments))
    after = extract(Trunk(model, W, 2), examples().take(np.arange(5)), Cache(tmp_path))
    assert_rel_close(np.asarray(after.inputs), 3.0 * np.asarray(before.inputs))


def test_wrong_shape_writes_no_row(tmp_path):
    model = Users(MODEL.config, said=(10,))
    with pytest.raises(
        InputError, match=r"apply must give the input of stage 2 in the model.s shape \(10,\); got \(5, 12\)"
    ):
        extract(Trunk(model, W, 2), examples(), Cache(tmp_path))
    assert not [*tmp_path.rglob("rows.bin")]


def test_higher_stage_continues_lower(tmp_path):
    compute(2, tmp_path)
    reads = []
    got = compute(4, tmp_path, examples(reads))
    assert len(reads) == 151  # once each, for their identifiers, and one for its size; none decoded
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(4)))


def test_damaged_lower_stage_is_not_used(tmp_path):
    compute(2, tmp_path)
    data = next(tmp_path.glob("*/rows.bin"))
    content = bytearray(data.read_bytes())
    content[99] ^= 1
    data.write_bytes(content)
    got = compute(4, tmp_path)
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(4)))


def test_lower_stage_is_only_read(tmp_path):
    compute(2, tmp_path)
    (lower,) = tmp_path.iterdir()
    os.utime(lower / "rows.bin")  # so that its rows are compared
    before = {path: path.stat().st_mtime_ns for path in lower.iterdir()}
    compute(4, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in lower.iterdir()} == before


def test_altered_image_gives_no_row(tmp_path):
    pictures, data = PICTURES.copy(), examples()
    data = dataclasses.replace(data, read=lambda i: pictures[i])
    assert data.identifiers() == examples().identifiers()
    pictures[70] += 1
    with pytest.raises(InputError, match="the image image 70 must be as it was identified; it was altered since"):
        compute(3, tmp_path, data)


def test_unreadable_image_is_named_or_skipped(tmp_path):
    for _ in range(2):  # also once the cache knows
        with pytest.raises(InputError, match="image 70"):
            compute(3, tmp_path, examples(bad=(70, 80)))
        got = compute(3, tmp_path, examples(bad=(70, 80)), skip=True)
        assert (got.skipped, len(got.inputs), len(got.targets)) == (2, 148, 148)
        assert "image 70" not in [name for _, name in got.examples]
        kept = np.setdiff1d(np.arange(150), [70, 80])
        assert_rel_close(np.asarray(got.inputs), np.asarray(expected(3))[kept])


def test_raised_limit_reads_skipped_images(tmp_path):
    few = {"most_pixels": 9 * 9 - 1}
    assert compute(3, tmp_path, skip=True, **few).skipped == 150
    assert compute(3, tmp_path, skip=True, **few).skipped == 150
    got = compute(3, tmp_path, skip=True)
    assert got.skipped == 0
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(3)))
    with pytest.raises(InputError, match=r"most_pixels must be a whole number >= 1; got 0"):
        Cache(tmp_path, most_pixels=0)


def test_new_decoder_reads_skipped_images(tmp_path, monkeypatch):
    content = (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", b"\0\0\0\x18ftypheic\0\0\0\1mif1heic")
    data = Examples(("a.heic", "b.heic"), np.arange(2, dtype=np.int32), lambda i: content[i])
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert compute(3, tmp_path, data, skip=True).skipped == 2
    with pytest.raises(InputError, match=r"a.heic is a HEIC .* \(2 of the 2 images looked at cannot be read\)"):
        compute(3, tmp_path, data)
    opener = types.SimpleNamespace(HeifImageFile=lambda _: Image.fromarray(PICTURES[0]), __version__="1")
    monkeypatch.setitem(sys.modules, "pillow_heif", opener)
    got = compute(3, tmp_path, data, skip=True)
    assert (got.skipped, len(got.inputs)) == (0, 2)


def test_bfloat16_rows_are_stored_as_such(tmp_path):
    got = compute(3, tmp_path, dtype="bfloat16")
    assert got.inputs.dtype == "bfloat16"
    assert_rel_close(np.asarray(got.inputs, np.float32), np.asarray(expected(3)), 5e-2)


def test_weights_that_are_cast_once_give_the_trunks_own_bits(tmp_path):
    trunk = Trunk(MODEL, W, 3, jnp.bfloat16)  # a call casts them itself
    images = np.stack([decode(p, "", 8, MODEL.preprocessing) for p in PICTURES])
    size = module.rows_at_once()
    count = len(images) // size * size  # a row's bits depend on the size of its batch
    own = np.concatenate([trunk(images[at : at + size]) for at in range(0, count, size)])
    np.testing.assert_array_equal(extract(trunk, examples(), Cache(tmp_path)).inputs[:count], own)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_half_rows_move_outputs_by_rounding(tmp_path, stored, blocks):
    predict = tangent(Pretrained(MODEL, W, "here"), blocks)
    dw = tree_normal(5, predict.subset.part(W))
    whole, half = (extract(predict, examples(), Cache(tmp_path, kind)) for kind in (None, stored))
    assert half.inputs.dtype == stored
    assert 2 * half.inputs.nbytes == whole.inputs.nbytes
    # a rounding moves a number by at most eps / 2 of itself; ten of those leave room for what amplifies it
    assert_rel_close(predict(dw, half.inputs[:]), predict(dw, whole.inputs[:]), 5 * float(jnp.finfo(stored).eps))


def test_what_is_held_out_of_train_is_not_in_it():
    labels = np.repeat(np.arange(3, dtype=np.int32), 20)
    data = Features(np.arange(60.0)[:, None], labels, tuple((f"{i}", f"{i}.jpg") for i in range(60)), 0)
    train, held = data.hold_out()
    assert {*train.examples}.isdisjoint(held.examples)
    assert {*train.examples, *held.examples} == {*data.examples}
    assert np.bincount(held.targets).tolist() == [4, 4, 4]
    assert all(data.examples[int(x)] == pair for x, pair in zip(held.inputs[:, 0], held.examples, strict=True))


def test_a_part_of_the_features_copies_nothing(tmp_path):
    whole = compute(3, tmp_path)
    part = whole.take(np.arange(0, 150, 2)).take(np.arange(5, 20))
    assert not isinstance(part.inputs, np.ndarray)
    assert part.inputs.base is whole.inputs.base
    assert (part.inputs[3:5] == whole.inputs[16:20:2]).all()
    assert (part.inputs[2, 0] == whole.inputs[14, 0]).all()
    assert (np.asarray(part.inputs) == whole.inputs[10:40:2]).all()
    assert part.inputs.nbytes == 15 * whole.inputs[0].nbytes


def test_trained_features_pickle_without_copy(tmp_path):
    features = compute(3, tmp_path)
    features.batches().resident()
    again = pickle.loads(pickle.dumps(features))
    assert again.device.held is None
    assert features.device.held is not None
    assert (np.asarray(again.inputs) == np.asarray(features.inputs)).all()
    assert again.examples == features.examples


def test_shared_cache_stays_shared(tmp_path):
    tmp_path.chmod(0o755)
    compute(3, tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_rows_of_other_sets_are_read_not_computed(tmp_path, monkeypatch):
    compute(3, tmp_path)
    calls = count_trunk(monkeypatch)
    rows = np.r_[140:150, 3, 7]
    got = compute(3, tmp_path, examples().take(rows))
    assert calls == []
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(3))[rows])


def test_other_images_cost_no_lower_key(tmp_path, monkeypatch):
    """Each traces the program and hashes the weights: 32 s of a job of ViT-L/16 on a GPU."""
    compute(3, tmp_path, examples().take(np.arange(9)))
    keys = []
    monkeypatch.setattr(Trunk, "key", lambda self, kept=None, own=Trunk.key: keys.append(self.stage) or own(self, kept))
    compute(3, tmp_path, examples().take(np.arange(9, 18)))
    assert keys == [3]


def test_rows_erased_meanwhile_are_not_zeros(tmp_path, monkeypatch):
    compute(3, tmp_path)
    (folder,) = tmp_path.iterdir()
    gone = {examples().identifiers()[7]}
    find_lower = module.find_lower

    def then_erase(*arguments):
        found = find_lower(*arguments)
        erase(folder, gone.__contains__)
        return found

    monkeypatch.setattr(module, "find_lower", then_erase)
    rows = np.arange(5, 10)
    with pytest.raises(InputError, match=r"must stay while their features are in use; some were removed"):
        compute(4, tmp_path, examples().take(rows))
    monkeypatch.undo()
    got = compute(4, tmp_path, examples().take(rows))
    assert_rel_close(np.asarray(got.inputs), np.asarray(expected(4))[rows])


def test_kept_rows_of_zeros_are_copied_as_others(tmp_path):
    """A black image is no erased one."""
    black = np.zeros((9, 9, 3), np.uint8)
    data = Examples(("a", "b"), np.array([0, 1], np.int32), lambda i: black + i)
    compute(0, tmp_path, data)
    assert not compute(0, tmp_path, data.take(np.array([0]))).inputs[0].any()


def test_unwritten_cache_is_not_checked(tmp_path, monkeypatch):
    compute(3, tmp_path)
    (folder,) = tmp_path.iterdir()
    checked, crc = [], row_store.checksum
    monkeypatch.setattr(row_store, "checksum", lambda name, row: checked.append(name) or crc(name, row))
    os.utime(folder / "rows.bin", (1e9, 1e9))  # before its lines were written
    compute(3, tmp_path)
    assert checked == []
    os.utime(folder / "rows.bin")  # written to, by whomever
    compute(3, tmp_path)
    assert len(checked) == 150


def test_photographs_in_letter_model_are_said(capsys, tmp_path):
    """The 16 x 16 toy was trained on photographs, unsaid."""
    letters, photo = load("builtin"), np.zeros((60, 40, 3), np.uint8)
    of_photos = Examples(("a", "b"), np.array([0, 1], np.int32), lambda i: photo + i)
    for _ in range(2):
        extract(tangent(letters), of_photos, Cache(tmp_path / "cache"))
    err = capsys.readouterr().err
    assert err.count("the images have 40 x 60 pixels, and the model reads 16 x 16") == 1
    assert "Pass weights of a model of photographs" in err
    tell_of_small_model(letters.model, open_dataset("digits").train)
    tell_of_small_model(small(image_size=32, patch_size=16)[0], of_photos)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "complex64", "float8_e4m3fn", "int8", "junk"])
def test_rows_and_products_are_floats(dtype):
    """Others were truncated in silence."""
    with pytest.raises(InputError, match="dtype must be one of floats of 16 bits or more, or None"):
        Cache(dtype=dtype)
    with pytest.raises(InputError, match="dtype must be of floats of 16 bits or more, or None"):
        tangent(load("builtin"), dtype=dtype)


def test_folders_of_a_provenance_are_printable(tmp_path, monkeypatch):
    """A run would refuse them at its end."""
    with pytest.raises(InputError, match=r"the folder of a cache must have only characters that show; got .*u202fPM"):
        Cache(tmp_path / "8\u202fPM")
    with pytest.raises(
        InputError, match=r"--out: must be a path of characters that show; got .*u202fPM.*Rename the folder"
    ):
        Results(out=f"{tmp_path}/8\u202fPM").path("out")
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    assert Results(out="../results").path("out") == tmp_path.resolve() / "results"


def test_a_cache_is_one_folder(tmp_path):
    with pytest.raises(InputError, match=r"a cache must be one folder; got .*a,b\. If its name has a comma"):
        Cache(f"{tmp_path}/a,b")
    (tmp_path / "a,b").mkdir()
    assert Cache(f"{tmp_path}/a,b").path == tmp_path / "a,b"


def unreadable_class(split, classes=("cat", "dog", "hat")):
    """A data set of 4 images a class in train and test, in which no image of hat can be read in one split."""

    def part(name):
        names = tuple(f"{name}/{classes[i % 3]}/{i}" for i in range(12))
        bad = {i for i in range(12) if i % 3 == 2 and name == split}
        return Examples(names, np.arange(12, dtype=np.int32) % 3, lambda i: b"text" if i in bad else PICTURES[i])

    return Dataset("set", classes, {name: part(name) for name in ("train", "test")})


def test_unreadable_training_class_is_refused(tmp_path):
    data = unreadable_class("train")
    with pytest.raises(InputError, match=r"^4 of 4 images of hat cannot be read, .*train/hat/2") as error:
        compute(1, tmp_path, data.train, skip=True)
    assert "skip_unreadable" not in str(error.value)
    with pytest.raises(InputError, match="4 of 4 images of hat"):  # the rows are cached by now
        compute(1, tmp_path, data.train, skip=True)
    rest = data.train.without({data.train.identifiers()[0]})
    with pytest.raises(InputError, match="4 of 4 images of hat"):  # a removal of another image changes nothing
        compute(1, tmp_path, rest, skip=True)


def test_unreadable_test_class_is_said(tmp_path, capfd):
    assert compute(1, tmp_path, unreadable_class("test").test, skip=True).skipped == 4
    assert "4 of 4 images of hat cannot be read" in capfd.readouterr().err
    assert compute(1, tmp_path, unreadable_class("train").train.take(np.arange(6)), skip=True).skipped == 2
    assert "2 of 2 images of hat cannot be read" in capfd.readouterr().err


def test_partly_readable_class_is_not_said(tmp_path, capfd):
    data = Dataset("set", tuple("abcdefg"), {"train": examples(bad=(0, 1)), "test": examples()})
    assert compute(1, tmp_path, data.train, skip=True).skipped == 2
    assert not capfd.readouterr().err

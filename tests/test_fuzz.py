"""Whatever lies in a file: read, or refused in one line. Any exception but InputError and OSError fails.

Hypothesis writes zips, manifests, parquet, arrow, tars, CSVs, journals, ledgers, receipts and safetensors headers:
whole ones with bytes changed, and JSON of every shape. A bounded time each.
"""

import io
import json
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from data.layouts import FEATURES, as_parquet, as_saved, as_table, as_tar
from helpers import drop, filled, origin, part, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import picture
from safetensors.numpy import save

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.decode import decode
from tangent_jax.data.registry import open_dataset
from tangent_jax.exports.peft import read_peft
from tangent_jax.io import tensors
from tangent_jax.io.files import fingerprint
from tangent_jax.io.journal import Journal
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.records import seal_fields
from tangent_jax.models.anchor import Pretrained
from tangent_jax.pretrained.frozen_head import read_frozen_head
from tangent_jax.pretrained.load import FAMILIES, load
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.store.files import encode_component, read_component, read_metadata
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt

EXAMPLES = int(os.environ.get("TANGENT_JAX_FUZZ", "60"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[*HealthCheck], derandomize=True
)
LEAF = st.none() | st.booleans() | st.integers(-3, 2**70) | st.just(10**400) | st.floats() | st.text(max_size=4)
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def read(*readers):
    """Calls every reader; a refusal must be one line."""
    for reader in readers:
        try:
            reader()
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError("a refusal of several lines") from error
        except OSError:
            pass


@st.composite
def damaged(draw, content):
    """Bytes with a few of them changed, cut out, or written twice."""
    altered = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(altered) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "twice", "end"]))
        if how == "flip" and altered:
            altered[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del altered[at : at + draw(st.integers(1, 40))]
        elif how == "twice":
            altered[at:at] = altered[at : at + draw(st.integers(1, 40))]
        else:
            del altered[at:]
    return bytes(altered)


@st.composite
def mutated(draw, value):
    """JSON in which one place is something else, or gone."""
    copy = json.loads(json.dumps(value))
    node = copy
    while True:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not places:
            return copy
        place = draw(st.sampled_from(places))
        inner = node[place]
        if isinstance(inner, (dict, list)) and draw(st.booleans()):
            node = inner
            continue
        if draw(st.booleans()):
            del node[place]
        else:
            node[place] = draw(JSON)
        return copy


def zipped(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


PHOTO = picture()
NAMES = [f"{split}/{c}.png" for split in ("train", "test") for c in "ab"]
ITEMS = {"classes": ["a", "b"], "items": [[n, n.split("/")[0], int(n[-5] == "b")] for n in NAMES]}
FOLDERS = zipped({f"{split}/{c}/1.png": PHOTO for split in ("train", "test") for c in "ab"})


def read_dataset(path, kind="folder"):
    dataset = open_dataset(f"{kind}:{path}")
    for examples in dataset.splits.values():
        examples.identifiers()
        for i in range(len(examples)):
            read(lambda i=i, examples=examples: decode(examples.read(i), "", 8, Preprocessing()))


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@FUZZ
@given(content=damaged(FOLDERS))
def test_zips(folder, content):
    (folder / "z.zip").write_bytes(content)
    read(lambda: read_dataset(folder / "z.zip"))


@FUZZ
@given(manifest=mutated(ITEMS) | JSON)
def test_manifests(folder, manifest):
    members = {name: PHOTO for name in NAMES} | {"manifest.json": json.dumps(manifest)}
    (folder / "m.zip").write_bytes(zipped(members, zipfile.ZIP_STORED))
    read(lambda: read_dataset(folder / "m.zip"))


COLUMNS = {"image": [PHOTO, PHOTO + b" ", None, PHOTO + b"  "], "label": [0, 1, 1, None]}


def lay_out(folder, suffix):
    """Writes a whole train, which stays, and a test file, which is returned."""
    for split in ("train", "test"):
        if suffix == "arrow":
            as_saved(folder / split, COLUMNS)
        elif suffix == "parquet":
            as_parquet(folder / f"{split}.parquet", COLUMNS)
        else:
            members = [(f"{i}.{end}", c) for i in range(2) for end, c in (("png", PHOTO), ("json", b'{"y": %d}' % i))]
            as_tar(folder / f"{split}.tar", members)
    return folder / {"arrow": "test/data-00000-of-00001.arrow"}.get(suffix, f"test.{suffix}")


@pytest.mark.parametrize("suffix", ["arrow", "parquet", "tar"])
@FUZZ
@given(data=st.data())
def test_files_of_many_images(folder, suffix, data):
    file = folder / suffix
    if not file.exists():
        shutil.copy(lay_out(folder / f"d-{suffix}", suffix), file)
    lay_out(folder / f"d-{suffix}", suffix).write_bytes(data.draw(damaged(file.read_bytes())))
    read(lambda: read_dataset(folder / f"d-{suffix}", "wds" if suffix == "tar" else "hf"))


@FUZZ
@given(features=mutated({"info": {"features": FEATURES}}) | JSON, state=mutated({"_data_files": [{"filename": "a"}]}))
def test_features_of_columns_and_lists_of_files(folder, features, state):
    path = as_saved(folder / "one", COLUMNS) / "data-00000-of-00001.arrow"
    table = as_table(COLUMNS).replace_schema_metadata({"huggingface": json.dumps(features)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    read(lambda: read_dataset(folder / "one", "hf"))
    (folder / "one/state.json").write_text(json.dumps(state))
    read(lambda: read_dataset(folder / "one", "hf"))


@FUZZ
@given(fields=mutated({"y": 1}) | JSON, name=st.text(max_size=9), label=st.binary(max_size=9))
def test_members_of_tars(folder, fields, name, label):
    members = [("a.png", PHOTO), ("a.json", json.dumps(fields).encode()), ("b.png", PHOTO), ("b.cls", label)]
    as_tar(folder / "tars/train.tar", [*members, (f"{name}c.png".replace("\0", ""), PHOTO)])
    read(lambda: read_dataset(folder / "tars", "wds"), lambda: read_dataset(f"{folder}/tars?label=y", "wds"))


@FUZZ
@given(text=damaged(b"path,label,split\n1.png,a,train\n1.png,b,train\n1.png,a,test\n"), where=st.text(max_size=20))
def test_lists_and_specifications(folder, text, where):
    (folder / "1.png").write_bytes(PHOTO)
    (folder / "list.csv").write_bytes(text)
    read(lambda: read_dataset(folder / "list.csv", "csv"))
    for kind in ("hf", "wds", "csv"):
        read(lambda kind=kind: open_dataset(f"{kind}:{folder}/nowhere/{where}"))


@FUZZ
@given(content=damaged(PHOTO) | st.binary(max_size=60))
def test_images(content):
    read(lambda: decode(content, "photo", 8, Preprocessing()))


STEP = encode_component(part(0), trees.fingerprint(part(0)), {"provenance": origin(0).to_json()})
HEADER = json.loads(STEP[8 : 8 + int.from_bytes(STEP[:8], "little")])


with mock.patch.object(tensors, "LONG", 99):  # as of a million images: the provenance lies behind the numbers
    LONG_STEP = encode_component(part(0), trees.fingerprint(part(0)), {"provenance": origin(0).to_json()})


@FUZZ
@given(
    content=damaged(STEP[:3000]).map(lambda head: head + STEP[3000:])
    | damaged(LONG_STEP[:1500]).map(lambda head: head + LONG_STEP[1500:])
    | damaged(LONG_STEP[-1500:]).map(lambda tail: LONG_STEP[:-1500] + tail)
)
def test_steps(folder, content):
    (folder / "dw.safetensors").write_bytes(content)
    read(lambda: read_component(folder / "dw.safetensors"), lambda: read_metadata(folder / "dw.safetensors"))


@FUZZ
@given(header=mutated(HEADER) | JSON)
def test_headers_of_tensors(folder, header):
    text = json.dumps(header).encode()
    (folder / "h.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + STEP[-200:])
    read(lambda: read_component(folder / "h.safetensors"), lambda: load(folder / "h.safetensors"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@FUZZ
@given(data=st.data())
def test_weights_of_any_shape_and_number(folder, family, data):
    """Up to four tensors of a small model are left out, or have another shape, kind or number in their name."""
    model = family.model(family.small)
    tensors = model.to_world({path: np.ones(shape, np.float32) for path, shape in model.shapes().items()})
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors)), max_size=4)):
        shape = np.shape(tensors.pop(name))
        changed = data.draw(st.sampled_from([None, shape, shape[1:], (), (*shape, 1), (0, *shape)]), name)
        kind = data.draw(st.sampled_from([np.float32, np.float32, np.float16, np.int8, bool]), name)
        number = data.draw(st.sampled_from(["0", "1", "999999999"]), name)
        if changed is not None:
            tensors[re.sub(r"(?<=\.)\d+", number, name, count=1)] = np.ones(changed, kind)
    (folder / "w.safetensors").write_bytes(save(tensors))
    said = {"architecture": family.name, "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "config.json").write_text(json.dumps(data.draw(mutated(said) | JSON)))
    read(lambda: load(folder / "w.safetensors"))
    (folder / "config.json").unlink()


DESCRIBED = {
    "family": "vit", "names": "ours", "preprocessing": {"crop": 1.0},
    "wrappers": [{"frozen_head": {"shape": [3, 1000]}}, {"lora": {"rank": 1, "blocks": 1}}],
    "config": {"width": 8, "depth": 1, "heads": 2, "mlp_width": 9, "patch_size": 4, "image_size": 8, "eps": 1e-6},
}  # fmt: skip


@FUZZ
@given(fields=mutated(DESCRIBED) | JSON)
def test_descriptions_of_models(folder, fields):
    content = save({"head/bias": np.ones(3, np.float32)}, {"tangent_jax": json.dumps(fields)})
    (folder / "d.safetensors").write_bytes(content)
    read(lambda: load(folder / "d.safetensors"))


ADAPTER = {"peft_type": "LORA", "bias": "none", "r": 2, "lora_alpha": 4, "rank_pattern": {}, "use_dora": False}
FACTORS = {f"base_model.model.vit.layers.1.mlp.fc1.lora_{n}.weight": s for n, s in (("A", (2, 12)), ("B", (20, 2)))}
FACTORS |= {"base_model.model.classifier.weight": (7, 12), "base_model.model.classifier.bias": (7,)}


@FUZZ
@given(data=st.data())
def test_heads_and_adapters(folder, data):
    """Tensors of other shapes, kinds and names; metadata and configurations in which one place is something else."""
    here, files = folder / "adapter", {"adapter_model": FACTORS, "head": {"embeddings": (3, 4), "logit_scale": ()}}
    here.mkdir(exist_ok=True)
    for file, shapes in files.items():
        tensors = {}
        for name, shape in shapes.items():
            changed = data.draw(st.sampled_from([shape] * 4 + [shape[1:], (), (*shape, 1), (0, *shape)]), name)
            kind = data.draw(st.sampled_from([np.float32] * 4 + [np.float16, np.int8]), name)
            number = data.draw(st.sampled_from(["1", "1", "0", "999999999"]), name)
            tensors[name.replace(".1.", f".{number}.")] = np.ones(changed, kind)
        classes = data.draw(st.sampled_from(["a\nb\nc", "a\nb\nc", "a\na\nb", "", "a"]), file)
        (here / f"{file}.safetensors").write_bytes(save(tensors, {"classes": classes}))
    (here / "adapter_config.json").write_text(json.dumps(data.draw(mutated(ADAPTER) | JSON)))
    read(lambda: read_frozen_head(here / "head.safetensors"), lambda: read_peft(here, Pretrained(*small(), "here")))


@pytest.fixture(scope="module")
def store(folder):
    store = filled(folder / "store", 2)
    store.compose()
    return store, drop(store, "shard 1").path


@FUZZ
@given(data=st.data())
def test_journals(store, data):
    """Also lines whose hashes were computed anew: by a later version, or by hand."""
    whole = {path: path.read_bytes() for path in (store[0].journal.path, store[0].journal.head)}
    components = {path: path.read_bytes() for path in store[0].root.glob("*/*")}
    lines = [json.loads(line) for line in whole[store[0].journal.path].splitlines()]
    if data.draw(st.booleans()):
        path = data.draw(st.sampled_from([*whole]))
        path.write_bytes(data.draw(damaged(whole[path])))
    else:
        previous, text = "0" * 64, b""
        for line in data.draw(mutated(lines)):
            line = {**line, "previous": previous} if isinstance(line, dict) else line
            encoded = json.dumps(line).encode()
            previous, text = fingerprint(encoded), text + encoded + b"\n"
        store[0].journal.path.write_bytes(text)
        count = {"lines": text.count(b"\n"), "hash": previous}
        store[0].journal.head.write_text(json.dumps(count) + "\n")

    def use():
        again = Store(store[0].root)
        read(lambda: verify(again), lambda: plan_removal(again, examples=["photo 1.jpg"]))
        read(lambda: again.spent())

    try:
        read(use)
    finally:  # a journal that names nothing lets its files be swept
        for path, content in {**whole, **components}.items():
            path.write_bytes(content)


@FUZZ
@given(data=st.data())
def test_receipts(folder, store, data):
    content = store[1].read_bytes()
    altered = data.draw(damaged(content) | mutated(json.loads(content)).map(lambda r: json.dumps(r).encode()))
    (folder / "receipt.json").write_bytes(altered)
    read(lambda: verify_receipt(store[0], folder / "receipt.json"), lambda: read_receipt(folder / "receipt.json"))


@FUZZ
@given(fields=mutated(json.loads(origin(0).to_json())) | JSON)
def test_provenances(fields):
    read(lambda: Provenance.from_json(json.dumps(fields)))


ACCOUNT = {
    "run": "r", "checkpoint": None, "spent": {
        "mechanism": {"clip_norm": 1.0, "noise_multiplier": 2.0, "steps": 3, "delta": 1e-5, "sampling_rate": 1.0},
        "steps_paid": 2, "private": True,
    },
}  # fmt: skip


@FUZZ
@given(data=st.data())
def test_ledgers(folder, data):
    whole = seal_fields(ACCOUNT).encode()
    content = data.draw(damaged(whole) | mutated(ACCOUNT).map(lambda a: seal_fields(a).encode()))
    (folder / "ledger.json").write_bytes(content)

    def use():
        with Ledger(folder).open("r", Spent(Mechanism(1.0, 2.0, 3, 1e-5), 0, True)) as ledger:
            assert 0 <= ledger.spent.steps_paid <= 3

    read(use)


@FUZZ
@given(content=st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()))
def test_lines_of_a_journal(folder, content):
    (folder / "journal.jsonl").write_bytes(content)
    journal = Journal(folder / "journal.jsonl")
    read(journal.load)
    assert len(journal.rest) == len(content)  # no line follows START by chance

"""No file of an export tells of an image, an owner or a component to who lacks the store's key."""

import base64
import dataclasses
import hashlib
import hmac
import json
import zlib

import jax
import numpy as np
import pytest
from helpers import origin, part, predictor, tree_normal
from run_binary import run

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.io.records import convert
from tangent_jax.models.session import FirstSession
from tangent_jax.store.commitment import commit
from tangent_jax.store.keys import form_of_04
from tangent_jax.store.proofs import check_proof, prove
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.sessions import anchors_that_saw
from tangent_jax.store.store import Store
from tangent_jax.store.summary import Summary

PHOTOGRAPHS = [f"photograph {i}".encode() for i in range(15)]
IDENTIFIERS = [hashlib.sha256(content).hexdigest() for content in PHOTOGRAPHS]
PAIRS = tuple((identifier, f"portrait {i}.jpg") for i, identifier in enumerate(IDENTIFIERS))
PEOPLE = ("zoe@example.org", "annabel@example.org", "maxine@example.org")  # component s saw photographs 3 s to 3 s + 2
SESSION = FirstSession("0" * 64, "birds", ("gull", "owl"), PAIRS[12:], settings={"dataset": "folder:/home/me/birds"})


def filled(root, predict, dw):
    """A store of three components, one of each person."""
    store = Store(root)
    classes = [f"class {c}" for c in range(predict.model.classes)]
    for s, person in enumerate(PEOPLE):
        recipe = Recipe(dataset="folder:/home/me/photos").for_shard(person)
        examples = PAIRS[3 * s : 3 * s + 3]
        origin = dataclasses.replace(
            make_provenance(predict, recipe, classes),
            examples=examples,
            public=PAIRS[9 + s : 10 + s],
            owners={name: person for _, name in examples},
            folders=("/home/me/cache",),
            run=hashlib.md5(IDENTIFIERS[3 * s].encode()).hexdigest(),
            targets=hashlib.sha256(bytes([s])).hexdigest(),
        )
        store.add(person, jax.tree.map(lambda leaf, s=s: np.asarray((1 + s) * leaf), dw), origin)
    return store


def tangent(**options):
    predict, dw = predictor(**options)
    return dataclasses.replace(predict, session=SESSION), dw


def lora():
    predict, _ = predictor()
    anchor = tj.Pretrained(predict.model, predict.w, "here", session=SESSION)
    predict = tj.tangent(anchor.with_lora(2, 1, jax.random.key(0)), 1, "lora_b")
    return predict, tree_normal(40, predict.zeros())


def features(predict):
    """A head on features of the predictor's anchor."""
    anchor = tj.Pretrained(predict.model, predict.w, "here", session=SESSION)
    built = tj.models.FeatureSettings(("h", "relu"), 1, 2, 16, 3).of(anchor)
    width = sum(built.sizes)
    shapes = {"center": (width,), "kernel": (width, 7), "bias": (7,)}
    return built, tree_normal(40, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


FAMILIES = {
    "safetensors": ("safetensors", tangent),
    "non-linear": ("safetensors", lambda: tangent(method="nlft")),
    "stablehlo": ("stablehlo", tangent),
    "onnx": ("onnx", tangent),
    "torch": ("torch", tangent),
    "peft": ("peft", lora),
    "features": ("safetensors", tangent),
    "features, stablehlo": ("stablehlo", tangent),
    "features, onnx": ("onnx", tangent),
}


def forms_of(store, number):
    """What who has a photograph, or an account of the store's key, might search for in the bytes of an export."""
    content, identifier, name = PHOTOGRAPHS[number], IDENTIFIERS[number], PAIRS[number][1]
    hidden = (store.ring.own.hide(identifier), store.ring.own.hide_committed(identifier))
    digests = [bytes.fromhex(text) for text in (identifier, *hidden, form_of_04(identifier))]
    digests += [hashlib.new(algorithm, content).digest() for algorithm in ("md5", "sha1")]
    digests += [hashlib.new(algorithm, identifier.encode()).digest() for algorithm in ("md5", "sha1", "sha256")]
    digests.append(hashlib.sha256(b"\0" + identifier.encode()).digest())  # the leaf of a tree without a key
    digests += [hmac.digest(guess, identifier.encode(), "sha256") for guess in (b"", bytes(32), store.key.encode())]
    found = [name.encode(), name.removesuffix(".jpg").encode()]
    for digest in digests:
        base64s = (base64.b64encode(digest).rstrip(b"="), base64.urlsafe_b64encode(digest).rstrip(b"="))
        found += [digest, digest.hex().encode(), digest.hex().upper().encode(), *base64s]
    return found


def forms_of_person(person):
    """The name of an owner and a component, and what is computed of it."""
    numbers = [zlib.crc32(text.encode()) for text in (person, person.partition("@")[0])]
    return [person.encode(), person.partition("@")[0].encode(), *(str(number).encode() for number in numbers)]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_byte_of_an_export_tells_of_an_image_an_owner_or_a_component(tmp_path, family):
    format, make = FAMILIES[family]
    if format == "onnx":
        pytest.importorskip("jax2onnx", reason="jax2onnx is of the extra onnx, or make parity")
    predict, dw = make()
    store = filled(tmp_path / "store", predict, dw)
    said = store.release(tmp_path / "out", dw)
    leaving, step = features(predict) if family.startswith("features") else (predict, dw)
    export(tmp_path / "out", leaving, step, said, format)
    summary = convert(Summary, json.loads((tmp_path / "out/provenance.json").read_text())["of"], "of")
    assert (summary.examples, summary.public, summary.owners) == (9, 3, 3)
    assert {part.examples for part in summary.components} == {
        commit(store.ring.own.hide_committed(i) for i in IDENTIFIERS[3 * s : 3 * s + 3]) for s in range(3)
    }
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        told = [form for number in range(15) for form in forms_of(store, number) if form in content]
        told += [form for person in PEOPLE for form in forms_of_person(person) if form in content]
        told += [form for form in (b"/home", store.identity.encode(), store.key.encode()) if form in content]
        assert told == [], path.name


def test_components_stand_in_an_order_that_no_name_decides(tmp_path):
    predict, dw = tangent()
    orders = set()
    for number in range(8):  # each store has a key of its own
        store = filled(tmp_path / str(number), predict, dw)
        said = convert(Summary, store.release(tmp_path / "out", dw)["of"], "of")
        roots = [commit(map(store.ring.own.hide_committed, IDENTIFIERS[3 * s : 3 * s + 3])).root for s in range(3)]
        orders.add(tuple(roots.index(part.examples.root) for part in said.components))
    assert len(orders) > 1


def test_without_a_store_there_are_numbers_and_no_commitment(tmp_path):
    predict, dw = tangent()
    origins = filled(tmp_path / "store", predict, dw).origins
    export(tmp_path / "out", predict, dw, {"of": dict(origins)})
    content = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert not any(text.encode() in content for pair in PAIRS for text in pair)
    summary = convert(Summary, json.loads((tmp_path / "out/provenance.json").read_text())["of"], "of")
    assert (summary.examples, {part.examples.root for part in summary.components}) == (9, {""})
    assert load_export(tmp_path / "out")[0].session.count == 3


def test_the_anchor_of_an_export_says_how_many_images_it_saw_and_what_that_prevents(tmp_path):
    predict, dw = tangent()
    store = filled(tmp_path / "store", predict, dw)
    export(tmp_path / "out", predict, dw, store.release(tmp_path / "out", dw))
    session = load_export(tmp_path / "out")[0].session
    assert (session.images, session.count) == ((), 3)
    assert session.commitment == commit(map(store.ring.own.hide_committed, IDENTIFIERS[12:])).root
    assert str(session) == str(SESSION)
    assert session.settings == {"dataset": "folder:birds"}
    with pytest.raises(InputError, match=r"the anchor must name the 3 images .* Take the file of the anchor itself"):
        _ = session.identifiers
    of_export = dataclasses.replace(store.provenance(PEOPLE[0]), session=session)
    (line,) = anchors_that_saw([of_export], {IDENTIFIERS[12]}, "store")
    assert line.startswith(
        "removed images may be in the anchor builtin, which was fine-tuned on 3 images: it came with"
    )


# Proofs


@pytest.fixture
def proved(tmp_path):
    """A store of three components, and the summary of its export."""
    predict, dw = tangent()
    store = filled(tmp_path / "store", predict, dw)
    said = store.release(tmp_path / "out", dw)
    export(tmp_path / "out", predict, dw, said)
    return store, convert(Summary, json.loads(json.dumps(said))["of"], "of")


@pytest.mark.parametrize(("number", "is_in"), [(0, True), (8, True), (10, True), (13, True), (None, False)])
def test_who_holds_the_key_proves_that_an_image_is_in_an_export_or_is_not(proved, number, is_in):
    """Of a component, public, of the anchor, and of none."""
    store, summary = proved
    identifier = hashlib.sha256(b"another").hexdigest() if number is None else IDENTIFIERS[number]
    proof = prove(store, summary, identifier)
    assert check_proof(proof, summary) is is_in
    assert not any(text in json.dumps(dataclasses.asdict(proof)) for text in IDENTIFIERS)
    empty = dataclasses.replace(proof.sets[-1], paths=())
    with pytest.raises(InputError, match="a proof that an image is not in a set must show its two neighbours"):
        check_proof(dataclasses.replace(proof, sets=(*proof.sets[:-1], empty)), summary)
    with pytest.raises(InputError, match=r"a proof must be of this export; it says nothing of 1 of its 7 sets"):
        check_proof(dataclasses.replace(proof, sets=proof.sets[1:]), summary)


def test_an_export_of_components_that_left_cannot_be_proved(proved):
    store, summary = proved
    store.discard([PEOPLE[0]])
    with pytest.raises(InputError, match=r"the export must be of components that .* holds now; .* Export again"):
        prove(store, summary, IDENTIFIERS[3])


def test_store_prove_writes_proofs_and_checks_them_without_the_store(proved, tmp_path):
    store, _ = proved
    (tmp_path / "asked").mkdir()
    for number in (1, 14, 15):
        (tmp_path / f"asked/{number}.png").write_bytes(f"photograph {number}".encode())
    flags = [f"--source={tmp_path / 'out'}", f"--to={tmp_path / 'proof.json'}", f"--store={store.root}"]
    result = json.loads(run("store", "prove", f"--examples={tmp_path / 'asked'}", *flags)[0])
    assert [*result["is_in"].values()] == [True, True, False]
    text = (tmp_path / "proof.json").read_text()
    assert not any(identifier in text for identifier in IDENTIFIERS)
    check = [f"--check={tmp_path / 'proof.json'}", f"--source={tmp_path / 'out'}", f"--store={tmp_path / 'none'}"]
    checked = json.loads(run("store", "prove", *check)[0])
    assert [*checked["is_in"].values()] == [True, True, False]
    assert not (tmp_path / "none").exists()
    (tmp_path / "names.txt").write_text("portrait 1.jpg\n")
    _, error = run("store", "prove", f"--examples={tmp_path / 'names.txt'}", *flags, code=1)
    assert "--examples must be images, or identifiers of 64 hex digits; got portrait 1.jpg" in error


@pytest.mark.parametrize("url", ["s3://user:secret@bucket/served", "https://secret@host/x", "file:///served"])
def test_a_url_with_credentials_is_refused_before_the_journal_holds_it(tmp_path, url):
    store = tj.Store(tmp_path / "store")
    store.add("ann", part(1), origin(1))
    before = store.journal.path.read_bytes()
    with pytest.raises(InputError, match=r"a URL must be"):
        store.release(url, store.sum())
    assert store.journal.path.read_bytes() == before
    assert not (store.root / "signing.key").exists()

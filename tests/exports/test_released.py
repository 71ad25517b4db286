"""No file of an export identifies an image, an owner or a component."""

import base64
import dataclasses
import hashlib
import hmac
import json
import zlib

import jax
import numpy as np
import pytest
from helpers import Killed, changed, ending, origin, part, predictor, tree_normal

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.exports.summary import summarize
from tangent_jax.models.session import FirstSession
from tangent_jax.store.plans import anchors_that_saw
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify

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
        origin = changed(
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
    "features": ("safetensors", tangent),
    "features, stablehlo": ("stablehlo", tangent),
    "features, onnx": ("onnx", tangent),
}


def forms_of(store, number):
    """What who has a photograph, or an account of the store's key, might search for in the bytes of an export."""
    content, identifier, name = PHOTOGRAPHS[number], IDENTIFIERS[number], PAIRS[number][1]
    digests = [bytes.fromhex(text) for text in (identifier, store.key.hide(identifier))]
    digests += [hashlib.new(algorithm, content).digest() for algorithm in ("md5", "sha1")]
    digests += [hashlib.new(algorithm, identifier.encode()).digest() for algorithm in ("md5", "sha1", "sha256")]
    digests += [hmac.digest(guess, identifier.encode(), "sha256") for guess in (b"", bytes(32), store.key_id.encode())]
    found = [name.encode(), name.removesuffix(".jpg").encode()]
    for digest in digests:
        base64s = (base64.b64encode(digest).rstrip(b"="), base64.urlsafe_b64encode(digest).rstrip(b"="))
        found += [digest, digest.hex().encode(), digest.hex().upper().encode(), *base64s]
    return found


def forms_of_person(person):
    """The name of an owner and a component, and what is computed of it."""
    numbers = [zlib.crc32(text.encode()) for text in (person, person.partition("@")[0])]
    return [person.encode(), person.partition("@")[0].encode(), *(str(number).encode() for number in numbers)]


@pytest.mark.parametrize("people", [PEOPLE, PEOPLE[:1]], ids=len)  # all settings of one alone are shared ones
@pytest.mark.parametrize("family", FAMILIES)
def test_no_export_identifies_an_image(tmp_path, family, people):
    format, make = FAMILIES[family]
    if format == "onnx":
        pytest.importorskip("jax2onnx", reason="jax2onnx is of the extra onnx, or make parity")
    predict, dw = make()
    store = filled(tmp_path / "store", predict, dw)
    store.discard([person for person in PEOPLE if person not in people])
    said = store.release(tmp_path / "out", dw)
    leaving, step = features(predict) if family.startswith("features") else (predict, dw)
    export(tmp_path / "out", leaving, step, said, format)
    told = json.loads((tmp_path / "out/provenance.json").read_text())
    count = len(people)
    numbers = {"components": count, "images": 3 * count, "public": count, "owners": count}
    assert {name: told["of"][name] for name in numbers} == numbers
    assert told["journal"] == len(store.state.lines)
    assert told["of"]["settings"]["dataset"] == "folder:photos"
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        told = [form for number in range(15) for form in forms_of(store, number) if form in content]
        told += [form for person in PEOPLE for form in forms_of_person(person) if form in content]
        told += [form for form in (b"/home", store.identity.encode(), store.key_id.encode()) if form in content]
        assert told == [], path.name


def test_export_settings_are_shared_by_all(tmp_path):
    predict, dw = tangent()
    origins = [*filled(tmp_path / "store", predict, dw).origins.values()]
    known = summarize(origins).settings
    assert (known["learning_rate"], "order" in known) == (origins[0].recipe.settings["learning_rate"], False)
    other = origins[0].with_training(recipe=Recipe(seed=1))
    shared = summarize([*origins, other]).settings
    assert known.keys() - shared.keys() == {"dataset", "seed"}
    assert summarize([*origins, other.with_training(recipe=None)]).settings == {}


def test_export_states_its_anchors_images(tmp_path):
    predict, dw = tangent()
    store = filled(tmp_path / "store", predict, dw)
    export(tmp_path / "out", predict, dw, store.release(tmp_path / "out", dw))
    session = load_export(tmp_path / "out")[0].session
    assert (session.images, session.count) == ((), 3)
    assert str(session) == str(SESSION)
    assert session.settings == {"dataset": "folder:birds"}
    with pytest.raises(InputError, match=r"the anchor must name the 3 images .* Take the file of the anchor itself"):
        _ = session.identifiers
    of_export = dataclasses.replace(store.provenance(PEOPLE[0]), session=session)
    (line,) = anchors_that_saw([of_export], {IDENTIFIERS[12]}, "store")
    assert line.startswith(
        "removed images may be in the anchor builtin, which was fine-tuned on 3 images: it came with"
    )


@pytest.mark.parametrize("moment", range(6))
def test_killed_export_leaves_whole_store(tmp_path, moment):
    store = filled(tmp_path / "store", *tangent())
    before = len(store.state.lines)
    try:
        with ending(moment, Killed):
            store.release(tmp_path / "out", store.sum())
    except Killed:
        pass
    again = Store(store.root)
    assert len(again.state.lines) in (before, before + 1)
    assert again.release(tmp_path / "out", again.sum())["journal"] == len(again.state.lines)
    assert verify(again) == []


@pytest.mark.parametrize("url", ["s3://user:secret@bucket/served", "https://secret@host/x", "file:///served"])
def test_url_credentials_are_refused_early(tmp_path, url):
    store = tj.Store(tmp_path / "store")
    store.add("ann", part(1), origin(1))
    before = store.journal.path.read_bytes()
    with pytest.raises(InputError, match=r"a path must be one of this machine") as refusal:
        store.release(url, store.sum())
    assert "secret" not in str(refusal.value)
    assert store.journal.path.read_bytes() == before

"""Receipts are in-toto Statements as plain JSON."""

import dataclasses
import json
import os
import re

import pytest
from helpers import drop, filled, origin, part
from run_binary import ROOT

from tangent_jax.core.checks import InputError
from tangent_jax.store.receipts import RECEIPT, STATEMENT, Receipt, is_name, read_receipt
from tangent_jax.store.verification import verify, verify_receipt

FIELDS = {field.name for field in dataclasses.fields(Receipt)} - {"path"}


def test_receipt_states_journal_and_sum(tmp_path):
    store = filled(tmp_path / "store", 2)
    before = store.journal.last()
    receipt = drop(store, "shard 0")
    fields = json.loads(receipt.path.read_text())
    assert {*fields} == {"_type", "subject", "predicateType", "predicate"}  # those of in-toto's Statement v1
    assert (fields["_type"], fields["predicateType"]) == ("https://in-toto.io/Statement/v1", RECEIPT)
    assert all({*artefact} == {"name", "digest"} for artefact in fields["subject"])
    assert all(re.fullmatch("[0-9a-f]{64}", artefact["digest"]["sha256"]) for artefact in fields["subject"])
    digests = {artefact["name"]: artefact["digest"]["sha256"] for artefact in fields["subject"]}
    assert digests == {"journal": before, "composition": receipt.composed_after}
    assert {*fields["predicate"]} == FIELDS
    assert dataclasses.replace(read_receipt(receipt.path)[0], path=receipt.path) == receipt
    last = drop(store, "shard 1")
    assert [artefact["name"] for artefact in json.loads(last.path.read_text())["subject"]] == ["journal"]


OTHER = {
    "another type": ({"predicateType": "urn:other"}, f"its type must be {STATEMENT} with {RECEIPT}; got {STATEMENT} w"),
    "no statement": ({"_type": "urn:other"}, "its type must be"),
    "a list": ({"predicate": []}, "must be an object"),
    "no field": ({"predicate": {}}, "must hold the field removed"),
    **{repr(text[:9]): (text, "") for text in (b"[]", b"null", b"\xff\xfe", b"{", b'{"survivors": 3}', b"[" * 99999)},
    "no file": (None, "(No such file or directory)"),
    "a link": ("link", "plain file"),
    "a pipe": ("pipe", "plain file"),
}


@pytest.mark.parametrize(("change", "message"), OTHER.values(), ids=OTHER)
def test_what_is_no_receipt_is_named(tmp_path, change, message):
    store = filled(tmp_path / "store", 2)
    path = drop(store, "shard 0").path
    kept = path.rename(tmp_path / "kept.json")
    if change == "link":
        path.symlink_to(kept)
    elif change == "pipe":
        os.mkfifo(path)
    elif change is not None:
        is_text = isinstance(change, bytes)
        path.write_bytes(change if is_text else json.dumps({**json.loads(kept.read_text()), **change}).encode())
    with pytest.raises(InputError, match="must be a receipt of a removal.*" + re.escape(message)) as error:
        verify_receipt(store, path)
    assert "\n" not in str(error.value)
    assert change not in ("link", "pipe") or f"receipts/{path.name}: a link" in verify(store)[0]


def test_altered_receipt_is_told(tmp_path, monkeypatch):
    store, copy = filled(tmp_path / "store"), tmp_path / "copy.json"
    path = drop(store, "shard 1").path
    copy.write_text(path.read_text())
    assert verify_receipt(store, copy) == []
    copy.write_text(path.read_text().replace("The removed components", "the removed components"))
    assert "edited or forged" in verify_receipt(store, copy)[0]
    assert "that of another store" in verify_receipt(filled(tmp_path / "other"), path)[0]
    with monkeypatch.context() as patch:
        patch.setattr("tangent_jax.composition.compose.weighted_sum", lambda _: part(9))
        assert verify_receipt(store, path) == ["the survivors' sum is not the receipt's"]
    store.add("back", part(1), origin(7))
    assert verify_receipt(store, path) == ["back: is a removed component"]


def test_page_describes_every_field():
    page = (ROOT / "docs/reference/receipts.md").read_text()
    assert RECEIPT in page
    described = page.partition("| field of the predicate |")[2]
    assert {*re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)} == FIELDS


VALID = ("shard 0", "ann@example.org", "हिन्दी", "café", "a-b_c.d+e")
DECEPTIVE = (7, None, "", " a", "a  b", "../a", "a/b", "a\nb", "a\x1b[2J", "cafe\u0301", "\u212b", "a\u200fb")


@pytest.mark.parametrize("name", [*VALID, *DECEPTIVE])
def test_names_are_of_letters_of_any_language(name):
    assert is_name(name) == (name in VALID)

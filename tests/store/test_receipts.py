"""Receipts are in-toto Statements as plain JSON."""

import dataclasses
import json
import re

import pytest
from helpers import origin, part
from run_binary import ROOT

from tangent_jax.core.checks import InputError
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.receipts import RECEIPT, STATEMENT, Receipt, is_name, read_receipt
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

FIELDS = {field.name for field in dataclasses.fields(Receipt)} - {"path"}


def filled(root):
    store = Store(root)
    for s in range(2):
        store.add(f"shard {s}", part(s), origin(s))
    return store


def test_receipt_states_journal_and_sum(tmp_path):
    store = filled(tmp_path / "store")
    before = store.journal.last()
    receipt = remove(store, plan_removal(store, names=["shard 0"]))
    fields = json.loads(receipt.path.read_text())
    assert {*fields} == {"_type", "subject", "predicateType", "predicate"}  # those of in-toto's Statement v1
    assert (fields["_type"], fields["predicateType"]) == ("https://in-toto.io/Statement/v1", RECEIPT)
    assert all({*artefact} == {"name", "digest"} for artefact in fields["subject"])
    assert all(re.fullmatch("[0-9a-f]{64}", artefact["digest"]["sha256"]) for artefact in fields["subject"])
    digests = {artefact["name"]: artefact["digest"]["sha256"] for artefact in fields["subject"]}
    assert digests == {"journal": before, "composition": receipt.composed_after}
    assert {*fields["predicate"]} == FIELDS
    assert dataclasses.replace(read_receipt(receipt.path)[0], path=receipt.path) == receipt
    last = remove(store, plan_removal(store, names=["shard 1"]))
    assert [artefact["name"] for artefact in json.loads(last.path.read_text())["subject"]] == ["journal"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"predicateType": "urn:other"},
            f"its type must be {STATEMENT} with {RECEIPT}; got {STATEMENT} with urn:other",
        ),
        ({"_type": "urn:other"}, "its type must be"),
        ({"predicate": []}, "must be an object"),
        ({"predicate": {}}, "must hold the field removed"),
    ],
)
def test_other_statement_is_no_receipt(tmp_path, change, message):
    store = filled(tmp_path / "store")
    path = remove(store, plan_removal(store, names=["shard 0"])).path
    (tmp_path / "other.json").write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_receipt(tmp_path / "other.json")
    assert "must be a receipt of a removal" in str(error.value)


def test_page_describes_every_field():
    page = (ROOT / "docs/reference/receipts.md").read_text()
    assert RECEIPT in page
    described = page.partition("| field of the predicate |")[2]
    assert {*re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)} == FIELDS


def test_a_receipt_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.json must be a receipt of a removal \(No such file or directory\)"):
        read_receipt(tmp_path / "gone.json")


@pytest.mark.parametrize("name", ["shard 0", "ann@example.org", "हिन्दी", "café", "a-b_c.d+e"])
def test_names_are_of_letters_of_any_language(name):
    assert is_name(name)


@pytest.mark.parametrize(
    "name", [7, None, "", " a", "a  b", "../a", "a/b", "a\nb", "a\x1b[2J", "cafe\u0301", "\u212b", "a\u200fb"]
)
def test_deceptive_names_are_refused(name):
    assert not is_name(name)

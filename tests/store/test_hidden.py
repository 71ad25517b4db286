"""What a store keeps of removed images tells nothing to who does not hold its key."""

import base64
import hashlib
import hmac
import json

import pytest
from helpers import origin, part

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.store.disk import KEYS
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt

PHOTOGRAPHS = [f"photograph {i}".encode() for i in range(12)]
IDENTIFIERS = [hashlib.sha256(content).hexdigest() for content in PHOTOGRAPHS]
OWNERS = {f"photo {i}.jpg": f"owner {i % 3}" for i in range(12)}
SPENT = Spent(make_mechanism(epsilon=1.0, delta=1e-5), steps_paid=50, private=True)


def seen(rows, **changes):
    """The provenance of a component that saw these photographs."""
    examples = tuple((IDENTIFIERS[i], f"photo {i}.jpg") for i in rows)
    return origin(rows[0], examples=examples, owners=OWNERS, **changes)


def filled(root, **changes):
    """A store of three components, of three photographs each, all composed; 9 to 11 are of no component."""
    store = Store(root)
    for s in range(3):
        store.add(f"shard {s}", part(s), seen(range(3 * s, 3 * s + 3), **changes))
    store.compose()
    return store


def forms_without_key(store, number):
    """Everything that who has a photograph, and files of a store without its key, might search for."""
    content, identifier, name = PHOTOGRAPHS[number], IDENTIFIERS[number], f"photo {number}.jpg"
    marker = json.loads((store.root / "store.json").read_text())
    digests = [hashlib.sha256(content).digest()]
    guesses = [b"", bytes(32), *(str(value).encode() for value in marker.values()), content, b"tangent_jax"]
    guesses += [bytes.fromhex(marker[field]) for field in ("store", "key")]
    for text in (identifier, name, OWNERS[name]):
        digests.append(hashlib.sha256(text.encode()).digest())
        digests += [hmac.digest(guess, text.encode(), "sha256") for guess in guesses]
    found = [name.encode(), OWNERS[name].encode()]
    for digest in digests:
        base64s = (base64.b64encode(digest).rstrip(b"="), base64.urlsafe_b64encode(digest).rstrip(b"="))
        found += [digest, digest.hex().encode(), digest.hex().upper().encode(), *base64s]
    return found


def kept_by(store):
    """The bytes of everything that a store keeps, but its key and the components that it still holds."""
    held = {store.path(name) for name in store} | {store.root / KEYS}
    return b"\n".join(path.read_bytes() for path in store.root.rglob("*") if path.is_file() and path not in held)


@pytest.mark.parametrize(
    "request_",
    [
        {"examples": ["photo 1.jpg"]},
        {"examples": [IDENTIFIERS[1], IDENTIFIERS[10]]},
        {"owner": "owner 1"},
        {"names": ["shard 0"]},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "changes", [{}, {"privacy": SPENT, "public": ((IDENTIFIERS[9], "photo 9.jpg"),)}], ids=["", "p"]
)
def test_removal_leaves_no_byte_of_an_image(tmp_path, request_, changes):
    store = filled(tmp_path / "store", **changes)
    plan = plan_removal(store, **request_)
    receipt = remove(store, plan)
    assert IDENTIFIERS[1] in plan.identifiers
    content = kept_by(store) + receipt.path.read_bytes()
    for number in range(12):
        told = [form for form in forms_without_key(store, number) if form in content]
        assert told == [], number
    for identifier in plan.identifiers:  # who holds the key finds each
        assert store.has_forgotten(identifier)
        assert store.key.hide(identifier).encode() in content


def test_receipt_holds_no_fingerprint(tmp_path):
    """A component of one image, trained again from a photograph, has the same bits: its fingerprint is no secret."""
    store = filled(tmp_path / "store")
    prints = [trees.fingerprint(part(s)) for s in range(3)] + [trees.fingerprint(store.sum())]
    receipt = remove(store, plan_removal(store, names=["shard 0"]))
    text = receipt.path.read_text()
    assert [fingerprint for fingerprint in prints if fingerprint in text] == []
    assert [name for name in ("shard 1", "shard 2") if name in text] == []
    assert verify_receipt(store, receipt.path) == []
    store.add("again", part(0), seen([9]))
    assert verify_receipt(store, receipt.path) == ["again: is a removed component"]


def test_discarded_components_leave_no_unit(tmp_path):
    store = filled(tmp_path / "store", privacy=SPENT)
    store.discard(["shard 0"])
    content = kept_by(store)
    assert store.key.hide(IDENTIFIERS[0]).encode() in content
    assert [form for form in forms_without_key(store, 0) if form in content] == []


def test_lists_of_two_stores_share_nothing(tmp_path):
    stores = [filled(tmp_path / name) for name in "ab"]
    for store in stores:
        remove(store, plan_removal(store, examples=[IDENTIFIERS[1]]))
    first, second = (store.state.forgotten for store in stores)
    assert first
    assert first.isdisjoint(second)


def test_store_without_key_is_read_only(tmp_path):
    """The next change tells of it, so that it is not the next removal that does."""
    store = filled(tmp_path / "store")
    (store.root / KEYS).unlink()
    again = Store(store.root)
    assert [*again.keys()] == ["shard 0", "shard 1", "shard 2"]  # of a mapping
    assert ["keys.json" in line and "missing" in line for line in verify(again)] == [True]
    with pytest.raises(InputError, match=r"must hold the store's key"):
        again.add("more", part(3), seen(range(9, 12)))
    assert not (store.root / KEYS).exists()


# Accounts under different keys


@pytest.mark.parametrize("changes", [{"privacy": SPENT}, {}], ids=["private", ""])
def test_replaced_shown_private_stays_apart(tmp_path, changes):
    """Its images are hidden by the other store's key: perhaps they are public here, or in another account."""
    here, other = Store(tmp_path / "here"), Store(tmp_path / "other")
    here.add("mine", part(4), seen([5, 8], privacy=SPENT))
    other.add("gone", part(0), seen([5], **changes))
    other.add("stays", part(1), seen([6], privacy=SPENT))
    other.compose()
    other.discard(["gone"])
    if changes:
        with pytest.raises(InputError, match="has replaced a private component that was composed or exported"):
            add_all(here, other)
        assert [*Store(here.root)] == ["mine"]
        return
    for lines in (3, 3):  # again, nothing is added
        add_all(here, other)
        assert len(here.journal.entries) == lines
    assert here.spent() is None  # one without an account was shown

"""What a store keeps of removed images tells nothing to who does not hold its key; stores of version 0.4 go on."""

import base64
import dataclasses
import hashlib
import hmac
import json
import shutil

import pytest
from helpers import Killed, ending, origin, part
from run_binary import run

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.records import seal_fields
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.store import copies
from tangent_jax.store.disk import KEYS, WITHOUT_KEY
from tangent_jax.store.keys import Key, form_of_04
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.receipts import receipt_text
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

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
        digests += [hashlib.sha256(text.encode()).digest(), bytes.fromhex(form_of_04(text))]
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
def test_no_byte_that_a_removal_leaves_tells_of_an_image_to_who_lacks_the_key(tmp_path, request_, changes):
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
        assert store.ring.own.hide(identifier).encode() in content


def test_a_receipt_holds_no_fingerprint_and_no_other_component_for_who_trains_one_again(tmp_path):
    """A component of one image, trained again from a photograph, has the same bits: its fingerprint is no secret."""
    store = filled(tmp_path / "store")
    prints = [trees.fingerprint(part(s)) for s in range(3)] + [trees.fingerprint(store.sum())]
    receipt = remove(store, plan_removal(store, names=["shard 0"]))
    text = receipt.path.read_text()
    assert [fingerprint for fingerprint in prints if fingerprint in text] == []
    assert [name for name in ("shard 1", "shard 2") if name in text] == []
    assert store.verify_receipt(receipt.path) == []
    plain = {f"shard {s}": trees.fingerprint(part(s)) for s in range(3)}
    before = dataclasses.replace(receipt, removed={"shard 0": plain.pop("shard 0")}, survivors=plain, composed_after="")
    written = tmp_path / "as 0.4 wrote it.json"
    written.write_text(receipt_text(before))
    assert "the survivors' sum is not the receipt's" in store.verify_receipt(written)
    for path in (receipt.path, written):
        store.add(path.stem, part(0), seen([9]))
        assert f"{path.stem}: is a removed component" in store.verify_receipt(path)
        store.discard([path.stem])


def test_components_that_were_discarded_leave_no_plain_unit_in_the_account(tmp_path):
    store = filled(tmp_path / "store", privacy=SPENT)
    store.discard(["shard 0"])
    content = kept_by(store)
    assert store.ring.own.hide(IDENTIFIERS[0]).encode() in content
    assert [form for form in forms_without_key(store, 0) if form in content] == []


def test_lists_of_two_stores_of_one_image_share_nothing(tmp_path):
    stores = [filled(tmp_path / name) for name in "ab"]
    for store in stores:
        remove(store, plan_removal(store, examples=[IDENTIFIERS[1]]))
    first, second = (store.state.forgotten for store in stores)
    assert first
    assert first.isdisjoint(second)


def test_a_store_without_its_key_is_read_and_told_and_does_not_change(tmp_path):
    """The next change tells of it, so that it is not the next removal that does."""
    store = filled(tmp_path / "store")
    (store.root / KEYS).unlink()
    again = Store(store.root)
    assert [*again.keys()] == ["shard 0", "shard 1", "shard 2"]  # of a mapping
    assert ["keys.json" in line and "missing" in line for line in again.verify()] == [True]
    with pytest.raises(InputError, match=r"must hold the store's key; it is missing. Restore it from a backup"):
        again.add("more", part(3), seen(range(9, 12)))
    assert not (store.root / KEYS).exists()


@pytest.mark.parametrize("lost", [["store.json"], ["store.json", KEYS]], ids=len)
def test_a_store_that_lost_its_marker_keeps_its_key_or_does_not_change(tmp_path, lost):
    store = filled(tmp_path / "store")
    remove(store, plan_removal(store, examples=[IDENTIFIERS[1]]))
    for name in lost:
        (store.root / name).unlink()
    match = "must not be removed ones" if len(lost) == 1 else r"store.json and keys.json; both are missing"
    with pytest.raises(InputError, match=match):
        Store(store.root).add("back", part(0), seen(range(3)))


# Copies


def test_a_copy_at_a_url_brings_the_key_which_its_user_alone_reads(tmp_path):
    url, store = "memory://keys/0", filled(tmp_path / "store")
    remove(store, plan_removal(store, examples=[IDENTIFIERS[1]]))
    copies.push(store, url)
    copies.pull(tmp_path / "copy", url)
    assert Store(tmp_path / "copy").ring == store.ring
    assert Store(tmp_path / "copy").has_forgotten(IDENTIFIERS[1])
    assert (tmp_path / "copy" / KEYS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("moment", range(48))
def test_a_copy_of_version_04_takes_the_key_of_the_store_that_went_on(tmp_path, moment):
    """Also if a pull is killed at any of its writes."""
    store = of_04(tmp_path / "store")
    shutil.copytree(store.root, tmp_path / "copy")
    url = f"memory://keys/{moment + 1}"
    remove(store, plan_removal(store, examples=[IDENTIFIERS[4]]))
    copies.push(store, url)
    try:
        with ending(moment, Killed):
            copies.pull(tmp_path / "copy", url)
    except Killed:
        pass
    assert Store(tmp_path / "copy").has_forgotten(IDENTIFIERS[1])
    copies.pull(tmp_path / "copy", url)
    copy = Store(tmp_path / "copy")
    assert copy.ring.own == store.ring.own
    assert copy.has_forgotten(IDENTIFIERS[1])
    assert copy.has_forgotten(IDENTIFIERS[4])
    assert copy.verify() == []


# Accounts under different keys


def test_accounts_under_different_keys_add_up(tmp_path):
    """Two stores each released a component, perhaps of one image: who merges them cannot tell, and counts both."""
    here = Store(tmp_path / "here")
    for s, name in enumerate(("first", "second")):
        other = Store(tmp_path / name)
        other.add(f"{name} gone", part(s), seen([5], privacy=SPENT))
        other.add(f"{name} stays", part(2 + s), seen([6 + s], privacy=SPENT))
        other.compose()
        other.discard([f"{name} gone"])
        here.add_all(other)
        if s == 0:
            assert here.spent([*here]) == other.spent([*other])  # one key: in parallel
            assert not here.has_released_under_keys
    assert len(here.ring.keys) == 3
    assert "in sequence: removed components" in run("store", "compose", f"--store={here.root}")[1]
    apart = here.spent([*here])
    assert apart.epsilon > 1.3 > other.spent([*other]).epsilon
    # what is still in the store is compared with each list, under its own key
    here.add("of the image again", part(4), seen([5, 8], privacy=SPENT))
    assert here.spent([*here]).epsilon > apart.epsilon
    with pytest.raises(InputError, match="public"):
        here.add("public", part(5), seen([9], privacy=SPENT, public=((IDENTIFIERS[5], "photo 5.jpg"),)))


# Stores of version 0.4


def of_04(root):
    """A store of format 2, as version 0.4 leaves it after a removal: no key, and lists of unsalted hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "hide", lambda _, text: form_of_04(text))
        store = filled(root)
        remove(store, plan_removal(store, examples=[IDENTIFIERS[1]]))
    (root / KEYS).unlink()
    store.marker.write_text(seal_fields({"format": WITHOUT_KEY, "store": store.identity}))
    return Store(root)


def test_a_store_of_version_04_is_read_without_a_change(tmp_path):
    store = of_04(tmp_path / "store")
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert [*store] == ["shard 1", "shard 2"]
    assert store.has_forgotten(IDENTIFIERS[1])
    assert not store.has_forgotten(IDENTIFIERS[4])
    assert store.verify() == []
    assert before == {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}


def test_a_store_of_version_04_gets_a_key_at_its_first_change_and_forgets_nothing(tmp_path, capsys):
    store = of_04(tmp_path / "store")
    identity = store.identity
    remove(store, plan_removal(store, examples=[IDENTIFIERS[4]]))
    assert "that version 0.4 wrote stay as they are, without a key" in capsys.readouterr().err
    again = Store(store.root)
    assert (again.identity, again.verify()) == (identity, [])
    assert form_of_04(IDENTIFIERS[4]) not in again.state.forgotten
    for number, back in ((1, "of 0.4"), (4, "of now")):
        assert again.has_forgotten(IDENTIFIERS[number])
        with pytest.raises(InputError, match="must not be removed ones"):
            again.add(back, part(5), dataclasses.replace(seen([number]), seconds=2.0))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("moment", range(23))
def test_a_store_of_version_04_that_is_killed_while_it_gets_a_key_forgets_nothing(tmp_path, moment):
    store = of_04(tmp_path / "store")
    with ending(moment, Killed), pytest.raises(Killed):
        remove(store, plan_removal(store, examples=[IDENTIFIERS[4]]))
    again = Store(store.root)
    assert again.has_forgotten(IDENTIFIERS[1])
    again.settle()
    if not again.has_forgotten(IDENTIFIERS[4]):
        remove(again, plan_removal(again, examples=[IDENTIFIERS[4]]))
    assert again.has_forgotten(IDENTIFIERS[4])
    assert again.verify() == []

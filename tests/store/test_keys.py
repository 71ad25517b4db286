"""Keys of stores: hidden forms of identifiers, the file of the keys, and what it refuses."""

import hashlib
import hmac

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import seal_fields
from tangent_jax.store.keys import Key, KeyRing, read_keys, write_keys

IMAGE = hashlib.sha256(b"an image").hexdigest()


def test_hidden_form_is_hmac_of_rfc_4231():
    """Test case 2 of RFC 4231."""
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert Key(b"Jefe").hide("what do ya want for nothing?") == expected


def test_hidden_forms_of_two_stores_differ_and_hold_no_identifier():
    first, second = KeyRing.make(), KeyRing.make()
    assert first.own.hide(IMAGE) != second.own.hide(IMAGE)
    assert IMAGE not in first.own.hide(IMAGE) + first.own.id
    assert first.own.hide(IMAGE) != hmac.digest(b"", IMAGE.encode(), "sha256").hex()


def test_forms_are_those_under_every_key_of_the_ring():
    first, second = KeyRing.make(), KeyRing.make()
    both = first.joined(second)
    assert both.own == first.own
    assert {first.own.hide(IMAGE), second.own.hide(IMAGE)} < both.forms(IMAGE)
    assert both.joined(second) == both


def test_hidden_forms_are_sorted_so_that_order_tells_nothing():
    key = KeyRing.make().own
    assert key.hide_all("abc") == key.hide_all("cbaa") == tuple(sorted(map(key.hide, "abc")))


def test_repr_does_not_show_a_key():
    key = KeyRing.make().own
    assert str(key.secret) not in repr(key)
    assert key.secret.hex() not in repr(key)


def test_keys_survive_their_file_which_its_user_alone_reads(tmp_path):
    ring, path = KeyRing.make().joined(KeyRing.make()), tmp_path / "keys.json"
    write_keys(path, ring)
    assert read_keys(path, ring.own.id) == ring
    assert read_keys(path) == ring  # before the store names its key, the first one is its own
    assert {len(key.secret) for key in ring.keys} == {32}
    assert path.stat().st_mode & 0o777 == 0o600


def test_missing_altered_and_foreign_keys_are_refused(tmp_path):
    ring, path = KeyRing.make(), tmp_path / "keys.json"
    with pytest.raises(InputError, match="it is missing"):
        read_keys(path, ring.own.id)
    write_keys(path, ring)
    with pytest.raises(InputError, match="must hold the store's key 0123456789abcdef; it does not"):
        read_keys(path, "0123456789abcdef")
    path.write_text(path.read_text().replace(ring.own.secret.hex(), KeyRing.make().own.secret.hex()))
    with pytest.raises(InputError, match="Restore it from a backup"):
        read_keys(path, ring.own.id)


@pytest.mark.parametrize("text", ["no hex", "00", "00" * 33])
def test_keys_of_another_form_are_refused(tmp_path, text):
    path = tmp_path / "keys.json"
    path.write_text(seal_fields({"keys": [text]}))
    with pytest.raises(InputError, match="must hold keys"):
        read_keys(path, "0123456789abcdef")

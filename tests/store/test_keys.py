"""Keys of stores: hidden forms of identifiers, the file of the keys, and what it refuses."""

import hashlib
import hmac

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import seal_fields
from tangent_jax.store.keys import Key, make_key, read_key, write_key

IMAGE = hashlib.sha256(b"an image").hexdigest()


def test_hidden_form_is_hmac_of_rfc_4231():
    """Test case 2 of RFC 4231."""
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert Key(b"Jefe").hide("what do ya want for nothing?") == expected


def test_hidden_forms_differ_by_store():
    first, second = make_key(), make_key()
    assert first.hide(IMAGE) != second.hide(IMAGE)
    assert IMAGE not in first.hide(IMAGE) + first.id
    assert first.hide(IMAGE) != hmac.digest(b"", IMAGE.encode(), "sha256").hex()


def test_hidden_forms_are_sorted():
    key = make_key()
    assert key.hide_all("abc") == key.hide_all("cbaa") == tuple(sorted(map(key.hide, "abc")))


def test_repr_does_not_show_a_key():
    key = make_key()
    assert str(key.secret) not in repr(key)
    assert key.secret.hex() not in repr(key)


def test_key_file_is_private_and_survives(tmp_path):
    key, path = make_key(), tmp_path / "keys.json"
    write_key(path, key)
    assert read_key(path, key.id) == read_key(path) == key
    assert len(key.secret) == 32
    assert path.stat().st_mode & 0o777 == 0o600


def test_wrong_keys_are_refused(tmp_path):
    key, path = make_key(), tmp_path / "keys.json"
    with pytest.raises(InputError, match="it is missing"):
        read_key(path, key.id)
    write_key(path, key)
    with pytest.raises(InputError, match="must hold the store's key 0123456789abcdef; it does not"):
        read_key(path, "0123456789abcdef")
    path.write_text(path.read_text().replace(key.secret.hex(), make_key().secret.hex()))
    with pytest.raises(InputError, match="Restore it from a backup"):
        read_key(path, key.id)


@pytest.mark.parametrize("text", ["no hex", "00", "00" * 33])
def test_keys_of_another_form_are_refused(tmp_path, text):
    path = tmp_path / "keys.json"
    path.write_text(seal_fields({"key": text}))
    with pytest.raises(InputError, match="must hold a key"):
        read_key(path, "0123456789abcdef")

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


EDITED = seal_fields({"key": "00" * 32}).replace("00" * 32, "11" * 32)
WRONG = {
    "missing": (None, "it is missing"),
    "another": (seal_fields({"key": "00" * 32}), "must hold the store's key 0123456789abcdef; it does not"),
    "edited": (EDITED, "it was edited. Restore it from a backup"),
    **{text[:6]: (seal_fields({"key": text}), "must hold a key") for text in ("no hex", "00", "00" * 33)},
}


@pytest.mark.parametrize(("content", "match"), WRONG.values(), ids=WRONG)
def test_wrong_keys_are_refused(tmp_path, content, match):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=match):
        read_key(path, "0123456789abcdef")

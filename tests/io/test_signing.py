"""Signed statements: DSSE envelopes of in-toto statements, checked by their own reader and by OpenSSL."""

import base64
import json
import shutil
import stat
import subprocess

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io.signing import encoding_of, make_key, make_statement, public_half, read_signed, sign

pytest.importorskip("cryptography")
STATEMENT = make_statement({"export": "ab" * 32}, "https://example.org/revocation/v1", {"names": ["Zoë"]})


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "signing.key"
    make_key(path)
    return path


@pytest.fixture
def envelope(tmp_path, key):
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(sign(STATEMENT, key)))
    return path


def test_signed_statement_is_read_again(envelope, key):
    assert read_signed(envelope, public_half(key), "the key") == STATEMENT


def test_private_key_is_the_owners_alone(key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_new_key_replaces_no_other(key):
    before = key.read_bytes()
    with pytest.raises(InputError, match=r"must not replace another; .* exists"):
        make_key(key)
    assert key.read_bytes() == before


def test_encoding_is_that_of_the_specification():
    assert encoding_of(b"hello") == b"DSSEv1 28 application/vnd.in-toto+json 5 hello"


def test_openssl_accepts_the_signature(tmp_path, envelope, key):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    fields = json.loads(envelope.read_text())
    (tmp_path / "signed").write_bytes(encoding_of(base64.b64decode(fields["payload"])))
    (tmp_path / "sig").write_bytes(base64.b64decode(fields["signatures"][0]["sig"]))
    (tmp_path / "key.pub").write_text(public_half(key))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "key.pub", "-rawin"]
    done = subprocess.run([*command, "-in", tmp_path / "signed", "-sigfile", tmp_path / "sig"], capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def change_payload(fields):
    fields["payload"] = base64.b64encode(base64.b64decode(fields["payload"]).replace(b"Zo", b"Co")).decode()


def change_type(fields):
    fields["payloadType"] = "application/json"


def change_signature(fields):
    fields["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()


def no_signature(fields):
    fields["signatures"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_payload, "must be signed by the key; it is signed by another key, or was changed since"),
        (change_type, "must be an envelope of the type application/vnd.in-toto"),
        (change_signature, "must be signed by the key; it is signed by another key, or was changed since"),
        (no_signature, "must be signed by the key; it is signed by another key, or was changed since"),
        (dict.clear, "must be a signed statement"),
    ],
)
def test_changed_envelope_is_refused(envelope, key, change, message):
    fields = json.loads(envelope.read_text())
    change(fields)
    envelope.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=message):
        read_signed(envelope, public_half(key), "the key")


def test_other_key_is_refused(tmp_path, envelope):
    make_key(tmp_path / "other.key")
    with pytest.raises(
        InputError, match="must be signed by the key; it is signed by another key, or was changed since"
    ):
        read_signed(envelope, public_half(tmp_path / "other.key"), "the key")


def test_private_key_in_place_of_a_public_one_is_said(envelope, key):
    with pytest.raises(InputError, match=r"the key must be an Ed25519 public key \(PEM\)"):
        read_signed(envelope, key.read_text(), "the key")

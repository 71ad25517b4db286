"""First sessions in the metadata of weights files.

A session is read as data: no path or URL in it is opened, and none of its texts is run.
"""

from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import convert, parse_json, plain, seal_fields
from tangent_jax.models.session import FirstSession

SESSION = "first_session"
"""The metadata key of a FirstSession."""
REMEDY = (
    "Fetch or make the file again; or delete this key of its metadata, after which nobody knows whose images are in it"
)


def encode_session(session: FirstSession, body: str) -> str:
    """The text of a session in the metadata of its weights, whose fingerprint without the head is `body`."""
    return seal_fields({**plain(session), "body": body})


def decode_session(text: str, body: str, path: str) -> FirstSession:
    """The session of `encode_session`.

    Raises:
        InputError: With a remedy for a text that was altered or cannot be read, and for other weights than its own.
    """
    where = f"{SESSION} in the metadata of {path}"
    try:
        fields: dict[str, Any] = parse_json(text, where)
        fields.pop("sha256", None)
        if text != seal_fields(fields):
            raise InputError("its text was edited")
        if fields.pop("body", None) != body:
            raise InputError("it was written for other weights")
        return convert(FirstSession, fields, where)
    except InputError as error:
        raise InputError(f"{where} must say whose images are in the anchor; it does not ({error}). {REMEDY}") from error

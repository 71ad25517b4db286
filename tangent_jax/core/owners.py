"""The name of a contributor (owner), the unit of privacy and removal for all their examples."""

import re
import unicodedata
from typing import Any

from tangent_jax.core.checks import InputError

IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Invisible characters whose Unicode category does not say so (Default_Ignorable_Code_Point, the empty Braille)."""


class Owner(str):
    """A contributor's name in a normal form, so that equivalent names are one owner everywhere.

    Letter case, compatible forms of a letter (NFKC), surrounding and repeated spaces, and invisible characters make no
    difference. Similar letters of different alphabets stay different.

    >>> Owner("Alice  März ") == Owner("alice märz")
    True
    """

    def __new__(cls, name: Any) -> "Owner":
        before, text = None, str(name)
        while text != before:  # one pass may create what another one folds
            before = text
            shown = (c if unicodedata.category(c)[0] != "C" else " " * c.isspace() for c in IGNORED.sub("", text))
            composed = unicodedata.normalize("NFKC", " ".join("".join(shown).split()))
            text = unicodedata.normalize("NFKC", composed.upper().casefold())  # upper() for the dotless i
        if not text:
            raise InputError(f"owner must be the name of a contributor; got {name!r}")
        return super().__new__(cls, text)

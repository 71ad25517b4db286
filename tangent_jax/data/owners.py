"""The name of a contributor, whose privacy or removal counts for all examples that are theirs."""

import re
import unicodedata
from typing import Any

from tangent_jax.core import require

IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that do not show and are of no category that says so (Default_Ignorable_Code_Point, the empty Braille)."""


class Owner(str):
    """A contributor's name in one spelling, so that equal names are one owner everywhere.

    Capitals, ways of writing one letter (NFKC), spaces around and several in a row, and characters that do not show are
    all alike: the text is the one that remains, and its own. Letters of different alphabets that look alike stay apart.

    >>> Owner("Alice  Ma\u0308rz ") == Owner("alice m\u00e4rz")
    True
    """

    def __new__(cls, name: Any) -> "Owner":
        before, text = None, str(name)
        while text != before:  # one pass can bring together what another one folds
            before = text
            shown = (c if unicodedata.category(c)[0] != "C" else " " * c.isspace() for c in IGNORED.sub("", text))
            composed = unicodedata.normalize("NFKC", " ".join("".join(shown).split()))
            text = unicodedata.normalize("NFKC", composed.upper().casefold())  # upper: the dotless i
        require(text, "Owner", "the name of a contributor", repr(name))
        return super().__new__(cls, text)

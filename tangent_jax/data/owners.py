"""The name of a contributor, whose privacy or removal counts for all examples that are theirs."""

import unicodedata
from typing import Any

from tangent_jax.core import require


class Owner(str):
    """A contributor's name in one spelling, so that equal names are one owner everywhere.

    Capitals, ways of writing one letter (NFKC), spaces around and several in a row, and characters that do not show are
    all alike: the text is the one that remains. Letters of different alphabets that look alike stay different.

    >>> Owner("Alice  Ma\u0308rz ") == Owner("alice m\u00e4rz")
    True
    """

    def __new__(cls, name: Any) -> "Owner":
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", str(name)).casefold())
        shown = (c if unicodedata.category(c)[0] != "C" else " " * c.isspace() for c in folded)
        text = " ".join("".join(shown).split())
        require(text, "Owner", "the name of a contributor", repr(name))
        return super().__new__(cls, text)

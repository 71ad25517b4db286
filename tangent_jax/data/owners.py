"""The name of a contributor (owner), the unit of privacy and removal for all their examples."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name, other_spellings

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
            raise InputError(f"the name of a contributor must hold a letter; got {name!r}")
        return super().__new__(cls, text)


def by_normal_name(owners: Mapping[str, str]) -> dict[str, set[Owner]]:
    """The owners of each file, under the normal form of its name and under other spellings that no line has itself."""
    spelled = {owner: Owner(owner) for owner in {*owners.values()}}  # few owners of many images
    table: dict[str, set[Owner]] = {}
    for name, owner in owners.items():
        table.setdefault(normal_name(name), set()).add(spelled[owner])
    written = {*table}
    for name, owner in owners.items():
        for form in other_spellings(name):
            if form not in written:
                table.setdefault(form, set()).add(spelled[owner])
    return table

"""The one form in which names of files and classes are compared, whatever system wrote them.

    macOS and some archives write é as e and an accent (NFD); Windows, Linux and keyboards write one letter (NFC)

A name is shown and opened as it is; two names are equal if their normal forms are. Owners, who are people, have a wider
form (`data/owners.py`): letter case makes no difference to them.
"""

import unicodedata

from tangent_jax.core.checks import visible


def normal_name(name: str) -> str:
    r"""The composed form (NFC) of a name, with invisible characters as a provenance shows them.

    >>> from tangent_jax.core.names import normal_name
    >>> normal_name("cafe\u0301/1.png") == normal_name("caf\u00e9/1.png")
    True
    """
    if name.isascii() and name.isprintable():
        return name
    return visible(unicodedata.normalize("NFC", name))

"""The one form in which names of files and classes are compared, whatever system wrote them.

    macOS and some archives write é as e and an accent (NFD); Windows, Linux and keyboards write one letter (NFC)

A name is shown and opened as it is; two names are equal if their normal forms are. Owners, who are people, have a wider
form (`core/owners.py`): letter case makes no difference to them.
"""

import posixpath
import unicodedata
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
from jaxtyping import Int

from tangent_jax.core.checks import InputError, visible


def normal_name(name: str) -> str:
    r"""The composed form (NFC) of a name, with invisible characters as a provenance shows them.

    >>> from tangent_jax.core.names import normal_name
    >>> normal_name("cafe\u0301/1.png") == normal_name("caf\u00e9/1.png")
    True
    """
    if name.isascii() and name.isprintable():
        return name
    return visible(unicodedata.normalize("NFC", name))


def other_spellings(name: str) -> tuple[str, ...]:
    r"""The normal forms of other ways in which people write the name of a file, to try where none has this name.

    They quote it, begin it with ./, write the backslashes of Windows, or copy it from a URL.

    >>> from tangent_jax.core.names import other_spellings
    >>> other_spellings('".\\train\\1.png"')
    ('train/1.png',)
    """
    plain = name.strip().strip("\"'")
    written = (plain, plain.replace("\\", "/"), unquote(plain))
    forms = (normal_name(posixpath.normpath(text)) for text in written if text)
    return tuple(form for form in dict.fromkeys(forms) if form != normal_name(name) and "\\" not in form)


def columns(classes: Sequence[str], chosen: Sequence[str]) -> Int[np.ndarray, "chosen"]:
    """The place of each of the chosen classes among all classes; InputError for an unknown class."""
    index = {name: i for i, name in enumerate(classes)}
    missing = [name for name in chosen if name not in index]
    if missing:
        raise InputError(f"classes must be among the {len(classes)} given; got {len(missing)} others, {missing[:3]}")
    return np.array([index[name] for name in chosen], np.int64)

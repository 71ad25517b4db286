"""The one form in which names of files, folders and classes are compared, whatever system wrote them.

    macOS and some archives write é as e and an accent (NFD); Windows, Linux and keyboards write one letter (NFC)
    macOS writes a narrow space that does not break (U+202F) before PM; keyboards write a plain space

    composed_name     the composed form (NFC), with plain spaces: of classes
    normal_name       that form, without invisible characters and ./ before it: of files
    caseless_name     that form, without letter case: of splits, and to find other spellings

A file is shown and opened by its unchanged name. Owners, who are people, have a wider form (`core/owners.py`).
"""

import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
from jaxtyping import Int

from tangent_jax.core.checks import InputError, visible

SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
"""Unicode's spaces other than the plain one; some of them cannot be told from it on a screen."""


def composed_name(name: str) -> str:
    r"""The composed form (NFC) of a name, with plain spaces.

    >>> from tangent_jax.core.names import composed_name
    >>> composed_name("cafe\u0301 8\u202fPM") == "caf\u00e9 8 PM"
    True
    """
    return SPACES.sub(" ", unicodedata.normalize("NFC", name))


def caseless_name(name: str) -> str:
    """The composed form of a name without letter case."""
    return composed_name(composed_name(name).casefold())


def normal_name(name: str) -> str:
    r"""The composed form (NFC) of a file's name, without ./ before it; invisible characters are escaped.

    >>> from tangent_jax.core.names import normal_name
    >>> normal_name("./cafe\u0301/1.png") == normal_name("caf\u00e9/1.png")
    True
    """
    name = re.sub(r"^(\./+)+", "", name)
    if name.isascii() and name.isprintable():
        return name
    return visible(composed_name(name))


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


def check_order(own: Sequence[str], classes: Sequence[str]) -> None:
    """Raises InputError for classes in another order than a head's own names; no names fit all."""
    if own and classes and tuple(classes) != tuple(own):
        raise InputError(
            f"classes must be the names of the predictor's outputs in their order, {', '.join(own[:3])}, ...; got "
            f"{', '.join(classes[:3])}, ... Pass its class_names"
        )


def columns(classes: Sequence[str], chosen: Sequence[str]) -> Int[np.ndarray, "chosen"]:
    """The place of each of the chosen classes among all classes; InputError for an unknown class."""
    index = {composed_name(name): i for i, name in enumerate(classes)}
    missing = [name for name in chosen if composed_name(name) not in index]
    if missing:
        raise InputError(f"classes must be among the {len(classes)} given; got {len(missing)} others, {missing[:3]}")
    return np.array([index[composed_name(name)] for name in chosen], np.int64)


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """The names of classes as a tuple, composed (NFC); InputError if they are not names, or a name repeats."""
    is_named = not isinstance(classes, str) and isinstance(classes, Sequence) and len(classes) > 0
    if not (is_named and all(isinstance(name, str) for name in classes)):
        raise InputError(f"classes must be their number, or their names; got {repr(classes)[:80]}")
    names = tuple(map(composed_name, classes))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"names of classes must differ; got {twice[:1]} twice")
    return names

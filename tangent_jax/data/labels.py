"""Labels as people write them: class indices, class names, and the ways of saying that a row has none.

    0, 1, 10        class indices: whole numbers, also those that pandas made floats (0.0, 10.0)
    cat, dog        class names, in Unicode's composed form (NFC), without surrounding spaces
    01, 02, 10      class names, if all are digits of one width
    [cat, dog]      refused: lists in JSON or Python, and texts whose parts are other labels: cat|dog, "cat, dog", 0 2
    True, False     two classes of these names; beside a list of two classes, its second and its first
    no label        null, NaN, -1 among indices, the texts of NO_LABEL, which pandas reads as NaN, and no_label

A list of classes (classes.txt, ClassLabel) decides first: if it names every text of a column, they are names, even
`None` or `10`. Any other mixture is refused by row and value, because one stray text would turn all indices into names.
"""

import ast
import contextlib
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

import numpy as np
from jaxtyping import Int

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.left_out import note
from tangent_jax.io.records import first_names, short

NO_LABEL = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"}
    | {"NULL", "NaN", "None", "n/a", "nan", "null"}
)
"""The texts that pandas reads as NaN (`pandas.read_csv`, na_values), in their letter case."""

INDEX = re.compile(r"([0-9]+)(\.0*)?")
MINUS_ONE = re.compile(r"-1(\.0*)?")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf(inity)?", re.IGNORECASE)
DIGITS = re.compile(r"[0-9]+")
UNLABELLED = re.compile(r"((no|without)(label|annotation)s?|(un|not)(labell?|annotat|tagg)ed)(data|images|set)?")
"""Names without spaces, hyphens and letter case that programs give to images without a label: CVAT, FiftyOne, Azure."""
BRACKETS = "[]{}()"
LIST = "a list of labels (multi-label), where each image must have one class. Leave such rows out, or choose one label"
OR_NAME = ", or if it is one name, list all names of classes in classes.txt in the folder of the data, one a line"


@dataclasses.dataclass(frozen=True)
class Meaning:
    """The meaning of one value by itself: its kind, and its index, name or Boolean; for a misfit, its cause."""

    kind: str
    value: Any = None


MISSING = Meaning("no label")
NEGATIVE = Meaning("no label among class indices", -1)


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a data set's rows.

    Attributes:
        numbers: The class index of each row, or -1.
    """

    classes: tuple[str, ...]
    numbers: Int[np.ndarray, "n"]


def read_labels(
    values: Sequence[Any], classes: Sequence[str] | None, where: object, row: Callable[[int], str]
) -> Labels:
    """The labels of all rows of a data set, read together.

    Args:
        classes: The names of the class indices, None if they are not known.
        where, row(i): Name the data set and a row in errors.

    Raises:
        InputError: It names the row and the value of a label that is no class, or that does not fit the others.
    """
    keys = [(type(value), value if isinstance(value, (bool, int, float, str)) else repr(value)) for value in values]
    first: dict[tuple[type, Any], int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    names = None if classes is None else tuple(map(composed_name, classes))
    meanings = dict(zip(first, together([values[i] for i in first.values()], names), strict=True))

    def refuse(key: tuple[type, Any], cause: str) -> InputError:
        i = first[key]
        return InputError(f"the label of {row(i)} in {where} is {short(values[i])}: {cause}")

    for key, meaning in meanings.items():
        if meaning.kind == "misfit":
            raise refuse(key, meaning.value)
    kind_of = {key: "class index" if meaning == NEGATIVE else meaning.kind for key, meaning in meanings.items()}
    times = Counter(kind_of[key] for key in keys if meanings[key] != MISSING)
    if len(times) > 1:
        (common, _), *_, (odd, _) = times.most_common()
        example, key = (next(key for key in first if kind_of[key] == kind) for kind in (common, odd))
        other = f"{short(values[first[example]])} of {row(first[example])}"
        cause = (
            f"a {odd} among labels that are each a {common}, such as {other}. Correct it, or list all names of classes"
            " in classes.txt in the folder of the data, one a line"
        )
        raise refuse(key, cause)

    present = {meaning.value for meaning in meanings.values() if meaning.kind != MISSING.kind and meaning != NEGATIVE}
    if names is None:
        ordered = in_order(present)
        shown = tuple(str(value) for value in ordered)
        index = {value: i for i, value in enumerate(ordered)}
    else:
        shown = names
        index = (
            {name: i for i, name in enumerate(names)} if "class name" in times else {i: i for i in range(len(names))}
        )
        for key, meaning in meanings.items():
            if meaning.value in present and meaning.value not in index:
                raise refuse(key, f"none of the {len(names)} classes, {first_names(names)}")
    number = {key: index.get(meaning.value, -1) if meaning != NEGATIVE else -1 for key, meaning in meanings.items()}
    numbers = np.array([number[key] for key in keys], np.int32)
    return Labels(shown, numbers)


def together(values: Sequence[Any], names: tuple[str, ...] | None) -> list[Meaning]:
    """The meaning of each of the distinct values of a column; `names`: the classes, if they are known."""
    texts = {class_name(value) for value in values if isinstance(value, str)}
    are_listed = names is not None and texts - NO_LABEL <= {*names} and bool(texts & {*names})
    digits = {text for text in texts - NO_LABEL if DIGITS.fullmatch(text)}
    places = places_of_parts(texts)
    is_padded = any(len(text) > 1 and text[0] == "0" for text in digits) and len({*map(len, digits)}) == 1
    are_names = names or () if are_listed else digits if is_padded else ()

    def meaning(value: Any) -> Meaning:
        text = class_name(value) if isinstance(value, str) else ""
        if text in are_names and text:
            return Meaning("class name", text)
        if is_literal_list(text):
            return Meaning("misfit", LIST)
        return Meaning("misfit", LIST + OR_NAME) if has_labels(text, texts, places) else alone(value)

    return [meaning(value) for value in values]


def is_literal_list(text: str) -> bool:
    """True for a list in JSON or Python."""
    for read in (json.loads, ast.literal_eval) if text[:1] in ("[", "{", "(") else ():
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return isinstance(read(text), (list, dict, tuple, set))
    return False


def has_labels(text: str, others: Set[str], places: Mapping[str, Set[int]]) -> bool:
    """True for a text whose parts are labels of other rows, or stand at several places of other texts."""
    parts = parts_of(text)
    if len(parts) > 1 and any(part in others or len(places[part]) > 1 for part in parts if part):
        return True
    # names may hold the others: "maillot, tank suit" is a class of ImageNet, as "maillot" is
    several = [part.strip() for part in re.split("[,/&+\u3001\uff0c]", text.strip(BRACKETS)) if part.strip()]
    are_indices = re.fullmatch(r"[0-9]+([\s,]+[0-9]+)+", text) is not None
    return are_indices or (len(several) > 1 and {*several} <= others)


def places_of_parts(texts: Iterable[str]) -> dict[str, set[int]]:
    """The places at which each part stands in texts: of a taxonomy, such as animal|bird, it is always one."""
    places: dict[str, set[int]] = {}
    for text in texts:
        for place, part in enumerate(parts_of(text)):
            places.setdefault(part, set()).add(place)
    return places


def parts_of(text: str) -> list[str]:
    """The parts of a text by the marks that no name holds."""
    return [part.strip() for part in re.split(r"[|;\t\n]", text.strip(BRACKETS))]


def alone(value: Any) -> Meaning:
    """The meaning of a value by itself."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return Meaning("Boolean", value)
    if isinstance(value, int):
        return of_number(value)
    if isinstance(value, float):
        if math.isnan(value):
            return MISSING
        is_whole = math.isfinite(value) and value == int(value)
        return of_number(int(value)) if is_whole else Meaning("misfit", FRACTION)
    if isinstance(value, str):
        return of_text(class_name(value))
    if isinstance(value, (list, tuple)):
        return Meaning("misfit", LIST)
    return Meaning("misfit", f"a {type(value).__name__}, where a class index or a class name must be")


FRACTION = "a number that is no class index (0, 1, 2, ...). Write class names, or turn the numbers into classes"


def of_number(number: int) -> Meaning:
    """The meaning of a whole number."""
    if number == -1:
        return NEGATIVE
    if number < 0:
        return Meaning("misfit", "class indices are 0, 1, 2, ..., and -1 for no label")
    return Meaning("class index", number)


def of_text(text: str) -> Meaning:
    """The meaning of a text by itself."""
    if text in NO_LABEL or is_unlabelled(text):
        return MISSING
    match = INDEX.fullmatch(text)
    if match is not None and (match[1] == "0" or match[1][0] != "0"):
        return Meaning("class index", int(match[1])) if len(match[1]) < 19 else Meaning("class name", text)
    if MINUS_ONE.fullmatch(text):
        return NEGATIVE
    if match is None and NUMBER.fullmatch(text):
        return Meaning("misfit", FRACTION)
    return Meaning("class name", text)


def class_name(text: str) -> str:
    """The name of a class: a text in Unicode's composed form, without surrounding spaces."""
    return composed_name(text.strip())


def is_unlabelled(name: str) -> bool:
    """True for the name of a folder, or a text, by which programs say that images have no label."""
    return UNLABELLED.fullmatch(plain_name(name)) is not None


def plain_name(name: str) -> str:
    """A name without letter case, spaces and hyphens."""
    return re.sub(r"[\s_-]+", "", caseless_name(name))


def in_order(classes: Iterable[Any]) -> list[Any]:
    """Returns classes sorted by name, or by number if each is one: -1, 0.5, 2, 10."""
    names = sorted(classes)
    are_numbers = all(isinstance(name, str) and NUMBER.fullmatch(name) for name in names)
    return sorted(names, key=Decimal) if are_numbers else names


def note_alike(classes: Sequence[str]) -> None:
    """Notes classes whose names differ in letter case, spaces or hyphens alone; -1 and 1 differ in more."""
    first: dict[str, str] = {}
    for name in (name for name in classes if not NUMBER.fullmatch(name)):
        other = first.setdefault(plain_name(name), name)
        if other != name:
            note(f"{other} and {name} differ in letter case, spaces or hyphens alone: they are two classes")


def note_joined(classes: Sequence[str]) -> None:
    """Notes classes whose words are classes, too: names, as the ski mask of ImageNet, or lists of labels."""
    names = {*classes}
    joined = [name for name in classes if " " in name and {*name.split()} <= names]
    if joined:
        note(
            f"{first_names(joined)}: read as names of classes, though their words are labels, too; if they are lists of"
            " labels (multi-label), leave such rows out"
        )

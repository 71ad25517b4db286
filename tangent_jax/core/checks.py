"""One clear line for bad input: `{function}: expected ...; got ...; do ...`."""

import math
import operator
import unicodedata
from typing import Any

import numpy as np

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of characters that do not show as themselves."""


class InputError(ValueError):
    """An argument or a file that cannot be used; the message says what was expected and what to do."""


def require(condition: Any, function: str, expected: str, got: object, do: str = "") -> None:
    """Raises InputError with the project's one-line message unless `condition` holds."""
    if not condition:
        raise refusal(function, expected, got, do)


def refusal(function: str, expected: str, got: object, do: str = "") -> InputError:
    """Returns the InputError itself, for `raise ... from`; its message is one line."""
    text = f"{function}: expected {expected}; got {got}." + (f" {do}." if do else "")
    return InputError(visible(" ".join(text.split("\n"))))


def visible(text: str) -> str:
    """The text with every character that a terminal or a page obeys or hides (controls, escapes, marks of direction,
    line ends, halves of characters) written out, such as \\x1b: what another party's file says moves no cursor.
    """
    if text.isprintable():
        return text
    shows = (c if unicodedata.category(c) not in HIDDEN else repr(c)[1:-1] for c in text)
    return "".join(shows)


def as_array(function: str, name: str, value: Any) -> np.ndarray:
    """The value as an array; InputError for rows of several lengths, and what else is no array."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise refusal(function, f"{name} as one array", f"rows that make none ({error})") from error


def whole_number(function: str, name: str, value: Any, low: int, high: int | None = None) -> int:
    """Returns `value`, a whole number of Python or NumPy in low..high; InputError for any other, True and 1.0 too."""
    within = f"{name} >= {low}" if high is None else f"{name} in {low}..{high}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    good = number is not None and not isinstance(value, bool) and low <= number and (high is None or number <= high)
    require(good, function, f"{within}, a whole number", repr(value))
    assert number is not None
    return number


def finite_number(function: str, name: str, value: Any, above: float, most: float = math.inf) -> None:
    """Raises InputError unless `value` is a finite number with above < value <= most."""
    good = isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
    try:
        good = good and not isinstance(value, bool) and math.isfinite(value) and above < value <= most
    except (TypeError, OverflowError):
        good = False
    expected = f"{name} > {above:g}" + (f", at most {most:g}" if most < math.inf else ", finite")
    require(good, function, expected, value)

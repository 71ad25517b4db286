"""One clear line for bad input: `{function}: expected ...; got ...; do ...`.

`expect` speaks for the public function that runs, whose name `core/boundary.py` sets; `require` names another speaker:
a command, a file format, code that runs after its public function has returned. A check of a value returns it.
"""

import math
import operator
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of characters that do not show as themselves."""


class InputError(ValueError):
    """An argument or a file that cannot be used; the message says what was expected and what to do."""


SPEAKER: ContextVar[str] = ContextVar("SPEAKER", default="tangent_jax")
"""The name of the public function that runs."""
T = TypeVar("T")


@contextmanager
def speaking(name: str) -> Iterator[None]:
    """Lets checks speak for `name` while the `with` runs."""
    token = SPEAKER.set(name)
    try:
        yield
    finally:
        SPEAKER.reset(token)


def expect(condition: Any, expected: str, got: object, do: str = "") -> None:
    """Raises InputError in the name of the public function that runs, unless `condition` holds."""
    if not condition:
        raise unexpected(expected, got, do)


def unexpected(expected: str, got: object, do: str = "") -> InputError:
    """Returns the InputError of the public function that runs, for `raise ... from`."""
    return refusal(SPEAKER.get(), expected, got, do)


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


def as_array(name: str, value: Any, by: str = "") -> np.ndarray:
    """The value as an array; InputError for rows of several lengths, and what else is no array.

    `by`, here and below: who speaks, where it is not the public function that runs.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise refusal(by or SPEAKER.get(), f"{name} as one array", f"rows that make none ({error})") from error


def whole_number(name: str, value: Any, low: int, high: int | None = None, by: str = "") -> int:
    """Returns `value`, a whole number of Python or NumPy in low..high; InputError for any other, True and 1.0 too."""
    within = f"{name} >= {low}" if high is None else f"{name} in {low}..{high}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    good = number is not None and not isinstance(value, bool) and low <= number and (high is None or number <= high)
    require(good, by or SPEAKER.get(), f"{within}, a whole number", repr(value))
    assert number is not None
    return number


def finite_number(name: str, value: T, above: float, most: float = math.inf, by: str = "") -> T:
    """Returns `value`, a finite number with above < value <= most; InputError for any other."""
    number: Any = value
    good = isinstance(number, (int, float)) or getattr(number, "shape", None) == ()
    try:
        good = good and not isinstance(number, bool) and math.isfinite(number) and above < number <= most
    except (TypeError, OverflowError):
        good = False
    expected = f"{name} > {above:g}" + (f", at most {most:g}" if most < math.inf else ", finite")
    require(good, by or SPEAKER.get(), expected, value)
    return value


def one_of(name: str, value: T, choices: Iterable[T], do: str = "", by: str = "") -> T:
    """Returns `value`, one of the choices; InputError for any other."""
    choices = [*choices]
    require(value in choices, by or SPEAKER.get(), f"{name} in {', '.join(map(str, choices))}", value, do)
    return value


def instance(expected: str, value: Any, kind: type[T], do: str = "", by: str = "") -> T:
    """Returns `value`, of the type `kind`; InputError that names the type of any other."""
    require(isinstance(value, kind), by or SPEAKER.get(), expected, type(value).__name__, do)
    return value


def of_shape(name: str, value: T, shape: tuple[int, ...], do: str = "", by: str = "") -> T:
    """Returns `value`, an array of this shape; InputError for any other."""
    got = tuple(getattr(value, "shape", ()))
    require(got == tuple(shape), by or SPEAKER.get(), f"{name} of shape {tuple(shape)}", got, do)
    return value

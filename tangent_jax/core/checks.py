"""One clear line for bad input, as an `InputError`. Checks of a value return it."""

import math
import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of invisible characters."""

USER = re.compile(r"(?<=://)[^\s/@]*:(?!\d+/)\S*@|(?:(?<=https://)|(?<=http://)|(?<=hf://))[^\s/@]+@")
"""NAME:PASSWORD@ at the start of a URL, or a token; a port is neither, nor is a revision after a path of hf://."""
QUERY = re.compile(
    r"(?i)(?<=[?&;#])("
    r"(?:[\w.%-]*(?:token|secret|passwo?r?d|passphrase|signature|credentials?|delegation)"
    r"|(?:[\w.%-]*(?:[-_.]|api|access|account|private|shared|subscription))?key(?:[-_]?id)?"
    r"|(?:[\w.%-]*[-_.])?(?:sig|sas|pwd|pass|auth|authorization|bearer|jwt))"
    r"=)[^\s&;#]*"
)
"""A parameter of a URL whose name says that its value opens something: a presigned URL's signature, a token, a key.

A name that only contains such a word, as `tokenizer` and `keypoints` do, or ends with it by chance (`monkey`), is none.
"""


class InputError(ValueError):
    """An unusable argument or file; the message says what was expected, what was given, and what to do.

    The message is made one line, without secrets of URLs and without characters that move a terminal's cursor.
    """

    def __init__(self, message: str) -> None:
        super().__init__(visible(without_secrets(" ".join(message.split("\n")))))


T = TypeVar("T")


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Begins the message of an InputError that is raised in the `with` block with its subject, such as a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{subject}: {error}") from error


def failure(error: Exception) -> str:
    """The type of an exception and the first line of its message, for `got`."""
    return f"{type(error).__name__}: {[*str(error).strip().splitlines(), ''][0]}".rstrip(".")


def without_secrets(text: str) -> str:
    """The text with passwords, tokens and signatures of URLs replaced by ***.

    >>> without_secrets("s3://name:word@bucket/x and https://host:80/x?sig=1a&v=2")
    's3://***@bucket/x and https://host:80/x?sig=***&v=2'
    """
    return QUERY.sub(r"\1***", USER.sub("***@", text))


def visible(text: str) -> str:
    r"""The text with all characters escaped that control or deceive a terminal or a page, such as \x1b.

    These are controls, escapes, marks of direction, line ends, and lone surrogates. So a text from another party's file
    cannot move the cursor.
    """
    if text.isprintable():
        return text
    shows = (c if unicodedata.category(c) not in HIDDEN else repr(c)[1:-1] for c in text)
    return "".join(shows)


def as_array(name: str, value: Any) -> Shaped[np.ndarray, "..."]:
    """Returns the value as an array; InputError for rows of several lengths, and other values that are not an array."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} must be one array; got rows that make none ({error})") from error


def array_of_examples(name: str, value: Any) -> Any:
    """Returns the value as an array "b ..."; InputError for a number, a dict, and whatever else is not one array."""
    array = value if hasattr(value, "shape") and hasattr(value, "dtype") else as_array(name, value)
    if not array.shape or array.dtype == object:
        given = "a number" if array.dtype != object else f"a {type(value).__name__}"
        raise InputError(f"{name} must be one array, an example a row; got {given}")
    return array


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Returns `value`, a whole number of Python or NumPy in low..high; InputError for others, even True and 1.0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low or (high is not None and number > high):
        within = f">= {low}" if high is None else f"in {low}..{high}"
        raise InputError(f"{name} must be a whole number {within}; got {value!r}")
    return number


def finite_number(name: str, value: T, above: int | float, most: int | float = math.inf) -> T:
    """Returns `value`, a finite number with above < value <= most; InputError for others."""
    number: Any = value
    is_scalar = isinstance(number, (int, float)) or getattr(number, "shape", None) == ()
    try:
        is_within = is_scalar and not isinstance(number, bool) and math.isfinite(number) and above < number <= most
    except (TypeError, OverflowError):
        is_within = False
    if not is_within:
        limit = f" and at most {most:g}" if most < math.inf else ""
        shown = repr(value) if isinstance(value, str) else value
        if isinstance(value, int) and value.bit_length() > 1024:  # Python may refuse to print it
            shown = f"an integer of {value.bit_length()} bits"
        raise InputError(f"{name} must be a finite number > {above:g}{limit}; got {shown}")
    return value


def one_of(name: str, value: T, choices: Iterable[T]) -> T:
    """Returns `value`, one of the choices; InputError for others."""
    choices = [*choices]
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(str, choices))}; got {value}")
    return value


def instance(name: str, value: Any, kind: type[T], advice: str = "") -> T:
    """Returns `value`, of the type `kind`; InputError naming the type of others."""
    if not isinstance(value, kind):
        a = "an" if kind.__name__[0] in "AEIO" else "a"
        raise InputError(
            f"{name} must be {a} {kind.__name__}; got {type(value).__name__}" + (f". {advice}" if advice else "")
        )
    return value


def of_shape(name: str, value: T, shape: tuple[int, ...], advice: str = "") -> T:
    """Returns `value`, an array of this shape; InputError for others."""
    given = tuple(getattr(value, "shape", ()))
    if given != tuple(shape):
        raise InputError(f"{name} must have shape {tuple(shape)}; got {given}" + (f". {advice}" if advice else ""))
    return value


def check_printable(name: str, text: str) -> None:
    """Raises InputError for a text with characters that do not show."""
    if not text.isprintable():
        raise InputError(f"{name} must have only characters that show; got {text!r}.")

"""One clear line for bad input: `{function}: expected ...; got ...; do ...`."""

from typing import Any


class InputError(ValueError):
    """What the caller handed in cannot be used; the message says what was expected and what to do."""


def require(condition: Any, function: str, expected: str, got: object, do: str = "") -> None:
    """Raises InputError with the project's one-line message unless `condition` holds."""
    if not condition:
        raise refusal(function, expected, got, do)


def refusal(function: str, expected: str, got: object, do: str = "") -> InputError:
    """The InputError itself, for `raise ... from`."""
    return InputError(f"{function}: expected {expected}; got {got}." + (f" {do}." if do else ""))

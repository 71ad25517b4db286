"""Reads records from disk with checks in one place: text, JSON, and the type of every field.

A dataclass describes a record; `convert` builds it from JSON, or names the field that is missing, unknown or wrong.
"""

import codecs
import contextlib
import dataclasses
import json
import sys
import types
from collections.abc import Sequence
from functools import cache, singledispatch
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import fingerprint
from tangent_jax.io.git_lfs import check_content
from tangent_jax.io.paths import Place

UNIONS = (Union, types.UnionType)
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
"""The names of types in messages; a tuple is a list, anything else an object."""


class Tagged:
    """The base of a tagged union's dataclasses: a field takes one of several, whose name is "type" in the JSON."""


def read_text(path: Place) -> str:
    """The text of a file, in UTF-8 or the encoding of its byte-order mark; InputError naming the file otherwise."""
    return as_text(path.read_bytes(), path)


def as_text(content: bytes, where: object) -> str:
    """The bytes as text; `where` names them in an error, also if they are a pointer of Git LFS."""
    check_content(content, where)
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    with contextlib.suppress(UnicodeDecodeError):
        text = content.decode(encoding)
        if "\0" not in text:  # as UTF-16 without its mark has
            return text
    raise InputError(f"{where} must be text in UTF-8, or in UTF-16 with its mark; save it so (in Excel: CSV UTF-8)")


def read_lines(path: Place) -> list[str]:
    """The non-empty lines of a text file, without surrounding spaces."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def parse_json(content: bytes | str, where: object) -> dict[str, Any]:
    """The content as a JSON object; InputError naming `where` for anything else."""
    text = content if isinstance(content, str) else as_text(content, where)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} must be JSON; {type(error).__name__}: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a JSON object; got {type(value).__name__}")
    return value


def seal_fields(fields: dict[str, Any]) -> str:
    """The fields as JSON with their SHA-256, which detects edits that do not recompute it."""
    return json.dumps({**fields, "sha256": fingerprint(json.dumps(fields).encode())}) + "\n"


def read_sealed(kind: Any, path: Path, advice: str) -> Any:
    """Reads a dataclass that `seal_fields` wrote; InputError, with the advice, for a damaged or edited file."""
    fields = parse_json(path.read_bytes(), path)
    seal = fields.pop("sha256", None)
    if seal != fingerprint(json.dumps(fields).encode()):
        raise InputError(f"{path} must be unaltered; it was edited. {advice}")
    return convert(kind, fields, path)


def convert(kind: Any, value: Any, where: object) -> Any:
    """A JSON value as a `kind`: a dataclass, a tuple, a dict, a union or a plain type. where: its name in an error.

    Raises:
        InputError: It names a field that is missing, unknown or of another type. True is not a number, a number with a
            fraction is not a whole number, and a number beyond the range of floats is refused.
    """
    if type(value) is kind:  # the common cases: names of examples, whole numbers
        return value
    if not matches(kind, value):
        raise InputError(f"{where} must be {spell(kind)}; got {short(value)}")
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in UNIONS:
        return convert(next(k for k in arguments if matches(k, value)), value, where)
    if dataclasses.is_dataclass(kind):
        return record(kind, value, where)
    if origin is tuple and arguments[-1] is Ellipsis:
        fields = [*get_args(arguments[0])]
        if fields and all(type(row) is list and [*map(type, row)] == fields for row in value):
            return tuple(map(tuple, value))  # as below, at once: a million names of images
        return tuple(convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is tuple:
        if len(value) != len(arguments):
            raise InputError(f"{where} must have {len(arguments)} entries; got {short(value)}")
        return tuple(convert(k, item, where) for k, item in zip(arguments, value, strict=True))
    if origin is dict:
        return {name: convert(arguments[1], item, f"{name} of {where}") for name, item in value.items()}
    return float(value) if kind is float else value


@singledispatch
def plain(value: Any) -> Any:
    """The value as JSON has it: the inverse of `convert`. Unlike `dataclasses.asdict` it copies no tuple of texts."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return tag_of(type(value)) | fields
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value[:1])):
        return tuple(map(plain, value))
    return value


hints_of = cache(get_type_hints)  # evaluating the hints takes longer than the rest of a record


def record(kind: Any, value: dict[str, Any], where: object) -> Any:
    """The dataclass of a JSON object's fields."""
    value = {name: item for name, item in value.items() if name not in tag_of(kind)}
    hints = hints_of(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise InputError(f"{where} must hold the fields of a {kind.__name__} alone; got {name!r}")
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in value and not has_default:
            raise InputError(f"{where} must hold the field {name}; it is missing")
    return kind(**{name: convert(hints[name], item, f"{name} of {where}") for name, item in value.items()})


def matches(kind: Any, value: Any) -> bool:
    """True if a JSON value may be a `kind`; its entries are not checked."""
    origin = get_origin(kind) or kind
    if origin in UNIONS:
        return any(matches(k, value) for k in get_args(kind))
    if origin is Any:
        return True
    if origin is Literal:
        return value in get_args(kind)
    if origin is float:
        return isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if dataclasses.is_dataclass(origin):
        return isinstance(value, dict) and tag_of(origin).items() <= value.items()
    return isinstance(value, origin)


def tag_of(kind: Any) -> dict[str, str]:
    """{"type": the name of a Tagged class}; nothing for others."""
    return {"type": kind.__name__} if isinstance(kind, type) and issubclass(kind, Tagged) else {}


def spell(kind: Any) -> str:
    """A type in words."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if origin in UNIONS:
        return " or ".join(spell(k) for k in get_args(kind))
    tag = "".join(f" of type {name}" for name in tag_of(origin).values())
    return "a list" if origin is tuple else WORDS.get(origin, f"an object{tag}")


def short(value: Any) -> str:
    """The repr of a value, truncated after 60 letters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def first_names(names: Sequence[str]) -> str:
    """The first five names of a list, divided by commas."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")

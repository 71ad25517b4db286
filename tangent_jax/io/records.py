"""Reads records from disk with checks in one place: text, JSON, and the type of every field.

A dataclass describes a record; `convert` builds it from JSON, or names the field that is missing, unknown or wrong.
"""

import codecs
import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tangent_jax.core.checks import refusal, require
from tangent_jax.io.files import fingerprint
from tangent_jax.remote.url_paths import Place

UNIONS = (Union, types.UnionType)
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_text(function: str, path: Place) -> str:
    """The text of a file, in UTF-8 or the encoding of its byte-order mark; InputError naming the file otherwise."""
    return as_text(function, path.read_bytes(), path)


def as_text(function: str, content: bytes, where: object) -> str:
    """The bytes as text; `where` names them in an error."""
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise refusal(function, "text in UTF-8", f"{where}, which is damaged or of another encoding") from error


def read_lines(function: str, path: Place) -> list[str]:
    """The non-empty lines of a text file, without surrounding spaces."""
    return [line.strip() for line in read_text(function, path).splitlines() if line.strip()]


def parse_json(function: str, content: bytes | str, where: object) -> dict[str, Any]:
    """The content as a JSON object; InputError naming `where` for anything else."""
    text = content if isinstance(content, str) else as_text(function, content, where)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(function, f"JSON in {where}", f"{type(error).__name__}: {error}") from error
    require(isinstance(value, dict), function, f"a JSON object in {where}", type(value).__name__)
    return value


def seal_fields(fields: dict[str, Any]) -> str:
    """The fields as JSON with their SHA-256, which detects edits that do not recompute it."""
    return json.dumps({**fields, "sha256": fingerprint(json.dumps(fields).encode())}) + "\n"


def read_sealed(kind: Any, function: str, path: Path, do: str) -> Any:
    """Reads a dataclass that `seal_fields` wrote; InputError for a damaged or edited file."""
    fields = parse_json(function, path.read_bytes(), path)
    seal, own = fields.pop("sha256", None), fingerprint(json.dumps(fields).encode())
    require(seal == own, function, f"an unaltered {path}", "one that was edited", do)
    return convert(kind, fields, function, path)


def convert(kind: Any, value: Any, function: str, where: object) -> Any:
    """A JSON value as a `kind`: a dataclass, a tuple, a dict, a union or a plain type.

    Raises: InputError naming a field that is missing, unknown or of another type. True is no number, a number with a
            fraction is no whole number, and a number beyond the range of floats is refused.
    """
    if type(value) is kind:  # the common cases: names of examples, whole numbers
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if not matches(kind, value):
        raise refusal(function, f"{spell(kind)} in {where}", short(value))
    if origin in UNIONS:
        return convert(next(k for k in arguments if matches(k, value)), value, function, where)
    if dataclasses.is_dataclass(kind):
        return record(kind, value, function, where)
    if origin is tuple and arguments[-1] is Ellipsis:
        fields = [*get_args(arguments[0])]
        if fields and all(type(v) is list and [*map(type, v)] == fields for v in value):
            return tuple(map(tuple, value))  # as below, at once: a million names of images
        return tuple(convert(arguments[0], v, function, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is tuple:
        if len(value) != len(arguments):
            raise refusal(function, f"{len(arguments)} entries in {where}", short(value))
        return tuple(convert(k, v, function, where) for k, v in zip(arguments, value, strict=True))
    if origin is dict:
        kind = arguments[1]
        items = value.items()
        return {n: v if type(v) is kind else convert(kind, v, function, f"{n} of {where}") for n, v in items}
    return float(value) if kind is float else value


def plain(value: Any) -> Any:
    """The value as JSON has it: the inverse of `convert`. Unlike `dataclasses.asdict` it copies no tuple of texts."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value[:1])):
        return tuple(map(plain, value))
    return value


def record(kind: Any, value: dict[str, Any], function: str, where: object) -> Any:
    """The dataclass of a JSON object's fields."""
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        require(name in fields, function, f"a field of a {kind.__name__} in {where}", f"{name!r}, which it has not")
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        require(name in value or not needed, function, f"the field {name} in {where}", "none")
    return kind(**{name: convert(hints[name], v, function, f"{name} of {where}") for name, v in value.items()})


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
    wanted = {tuple: (list, tuple), dict: dict}.get(origin, dict if dataclasses.is_dataclass(origin) else origin)
    return isinstance(value, wanted)


def spell(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    if get_origin(kind) in UNIONS:
        return " or ".join(spell(k) for k in get_args(kind))
    return words.get(kind) or {tuple: "a list", dict: "an object"}.get(get_origin(kind) or kind, "an object")


def short(value: Any) -> str:
    """The repr of a value, truncated after 60 letters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."

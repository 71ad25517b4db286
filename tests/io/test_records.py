"""Records of JSON: every field of its own type, or one line that names it."""

import dataclasses
import json
from typing import Any, Literal

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import convert, plain


@dataclasses.dataclass(frozen=True)
class Inner:
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Outer:
    names: tuple[str, ...]
    scale: float = 1.0
    kind: Literal["a", "b"] | None = None
    sizes: dict[str, int] | int | None = None
    row: tuple[str, int] | None = None
    inner: tuple[Inner, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    rest: Any = None


GOOD = {"names": ["x", "y"], "scale": 2, "sizes": {"h": 3}, "row": ["z", 1], "inner": [{"count": 2}], "rest": [None]}
GOOD |= {"pairs": [["a", "b"], ["c", "d"]]}

BAD = [
    ({"names": ["x", 1]}, r"names of F\[1\] must be text; got 1"),
    ({"names": "xy"}, "names of F must be a list; got 'xy'"),
    ({"names": None}, "names of F must be a list; got None"),
    ({}, "F must hold the field names; it is missing"),
    ({"names": [], "other": 1}, "F must hold the fields of a Outer alone; got 'other'"),
    ({"names": [], "scale": True}, "scale of F must be a number; got True"),
    ({"names": [], "scale": 10**400}, "scale of F must be a number; got 1000"),
    ({"names": [], "kind": "c"}, "kind of F must be a or b or null; got 'c'"),
    ({"names": [], "sizes": 1.0}, "sizes of F must be an object or a whole number or null; got 1.0"),
    ({"names": [], "sizes": {"h": False}}, "h of sizes of F must be a whole number; got False"),
    ({"names": [], "row": ["z"]}, "row of F must have 2 entries"),
    ({"names": [], "pairs": [["a", "b"], ["c", 1]]}, r"pairs of F\[1\] must be text; got 1"),
    ({"names": [], "pairs": [["a", "b"], ["c"]]}, r"pairs of F\[1\] must have 2 entries; got \['c'\]"),
    ({"names": [], "pairs": ["ab"]}, r"pairs of F\[0\] must be a list; got 'ab'"),
    (
        {"names": [], "inner": [{"count": 1}, {"count": "1"}]},
        r"count of inner of F\[1\] must be a whole number; got '1'",
    ),
]


def test_a_record_has_the_types_of_its_fields():
    pairs = (("a", "b"), ("c", "d"))
    whole = Outer(("x", "y"), 2.0, None, {"h": 3}, ("z", 1), (Inner(2),), pairs, [None])
    assert convert(Outer, GOOD, "F") == whole
    assert json.loads(json.dumps(plain(whole))) == GOOD | {"kind": None}
    assert type(convert(float, 3, "F")) is float


@pytest.mark.parametrize(("value", "match"), BAD)
def test_wrong_field_type_is_named(value, match):
    with pytest.raises(InputError, match=match) as error:
        convert(Outer, value, "F")
    assert "\n" not in str(error.value)

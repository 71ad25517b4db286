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
    ({"names": ["x", 1]}, r"text in names of F\[1\]; got 1"),
    ({"names": "xy"}, "a list in names of F; got 'xy'"),
    ({"names": None}, "a list in names of F; got None"),
    ({}, "the field names in F; got none"),
    ({"names": [], "other": 1}, "a field of a Outer in F; got 'other'"),
    ({"names": [], "scale": True}, "a number in scale of F; got True"),
    ({"names": [], "scale": 10**400}, "a number in scale of F; got 1000"),
    ({"names": [], "kind": "c"}, "a or b or null in kind of F; got 'c'"),
    ({"names": [], "sizes": 1.0}, "an object or a whole number or null in sizes of F; got 1.0"),
    ({"names": [], "sizes": {"h": False}}, "a whole number in h of sizes of F; got False"),
    ({"names": [], "row": ["z"]}, "2 entries in row of F"),
    ({"names": [], "pairs": [["a", "b"], ["c", 1]]}, r"text in pairs of F\[1\]; got 1"),
    ({"names": [], "pairs": [["a", "b"], ["c"]]}, r"2 entries in pairs of F\[1\]; got \['c'\]"),
    ({"names": [], "pairs": ["ab"]}, r"a list in pairs of F\[0\]; got 'ab'"),
    ({"names": [], "inner": [{"count": 1}, {"count": "1"}]}, r"a whole number in count of inner of F\[1\]; got '1'"),
]


def test_a_record_has_the_types_of_its_fields():
    pairs = (("a", "b"), ("c", "d"))
    whole = Outer(("x", "y"), 2.0, None, {"h": 3}, ("z", 1), (Inner(2),), pairs, [None])
    assert convert(Outer, GOOD, "F") == whole
    assert json.loads(json.dumps(plain(whole))) == GOOD | {"kind": None}
    assert type(convert(float, 3, "F")) is float


@pytest.mark.parametrize(("value", "match"), BAD)
def test_a_field_of_another_type_is_named_in_one_line(value, match):
    with pytest.raises(InputError, match=match) as error:
        convert(Outer, value, "F")
    assert "\n" not in str(error.value)

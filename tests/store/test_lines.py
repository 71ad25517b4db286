"""The journal's lines: each is read as it was written, and one that no store writes is refused by number and cause."""

import json

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.store import lines
from tangent_jax.store.lines import Add, Compose, Discard, Entry, Export, Exported, Merge, Released, Remove
from tangent_jax.store.state import replay

ENTRY = {"id": "0" * 16, "weights": "w", "file": "f", "origin": "o", "crc": "0" * 8}
TIME = "2026-11-24T22:00:00Z"
ADD = {"time": TIME, "op": "add", "name": "a", "entry": ENTRY}
REMOVE = {"time": TIME, "op": "remove", "removed": [], "receipt": "0" * 16, "receipt_hash": "h"}

ENTRY_OF = Entry(**ENTRY)
ACCOUNT = Released(privacy=Spent(make_mechanism(3.0, 1e-5), 50, True), examples=("e",), public=("p",))
EXPORT = {"names": ("a",), "path": "/out", "result": "r"}
WRITTEN = [
    Add(name="a", shown=True, entry=Entry(**{**ENTRY, "factors": ENTRY_OF})),
    Compose(names=("a",), merge="inputs", result="r"),
    Export(export=Exported(**EXPORT)),
    Discard(removed=("a",), released=(ACCOUNT, Released())),
    Remove(removed=("a",), added={"b": ENTRY_OF}, names=("b",), composed="r", receipt="0" * 16, receipt_hash="h",
           forgotten=("f",), released=(ACCOUNT,)),
    Merge(of="o", released=(ACCOUNT,), exports=(Exported(**EXPORT),), showed=("a",)),
]  # fmt: skip


@pytest.mark.parametrize("line", WRITTEN, ids=lambda line: type(line).__name__)
def test_a_line_is_read_as_it_was_written(line):
    assert lines.parse(json.loads(json.dumps(lines.spell(line)))) == line


BAD_ENTRIES = [
    ({**ENTRY, "id": "../x"}, "id must be as a store writes it"),
    ({**ENTRY, "id": None}, "id of .* must be text"),
    ({**ENTRY, "file": 1}, "file of .* must be text"),
    ({**ENTRY, "factors": {**ENTRY, "id": 3}}, "id of factors of .* must be text"),
]
HOLDERS = {
    "add": lambda entry: {**ADD, "name": "b", "entry": entry},
    "added": lambda entry: {**REMOVE, "added": {"b": entry}},
}
BAD = [(hold(entry), cause) for hold in HOLDERS.values() for entry, cause in BAD_ENTRIES]
BAD += [({**ADD, "name": name}, "name ") for name in (5, "\x1b[2J", "a\nb", "a\u202eb", "nul\x00", "a/b", " a")]
BAD += [({**ADD, "time": time}, "time ") for time in ("never", 5)]
BAD += [
    ({name: value for name, value in ADD.items() if name != "time"}, "the field time is missing"),
    ({**ADD, "op": "anneal"}, "op must be one of add, .*; got anneal"),
    ({**ADD, "temperature": 3}, "got 'temperature'"),
    ({**REMOVE, "receipt": "../x"}, "receipt must be as a store writes it"),
    ({**REMOVE, "receipt_hash": 1}, "receipt_hash of remove must be text"),
    (
        {"time": TIME, "op": "compose", "names": ["b"], "result": "r"},
        "names must be of components that were added before; got b",
    ),
]


@pytest.mark.parametrize(("line", "cause"), BAD)
def test_unknown_line_is_refused_by_number(line, cause):
    with pytest.raises(InputError, match=rf"line 2 of the journal must be .*; {cause}.*Update tangent_jax") as refused:
        replay([ADD, line])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_line_with_file_is_taken(hold):
    assert {*replay([ADD, hold(ENTRY)]).components} <= {"a", "b"}


def test_a_journal_is_read_in_linear_time(monkeypatch):
    looked_at, matches = [], lines.IDENTITY.fullmatch
    monkeypatch.setitem(lines.SPELLINGS, "id", lambda text: looked_at.append(text) or matches(text))
    replay([{**ADD, "name": f"{i}", "entry": {**ENTRY, "id": f"{i:016x}"}} for i in range(50)])
    assert len(looked_at) == 50

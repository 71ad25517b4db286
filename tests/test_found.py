"""Every fault of tests/found.md has a test that exists, and each removal case of the last hostile round a row."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = [
    line.strip("| ").split(" | ") for line in (TESTS / "found.md").read_text().splitlines() if line.startswith("| ")
]


def test_every_fault_has_a_test_that_exists():
    defined = {
        f"{path.relative_to(TESTS)}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    rows = ROWS[1:]
    assert len(rows) > 100
    for row in rows:
        number, cause, tests = row
        assert cause, number
        missing = [test for test in tests.split(", ") if test not in defined]
        assert not missing, f"{number}: {missing}"


def test_no_case_of_the_last_round_is_missing():
    numbers = {row[0] for row in ROWS}
    assert [n for n in range(89, 110) if str(n) not in numbers] == []

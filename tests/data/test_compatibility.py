"""The table of data layouts in docs/reference/compatibility.md says what each of them does now."""

import pytest
from data.compatibility import BEGIN, END, PAGE, ROWS, line


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.reader}{row.name}")
def test_the_page_says_what_a_layout_does(row):
    assert line(row) in PAGE.read_text().splitlines(), "python tests/data/compatibility.py writes the table anew"


def test_the_page_has_no_other_row_of_data():
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert sum(row.startswith("| `") for row in text.splitlines()) == len(ROWS)
    assert len({(row.reader, row.name) for row in ROWS}) == len(ROWS)

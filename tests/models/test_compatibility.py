"""The models' half of docs/reference/compatibility.md has a row for each case of `make parity`, and no other."""

import re

from models.compatibility import BEGIN, END, FILES, IMAGES, PAGE, POSITIONS, PROCESSORS

from tangent_jax.models.vit.positions import FILTERS


def test_page_has_a_row_for_each_case():
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    lines = [line for line in text.splitlines() if re.match(r"\| (?!file |JSON |weights |filter )", line)]
    rows = [line[2:].split(" | ")[0] for line in lines]
    assert rows == [*FILES, *PROCESSORS, *IMAGES, *POSITIONS]


def test_each_filter_of_positions_has_an_owner():
    assert POSITIONS.keys() == FILTERS.keys()

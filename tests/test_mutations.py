"""The mutations fit the code: each fragment stands once where it says, and its test exists."""

import ast

import pytest
from mutations import MUTATIONS, ROOT, Mutation, lines_of, mutated, places


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.definition}: {mutation.old}"[:60])
def test_a_mutation_changes_one_place_and_names_a_test_that_exists(mutation):
    changed = mutated(mutation, (ROOT / mutation.file).read_text())
    if mutation.file.endswith(".py"):
        ast.parse(changed)
    file, _, name = mutation.test.partition("::")
    assert not name or name.partition("[")[0] in lines_of((ROOT / file).read_text())


def test_a_fragment_is_looked_for_in_its_definition_alone():
    text = "def one(x):\n    return (x +\n            1)\n\ndef other(x):\n    return x + 1\n"
    assert len(places(Mutation("", "", "x + 1", "", ""), text)) == 2
    assert mutated(Mutation("", "one", "x + 1", "x", ""), text) == text.replace("x +\n            1", "x")
    with pytest.raises(ValueError, match=r"stands 0 times in one$"):
        mutated(Mutation("", "one", "etur", "", ""), text)

"""The mutations fit the code: each fragment stands once where it says, the mutant differs, its test exists."""

import ast
from functools import cache

import pytest
from mutations import MUTATIONS, ROOT, Mutation, lines_of, mutated, places

FILE = '''
"""A module."""
LIMIT = 1.0

class Sum:
    scale: float = 2.0

    @property
    def total(self):
        def one(x):
            return (x +
                    1)
        return one(1) + 1

def other(x):
    return x + 1
'''


@cache
def text_of(file):
    return (ROOT / file).read_text()


parsed = cache(ast.parse)


def statement(tree, line):
    """The number of statements of a module, and the program of the one that ends at a line or later."""
    return len(tree.body), next((ast.dump(node) for node in tree.body if (node.end_lineno or 0) >= line), None)


def test_every_mutation_changes_one_place_of_the_code_and_names_a_test_that_exists():
    wrong = []
    for mutation in MUTATIONS:
        text = text_of(mutation.file)
        file, _, name = mutation.test.partition("::")
        try:
            changed = mutated(mutation, text)
            line = text.count("\n", 0, places(mutation, text)[0][0]) + 1
            if mutation.file.endswith(".py"):
                mutant = ast.parse(changed)
                if statement(mutant, line) == statement(parsed(text), line):
                    wrong.append((mutation, "changes nothing"))
            if name and name.partition("[")[0] not in lines_of(text_of(file)):
                wrong.append((mutation, "its test is not there"))
        except (ValueError, SyntaxError) as error:
            wrong.append((mutation, str(error)))
    assert not wrong, "\n".join(f"{mutation}: {why}" for mutation, why in wrong)
    assert len({*MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize(
    ("definition", "old", "count"),
    [
        ("", "+ 1", 3),
        ("Sum", "+ 1", 2),
        ("Sum.total.one", "x + 1", 1),  # over a line break
        ("other", "x+1", 1),
        ("other", "y", 0),
        ("Sum.scale", "2.0", 1),
        ("LIMIT", "1.0", 1),
        ("Sum.total", "@property", 1),
        ("one", "1", 0),
        ("other", "etur", 0),  # no part of a word
    ],
)
def test_a_fragment_is_looked_for_in_its_definition_alone_whatever_the_spaces(definition, old, count):
    assert len(places(Mutation("", definition, old, "", ""), FILE)) == count


def test_a_mutation_replaces_its_fragment_and_nothing_else():
    assert mutated(Mutation("", "other", "x+1", "x - 1", ""), FILE) == FILE.replace("return x + 1", "return x - 1")
    with pytest.raises(ValueError, match=r"stands 2 times in Sum$"):
        mutated(Mutation("", "Sum", "+ 1", "", ""), FILE)

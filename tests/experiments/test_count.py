"""The counts of what is there."""

import ast
import json

from run_binary import run

import tangent_jax as tj
from experiments.count import asks_a_method, asks_a_type
from experiments.shared.defined import binaries, defined
from experiments.shared.table import TABLE
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.flags import FIELD_OF
from tangent_jax.store.recipe import FLAT


def test_every_flag_is_of_the_table_and_has_its_help_everywhere():
    own = {binary: defined(binary)[1] for binary in binaries()}
    assert {name for flags in own.values() for name in flags} == {*TABLE}
    for name, make in TABLE.items():
        about = make.keywords["help"].removesuffix(".")
        assert all(about in flags[name].help for flags in own.values() if name in flags), name


def test_a_flag_sets_a_field_of_a_recipe_only_where_that_is_stated():
    """`delta` of a budget must not fill a field `delta` of another meaning."""
    assert {*FIELD_OF} <= {*TABLE}
    assert {*FIELD_OF.values()} <= {*FLAT}
    assert {*FLAT} & {*TABLE} <= {*FIELD_OF}, "rename the setting, or state in FIELD_OF that the flag sets it"


def test_count_reads_the_tree():
    counts = json.loads(run("count")[0])
    assert counts["public names at the top"] == len(tj.__all__) < counts["public names in all modules"]
    assert counts["commands"] == len(COMMANDS)
    assert len(TABLE) <= counts["different flags"] < counts["flags of all binaries"]
    assert 0 < counts["lines of its inner ring"] < counts["lines of the library"]
    assert 0 < counts["files that an image passes in finetune"] <= counts["files loaded by finetune"]
    assert counts["files loaded by tangent_jax.rules"] < counts["files loaded by tangent_jax.store"]


def test_count_finds_questions_of_a_kind():
    source = "if isinstance(a.b, Predictor): pass\nif recipe.method == 'nlft': pass\nif method in methods: pass"
    asked = [node for node in ast.walk(ast.parse(source)) if asks_a_type(node) or asks_a_method(node)]
    assert [node.lineno for node in asked] == [1, 2]

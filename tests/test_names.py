"""Public names: each is one object, hides no module, and has an example that runs."""

import importlib
import pkgutil
import sys

import tangent_jax
from experiments.shared.names import public_names
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.data import shards

RUN_BY_NAME = {f"tangent_jax.commands.{name}" for name in COMMANDS}
NAMES = ["tangent_jax", *(m.name for m in pkgutil.walk_packages(tangent_jax.__path__, "tangent_jax."))]
MODULES = {name: importlib.import_module(name) for name in NAMES if name not in RUN_BY_NAME}


def test_public_name_is_one_object():
    names = public_names()
    assert len({id(value) for value in names.values()}) == len(names) > 100


def test_no_name_hides_a_module():
    """`import tangent_jax.pretrained.load as load` gives the module, for every module of the library."""
    for name, module in MODULES.items():
        parent, _, last = name.rpartition(".")
        assert not parent or getattr(MODULES[parent], last) is module, name
        assert sys.modules[name] is module


def test_public_names_have_examples():
    """Pytest runs it (`--doctest-modules`), with the small model of tests/demo.py."""
    values = {**public_names(), **{f"shards.{n}": v for n, v in vars(shards).items() if not n.startswith("_")}}
    ours = {n: v for n, v in values.items() if callable(v) and v.__module__.startswith("tangent_jax.")}
    ours = {n: v for n, v in ours.items() if "shards." not in n or v.__module__ == shards.__name__}
    assert {n for n, v in ours.items() if ">>> " not in (v.__doc__ or "")} == {"InputError"}

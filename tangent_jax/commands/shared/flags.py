"""Defines flags from the common table, and reads their values.

A binary defines only the flags that it reads: `define("weights", "dataset", ...)`. Flags that set a field of a Recipe
have its default. A list as default makes a flag take several comma-separated values (`lr=["1e-3"]`); a tuple lists the
values that a binary allows, the first as default (`method=("taft", "nlft")`).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from absl import flags

from tangent_jax.commands.shared.presets import PRESETS
from tangent_jax.commands.shared.table import TABLE
from tangent_jax.core.checks import InputError, about
from tangent_jax.io.files import expand_path
from tangent_jax.models.subsets import KINDS, MADE
from tangent_jax.store.recipe import FLAT

F: Any = flags.FLAGS
PRIVATE_KINDS = tuple(kind for kind in KINDS if kind not in (*MADE, "everything"))
"""The subsets that a private run trains."""

MODEL = ("weights", "architecture", "ignore_config", "image_size")
EVERY = ("devices", "coordinator", "processes", "process_id", "compilation_cache")
"""The flags of every binary."""
CACHED = ("cache_dir", "cache_dtype", "skip_unreadable", "decode_processes", "most_pixels")
COMPUTE = ("dtype", "linearization", "output")
TRAINING = ("loss", "penalty", "epochs", "batch_size")
OPTIMUM = ("solver", "certificate", "passes")
ANCHOR = ("reset", "new_class_token", "head", "head_scale", "seed")
NAMED = (*MODEL, *COMPUTE, *TRAINING, *OPTIMUM, *ANCHOR, "dataset", "cache_dtype", "method", "blocks", "rank", "radius")
FIELD_OF = {"lr": "learning_rate", "subset": "kind"} | dict(zip(NAMED, NAMED, strict=True))
"""The flat setting of a Recipe (FLAT) that a flag sets; no other flag sets one, whatever its name."""
SPLITS = ("train", "validation", "test")
"""The flags that name the folder of each split, of the binaries that read one data set."""
SINGLE = (*MODEL, *CACHED, *COMPUTE, *TRAINING, "dataset", "seed", "held_out")
"""The flags that `shards.Method` reads, of one model; the defaults are SHARDED_DEFAULTS."""
SHARDED = (*SINGLE, "lr_nlft", "sharding", "owners", "concentration", "at_once")
"""The flags that it reads for models trained apart."""
# the tangent alone: f_w(x) of a random head would count once, for any number of models
SHARDED_DEFAULTS = {"output": "tangent", "blocks": 1, "lr": 3e-3}
JOB = ("metrics", "profile_steps", "plan", "topology")
"""The flags of a binary with one long run: logs, traces and plans."""
PRIVATE = {"loss": "ce", "penalty": 0.0, "output": "tangent"}
"""The defaults of private runs, the paper's: cross entropy, the tangent alone."""
NEEDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "certificate": {"solver": ("optimum",)},
    "passes": {"solver": ("optimum",)},
    "rank": {"subset": ("adapter", "lora", "lora_b")},
    "concentration": {"sharding": ("dirichlet",)},
    "shards": {"sharding": ("uniform", "hash", "class", "dirichlet")},
    "topology": {"plan": (True,)},
}
"""For each flag, the values of other flags with which it has an effect; a flag keeps its own as `needs`."""


def only_with(*names: str, **values: Any) -> None:
    """Declares that flags have an effect only with one value (or some) of another flag; others are refused."""
    for name in names:
        F[name].needs |= {k: tuple(v) if isinstance(v, list) else (v,) for k, v in values.items()}


def parse(argv: Sequence[str]) -> list[str]:
    """The arguments besides the flags; --preset changes the defaults of its flags.

    Raises: flags.Error for an unknown flag or an invalid value.
    """
    try:
        rest = F(argv)
    except ValueError as error:  # absl's own, such as for --noNAME=VALUE
        raise flags.Error(str(error)) from error
    if "preset" in F and F.preset:
        for name, value in PRESETS[F.preset].items():
            F.set_default(name, value)
    name_dataset()
    return rest


def name_dataset() -> None:
    """Sets --dataset to the data set of --train, --validation and --test, if they are given.

    Raises: flags.Error for --dataset beside them, and for others without --train.
    """
    given = {name: F[name].value for name in SPLITS if name in F and F[name].value is not None}
    if not given:
        return
    if F["dataset"].present:
        raise flags.IllegalFlagValueError("--dataset names all images: pass it, or --train and --test, not both")
    if "train" not in given or not all(given.values()):
        raise flags.IllegalFlagValueError("--train=FOLDER must be given beside --test=FOLDER and --validation=FOLDER")
    question = "&".join(f"{name}={quote(folder)}" for name, folder in given.items())
    F["dataset"].value = f"folder:?{question}"


def check_effects() -> None:
    """Raises InputError for a given flag that has no effect with the others."""
    for name in F:
        needs = getattr(F[name], "needs", {}) if F[name].present else {}
        for other, values in needs.items():
            if other not in F:
                continue
            given = F[other].value if isinstance(F[other].value, list) else [F[other].value]
            if {*values}.isdisjoint(given):
                spelled = ",".join(map(str, values))
                given_text = ",".join(map(str, given))
                wanted = f"--{other} of {spelled}" if len(values) > 1 else f"--{other}={spelled}"
                raise InputError(f"--{name} has an effect only with {wanted}; got --{other}={given_text}")


def define(*names: str, table: Mapping[str, partial] = TABLE, **defaults: Any) -> None:
    """Defines the flags named and those in `defaults`, which override the table's; a partial replaces its row."""
    splits = SPLITS if "dataset" in names or isinstance(defaults.get("dataset"), str) else ()
    for name in dict.fromkeys([*names, *splits, *defaults]):
        make = defaults.pop(name) if isinstance(defaults.get(name), partial) else table[name]
        default = {"default": FLAT[FIELD_OF[name]]} if name in FIELD_OF else {}
        given: dict[str, Any] = {"default": defaults[name]} if name in defaults else {}
        if isinstance(defaults.get(name), tuple):
            make = partial(flags.DEFINE_enum, help=make.keywords["help"])
            given = {"default": defaults[name][0], "enum_values": [*defaults[name]]}
        elif isinstance(defaults.get(name), list):
            make = partial(flags.DEFINE_list, help=make.keywords["help"].removesuffix(".") + "; several with commas.")
        make(name, **{**default, **make.keywords, **given})
        F[name].needs = dict(NEEDS.get(name, {}))
        F.register_key_flag_for_module(sys.argv[0], F[name])  # the binary's --help then shows it


def path_of(flag: str) -> Path:
    """The path in a flag, with ~ resolved; InputError for a URL, and for text that is no path."""
    with about(f"--{flag}"):
        return expand_path(F[flag].value)


def listed(flag: str, choices: Iterable[str] = ()) -> list[str]:
    """The entries of a comma-separated flag, at least one, each one of `choices` if these are given."""
    values = [*F[flag].value]
    choices = [*choices]
    if not values or not all(values):
        raise InputError(f"--{flag} must have an entry, and no empty one; got {','.join(values) or 'none'}")
    if choices and not {*values} <= {*choices}:
        raise InputError(f"--{flag} must be of {', '.join(choices)}; got {','.join(values)}")
    return values


def numbers(flag: str, kind: type) -> list:
    """The numbers of a comma-separated flag, at least one."""
    values = listed(flag)
    try:
        return [kind(value) for value in values]
    except ValueError as error:
        raise InputError(f"--{flag} must be numbers separated by commas; got {','.join(values)}") from error


def positive(flag: str) -> list[float]:
    """The numbers of a comma-separated flag, at least one, each above 0 and finite."""
    values = numbers(flag, float)
    if not all(0 < value < float("inf") for value in values):
        raise InputError(f"--{flag} must be above 0 and finite; got {','.join(F[flag].value)}")
    return values

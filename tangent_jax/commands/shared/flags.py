"""The flags of a command are the fields of its Config: defines them by the table, parses and reads them."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from absl import flags

from tangent_jax.commands.shared.settings import Settings
from tangent_jax.commands.shared.table import PRESETS

F: Any = flags.FLAGS
SPLITS = ("train", "validation", "test")
"""The flags that name the folder of each split, of the commands that read one data set."""
C = TypeVar("C", bound=Settings)


def define(config: type[Settings], table: Mapping[str, partial]) -> None:
    """Defines the flags of a Config; the `row` of a field replaces the table's."""
    fields = config.fields()
    for name, field in fields.items():
        make = field.metadata.get("row", table[name])
        default: Any = field.default
        about = make.keywords["help"]
        if "values" in field.metadata:
            make = partial(flags.DEFINE_enum, help=about, enum_values=[*field.metadata["values"]])
        elif isinstance(default, tuple) and name != "image_size" and make.func is not flags.DEFINE_list:
            make = partial(flags.DEFINE_list, help=about.removesuffix(".") + "; several with commas.")
        show(name, partial(make, default=[*default] if make.func is flags.DEFINE_list else default))
    if isinstance(fields["dataset"].default if "dataset" in fields else None, str):
        for name in SPLITS:
            show(name, partial(table[name], default=None))


def show(name: str, make: partial) -> None:
    """Defines a flag, which the --help of the command then shows."""
    make(name)
    F.register_key_flag_for_module(sys.argv[0], F[name])


def parse(argv: Sequence[str]) -> list[str]:
    """The arguments besides the flags; --preset changes the defaults of its flags.

    Raises:
        flags.Error: An unknown flag or an invalid value.
    """
    try:
        rest = F(argv)
    except ValueError as error:  # absl's own, for --noNAME=VALUE
        raise flags.Error(f"{error}: write {str(error).partition('=')[0]}") from error
    if "preset" in F and F.preset:
        for name, value in PRESETS[F.preset].items():
            F.set_default(name, value)
    name_dataset()
    return rest


def name_dataset() -> None:
    """Sets --dataset to the data set of --train, --validation and --test, if they are given.

    Raises:
        flags.Error: --dataset beside them, and others without --train.
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


def read(config: type[C]) -> C:
    """The Config of the flags, with the names of those that are given."""
    values = {name: F[name].value for name in config.fields()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return config(**values, given=frozenset(name for name in values if F[name].present))


def sets_verbosity() -> bool:
    """True if --verbosity is given."""
    return bool(F["verbosity"].present)

"""What the binaries share: one table of flags, and the recipe, model and data that they name.

A binary defines the flags that it reads, and no other: `define("weights", "dataset", ...)`. Flags that are fields of a
Recipe carry its defaults.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from absl import flags

from tangent_jax.components.recipe import Recipe
from tangent_jax.core.checks import refusal
from tangent_jax.core.progress import show_progress
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.models.features import Cache, Features
from tangent_jax.models.load import load
from tangent_jax.models.predict import LINEARIZATIONS, OUTPUTS, Predictor
from tangent_jax.models.subsets import KINDS
from tangent_jax.train.losses import LOSSES

F: Any = flags.FLAGS
PRIVATE_KINDS = {"full": "blocks", "bitfit": "bitfit", "layernorm": "layernorm", "fc": "head"}
"""The subsets of the paper's Table 3, by our names."""

FIELD_OF = {"lr": "learning_rate", "subset": "kind"}
"""The field of a Recipe that a flag of another name gives."""


def enum(help: str, values: Iterable[str]) -> partial:
    return partial(flags.DEFINE_enum, enum_values=[*values], help=help)


def number(help: str, lowest: float = 0.0, default: float | None = None) -> partial:
    more = {} if default is None else {"default": default}
    return partial(flags.DEFINE_float, help=help, lower_bound=lowest, **more)


def integer(help: str, lowest: int | None = 1, default: int | None = None) -> partial:
    more = {} if default is None else {"default": default}
    return partial(flags.DEFINE_integer, help=help, lower_bound=lowest, **more)


def word(help: str, kind: Callable = flags.DEFINE_string, **default: Any) -> partial:
    return partial(kind, help=help, **default)


ARCHIVES = "caltech256|mit67|aircraft|cub200|cars|dogs|pets:PATH"
TABLE: dict[str, partial] = {
    "weights": word("Pre-trained ViT: builtin, random:SIZE/PATCH, hf-hub:OWNER/NAME, a .safetensors or .npz file."),
    "architecture": word("What the weights must be, such as L/16; unset: whatever they are.", default=None),
    "image_size": integer("Side in pixels; unset: the weights' own. The position embedding is resampled."),
    "dataset": word(f"digits, folder:PATH (class sub-folders or a zip), tfds:NAME[@DATA_DIR], or {ARCHIVES}."),
    "datasets": word("Data sets, as finetune's --dataset, with commas.", flags.DEFINE_list, default=["digits"]),
    "cache_dir": word("Folder of cached features.", default="~/.cache/tangent_jax"),
    "cache_dtype": enum("Dtype of cached features; unset: --dtype.", ["float32", "float16", "bfloat16"]),
    "skip_unreadable": word("Leave unreadable images out and count them.", flags.DEFINE_bool, default=False),
    "dtype": enum("Compute dtype; parameters stay float32.", ["float32", "bfloat16"]),
    "linearization": enum("How the tangent is computed.", LINEARIZATIONS),
    "output": enum("What a tangent model answers: f_w(x) + J.dw, or J.dw alone.", OUTPUTS),
    "method": enum("Tangent (taft), non-linear (nlft), or the head alone (fc).", ["taft", "nlft", "fc"]),
    "subset": enum("Which leaves of those blocks: all, biases, layer norms; or head, everything.", KINDS),
    "blocks": integer("How many of the last blocks are trained (0: the head alone).", 0),
    "reset": word("Re-initialise the trained blocks, norm and head before linearising (PT=F).", flags.DEFINE_bool),
    "new_class_token": word("A new class token at the first trained block (CLS=T).", flags.DEFINE_bool),
    "loss": enum("Rescaled square loss (alpha 1, kappa 15), cross entropy, mean squared error.", sorted(LOSSES)),
    "penalty": number("Strength lambda of the ridge lambda/2 |dw|^2."),
    "lr": number("Learning rate."),
    "epochs": integer("Passes over the training set; the learning rate falls to a tenth after 1/2 and 5/6 of them."),
    "batch_size": integer("Examples per step."),
    "seed": integer("Seed of the new head, of what is reset and of the order of examples.", None),
    "delta": number("Failure probability of the privacy budget, below 1 / images.", default=1e-5),
    "shards": integer("Shards trained apart.", 2, 50),
    "orders": integer("Random orders averaged.", 1, 20),
    "out": word("Folder for what it writes: result.json and pictures."),
}
MODEL = ("weights", "architecture", "image_size")
CACHED = ("cache_dir", "cache_dtype", "skip_unreadable")
COMPUTE = ("dtype", "linearization", "output")
TRAINING = ("loss", "penalty", "epochs", "batch_size")
PRIVATE = {"loss": "ce", "penalty": 0.0, "output": "tangent"}
"""The paper's private runs: cross entropy, the tangent alone."""


def define(*names: str, **defaults: Any) -> None:
    """Defines the flags named and those in `defaults`, which override the table's."""
    fields = vars(Recipe())
    for name in dict.fromkeys([*names, *defaults]):
        make, field = TABLE[name], FIELD_OF.get(name, name)
        default = {"default": fields[field]} if field in fields else {}
        given = {"default": defaults[name]} if name in defaults else {}
        make(name, **{**default, **make.keywords, **given})
        F.register_key_flag_for_module(sys.argv[0], F[name])  # so that the binary's --help shows it


def recipe(**changes: Any) -> Recipe:
    """The recipe that the binary's flags name, with changes."""
    flag_of = {field: flag for flag, field in FIELD_OF.items()}
    names = {field.name: flag_of.get(field.name, field.name) for field in dataclasses.fields(Recipe)}
    given: dict[str, Any] = {field: F[name].value for field, name in names.items() if name in F}
    return Recipe(**given | changes)


def predictor(recipe: Recipe, classes: int) -> Predictor:
    """The recipe's predictor, its weights checked against --architecture."""
    return recipe.predictor(classes, load(recipe.weights, F.architecture))


def features(predict: Predictor, examples: Examples, title: str) -> Features:
    """The examples' features, from the cache that the flags name or computed now."""
    with show_progress(title):
        found = predict.features(examples, Cache(F.cache_dir, F.cache_dtype, F.skip_unreadable))
    if found.skipped:
        print(f"{title}: skipped {found.skipped} unreadable of {len(examples)} images", file=sys.stderr)
    return found


def held_out(predict: Predictor, dataset: Dataset) -> tuple[Features, Features]:
    """(train, what settings are chosen on): the validation split where there is a test split too, else a fifth."""
    train = features(predict, dataset.train, "train inputs")
    if {"validation", "test"} <= {*dataset.splits}:
        return train, features(predict, dataset.splits["validation"], "validation inputs")
    return train.hold_out()


def numbers(flag: str, kind: type) -> list:
    """The numbers of a comma-separated flag."""
    try:
        return [kind(value) for value in F[flag].value]
    except ValueError as error:
        raise refusal("flags", f"--{flag} as numbers separated by commas", ",".join(F[flag].value)) from error

"""The flags that several binaries have, in one table, and readers of their values.

A binary defines the flags that it reads, and no other: `define("weights", "dataset", ...)`. Flags that are fields of a
Recipe carry its defaults.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from absl import flags

import tangent_jax as tj
from tangent_jax.core import refusal, require
from tangent_jax.data.archives import ARCHIVES
from tangent_jax.data.preprocessing import ImageSize, check_image_size
from tangent_jax.models.predict import LINEARIZATIONS, OUTPUTS
from tangent_jax.models.subsets import KINDS, MADE
from tangent_jax.store.recipe import SOLVERS
from tangent_jax.train.losses import LOSSES

F: Any = flags.FLAGS
PRIVATE_KINDS = {"full": "blocks", "bitfit": "bitfit", "layernorm": "layernorm", "fc": "head"}
"""The subsets of the paper's Table 3, by our names."""

FIELD_OF = {"lr": "learning_rate", "subset": "kind"}
"""The field of a Recipe that a flag of another name gives."""


def flag(
    kind: str,
    help: str,
    values: Iterable[str] = (),
    low: float | None = None,
    high: float | None = None,
    **more: Any,
) -> partial:
    """A flag for `define`; `values`: of an enum; `low`, `high`: the bounds of a number; no default: the Recipe's."""
    bounds = {"lower_bound": low, "upper_bound": high}
    options: dict[str, dict] = {"enum": {"enum_values": [*values]}, "integer": bounds, "float": bounds}
    return partial(getattr(flags, f"DEFINE_{kind}"), help=help, **options.get(kind, {}), **more)


class ImageSizes(flags.ArgumentParser, flags.ArgumentSerializer):
    """The text of an image size, such as 224 or 224x160, and the size of a text."""

    def parse(self, argument: Any) -> ImageSize:
        """Returns the side, or height and width; ValueError for a text of anything else."""
        height, cross, width = str(argument).partition("x")
        if not height.isdecimal() or not (width.isdecimal() or not cross):
            raise ValueError("expected pixels of a side, such as 224, or of height and width, such as 224x160")
        size = (int(height), int(width)) if cross and height != width else int(height)
        check_image_size("flags", size)
        return size

    def serialize(self, value: ImageSize) -> str:
        """Returns the text."""
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


SEEDS = (1 << 32) - 1
TABLE: dict[str, partial] = {
    "weights": flag(
        "string", "Pre-trained model: builtin, builtin-resnet, random:L/16, hf-hub:OWNER/NAME, a weights file."
    ),
    "architecture": flag(
        "string",
        "Architecture of the weights, by timm's name or ours, such as resnet50 or L/16; unset: what the file says.",
        default=None,
    ),
    "image_size": partial(
        flags.DEFINE,
        ImageSizes(),
        help="Side in pixels, or HEIGHTxWIDTH; unset: the weights' own. Positions are resampled.",
        serializer=ImageSizes(),
    ),
    "dataset": flag(
        "string",
        "digits, folder:PATH (classes, or a zip), hf:PATH (Hugging Face: parquet, arrow), wds:PATH-{000..099}.tar, "
        "csv:FILE (path,label); ?image=COLUMN&label=COLUMN where several fit; tfds:NAME[@DATA_DIR], "
        f"{'|'.join(ARCHIVES)}:PATH.",
    ),
    "datasets": flag("list", "Data sets, as finetune's --dataset, with commas.", default=["digits"]),
    "cache_dir": flag("list", "Folder of cached features; large ones over A,B.", default=["~/.cache/tangent_jax"]),
    "decode_processes": flag("integer", "Processes that decode images; 0: threads.", low=0, high=1024, default=0),
    "cache_dtype": flag(
        "enum",
        "Dtype of cached features; unset: --dtype.",
        ["float32", "float16", "bfloat16"],
    ),
    "skip_unreadable": flag("bool", "Leave unreadable images out and count them.", default=False),
    "dtype": flag("enum", "Compute dtype; parameters stay float32.", ["float32", "bfloat16"]),
    "linearization": flag("enum", "The computation of the tangent.", LINEARIZATIONS),
    "output": flag("enum", "The outputs of a tangent model: f_w(x) + J.dw, or J.dw alone.", OUTPUTS),
    "method": flag("enum", "Tangent (taft), non-linear (nlft), or the head alone (fc).", ["taft", "nlft", "fc"]),
    "subset": flag("enum", "Trained leaves of those blocks: all, or of a kind; or head, everything.", KINDS),
    "blocks": flag("integer", "Number of last blocks that are trained (0: the head alone).", low=0),
    "rank": flag("integer", "Rank of --subset=lora, or width of --subset=adapter.", low=1),
    "reset": flag("bool", "Re-initialise the trained blocks, norm and head before linearising (PT=F)."),
    "head": flag(
        "string", "drawn: a new head; named: each class drawn by its name, so that heads join; or a frozen head's file."
    ),
    "new_class_token": flag("bool", "A new class token at the first trained block (CLS=T)."),
    "loss": flag(
        "enum",
        "Loss: rescaled square (rsl; alpha 1, kappa 15), cross entropy (ce), mean squared error (mse).",
        sorted(LOSSES),
    ),
    "penalty": flag("float", "Strength lambda of the ridge lambda/2 |dw|^2.", low=0.0, high=1e9),
    "radius": flag("float", "Radius of projected descent: |dw| stays below it; unset: no bound.", low=0.0),
    "lr": flag("float", "Learning rate.", low=0.0, high=1e6),
    "solver": flag(
        "enum", "Adam, or the optimum by conjugate gradients, which needs no learning rate and no epochs.", SOLVERS
    ),
    "certificate": flag(
        "float", "With --solver=optimum: the largest L2 distance from the optimum, for a penalty > 0.", low=0.0
    ),
    "passes": flag("integer", "With --solver=optimum: the most passes over the training set.", low=2),
    "epochs": flag("integer", "Passes over the training set; the learning rate falls after 1/2 and 5/6.", low=1),
    "batch_size": flag("integer", "Examples per step.", low=1),
    "seed": flag("integer", "Seed of the new head, of reset blocks, of the order of examples.", low=0, high=SEEDS),
    "delta": flag("float", "Failure probability of the privacy budget, below 1 / images.", low=0.0, default=1e-5),
    "public": flag(
        "string", "Public images, as --dataset; only the inputs of its train split are read. Unset: none.", default=None
    ),
    "shards": flag("integer", "Shards trained apart.", low=2, default=50),
    "at_once": flag(
        "integer",
        "Models trained as one program: memory for about five dw each. Rounding depends on it.",
        low=1,
        default=10,
    ),
    "lr_nlft": flag("float", "Learning rate of the non-linear models (--lr: tangents, heads).", low=0.0, default=3e-3),
    "sharding": flag(
        "enum",
        "The division of examples: a seeded shuffle; by a hash of the image's content; whole classes; by --owners; "
        "each class in Dirichlet(--concentration) proportions.",
        ["uniform", "hash", "class", "owner", "dirichlet"],
        default="uniform",
    ),
    "owners": flag("string", "CSV of file,owner, for --sharding=owner and --unit=owner.", default=None),
    "concentration": flag("float", "Concentration of --sharding=dirichlet; small is uneven.", low=0.0, default=0.5),
    "stores": flag("string", "Folder of the stores that keep the trained components.", default="out/stores"),
    "held_out": flag("bool", "Train on four fifths of the training images, test on the rest.", default=False),
    "shadows": flag("integer", "Shadow models of the membership attack.", low=2, default=16),
    "lrs": flag("list", "Learning rates searched.", default=["1e-3", "1e-4"]),
    "search_epochs": flag("integer", "Epochs of each searched run.", low=1, default=30),
    "seeds": flag("integer", "Seeds of the final runs (0, 1, ...); the search uses 0.", low=1, default=3),
    "orders": flag("integer", "Random orders averaged.", low=1, default=20),
    "compilation_cache": flag(
        "string",
        "Folder that keeps compiled programs for later starts; unset: JAX_COMPILATION_CACHE_DIR's.",
        default=None,
    ),
    "metrics": flag(
        "list", "Writers of the values of every step, in --out/metrics: csv, tensorboard, wandb.", default=["csv"]
    ),
    "profile_steps": flag(
        "string", "FIRST:LAST, the steps whose trace jax.profiler writes to --out/profile; unset: none.", default=None
    ),
    "plan": flag("bool", "Compile, print FLOPs, bytes and peak memory of a step, and exit.", default=False),
    "topology": flag(
        "string",
        "Of --plan: devices that are not here, such as v5e:2x2 (needs libtpu); unset: those here.",
        default=None,
    ),
    "farm": flag("enum", "Train the components by --workers through submitit.", ["slurm", "local"], default=None),
    "workers": flag("integer", "Number of workers of --farm.", low=1, default=None),
    "farm_options": flag(
        "list",
        "Of --farm=slurm: submitit's parameters as KEY=VALUE, with commas: partition, time (minutes), gpus_per_node, "
        "mem, account, ...; of --farm=local: timeout_min.",
        default=[],
    ),
    "worker": flag(
        "string", "I/N: train the components of worker I (from 0) of N, and exit; without it, compose.", default=None
    ),
    "out": flag("string", "Folder of result.json and pictures."),
    "devices": flag("integer", "Devices that each process uses; unset: all.", low=1, default=None),
    "coordinator": flag("string", "HOST:PORT of process 0 of a job; unset: as the cluster says.", default=None),
    "processes": flag("integer", "Processes of the job, with --coordinator.", low=1, default=None),
    "process_id": flag("integer", "This process, from 0, with --coordinator.", low=0, default=None),
}
MODEL = ("weights", "architecture", "image_size")
EVERY = ("devices", "coordinator", "processes", "process_id", "compilation_cache")
"""The flags of every binary."""
CACHED = ("cache_dir", "cache_dtype", "skip_unreadable", "decode_processes")
COMPUTE = ("dtype", "linearization", "output")
TRAINING = ("loss", "penalty", "epochs", "batch_size")
OPTIMUM = ("solver", "certificate", "passes")
SEARCH = ("lrs", "search_epochs", "seeds")
"""The flags that `search.measure` reads."""
SINGLE = (*MODEL, *CACHED, *COMPUTE, *TRAINING, "dataset", "seed", "held_out")
"""The flags that `shards.Method` reads, of one model; the defaults are SHARDED_DEFAULTS."""
SHARDED = (*SINGLE, "stores", "lr_nlft", "sharding", "owners", "concentration", "at_once")
"""Those that it reads, of models trained apart."""
# f_w(x), of a random head, would count once, however many are added: so the outputs are the tangent alone
SHARDED_DEFAULTS = {"output": "tangent", "blocks": 1, "lr": 3e-3}
JOB = ("metrics", "profile_steps", "plan", "topology")
"""The flags of a binary that is one long run: what it writes as it goes, and whether it will fit."""
FARM = ("farm", "workers", "farm_options", "worker")
PRIVATE = {"loss": "ce", "penalty": 0.0, "output": "tangent"}
"""The paper's private runs: cross entropy, the tangent alone."""
EFFECTS: dict[str, dict[str, Sequence[Any]]] = {
    "certificate": {"solver": ["optimum"]},
    "passes": {"solver": ["optimum"]},
    "rank": {"subset": [*MADE]},
    "concentration": {"sharding": ["dirichlet"]},
    "shards": {"sharding": ["uniform", "hash", "class", "dirichlet"]},
    "topology": {"plan": [True]},
}
"""The values of other flags with which a flag has an effect."""


def only_with(*names: str, **values: Any) -> None:
    """Says that flags have an effect with one value of another flag alone: given with others they are refused."""
    for name in names:
        EFFECTS[name] = EFFECTS.get(name, {}) | {other: [value] for other, value in values.items()}


def check_effects() -> None:
    """Raises InputError for a flag that was given and has no effect beside the others."""
    for name, needed in EFFECTS.items():
        given = name in F and F[name].present
        for other, values in ((o, v) for o, v in needed.items() if given and o in F):
            expected = f"--{other} of {', '.join(map(str, values))} beside --{name}"
            require(F[other].value in values, "flags", expected, F[other].value)


def define(*names: str, **defaults: Any) -> None:
    """Defines the flags named and those in `defaults`, which override the table's (of method: its values)."""
    fields = vars(tj.Recipe())
    for name in dict.fromkeys([*names, *defaults]):
        make, field = TABLE[name], FIELD_OF.get(name, name)
        default = {"default": fields[field]} if field in fields else {}
        given = {"enum_values" if name == "method" else "default": defaults[name]} if name in defaults else {}
        make(name, **{**default, **make.keywords, **given})
        F.register_key_flag_for_module(sys.argv[0], F[name])  # so that the binary's --help shows it


def listed(flag: str, known: Iterable[str] = ()) -> list[str]:
    """The entries of a comma-separated flag, at least one, each of `known` where any are known."""
    values, known = [*F[flag].value], [*known]
    good = values and all(values) and (not known or {*values} <= {*known})
    expected = f"--{flag} of {', '.join(known)}" if known else f"--{flag} with an entry, no empty one"
    require(good, "flags", expected, ",".join(values) or "none")
    return values


def numbers(flag: str, kind: type) -> list:
    """The numbers of a comma-separated flag, at least one."""
    values = listed(flag)
    try:
        return [kind(value) for value in values]
    except ValueError as error:
        raise refusal("flags", f"--{flag} as numbers separated by commas", ",".join(F[flag].value)) from error


def positive(flag: str) -> list[float]:
    """The numbers of a comma-separated flag, at least one, each above 0 and finite."""
    values = numbers(flag, float)
    require(all(0 < value < float("inf") for value in values), "flags", f"--{flag} above 0", ",".join(F[flag].value))
    return values

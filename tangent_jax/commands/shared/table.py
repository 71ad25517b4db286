"""The table of flags: name, type, bounds and help text of every flag; its default is of a Config's field."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any

from absl import flags

from tangent_jax.audit import FEWEST
from tangent_jax.data import ImageSize, check_image_size
from tangent_jax.losses import LOSSES
from tangent_jax.models import KINDS, LINEARIZATIONS, OUTPUTS
from tangent_jax.privacy import NEIGHBOURING
from tangent_jax.store import MERGES, SOLVERS


def flag(
    kind: str, help: str, values: Iterable[str] = (), low: float | None = None, high: float | None = None, **more: Any
) -> partial:
    """A flag for `define`; `values`: of an enum; `low`, `high`: bounds of a number."""
    bounds = {"lower_bound": low, "upper_bound": high}
    options: dict[str, dict] = {"enum": {"enum_values": [*values]}, "integer": bounds, "float": bounds}
    return partial(getattr(flags, f"DEFINE_{kind}"), help=help, **options.get(kind, {}), **more)


class ImageSizes(flags.ArgumentParser, flags.ArgumentSerializer):
    """Converts between an image size and its text, such as 224 or 224x160."""

    def parse(self, argument: Any) -> ImageSize:
        """Returns the side, or (height, width); ValueError for any other text."""
        height, cross, width = str(argument).partition("x")
        if not height.isdecimal() or not (width.isdecimal() or not cross):
            raise ValueError("it must be pixels of a side, such as 224, or of height and width, such as 224x160")
        size = (int(height), int(width)) if cross and height != width else int(height)
        check_image_size(size)
        return size

    def serialize(self, value: ImageSize) -> str:
        """Returns the text."""
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def spell(name: str) -> str:
    """A loss as --loss takes it, with its default hyper-parameters and its class."""
    values = "".join(f":{field.name}={field.default:g}" for field in dataclasses.fields(LOSSES[name]))
    return f"{name}{values} ({LOSSES[name].__name__})"


class Blocks(flags.ArgumentParser, flags.ArgumentSerializer):
    """Converts between a number of blocks, or auto, and its text."""

    def parse(self, argument: Any) -> int | str:
        """Returns the number, or "auto"; ValueError for any other text."""
        text = str(argument)
        if text != "auto" and not text.isdecimal():
            raise ValueError("it must be a number of blocks, such as 8, or auto")
        return text if text == "auto" else int(text)

    def serialize(self, value: int | str) -> str:
        """Returns the text."""
        return str(value)


PRESETS: dict[str, dict[str, str]] = {
    "paper": {
        "method": "taft,soup,fc,adapter,lora,tangent_lora,tangent_adapter",
        "lr": "1e-2,3e-3,1e-3",
        "rank": "4,16",
    },
}
"""The defaults of other flags by preset; paper: the paper's seven methods with its search of rates and ranks."""


def help_of_presets() -> str:
    """The help text of --preset: the flags that each preset sets."""
    texts = {name: " ".join(f"--{flag}={value}" for flag, value in own.items()) for name, own in PRESETS.items()}
    return "Other defaults: " + "; ".join(f"{name} for {text}" for name, text in texts.items()) + "."


SEEDS = (1 << 32) - 1
TABLE: dict[str, partial] = {
    "weights": flag(
        "string", "Pre-trained model: builtin, builtin-resnet, random:L/16, hf-hub:OWNER/NAME, a weights file or URL."
    ),
    "architecture": flag(
        "string",
        "Architecture of the weights, by timm's name or ours, such as resnet50 or L/16; unset: as the file states.",
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
        "csv:FILE (path,label); ?image=COLUMN&label=COLUMN where several fit; tfds:NAME[@DATA_DIR]. ?group=COLUMN, or "
        "?group=PATTERN of names in a folder: images that are held out together.",
    ),
    "train": flag("string", "Folder or zip of the class folders of training images, for --dataset."),
    "validation": flag("string", "Folder or zip of validation images, beside --train."),
    "test": flag("string", "Folder or zip of test images, beside --train."),
    "cache_dir": flag("string", "Folder of cached features and of the index of images."),
    "decode_processes": flag("integer", "Processes that decode images; 0: threads.", low=0, high=1024),
    "cache_dtype": flag("enum", "Dtype of cached features; unset: --dtype.", ["float32", "float16", "bfloat16"]),
    "most_pixels": flag("integer", "Pixels of the largest image that is read.", low=1),
    "skip_unreadable": flag("bool", "Skip unreadable images, and count them."),
    "dtype": flag("enum", "Compute dtype; parameters stay float32.", ["float32", "bfloat16"]),
    "linearization": flag("enum", "How the tangent is computed.", LINEARIZATIONS),
    "output": flag("enum", "The outputs of a tangent model: f_w(x) + J.dw, or J.dw alone.", OUTPUTS),
    "method": flag(
        "enum",
        "taft: the network linearized at its pre-trained weights (tangent); nlft: ordinary, non-linear fine-tuning; "
        "fc: a new head alone (linear probe). The text of a command explains its other methods.",
        ["taft", "nlft", "fc"],
    ),
    "subset": flag("enum", "Trained leaves: blocks, a kind of leaves in them, head, or everything.", KINDS),
    "blocks": flag("integer", "Number of last blocks that train (0: the head alone).", low=0),
    "rank": flag("integer", "Rank with --subset=lora, or width with --subset=adapter.", low=1),
    "head_scale": flag("float", "Factor on the standard deviation of a new head, 0.01 in the paper."),
    "reset": flag("bool", "Re-initialise the trained blocks, norm and head before linearising (the paper's PT=F)."),
    "head": flag(
        "string",
        "drawn: a new head; named: a new head with each class drawn by its name, so that heads join; or a frozen "
        "head's file.",
    ),
    "new_class_token": flag("bool", "Use a new class token from the first trained block on (the paper's CLS=T)."),
    "loss": flag("string", f"Loss: {', '.join(map(spell, LOSSES))}. The numbers are defaults."),
    "penalty": flag("float", "Strength lambda of the ridge lambda/2 |dw|^2.", low=0.0, high=1e9),
    "radius": flag("float", "Radius of projected descent, the bound of |dw| (L2); unset: no bound.", low=0.0),
    "lr": flag("float", "Learning rate; for private runs in units of 1 / clip norm.", low=0.0, high=1e6),
    "save_anchor": flag(
        "string",
        "Weights file (.safetensors, or URL) to write: the fine-tuned network with the head of --weights, as the "
        "anchor of later runs. It names its images. --method=nlft.",
    ),
    "leave_out_anchor_images": flag(
        "bool", "Do not train on the images on which the anchor in --weights was fine-tuned."
    ),
    "solver": flag("enum", "adam, or optimum: conjugate gradients, without learning rate or epochs.", SOLVERS),
    "certificate": flag(
        "float", "With --solver=optimum: the largest L2 distance from the optimum, for a penalty > 0.", low=0.0
    ),
    "passes": flag("integer", "With --solver=optimum: the largest number of passes over the training set.", low=2),
    "epochs": flag("integer", "Passes over the training set; the learning rate falls after 1/2 and 5/6.", low=1),
    "batch_size": flag("integer", "Examples per step.", low=1),
    "seed": flag("integer", "Seed of the new head, of reset blocks, and of the order of examples.", low=0, high=SEEDS),
    "delta": flag("float", "Delta of the privacy budget (epsilon, delta), below 1 / images.", low=0.0),
    "public": flag("string", "Public images, as --dataset; only inputs of the train split are read. Unset: none."),
    "whiten": flag(
        "bool",
        "Whiten what kernels multiply: by --public images, or without them by the layer norm below. Costs no privacy.",
    ),
    "shards": flag("integer", "Number of shards that train apart: components, or owners.", low=2),
    "at_once": flag(
        "integer",
        "Number of models trained in one program; each needs memory for about five dw. Affects rounding.",
        low=1,
    ),
    "lr_nlft": flag("float", "Learning rate of non-linear models (--lr: tangents, heads).", low=0.0),
    "sharding": flag(
        "enum",
        "Division into --shards: a seeded shuffle; by a hash of the image's content; whole classes; each class in "
        "Dirichlet(--concentration) proportions; or, without --shards, one shard for each owner in --owners.",
        ["uniform", "hash", "class", "owner", "dirichlet"],
    ),
    "concentration": flag("float", "Concentration of --sharding=dirichlet; small is uneven.", low=0.0),
    "held_out": flag("bool", "Train on four fifths of the training images, test on the rest."),
    "compilation_cache": flag(
        "string", "Folder of compiled programs, for later starts; unset: JAX_COMPILATION_CACHE_DIR."
    ),
    "metrics": flag("list", "Writers that log every step to --out/metrics: csv, tensorboard, wandb."),
    "profile_steps": flag("string", "FIRST:LAST: steps that jax.profiler traces, into --out/profile; unset: none."),
    "plan": flag("bool", "Compile, print FLOPs, bytes and peak memory of a step, and exit."),
    "topology": flag(
        "string",
        "With --plan: absent devices to plan for, such as v5e:2x2 (needs libtpu); unset: the present ones.",
    ),
    "shard": flag("string", "I/N: only train part I (from 0) of N of the components; unset: compose."),
    "out": flag("string", "Folder of the results, such as result.json; of finetune also a URL."),
    "devices": flag("integer", "Devices that each process uses; unset: all.", low=1),
    "coordinator": flag("string", "HOST:PORT of process 0 of a job; unset: from the cluster."),
    "processes": flag("integer", "Number of processes in the job, with --coordinator.", low=1),
    "process_id": flag("integer", "Number of this process, from 0, with --coordinator.", low=0),
    # composition, stores
    "store": flag("string", "Folder of the store, or of several: the components that are trained."),
    "owner": flag("string", "Contributor whose images are all removed."),
    "owners": flag("string", "CSV of file,owner (or FILE?file=COLUMN&owner=COLUMN): the contributor of each image."),
    "source": flag(
        "string",
        "add: folder or URL of dw.safetensors (out/finetune); merge: the store to add; data: an unpacked archive.",
    ),
    "name": flag("list", "Components: the one to add (unset: the folder's name), or those to remove."),
    "examples": flag(
        "string",
        "Images to remove: a file of identifiers or names, one per line.",
    ),
    "retrain": flag("bool", "remove: retrain each affected component on its remaining data."),
    "exact": flag("bool", "remove: move each solved component to its new optimum, certified."),
    "dry_run": flag("bool", "remove: print the plan and its cost, and stop."),
    "receipt": flag("string", "verify: also check this receipt."),
    "preset": flag("enum", help_of_presets(), PRESETS),
    "settings": flag(
        "string",
        "How statistics are solved: HOW,SHRINKAGE, then a weight of each part of the features if there are several; or"
        " how that is chosen: held_out or leave_one_out.",
    ),
    "experts": flag("list", "Fine-tuned checkpoints of --weights, files or folders, one for each of --dataset."),
    "merge": flag("enum", f"Merge by {', '.join(own.help for own in MERGES.values())}.", MERGES),
    "merge_penalty": flag(
        "float",
        "Ridge per example in a merge by factors; held-out images choose among several.",
        low=1e-12,
    ),
    "same_classes": flag("list", "export --head=union: names of one class in several data sets."),
    "to": flag("string", "export: a new folder; data: a zip."),
    "format": flag("string", "Export format."),
    "opset": flag("integer", "Opset of --format=onnx, 18 to 23; unset: 18."),
    "factors": flag("bool", "Also write factors.safetensors, for merges by curvature."),
    "width": flag(
        "integer",
        "Features that sketch the gradients (exact), and that hold where in the image the network's features lie "
        "(place): a square, such as 4096. More are more accurate, and their sums grow with the square.",
        low=4,
        high=1 << 16,
    ),
    "directions": flag(
        "integer", "Random directions of the features before the head, whose gradients are sketched.", low=1
    ),
    "feature_blocks": partial(
        flags.DEFINE,
        Blocks(),
        help="Last blocks whose gradients --method=exact sketches; unset: two thirds; auto (compose): of 0, 1, 4, 8.",
        serializer=Blocks(),
    ),
    "negate": flag("string", "Task to subtract from the sum of the others."),
    # privacy
    "classes": flag(
        "string",
        "Names of the classes with commas, or a file of them, one a line, in the order of class indices; they are "
        "public, and may have no image. Unset: those of the data set.",
    ),
    "epsilon": flag(
        "float",
        "Privacy budget of this run, for adding or removing one unit. The best of several runs spends more.",
        low=0.0,
    ),
    "unit": flag(
        "enum",
        "Unit of protection: each image, or each owner in --owners with all their images (user-level privacy).",
        NEIGHBOURING,
    ),
    "clip_norm": flag("float", "L2 norm to which a unit's gradient is clipped.", low=0.0),
    "sampling": flag(
        "enum",
        "full: all units at every step; poisson: Poisson samples of expected size --batch_size.",
        ["full", "poisson"],
    ),
    "noise": flag(
        "enum",
        "gaussian: noise in floats; discrete: on a grid, safe against floating-point attacks, with 256-bit keys.",
        ["gaussian", "discrete"],
    ),
    "noise_seed": flag(
        "integer", "Seed of repeatable noise and samples: NOT private. Unset: entropy.", low=0, high=SEEDS
    ),
    "part": flag("string", "I/N: only images of part I (from 0) of N, by content (or owner) hash."),
    "canaries": flag("integer", "Canaries that audit the run; unset: none. They cost a little accuracy.", low=FEWEST),
    "images": flag("integer", "Number of images, drawn at random; unset: all.", low=2),
}
SHARE = flag(
    "string",
    f"{TABLE['images'].keywords['help'].removesuffix('.')}. Below 1: a share of them, such as 0.1. Or a file of "
    "identifiers or names, one per line.",
)
"""The flag --images of a command that trains on them."""

"""What the fine-tuning binaries share: flags, and the way from a photograph to a trained step."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from tangent_jax import subsets
from tangent_jax.checks import require
from tangent_jax.data.cache import TailInputs, tail_inputs
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.fit import Fitted, Settings, fit
from tangent_jax.losses import LOSSES
from tangent_jax.predict import Predictor
from tangent_jax.subsets import Subset
from tangent_jax.vit import resize_positions
from tangent_jax.weights import Pretrained

WEIGHTS = flags.DEFINE_string(
    "weights",
    "builtin",
    "Pre-trained ViT: builtin, random:SIZE/PATCH, hf-hub:OWNER/NAME, a "
    ".safetensors or .npz file, or a checkpoint folder of tangent_jax.",
)
ARCHITECTURE = flags.DEFINE_string(
    "architecture", None, "What the weights must be, such as L/16; unset: whatever they are."
)
IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", None, "Side in pixels; unset: the weights' own. The position embedding is resampled.", lower_bound=1
)
CACHE = flags.DEFINE_string("cache_dir", "~/.cache/tangent_jax", "Folder of cached tail inputs.")
SKIP = flags.DEFINE_bool("skip_unreadable", False, "Leave unreadable images out and count them.")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Compute dtype; parameters stay float32.")
CACHE_DTYPE = flags.DEFINE_enum(
    "cache_dtype", None, ["float32", "float16", "bfloat16"], "Dtype of cached tail inputs; unset: the compute dtype."
)
EPOCHS = flags.DEFINE_integer(
    "epochs", 30, "Passes over the training set; learning rate x0.1 after 1/2 and 5/6 of them.", lower_bound=1
)
BATCH = flags.DEFINE_integer("batch_size", 32, "Examples per step.", lower_bound=1)
LOSS = flags.DEFINE_enum(
    "loss", "rsl", sorted(LOSSES), "Rescaled square loss (alpha 1, kappa 15), cross entropy, mean squared error."
)
PENALTY = flags.DEFINE_float("penalty", 1e-5, "Strength lambda of the ridge lambda/2 |dw|^2.", lower_bound=0.0)
LINEARIZATION = flags.DEFINE_enum(
    "linearization", "closed_form", ["closed_form", "autodiff"], "How the tangent is computed."
)
OUTPUT = flags.DEFINE_enum(
    "output", "total", ["total", "tangent"], "What a tangent model answers: f_w(x) + J.dw, or J.dw alone."
)

PRIVATE_KINDS = {"full": "blocks", "bitfit": "bitfit", "layernorm": "layernorm", "fc": "head"}
"""The subsets of the paper's Table 3, by our names."""


class Choice(NamedTuple):
    """What is trained, and how: the options that the paper searches over."""

    method: str = "taft"
    kind: str = "blocks"
    blocks: int = 1
    reset: bool = False
    new_class_token: bool = False
    learning_rate: float = 1e-3


class Task(NamedTuple):
    """One choice made ready: a predictor at its anchor, the subset, and a source of tail inputs."""

    predict: Predictor
    subset: Subset
    model: Pretrained

    def inputs(self, examples: Examples, title: str) -> TailInputs:
        """The examples' tail inputs, cached."""
        found = tail_inputs(
            self.model,
            examples,
            self.subset.split,
            CACHE.value,
            dtype=self.predict.dtype,
            stored=None if CACHE_DTYPE.value is None else jnp.dtype(CACHE_DTYPE.value),
            skip_unreadable=SKIP.value,
            progress=title,
        )
        if found.skipped:
            print(f"{title}: skipped {found.skipped} unreadable of {len(examples)} images", file=sys.stderr)
        return found


def prepare(pretrained: Pretrained, classes: int, choice: Choice, seed: int) -> Task:
    """The anchor (new head; CLS=T and PT=F where chosen), its trained subset and predictor."""
    config, w = pretrained.config, pretrained.params
    if IMAGE_SIZE.value is not None:
        config, w = resize_positions(config, w, IMAGE_SIZE.value)
    fresh = jax.random.split(jax.random.key(seed), 3)
    config, w = subsets.new_head(config, w, classes, fresh[0])
    fc = choice.method == "fc"
    if choice.new_class_token and not fc:
        require(
            1 <= choice.blocks <= config.depth,
            "prepare",
            f"1..{config.depth} blocks with a new class token",
            choice.blocks,
        )
        config, w = subsets.new_class_token(config, w, config.depth - choice.blocks, fresh[1])
    subset = subsets.make_subset(config, "head" if fc else choice.kind, choice.blocks)
    if choice.reset and not fc:
        w = subsets.reset(config, w, subset, fresh[2])
    dtype = None if DTYPE.value == "float32" else jnp.dtype(DTYPE.value)
    method = "nlft" if choice.method == "nlft" else "taft"  # the head alone is linear: its tangent is itself
    output = OUTPUT.value if method == "taft" else "total"
    predict = Predictor(w, config, subset.split, method, LINEARIZATION.value, dtype, pretrained.preprocessing, output)
    return Task(predict, subset, Pretrained(config, w, pretrained.preprocessing, pretrained.source))


def recipe(task: Task, dataset: str, choice: Choice, settings: Any, seed: int, key: list[int]) -> dict[str, Any]:
    """What it takes to train a component again: of the flags, those that decide it; as JSON gives it back."""
    made = {
        "weights": task.model.source,
        "dataset": dataset,
        "choice": choice._asdict(),
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "key": key,
        "dtype": DTYPE.value,
        "cache_dtype": CACHE_DTYPE.value,
        "image_size": IMAGE_SIZE.value,
        "output": OUTPUT.value,
    }
    return json.loads(json.dumps(made))


def settings_of(learning_rate: float) -> Settings:
    """The optimisation that the flags name."""
    return Settings(LOSS.value, EPOCHS.value, BATCH.value, learning_rate, PENALTY.value)


def train(
    task: Task,
    train_set: TailInputs,
    settings: Settings,
    seed: int,
    *,
    evaluation: TailInputs | None = None,
    checkpoints: Path | None = None,
    title: str | None = None,
) -> Fitted:
    """dw from zero."""
    key = jax.random.fold_in(jax.random.key(seed), 1)
    return fit(
        task.predict,
        task.subset.zeros(task.predict.w),
        train_set.inputs,
        train_set.labels,
        settings,
        key,
        evaluation=None if evaluation is None else (evaluation.inputs, evaluation.labels),
        checkpoints=checkpoints,
        progress=title,
    )


def hold_out(train_set: TailInputs) -> tuple[TailInputs, TailInputs]:
    """(train, validation): every fifth image of each class is held out of train, the same ones every time."""
    rank = np.zeros(len(train_set.labels), int)
    for label in np.unique(train_set.labels):
        rows = np.flatnonzero(train_set.labels == label)
        rank[rows] = np.arange(len(rows))
    held = rank % 5 == 4
    return train_set.take(np.flatnonzero(~held)), train_set.take(np.flatnonzero(held))


def test_split(dataset: Dataset) -> Examples:
    """The split that accuracy is reported on: test, or validation where a set has no test labels."""
    for name in ("test", "validation"):
        if name in dataset.splits:
            return dataset.splits[name]
    require(False, "test_split", f"a test or validation split in {dataset.name}", sorted(dataset.splits))
    raise AssertionError

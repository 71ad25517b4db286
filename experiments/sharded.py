"""Models trained apart on shards of a data set, kept in stores so that no binary trains them twice."""

import re
import sys
import zlib
from pathlib import Path

import jax
import numpy as np
from absl import flags

from experiments import common
from experiments.common import Choice, Task
from tangent_jax import weights
from tangent_jax.checks import require
from tangent_jax.data import shards
from tangent_jax.data.cache import TailInputs
from tangent_jax.data.sources import Dataset, open_dataset
from tangent_jax.fit import Settings
from tangent_jax.many import fit_many
from tangent_jax.notation import Tree
from tangent_jax.provenance import Provenance, make_provenance
from tangent_jax.store import Store

DATASET = flags.DEFINE_string("dataset", "digits", "A data set, as finetune's --dataset.")
BLOCKS = flags.DEFINE_integer("blocks", 1, "How many of the last blocks are trained.", lower_bound=1)
RATE = flags.DEFINE_float("lr", 3e-3, "Learning rate of Adam for the tangents and the heads.", lower_bound=0.0)
NLFT_RATE = flags.DEFINE_float("lr_nlft", 3e-3, "Learning rate of Adam for the non-linear models.", lower_bound=0.0)
SHARDING = flags.DEFINE_enum(
    "sharding",
    "uniform",
    ["uniform", "hash", "class", "owner", "dirichlet"],
    "How examples are divided: a seeded shuffle; by a hash of the image's content; whole classes; by --owners; "
    "each class in Dirichlet(--concentration) proportions.",
)
OWNERS = flags.DEFINE_string(
    "owners", None, "CSV of file,owner for --sharding=owner, which decides the number of shards."
)
CONCENTRATION = flags.DEFINE_float("concentration", 0.5, "Of --sharding=dirichlet: small is uneven.", lower_bound=0.0)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the head, the shards and the order of examples.")
STORES = flags.DEFINE_string("stores", "out/stores", "Folder of the stores that keep the trained components.")

HELD_OUT = flags.DEFINE_bool(
    "held_out", False, "Train on four fifths of the training images and test on the rest: to choose settings by."
)
flags.set_default(common.OUTPUT, "tangent")  # f_w(x), of a random head, would count once, however many are added

AT_ONCE = 10  # models trained as one program, and added to the store together


class Problem:
    """A data set, and for each method its task, tail inputs and settings."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
        self.dataset: Dataset = open_dataset(DATASET.value)
        rates = {"taft": RATE.value, "fc": RATE.value, "nlft": NLFT_RATE.value}
        self.choices = {m: Choice(m, "blocks", BLOCKS.value, learning_rate=rates[m]) for m in methods}
        self.settings = {m: common.settings_of(rates[m]) for m in methods}
        classes = len(self.dataset.classes)
        self.tasks = {m: common.prepare(pretrained, classes, choice, SEED.value) for m, choice in self.choices.items()}
        test = common.test_split(self.dataset)
        self.train = {m: t.inputs(self.dataset.splits["train"], "train inputs") for m, t in self.tasks.items()}
        self.test = {m: task.inputs(test, "test inputs") for m, task in self.tasks.items()}
        if HELD_OUT.value:
            parts = {m: common.hold_out(self.train[m]) for m in methods}
            self.train, self.test = ({m: part[i] for m, part in parts.items()} for i in (0, 1))
        first = self.train[methods[0]]
        self.labels, self.examples = first.labels, first.examples

    def divide(self, count: int) -> dict[str, np.ndarray]:
        """The rows of each shard by its name; empty shards are left out, and said."""
        identifiers, names = zip(*self.examples, strict=True)
        if SHARDING.value == "owner":
            require(OWNERS.value, "divide", "--owners=CSV with --sharding=owner", "none")
            made = shards.by_owner(names, str(OWNERS.value))
        else:
            made = {
                "uniform": lambda: shards.uniform(len(names), count, SEED.value),
                "hash": lambda: shards.by_identifier(identifiers, count),
                "class": lambda: shards.by_class(self.labels, count),
                "dirichlet": lambda: shards.dirichlet(self.labels, count, CONCENTRATION.value, SEED.value),
            }[SHARDING.value]()
            made = {f"shard {s:0{len(str(count - 1))}}": rows for s, rows in enumerate(made)}
        shards.check_disjoint(list(made.values()), len(names))
        kept = {name: rows for name, rows in made.items() if len(rows)}
        if len(kept) < len(made):
            print(f"{len(made) - len(kept)} of {len(made)} shards are empty and left out", file=sys.stderr)
        return kept

    def store(self, method: str, title: str) -> Store:
        words = [self.dataset.name, method, SHARDING.value, title, f"seed{SEED.value}"]
        words += ["held_out"] if HELD_OUT.value else []
        return Store(Path(STORES.value) / re.sub(r"[^\w.-]+", "_", "-".join(words)))

    def components(self, method: str, divided: dict[str, np.ndarray], title: str) -> tuple[Store, dict[str, Tree]]:
        """The trained component of each shard, from the store or trained now, and the store that keeps them.

        A component there that came of other settings, data or weights is taken out and trained anew.
        """
        store = self.store(method, title)
        origins = {n: self.provenance(method, self.train[method].take(rows), n, 0.0) for n, rows in divided.items()}

        def stale(name: str) -> bool:
            if name not in origins:
                return True
            was, now = store.provenance(name), origins[name]
            return (was.recipe, was.anchor, was.head, was.examples) != (now.recipe, now.anchor, now.head, now.examples)

        old = [name for name in store.components if stale(name)]
        if old:
            store.remove(old)
        missing = [name for name in divided if name not in store.components]
        for start in range(0, len(missing), AT_ONCE):
            names = missing[start : start + AT_ONCE]
            bar = f"{self.dataset.name} {method} shards {start + 1}-{start + len(names)} of {len(missing)}"
            fitted = train_apart(
                self.tasks[method],
                self.train[method],
                [divided[name] for name in names],
                self.settings[method],
                [key_of(name) for name in names],
                bar,
            )
            for name, one in zip(names, fitted, strict=True):
                origin = self.provenance(method, self.train[method].take(divided[name]), name, one.seconds)
                store.add(name, jax.tree.map(np.asarray, one.dw), origin)
        return store, {name: store.read(name) for name in divided}

    def provenance(self, method: str, examples: TailInputs, name: str, seconds: float) -> Provenance:
        task, choice = self.tasks[method], self.choices[method]
        recipe = common.recipe(task, DATASET.value, choice, self.settings[method], SEED.value, key_words(name))
        config, w = task.model.config, task.model.params
        return make_provenance(config, w, task.subset, examples.examples, recipe, seconds, method)


def train_apart(task: Task, inputs: TailInputs, rows: list, settings: Settings, keys: list, title: str | None) -> list:
    """One Fitted per entry of `rows`, all trained as one program."""
    zeros = task.subset.zeros(task.predict.w)
    return fit_many(task.predict, zeros, inputs.inputs, inputs.labels, rows, settings, keys, progress=title)


def key_words(name: str) -> list[int]:
    """What the key of a shard's training is made of: the seed and the shard's name."""
    return [SEED.value, zlib.crc32(name.encode())]


def key_of(name: str) -> jax.Array:
    return key_from(key_words(name))


def key_from(words: list[int]) -> jax.Array:
    return jax.random.fold_in(jax.random.key(words[0]), words[1])

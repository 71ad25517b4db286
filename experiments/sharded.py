"""Models trained apart on shards of a data set, kept in stores so that no binary trains them twice."""

import re
import sys
from pathlib import Path

import jax
import numpy as np
from absl import flags

from experiments import common
from experiments.common import F
from tangent_jax.components.apart import Shard, fill, fit_apart, recipe_of
from tangent_jax.components.store import Store
from tangent_jax.core.checks import require
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import show_progress
from tangent_jax.data import shards
from tangent_jax.data.registry import open_dataset
from tangent_jax.models.features import Features
from tangent_jax.train.fit import Fitted, accuracy, logits

# f_w(x), of a random head, would count once, however many are added: so the tangent alone answers
common.define(*common.MODEL, *common.CACHED, *common.COMPUTE, *common.TRAINING, "dataset", "seed", output="tangent")
common.define(blocks=1, lr=3e-3)
flags.DEFINE_float("lr_nlft", 3e-3, "Learning rate of the non-linear models (--lr: of tangents and heads).", 0.0)
flags.DEFINE_enum(
    "sharding",
    "uniform",
    ["uniform", "hash", "class", "owner", "dirichlet"],
    "How examples are divided: a seeded shuffle; by a hash of the image's content; whole classes; by --owners; "
    "each class in Dirichlet(--concentration) proportions.",
)
flags.DEFINE_string("owners", None, "CSV of file,owner for --sharding=owner, which decides the number of shards.")
flags.DEFINE_float("concentration", 0.5, "Of --sharding=dirichlet: small is uneven.", lower_bound=0.0)
flags.DEFINE_string("stores", "out/stores", "Folder of the stores that keep the trained components.")
flags.DEFINE_bool("held_out", False, "Train on four fifths of the training images and test on the rest.")


class Method:
    """One method on the data set of the flags: its recipe, predictor and features."""

    def __init__(self, name: str) -> None:
        rate = {"learning_rate": F.lr_nlft} if name == "nlft" else {}
        self.name, self.recipe, self.dataset = name, common.recipe(method=name, **rate), open_dataset(F.dataset)
        self.predict = common.predictor(self.recipe, len(self.dataset.classes))
        self.train = common.features(self.predict, self.dataset.train, "train inputs")
        self.test = common.features(self.predict, self.dataset.test, "test inputs")
        if F.held_out:
            self.train, self.test = self.train.hold_out()

    def divide(self, count: int) -> dict[str, np.ndarray]:
        """The rows of each shard by its name; empty shards are left out, and said."""
        identifiers, names = zip(*self.train.examples, strict=True)
        if F.sharding == "owner":
            require(F.owners, "divide", "--owners=CSV with --sharding=owner", "none")
            divided = shards.by_owner(names, F.owners)
        else:
            divide = {
                "uniform": lambda: shards.uniform(len(names), count, F.seed),
                "hash": lambda: shards.by_identifier(identifiers, count),
                "class": lambda: shards.by_class(self.train.labels, count),
                "dirichlet": lambda: shards.dirichlet(self.train.labels, count, F.concentration, F.seed),
            }[F.sharding]
            divided = {f"shard {s:0{len(str(count - 1))}}": rows for s, rows in enumerate(divide())}
        shards.check_disjoint(list(divided.values()), len(names))
        kept = {name: rows for name, rows in divided.items() if len(rows)}
        if len(kept) < len(divided):
            print(f"{len(divided) - len(kept)} of {len(divided)} shards are empty and left out", file=sys.stderr)
        return kept

    def store(self, rows: dict[str, np.ndarray], title: str) -> Store:
        """The store of one component per shard, read or trained now."""
        words = [self.dataset.name, self.name, F.sharding, title, f"seed{F.seed}", *["held_out"] * F.held_out]
        store = Store(Path(F.stores) / re.sub(r"[^\w.-]+", "_", "-".join(words)))
        fill(store, self.predict, self.train, self.recipe, rows, f"{self.dataset.name} {self.name}")
        return store

    def full(self) -> Tree:
        """One model on all the data."""
        return self.store({"all": np.arange(len(self.train.labels))}, "full")["all"]

    def fit(self, rows: dict[str, np.ndarray], title: str | None, features: Features | None = None) -> list[Fitted]:
        """One model for each entry of `rows`, all trained as one program, kept nowhere."""
        parts = {name: Shard(part, recipe_of(self.recipe, name)) for name, part in rows.items()}
        with show_progress(title):
            return [*fit_apart(self.predict, features or self.train, parts).values()]

    def accuracy(self, dw: Tree, on: Features | None = None) -> float:
        """On the test images, or other features."""
        on = on or self.test
        return accuracy(self.predict, dw, on.inputs, on.labels)

    def outputs(self, store: Store) -> np.ndarray:
        """The logits of every component on the test images, "s n c"."""
        return np.stack([logits(self.predict, store[name], self.test.inputs) for name in store])


def flat(tree: Tree) -> np.ndarray:
    """All numbers of a tree, f64."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)

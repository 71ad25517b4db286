"""The recipe of a component, as one value that JSON holds; equal recipes and examples give equal components."""

import dataclasses
import time
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core.checks import InputError, finite_number, one_of
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import ImageSize
from tangent_jax.io.log import current_log
from tangent_jax.io.progress import shown
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import FeatureMap, FeatureSettings
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.subsets import MADE, make_subset
from tangent_jax.pretrained.frozen_head import read_frozen_head
from tangent_jax.pretrained.load import load
from tangent_jax.solver.optimum import Solved, solve
from tangent_jax.solver.statistics import as_tree, checked_rows, moments
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.features import Features
from tangent_jax.train.fit import fit
from tangent_jax.train.losses import spell_loss
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.optimizers import Optimizer, adam, project
from tangent_jax.train.run import Checkpoints, Fitted
from tangent_jax.train.targets import Predict, as_labels

SOLVERS = ("adam", "optimum")
"""The ways to train a component: see `Recipe`."""
HEADS = ("drawn", "named")
"""The kinds of new heads; any other value is the file of a frozen head."""
OF_FEATURES = ("weights", "architecture", "ignore_config", "dataset", "image_size", "dtype", "cache_dtype", "features")
"""The fields that a recipe of statistics uses."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All settings that decide a component, except its examples. The defaults are the paper's.

    Anchor: `weights`, `architecture`, `ignore_config`, `dataset` as `load` and `open_dataset` take them; `image_size`
    in pixels, a side or (height, width), None for the weights' own; `reset`: re-initialise the trained leaves (the
    paper's PT=F); `new_class_token`: the paper's CLS=T; `head_scale`: a factor on a new head, drawn N(0, 0.01^2). Head:
    `head` is "drawn" as a whole; or "named", each class drawn by its name, so that heads of other classes join and a
    component has only the classes of its images; or the file of a frozen head, as for `read_frozen_head`. Trained
    leaves: `method` taft (tangent), nlft (non-linear) or fc (the head alone); `kind`, `blocks` as `make_subset`; `rank`
    of LoRA (a tangent trains B alone) or width of adapters; `output`, `linearization`, `dtype` as `Predictor`;
    `cache_dtype` as `Cache`. Objective: `penalty`, and `loss`, a name in `tj.losses.LOSSES` with hyper-parameters, as
    in "rsl:alpha=2:kappa=5". Training: `seed` draws the head and reset leaves; `order` is folded into its key for the
    order of examples; `solver` is "adam", with `radius` as the bound of projected descent (None: no bound), or
    "optimum", by `tj.solve` to `certificate` or in `passes`, without learning rate, epochs or order. Statistics:
    `features`, the settings of the features of the pre-trained model; nothing is trained.

    >>> recipe = tj.Recipe(loss="ce", penalty=1e-3, solver="optimum")
    >>> recipe.objective()
    Objective(loss=CrossEntropy(), penalty=0.001)
    """

    weights: str = "builtin"
    dataset: str = "digits"
    image_size: ImageSize | None = None
    method: str = "taft"
    kind: str = "blocks"
    blocks: int = 1
    rank: int = 8
    reset: bool = False
    new_class_token: bool = False
    output: str = "total"
    linearization: str = "closed_form"
    dtype: str = "float32"
    cache_dtype: str | None = None
    loss: str = "rsl"
    penalty: float = 1e-5
    learning_rate: float = 1e-3
    epochs: int = 30
    batch_size: int = 32
    seed: int = 0
    order: int = 1
    solver: str = "adam"
    certificate: float = 0.01
    passes: int = 100
    radius: float | None = None
    head: str = "drawn"
    architecture: str | None = None
    features: FeatureSettings | None = None
    head_scale: float = 1.0
    ignore_config: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises InputError for invalid settings, before any long computation; spells the loss in one way."""
        self.objective()
        object.__setattr__(self, "loss", spell_loss(self.loss))  # equal losses are equal recipes
        if self.features is not None:
            object.__setattr__(self, "features", dataclasses.replace(self.features, dtype=self.dtype))
        self.optimizer()
        for field in ("weights", "dataset", "method", "kind", "head"):
            text = getattr(self, field)
            if isinstance(text, str) and not text.isprintable():
                raise InputError(f"{field} must have only characters that show; got {text!r}.")
        finite_number("head_scale", self.head_scale, 0.0)
        one_of("solver", self.solver, SOLVERS)
        if self.solver == "optimum" and self.radius is not None:
            raise InputError(f"radius must be None for solver optimum; got {self.radius}.")
        if self.solver == "optimum" and self.method == "nlft":
            raise InputError(f"method must be taft or fc for solver optimum; got {self.method}. Use solver adam.")

    @property
    def is_by_class(self) -> bool:
        """True if a component has only the classes of its own images."""
        return self.head == "named" or self.features is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that decide a component, by name; for statistics, those of the features alone."""
        fields = dataclasses.asdict(self)
        return fields if self.features is None else {name: fields[name] for name in OF_FEATURES}

    @property
    def has_bound(self) -> bool:
        """True if |grad L| / lambda bounds the distance to the optimum."""
        return self.method != "nlft" and self.penalty > 0 and self.features is None

    @property
    def key(self) -> Array:
        """The key of the examples' order."""
        return jax.random.fold_in(jax.random.key(self.seed), self.order)

    def objective(self) -> Objective:
        """The loss with its hyper-parameters, and the penalty."""
        return make_objective(self.loss, self.penalty)

    def optimizer(self) -> Optimizer:
        """Adam, projected to a ball if a radius is given."""
        optimizer = adam(self.learning_rate)
        return optimizer if self.radius is None else project(optimizer, self.radius)

    def predictor(self, classes: int | Sequence[str], pretrained: Pretrained | None = None) -> Predictor | Any:
        """The predictor at its anchor, with its new head, new class token and reset; or the feature map.

        Args:   classes: their names, or their number for a drawn head; pretrained: the weights, if they are loaded
                already.
        """
        if self.head != "drawn" and isinstance(classes, int):
            raise InputError(f"classes must be names for the head {self.head}; got {classes}. Pass the names.")
        pretrained = load(self.weights, self.architecture, self.ignore_config) if pretrained is None else pretrained
        if self.image_size is not None:
            pretrained = pretrained.with_image_size(self.image_size)
        if self.features is not None:
            return self.map(pretrained, classes if isinstance(classes, int) else len(classes))
        head, token, fresh = jax.random.split(jax.random.key(self.seed), 3)
        if self.head in HEADS:
            drawn = classes if isinstance(classes, int) or self.head == "named" else len(classes)
            pretrained = pretrained.with_head(drawn, head)
        is_head = self.method == "fc"
        kind = "head" if is_head else self.kind
        if self.new_class_token and not is_head:
            pretrained = pretrained.with_class_token(self.blocks, token)
        if kind == "adapter":
            pretrained = pretrained.with_adapters(self.rank, self.blocks, fresh)
        if self.head not in HEADS:
            assert not isinstance(classes, int)
            pretrained = pretrained.with_frozen_head(read_frozen_head(self.head).of_classes(classes))
        if self.reset and not is_head:
            if kind in MADE:
                raise InputError(f"reset must be False with adapters or LoRA, whose leaves are new; got {kind}.")
            pretrained = pretrained.reset(make_subset(pretrained.model, kind, self.blocks), fresh)
        if self.head in HEADS and self.head_scale != 1:
            pretrained = pretrained.with_scaled_head(self.head_scale)
        if kind in ("lora", "lora_b"):
            pretrained = pretrained.with_lora(self.rank, self.blocks, fresh)
            kind = kind if self.method == "nlft" else "lora_b"
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        if self.method == "nlft":
            return nonlinear(pretrained, self.blocks, kind, linearization=self.linearization, dtype=dtype)
        # the head alone is linear: its tangent is itself
        options = {"linearization": self.linearization, "dtype": dtype, "output": self.output}
        return tangent(pretrained, self.blocks, kind, **options)

    def map(self, pretrained: Pretrained, outputs: int) -> FeatureMap:
        """The feature map; it is called, evaluated and exported like a predictor."""
        assert self.features is not None
        return dataclasses.replace(self.features.of(pretrained), outputs=outputs)

    def for_shard(self, name: str) -> "Recipe":
        """The recipe of a named shard: with its own order of examples."""
        return dataclasses.replace(self, order=zlib.crc32(name.encode()))

    def fit(self, predict: Any, features: Features, rows: np.ndarray | None = None, **options: Any) -> Fitted:
        """Trains dw from zero on the features, or on `rows` of them; options as `fit`. Statistics need one pass.

        Log and bar are those of `log_steps` and `show_progress`.
        """
        if self.features is not None:
            return sum_features(predict, features if rows is None else features.take(rows))
        if self.solver == "optimum":
            return self.solve(predict, features, rows=rows, **options)
        data = features.batches(self.key, rows=rows, batch_size=self.batch_size)
        settings: Any = {"optimizer": self.optimizer(), "epochs": self.epochs, "metrics": {"train_accuracy": accuracy}}
        return fit(predict, data, self.objective(), **settings, log=current_log(), progress=shown, **options)

    def solve(
        self,
        predict: Predict,
        features: Features,
        start: Tree | Fitted | None = None,
        *,
        rows: np.ndarray | None = None,
        example_weights: np.ndarray | None = None,
        on_step: Any = None,
        checkpoints: Checkpoints | None = None,
    ) -> Fitted[Solved]:
        """Solves for the optimum on the features, or on `rows` of them, from zero or a start; options as `solve`."""
        data = features if rows is None else features.take(rows)
        bound = {"certificate": self.certificate if self.penalty > 0 else None, "passes": self.passes}
        watched: Any = {"on_step": on_step, "checkpoints": checkpoints, "log": current_log(), "progress": shown}
        return solve(predict, data, self.objective(), start=start, example_weights=example_weights, **bound, **watched)


def sum_features(map_: Any, features: Features) -> Fitted:
    """The statistics of the features as leaves, in the form of a run's result; one pass."""
    began = time.perf_counter()
    targets = as_labels(features.targets, map_.outputs)
    leaves = as_tree(*moments(checked_rows(map_, features, progress=shown), targets, map_.outputs))
    return Fitted(leaves, [], time.perf_counter() - began, 1)

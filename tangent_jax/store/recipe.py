"""The recipe of a component: all settings that decide it, except its examples, as one value that JSON holds.

    Recipe(...)              tangent weights
    StatisticsRecipe(...)    statistics of features: nothing is trained

Equal recipes and examples give equal components. A recipe loads no model and no trainer: its methods import what they
run (training.py) when they are called.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np
from jax import Array

from tangent_jax.core.checks import InputError, check_printable, finite_number, one_of
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import ImageSize
from tangent_jax.io.records import Tagged, plain
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.subsets import KINDS, MADE
from tangent_jax.train.losses import make_loss, spell_loss
from tangent_jax.train.objective import Objective, make_objective

if TYPE_CHECKING:
    from tangent_jax.models.anchor import Pretrained
    from tangent_jax.models.predict import Predictor
    from tangent_jax.solver.curvature import Curvature
    from tangent_jax.train.batches import Batches
    from tangent_jax.train.features import Features
    from tangent_jax.train.optimizers import Optimizer
    from tangent_jax.train.run import Fitted

METHODS = ("taft", "nlft")
SOLVERS = ("adam", "optimum")
NEW_HEADS = ("drawn", "named")
"""The heads that a seed draws; any other is a file."""
READ_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("learning_rate", "epochs", "batch_size", "radius"), ("solver", ("adam",))),
    **dict.fromkeys(("certificate", "passes"), ("solver", ("optimum",))),
    "output": ("method", ("taft",)),
    "head_scale": ("head", NEW_HEADS),
    "blocks": ("kind", tuple(kind for kind in KINDS if kind != "head")),
    "new_class_token": ("kind", tuple(kind for kind in KINDS if kind != "head")),
    "reset": ("kind", tuple(kind for kind in KINDS if kind not in MADE)),
    "rank": ("kind", tuple(MADE)),
}
"""For settings that are not always read: the setting that decides it, and those of its values with which they are."""
ASKED = ("radius", "reset", "new_class_token")
"""Settings that ask for something: an error, not their default, where nothing reads them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseRecipe(Tagged):
    """The settings of both kinds of recipes: the pre-trained model, and the data.

    Attributes:
        weights, architecture: As `load` takes them.
        image_size: In pixels, a side or (height, width), None for the weights' own.
        dataset: As `open_dataset` takes it.
        cache_dtype: As `Cache` takes it.
        order: The order of the examples; `for_shard` gives each shard another.
    """

    weights: str = "builtin"
    architecture: str | None = None
    image_size: ImageSize | None = None
    dataset: str = "digits"
    cache_dtype: str | None = None
    order: int = 1

    def __post_init__(self) -> None:
        check_printable("weights", self.weights)
        check_printable("dataset", self.dataset)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide a component, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def for_shard(self, name: str) -> Self:
        """The recipe of a named shard: with its own order of examples."""
        return dataclasses.replace(self, order=zlib.crc32(name.encode()))

    def with_places(self, rename: Callable[[str], str]) -> Self:
        """The recipe with other names of its files and data."""
        return dataclasses.replace(self, weights=rename(self.weights), dataset=rename(self.dataset))

    def with_weights(self, weights: str | None) -> Self:
        """The recipe with another place of the pre-trained weights; None for its own."""
        return self if weights is None else dataclasses.replace(self, weights=weights)

    def load(self, pretrained: "Pretrained | None" = None) -> "Pretrained":
        """The pre-trained model at its image size; `pretrained`: if it is loaded already."""
        from tangent_jax.pretrained.load import load

        pretrained = pretrained or load(self.weights, self.architecture)
        return pretrained if self.image_size is None else pretrained.with_image_size(self.image_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """All settings that decide tangent weights, except their examples. The defaults are the paper's.

    Attributes:
        seed: Draws the head and all that is new, and with `order` the examples' order.
        method: The linearized model ("taft"), or the network itself, fine-tuned non-linearly ("nlft").
        kind: The trained leaves, as `make_subset`: "head" is a linear probe; "adapter", "lora" and "lora_b" are new,
            and a tangent trains B of LoRA alone.
        blocks: The last blocks that are trained; 0 for the head alone.
        rank: The rank of LoRA, or the width of adapters.
        new_class_token: A new class token in these blocks (the paper's CLS=T).
        reset: Draw the leaves again before linearising (the paper's PT=F).
        head: A new head, "drawn" N(0, 0.01^2), or "named": each class drawn by its name, so that heads of other classes
            join and a component has only the classes of its images. Else the file of a frozen head.
        head_scale: Multiplies a new head.
        linearization, dtype: As in `Predictor`.
        output: f_w(x) + J dw ("total"), or J dw alone ("tangent").
        loss: The text of a loss in `tj.losses.LOSSES`, as `make_loss` takes it.
        penalty: The lambda of lambda/2 |dw|^2.
        solver: "adam", or "optimum" (`tj.solve`), to a `certificate` or in `passes`, whichever comes first.
        radius: The bound of projected descent, None for no bound.

    Edge cases:
        A setting that nothing reads, such as `epochs` of an optimum, has its default, and `blocks` of a head is 0.

    Raises:
        InputError: Settings that do not fit each other.

    >>> recipe = tj.Recipe(kind="head", learning_rate=0.1, epochs=5)
    >>> recipe.predictor(10).subset.paths, recipe.fit(demo.predict, demo.train).steps
    (('head/bias', 'head/kernel'), 5)
    >>> tj.Recipe(solver="optimum", loss="mse", penalty=0.1).fit(demo.predict, demo.train).info.converged
    True
    """

    seed: int = 0
    method: str = "taft"
    kind: str = "blocks"
    blocks: int = 1
    rank: int = 8
    new_class_token: bool = False
    reset: bool = False
    head: str = "drawn"
    head_scale: float = 1.0
    linearization: str = "closed_form"
    dtype: str = "float32"
    output: str = "total"
    loss: str = "rsl"
    penalty: float = 1e-5
    solver: str = "adam"
    learning_rate: float = 1e-3
    epochs: int = 30
    batch_size: int = 32
    radius: float | None = None
    certificate: float = 0.01
    passes: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("method", METHODS), ("kind", KINDS), ("solver", SOLVERS)):
            one_of(name, getattr(self, name), choices)
        if self.is_optimum and not self.is_linear:
            raise InputError(f"method must be taft for solver optimum; got {self.method}. Use solver adam.")
        defaults = {field.name: field.default for field in dataclasses.fields(self)} | {"blocks": 0}
        for name in self.unread:
            decided_by, value = READ_WITH[name][0], getattr(self, name)
            if name in ASKED and value != defaults[name]:
                other = getattr(self, decided_by)
                raise InputError(f"{name} must not be given with {decided_by} {other}; got {value}")
            object.__setattr__(self, name, defaults[name])
        check_printable("head", self.head)
        finite_number("head_scale", self.head_scale, 0.0)
        object.__setattr__(self, "loss", spell_loss(make_loss(self.loss)))
        _ = self.objective  # checks the penalty
        self.optimizer()

    @property
    def unread(self) -> list[str]:
        """The names of settings that nothing reads beside the others."""
        return [name for name, (other, values) in READ_WITH.items() if getattr(self, other) not in values]

    @property
    def settings(self) -> dict[str, Any]:
        unread = self.unread
        return {name: value for name, value in super().settings.items() if name not in unread}

    @property
    def is_linear(self) -> bool:
        """True for the linearized model."""
        return self.method == "taft"

    @property
    def is_optimum(self) -> bool:
        """True if its components are solved to the optimum."""
        return self.solver == "optimum"

    @property
    def is_by_class(self) -> bool:
        """True if a component has only the classes of its own images."""
        return self.head == "named"

    @property
    def has_named_head(self) -> bool:
        """True if the heads of its components are joined over all classes."""
        return self.is_by_class

    @property
    def needs_names(self) -> bool:
        """True if its predictor needs the names of the classes."""
        return self.head != "drawn"

    @property
    def objective(self) -> Objective:
        """The loss with the penalty."""
        return make_objective(self.loss, float(self.penalty))

    @property
    def key(self) -> Array:
        """The key of the examples' order."""
        return jax.random.fold_in(jax.random.key(self.seed), self.order)

    def optimizer(self) -> "Optimizer":
        """Adam, projected to a ball if a radius is given."""
        from tangent_jax.train.optimizers import adam, project

        optimizer = adam(self.learning_rate)
        return optimizer if self.radius is None else project(optimizer, self.radius)

    def batches(self, features: "Features", rows: np.ndarray | None = None) -> "Batches":
        """The features, or `rows` of them, in the order of the recipe."""
        return features.batches(self.key, rows=rows, batch_size=self.batch_size)

    def predictor(self, classes: int | Sequence[str], pretrained: "Pretrained | None" = None) -> "Predictor":
        """The predictor at its anchor, with all that is new.

        Args:
            classes: Their names, or their number for a head that is not named.
            pretrained: The weights, if they are loaded already.
        """
        from tangent_jax.store import training

        return training.predictor(self, classes, self.load(pretrained))

    def fit(
        self, predict: "Predictor", features: "Features", rows: np.ndarray | None = None, **options: Any
    ) -> "Fitted":
        """Trains dw on the features, or on `rows` of them; options as `fit`, or as `solve`.

        Log and bar are those of `log_steps` and `show_progress`.
        """
        from tangent_jax.store import training

        return training.train(self, predict, features, rows, **options)

    def compile(self, predict: "Predictor", features: "Features") -> None:
        """Compiles what `fit` with checkpoints runs on features of these shapes, if its solver is Adam."""
        from tangent_jax.store import training

        training.compile_training(self, predict, features)

    def of_classes(self, predict: "Predictor", classes: Sequence[str], chosen: Sequence[str]) -> "Predictor":
        """The predictor of some of its classes."""
        from tangent_jax.models.heads import restrict

        return restrict(predict, classes, chosen)

    def total_penalty(self, examples: int) -> float | None:
        """Lambda of a component of this many examples that is solved to its optimum; None for others."""
        return float(self.penalty) * examples if self.is_optimum else None

    def distance_bound(self, predict: "Predictor", dw: Tree, data: "Features") -> float | None:
        """The bound |grad L| / lambda of the distance to the optimum; None without a convex objective and a penalty."""
        from tangent_jax.train.bound import distance_bound

        is_convex = self.is_linear and self.penalty > 0
        return distance_bound(predict, dw, data, self.objective) if is_convex else None

    def factors(self, predict: "Predictor", features: "Features", dw: Tree) -> "Curvature":
        """A component's Kronecker factors, from the signals of all classes."""
        from tangent_jax.solver.problem import make_curvature

        return make_curvature(predict, features, self.objective, dw)

    def with_places(self, rename: Callable[[str], str]) -> Self:
        head = self.head if self.head in NEW_HEADS else rename(self.head)
        return dataclasses.replace(super().with_places(rename), head=head)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatisticsRecipe(BaseRecipe):
    """All settings that decide statistics, except their examples: those of the features of the pre-trained model.

    >>> recipe = tj.store.StatisticsRecipe(features=tj.models.FeatureSettings(("h",)))
    >>> recipe.predictor(10).subset.paths
    ('counts', 'gram', 'sums')
    """

    features: FeatureSettings = dataclasses.field(default_factory=FeatureSettings)
    is_optimum: ClassVar[bool] = False
    is_by_class: ClassVar[bool] = True
    has_named_head: ClassVar[bool] = False
    needs_names: ClassVar[bool] = True
    output: ClassVar[str] = "total"

    @property
    def settings(self) -> dict[str, Any]:
        fields = super().settings
        return fields | vars(fields.pop("features"))

    def predictor(self, classes: int | Sequence[str], pretrained: "Pretrained | None" = None) -> Any:
        """The feature map; it is called, evaluated and exported like a predictor. Arguments as those of `Recipe`."""
        outputs = classes if isinstance(classes, int) else len(classes)
        return dataclasses.replace(self.features.of(self.load(pretrained)), outputs=outputs)

    def fit(self, predict: Any, features: "Features", rows: np.ndarray | None = None) -> "Fitted":
        """The statistics of the features, or of `rows` of them, in one pass."""
        from tangent_jax.store import training

        return training.sum_features(predict, features if rows is None else features.take(rows))

    def of_classes(self, predict: Any, classes: Sequence[str], chosen: Sequence[str]) -> Any:
        """The feature map of some of its classes."""
        return dataclasses.replace(predict, outputs=len(chosen))

    def total_penalty(self, examples: int) -> None:
        """None: no optimum is solved."""

    def distance_bound(self, predict: Any, dw: Tree, data: "Features") -> None:
        """None: statistics are exact."""

    def factors(self, predict: Any, features: "Features", dw: Tree) -> "Curvature":
        """Raises InputError: statistics have no factors."""
        raise InputError("factors must be of tangent weights; got statistics, which are summed without them")


AnyRecipe = Recipe | StatisticsRecipe


@plain.register
def _(recipe: Recipe) -> dict[str, Any]:
    """The JSON of a recipe: only settings that are read."""
    return {"type": "Recipe", **recipe.settings}

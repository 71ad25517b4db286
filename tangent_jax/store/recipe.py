"""The recipe of a component, as one value that JSON holds; equal recipes and examples give equal components.

    Recipe(anchor, trained, objective, trainer)    tangent weights
    StatisticsRecipe(anchor, features)             statistics of features: nothing is trained

Each part checks itself and does its own step: `anchor.load()`, `trained.predictor(...)`, `trainer.fit(...)`.
"""

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax import Array

from tangent_jax.core.checks import InputError, one_of
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import ImageSize
from tangent_jax.io.progress import shown
from tangent_jax.io.records import Tagged, convert, plain, tag_of
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.heads import restrict
from tangent_jax.models.predict import Predictor
from tangent_jax.models.subsets import KINDS
from tangent_jax.pretrained.load import load
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.mapped import checked_rows
from tangent_jax.solver.problem import make_curvature
from tangent_jax.solver.statistics import as_tree, moments
from tangent_jax.store.trained import (
    Adapters,
    HeadAlone,
    HeadFile,
    LowRank,
    Network,
    NewHead,
    OwnLeaves,
    Tangent,
    check_printable,
)
from tangent_jax.store.trainers import Adam, Optimum
from tangent_jax.train.bound import distance_bound
from tangent_jax.train.features import Features
from tangent_jax.train.losses import Loss, spell_loss
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import as_labels

plain.register(Loss)(spell_loss)  # JSON has a loss as the text that flags take


@dataclasses.dataclass(frozen=True)
class Anchor:
    """The pre-trained model: `weights` and `architecture` as `load` takes them.

    Attributes:
        image_size: In pixels, a side or (height, width), None for the weights' own.

    >>> tj.store.Anchor(image_size=16).load().model.input_shape(0)
    (16, 16, 3)
    """

    weights: str = "builtin"
    architecture: str | None = None
    image_size: ImageSize | None = None

    def __post_init__(self) -> None:
        check_printable("weights", self.weights)

    def load(self, pretrained: Pretrained | None = None) -> Pretrained:
        """The model at its image size; `pretrained`: if it is loaded already."""
        pretrained = pretrained or load(self.weights, self.architecture)
        return pretrained if self.image_size is None else pretrained.with_image_size(self.image_size)


@dataclasses.dataclass(frozen=True)
class BaseRecipe(Tagged):
    """The settings of both kinds of recipes.

    `dataset` as `open_dataset` takes it; `cache_dtype` as `Cache`; `order`: of the examples, another in each shard.
    """

    anchor: Anchor = Anchor()
    dataset: str = dataclasses.field(default="digits", kw_only=True)
    cache_dtype: str | None = dataclasses.field(default=None, kw_only=True)
    order: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_printable("dataset", self.dataset)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a component, by name, in one dict without parts."""
        return flatten(plain(self))

    def for_shard(self, name: str) -> Self:
        """The recipe of a named shard: with its own order of examples."""
        return dataclasses.replace(self, order=zlib.crc32(name.encode()))

    def with_places(self, rename: Callable[[str], str]) -> Self:
        """The recipe with other names of its files and data."""
        anchor = dataclasses.replace(self.anchor, weights=rename(self.anchor.weights))
        return dataclasses.replace(self, anchor=anchor, dataset=rename(self.dataset))


@dataclasses.dataclass(frozen=True)
class Recipe(BaseRecipe):
    """All settings that decide tangent weights, except their examples. The defaults are the paper's.

    Attributes:
        trained: The leaves and their head, `Tangent` or `Network`.
        objective: With a loss in `tj.losses.LOSSES`.
        trainer: `Adam` or `Optimum`.
        seed: Draws the head and all that is new, and with `order` the examples' order.

    >>> recipe = tj.Recipe(objective=tj.make_objective("ce", 1e-3), trainer=tj.store.Optimum())
    >>> recipe.objective
    Objective(loss=CrossEntropy(), penalty=0.001)
    """

    trained: Tangent | Network = dataclasses.field(default_factory=Tangent)
    objective: Objective = dataclasses.field(default_factory=make_objective)
    trainer: Adam | Optimum = dataclasses.field(default_factory=Adam)
    seed: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Raises InputError for settings that do not fit each other, before any long computation."""
        super().__post_init__()
        objective = make_objective(self.objective.loss, float(self.objective.penalty))  # JSON has the loss as text
        spell_loss(objective.loss)
        object.__setattr__(self, "objective", objective)
        if self.is_optimum and not self.trained.is_linear:
            raise InputError("method must be taft or fc for solver optimum; got nlft. Use solver adam.")

    @property
    def is_optimum(self) -> bool:
        """True if its components are solved to the optimum."""
        return isinstance(self.trainer, Optimum)

    @property
    def is_by_class(self) -> bool:
        """True if a component has only the classes of its own images."""
        return self.trained.head.by_name

    @property
    def has_named_head(self) -> bool:
        """True if the heads of its components are joined over all classes."""
        return self.is_by_class

    @property
    def needs_names(self) -> bool:
        """True if its predictor needs the names of the classes."""
        return self.is_by_class or self.head_file is not None

    @property
    def head_file(self) -> str | None:
        """The file of its frozen head, if it has one."""
        return self.trained.head.file

    @property
    def output(self) -> str:
        """The outputs that training uses: f_w + J dw ("total"), or J dw alone ("tangent")."""
        return self.trained.output

    @property
    def key(self) -> Array:
        """The key of the examples' order."""
        return jax.random.fold_in(jax.random.key(self.seed), self.order)

    def predictor(self, classes: int | Sequence[str], pretrained: Pretrained | None = None) -> Predictor:
        """The predictor at its anchor, with all that is new.

        Args:
            classes: Their names, or their number for a head that is not named.
            pretrained: The weights, if they are loaded already.
        """
        return self.trained.predictor(self.anchor.load(pretrained), classes, jax.random.key(self.seed))

    def fit(self, predict: Predictor, features: Features, rows: np.ndarray | None = None, **options: Any) -> Fitted:
        """Trains dw on the features, or on `rows` of them; options as the trainer's `fit`.

        Log and bar are those of `log_steps` and `show_progress`.
        """
        return self.trainer.fit(predict, features, self.objective, self.key, rows, **options)

    def compile(self, predict: Predictor, features: Features) -> None:
        """Compiles what `fit` with checkpoints runs on features of these shapes, for trainers that can."""
        if isinstance(self.trainer, Adam):
            self.trainer.compile(predict, features, self.objective, self.key)

    def of_classes(self, predict: Predictor, classes: Sequence[str], chosen: Sequence[str]) -> Predictor:
        """The predictor of some of its classes."""
        return restrict(predict, classes, chosen)

    def total_penalty(self, examples: int) -> float | None:
        """Lambda of a component of this many examples that is solved to its optimum; None for others."""
        return float(self.objective.penalty) * examples if self.is_optimum else None

    def distance_bound(self, predict: Predictor, dw: Tree, data: Features) -> float | None:
        """The bound |grad L| / lambda of the distance to the optimum; None without a convex objective and a penalty."""
        is_convex = self.trained.is_linear and self.objective.penalty > 0
        return distance_bound(predict, dw, data, self.objective) if is_convex else None

    def factors(self, predict: Predictor, features: Features, dw: Tree) -> Curvature:
        """A component's Kronecker factors, from the signals of all classes."""
        return make_curvature(predict, features, self.objective, dw)

    def with_places(self, rename: Callable[[str], str]) -> Self:
        head = self.trained.head if self.head_file is None else HeadFile(rename(self.head_file))
        return dataclasses.replace(super().with_places(rename), trained=dataclasses.replace(self.trained, head=head))


@dataclasses.dataclass(frozen=True)
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
    head_file: ClassVar[None] = None
    output: ClassVar[str] = "total"

    def predictor(self, classes: int | Sequence[str], pretrained: Pretrained | None = None) -> Any:
        """The feature map; it is called, evaluated and exported like a predictor. Arguments as those of `Recipe`."""
        outputs = classes if isinstance(classes, int) else len(classes)
        return dataclasses.replace(self.features.of(self.anchor.load(pretrained)), outputs=outputs)

    def fit(self, predict: Any, features: Features, rows: np.ndarray | None = None) -> Fitted:
        """The statistics of the features, or of `rows` of them, in one pass."""
        return sum_features(predict, features if rows is None else features.take(rows))

    def of_classes(self, predict: Any, classes: Sequence[str], chosen: Sequence[str]) -> Any:
        """The feature map of some of its classes."""
        return dataclasses.replace(predict, outputs=len(chosen))

    def total_penalty(self, examples: int) -> None:
        """None: no optimum is solved."""

    def distance_bound(self, predict: Any, dw: Tree, data: Features) -> None:
        """None: statistics are exact."""

    def factors(self, predict: Any, features: Features, dw: Tree) -> Curvature:
        """Raises InputError: statistics have no factors."""
        raise InputError("factors must be of tangent weights; got statistics, which are summed without them")


AnyRecipe = Recipe | StatisticsRecipe


def sum_features(map_: Any, features: Features) -> Fitted:
    """The statistics of the features as leaves, in the form of a run's result; one pass."""
    began = time.perf_counter()
    targets = as_labels(features.targets, map_.outputs)
    leaves = as_tree(*moments(checked_rows(map_, features, progress=shown), targets, map_.outputs))
    return Fitted(leaves, [], time.perf_counter() - began, 1)


def flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all parts in one dict; a part that may be of several types has its type under its own name."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= {name: value["type"]} if "type" in value else {}
            flat |= flatten(value)
        elif name != "type":
            flat[name] = value
    return flat


# Flat settings: those that flags have

METHODS = {"taft": Tangent, "nlft": Network, "fc": Tangent}
FIXED = {"fc": {"kind": "head", "reset": False, "new_class_token": False}}
"""The settings that a method decides."""
SOLVERS = {"adam": Adam, "optimum": Optimum}
"""The trainers by their names in flags."""
LEAVES = {"head": HeadAlone, "adapter": Adapters, "lora": LowRank, "lora_b": LowRank}
"""The leaves of each kind that is not of OwnLeaves."""
FLAT: dict[str, Any] = {
    field.name: field.default
    for kind in (Anchor, LowRank, OwnLeaves, Tangent, Adam, Optimum, Recipe)
    for field in dataclasses.fields(kind)
    if field.name not in ("anchor", "trained", "leaves", "head", "objective", "trainer")
}
FLAT |= {"method": "taft", "solver": "adam", "loss": "rsl", "penalty": 1e-5, "head": "drawn", "head_scale": 1.0}
"""The names and the defaults of flat settings."""
TAKEN_BY = {"radius": "solver", "reset": "kind", "new_class_token": "kind"}
"""Settings that only some trainers or leaves take."""


def recipe_of(**settings: Any) -> Recipe:
    """The recipe of flat settings, as flags have them (FLAT); others have the defaults.

    >>> tj.store.recipe_of(method="fc", learning_rate=0.1).trained.leaves
    HeadAlone(reset=False)
    """
    return convert(Recipe, nested(settings), "the settings")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of the recipe of flat settings; InputError for one that is unknown, or that its part does not take."""
    for name in settings:
        one_of("settings", name, FLAT)
    flat = {**FLAT, **settings}
    method = one_of("method", flat["method"], METHODS)
    flat |= FIXED.get(method, {})
    solver = one_of("solver", flat["solver"], SOLVERS)
    kind = one_of("kind", flat["kind"], KINDS)

    def part(of: type, **parts: Any) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(of) if field.name in flat]
        return {**tag_of(of), **{name: flat[name] for name in names}, **parts}

    anchor = part(Anchor)
    leaves = part(LEAVES.get(kind, OwnLeaves))
    trainer = part(SOLVERS[solver])
    for name, taker in TAKEN_BY.items():
        if flat[name] not in (None, False) and name not in leaves | trainer:
            raise InputError(f"{name} must not be given with {taker} {flat[taker]}; got {flat[name]}")
    head = {**tag_of(HeadFile), "file": flat["head"]}
    if flat["head"] in ("drawn", "named"):
        head = {**tag_of(NewHead), "by_name": flat["head"] == "named", "scale": flat["head_scale"]}
    trained = part(METHODS[method], leaves=leaves, head=head)
    objective = {"loss": flat["loss"], "penalty": flat["penalty"]}
    return part(Recipe, anchor=anchor, trained=trained, objective=objective, trainer=trainer)

"""Where a component came from: what it may be summed with, whose data it holds, how to train it again."""

import dataclasses
import json
from importlib.metadata import version
from typing import Any

from tangent_jax.components.recipe import Recipe
from tangent_jax.core import require, trees
from tangent_jax.models.features import Features
from tangent_jax.models.predict import Predictor

SUMMED = ("method", "config", "head", "anchor", "subset")
"""Fields in which components must agree to be summed."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """A component's origin.

    `config`: the model's settings; `anchor`, `head`: fingerprints of the anchor w without its head, and of the head, as
    linearised (new head, resets and new class token included); `subset`: its leaves; `examples`: (content identifier,
    name) of each it saw; `recipe`: what trained it, None where that cannot be told; `privacy`: epsilon, delta and
    neighbouring relation spent, None where none was kept; `seconds`: what the training took.
    """

    method: str
    config: dict[str, Any]
    head: str
    anchor: str
    subset: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()
    recipe: Recipe | None = None
    seconds: float = 0.0
    privacy: dict[str, Any] | None = None
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {name: version(name) for name in ("tangent-jax", "jax", "flax", "optax", "numpy")}
    )

    def trained(self, features: Features, seconds: float, **changes: Any) -> "Provenance":
        """This origin, of a step trained on these examples."""
        return dataclasses.replace(self, examples=features.examples, seconds=seconds, **changes)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        fields = json.loads(text)
        examples = tuple((identifier, name) for identifier, name in fields.pop("examples"))
        recipe = fields.pop("recipe")
        recipe = None if recipe is None else Recipe(**recipe)
        return cls(**{**fields, "subset": tuple(fields["subset"]), "examples": examples, "recipe": recipe})


def make_provenance(predict: Predictor, recipe: Recipe | None = None) -> Provenance:
    """The provenance of steps of this predictor; `trained` adds what each saw. The anchor is hashed here, once."""
    w = predict.w
    head = trees.fingerprint(w["head"])
    anchor = trees.fingerprint({name: leaf for name, leaf in w.items() if name != "head"})
    return Provenance(predict.method, predict.model.settings, head, anchor, predict.subset.paths, recipe=recipe)


def check_same(function: str, here: Provenance, new: Provenance) -> None:
    """Raises InputError naming the first field in which two components differ and so cannot be summed."""
    for field in SUMMED:
        first, second = getattr(here, field), getattr(new, field)
        if field == "config":
            for name in first:
                same(function, f"config.{name}", first[name], second.get(name))
        elif field == "subset":
            differing, count = sorted({*first} ^ {*second}), f"{len(first)} leaves"
            same(function, "subset of", count, f"one that differs in {differing[0]}" if differing else count)
        else:
            same(function, field, first, second)


def same(function: str, field: str, first: Any, second: Any) -> None:
    do = "Components are summed only at one anchor, configuration and subset"
    require(first == second, function, f"{field} {first}", second, do)

"""The provenance of a component: what it may be summed with, whose data it holds, how to train it again."""

import dataclasses
import json
from importlib.metadata import version
from typing import Any

from tangent_jax.components.recipe import Recipe
from tangent_jax.core import require
from tangent_jax.core.records import parse_json, typed
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.features import Features
from tangent_jax.models.predict import Predictor
from tangent_jax.privacy.mechanism import Spent, from_version_0_2

SUMMED = ("method", "config", "head", "anchor", "subset")
"""Fields in which components must agree to be summed."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """A component's origin.

    `config`: the model's settings; `anchor`, `head`: fingerprints of the anchor w without its head, and of the head, as
    linearised (new head, resets and new class token included); `subset`: its leaves; `examples`: (content identifier,
    name) of each it saw; `recipe`: what trained it, None where that cannot be told; `privacy`: the account of what
    it spent, None where none was kept; `seconds`: what the training took; `run`: the identity of the
    run, None where no checkpoints were kept; `folders`: where caches and checkpoints of these examples lie;
    `total_penalty`: of a component solved to its optimum Lambda, which stays what it was when examples leave;
    `certificate`: how far at most it is from that optimum; `owners`: whose an example is, by its name, where known.
    """

    method: str
    config: dict[str, Any]
    head: str
    anchor: str
    subset: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()
    recipe: Recipe | None = None
    seconds: float = 0.0
    privacy: Spent | None = None
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {name: version(name) for name in ("tangent-jax", "jax", "flax", "optax", "numpy")}
    )
    run: str | None = None
    folders: tuple[str, ...] = ()
    total_penalty: float | None = None
    certificate: float | None = None
    owners: dict[str, str] = dataclasses.field(default_factory=dict)

    def trained(
        self, features: Features, seconds: float, folders: tuple[str, ...] = (), **changes: Any
    ) -> "Provenance":
        """This provenance, of a component trained on these examples; `folders`: besides their cache."""
        folders = (*([features.folder] if features.folder else []), *folders)
        if self.recipe is not None and self.recipe.solver == "optimum" and self.total_penalty is None:
            changes = {"total_penalty": self.recipe.penalty * len(features), **changes}
        owners = {name: self.owners[name] for _, name in features.examples if name in self.owners}
        fields = {"examples": features.examples, "seconds": seconds, "folders": folders, "owners": owners}
        return dataclasses.replace(self, **{**fields, **changes})

    @property
    def identifiers(self) -> set[str]:
        """The content identifiers of the examples it saw."""
        return {identifier for identifier, _ in self.examples}

    def to_json(self) -> str:
        """The JSON text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str, where: object = "a provenance") -> "Provenance":
        """The provenance that `to_json` wrote, also 0.2's; InputError naming the field that is missing or wrong."""
        fields = parse_json("Provenance", text, where)
        fields |= {"folders": fields.pop("kept")} if "kept" in fields else {}  # as version 0.2 wrote them
        fields["privacy"] = from_version_0_2(fields.get("privacy"))
        return typed(cls, fields, "Provenance", where)


def make_provenance(predict: Predictor, recipe: Recipe | None = None) -> Provenance:
    """The provenance of components of this predictor; `trained` adds the examples. The anchor is hashed here, once."""
    anchor, head = fingerprints(predict.w)
    return Provenance(predict.method, predict.model.settings, head, anchor, predict.subset.paths, recipe=recipe)


def check_same(function: str, here: Provenance, new: Provenance) -> None:
    """Raises InputError naming the first field in which two components differ and so cannot be summed."""
    for field in SUMMED:
        first, second = getattr(here, field), getattr(new, field)
        if field == "config":
            for name in sorted({*first, *second}):
                same(function, f"config.{name}", first.get(name), second.get(name))
        elif field == "subset":
            differing, count = sorted({*first} ^ {*second}), f"{len(first)} leaves"
            same(function, "subset of", count, f"one that differs in {differing[0]}" if differing else count)
        else:
            same(function, field, first, second)


def same(function: str, field: str, first: Any, second: Any) -> None:
    """Raises InputError naming the field where two components have different values of it."""
    do = "Components are summed only at one anchor, configuration and subset"
    require(first == second, function, f"{field} {first}", second, do)

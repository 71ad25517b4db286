"""Where a component came from: what it may be summed with, whose data it holds, how to train it again."""

import dataclasses
import json
from importlib.metadata import version
from typing import Any

from tangent_jax import trees
from tangent_jax.checks import require
from tangent_jax.config import ViTConfig
from tangent_jax.notation import Tree
from tangent_jax.subsets import Subset

SUMMED = ("method", "config", "head", "anchor", "subset")
"""Fields in which components must agree to be summed."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """A component's origin.

    `anchor`, `head`: fingerprints of the anchor w without its head, and of the head, as linearised (new head, resets
    and new class token included); `subset`: its leaves; `examples`: (content identifier, name) of each it saw;
    `recipe`: what trained it, for whoever trains it again; `privacy`: epsilon, delta and neighbouring relation spent,
    None where none was kept; `seconds`: what the training took.
    """

    method: str
    config: dict[str, Any]
    head: str
    anchor: str
    subset: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    recipe: dict[str, Any]
    seconds: float
    privacy: dict[str, Any] | None = None
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {name: version(name) for name in ("tangent-jax", "jax", "flax", "optax", "numpy")}
    )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        fields = json.loads(text)
        examples = tuple((identifier, name) for identifier, name in fields.pop("examples"))
        return cls(**{**fields, "subset": tuple(fields["subset"]), "examples": examples})


def make_provenance(
    config: ViTConfig,
    w: Tree,
    subset: Subset,
    examples: tuple[tuple[str, str], ...],
    recipe: dict[str, Any],
    seconds: float,
    method: str = "taft",
) -> Provenance:
    """The provenance of a step trained at the anchor w on `examples`."""
    head = trees.fingerprint(w["head"])
    anchor = trees.fingerprint({name: leaf for name, leaf in w.items() if name != "head"})
    return Provenance(method, dataclasses.asdict(config), head, anchor, subset.paths, examples, recipe, seconds)


def check_same(function: str, here: Provenance, new: Provenance) -> None:
    """Raises InputError naming the first field in which two components differ and so cannot be summed."""
    for field in SUMMED:
        mine, theirs = getattr(here, field), getattr(new, field)
        if field == "config":
            for name in mine:
                same(function, f"config.{name}", mine[name], theirs.get(name))
        elif field == "subset":
            differing, count = sorted({*mine} ^ {*theirs}), f"{len(mine)} leaves"
            same(function, "subset of", count, f"one that differs in {differing[0]}" if differing else count)
        else:
            same(function, field, mine, theirs)


def same(function: str, field: str, mine: Any, theirs: Any) -> None:
    do = "Components are summed only at one anchor, configuration and subset"
    require(mine == theirs, function, f"{field} {mine}", theirs, do)

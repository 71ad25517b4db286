"""The provenance of a component: what it may be summed with, whose data it holds, how to train it again."""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core import Tree, expect, machine, of_shape, require, trees
from tangent_jax.core.boundary import public, public_class
from tangent_jax.core.checks import visible
from tangent_jax.core.files import fingerprint
from tangent_jax.core.records import convert, parse_json
from tangent_jax.data.owners import Owner
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.features import Features
from tangent_jax.models.heads import body
from tangent_jax.models.load import is_made, load
from tangent_jax.models.ntk import FeatureMap, FeatureSettings
from tangent_jax.models.predict import Predictor
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.moves import Move, images_of
from tangent_jax.store.recipe import HEADS, Recipe

BODY = ("method", "config", "preprocessing", "output", "anchor", "features", "subset")
"""Fields in which components must agree for their bodies to be summed, of `config` all but the number of classes."""
SUMMED = (*BODY, "classes", "head")
"""Fields in which components must agree to be summed; those of SAID where both say them."""
SAID = ("preprocessing", "output", "classes", "targets")
TRAINED = ("recipe", "anchor", "head", "examples", *SAID)
"""Fields in which components agree that the same training gave."""


@public_class
@dataclasses.dataclass(frozen=True)
class Provenance:
    """A component's origin.

    `config`: the model's settings; `anchor`, `head`: fingerprints of the anchor w without its head, and of the head, as
    linearised (new head, resets and new class token included); `subset`: its leaves; `examples`: (content identifier,
    name) of each it saw; `recipe`: what trained it, None where that cannot be told; `privacy`: the account of what
    it spent, None where none was kept; `seconds`: what the training took; `run`: the identity of the
    run, None where no checkpoints were kept; `folders`: where caches and checkpoints of these examples lie;
    `total_penalty`: of a component solved to its optimum Lambda, which stays what it was when examples leave;
    `certificate`: how far at most it is from that optimum; `owners`: whose an example is, by its name, where known;
    `classes`: the names of its outputs, () where unknown; `preprocessing`: of its inputs, as JSON; `targets`: the
    fingerprint of what its examples were trained towards; `public`: (content identifier, name) of each public image
    whose inputs whitened its training, or by which its anchor was moved; `features`: the settings of the features that
    a component of statistics sums, None for tangent weights (kinds.py); `is_own`: False where it was read from a file
    that this machine's user did not write: then no folder, weights or data are touched because it names them (`own`).

    Guarantees: owners are in one spelling, and names of images and classes hold no character that does not show.
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
    classes: tuple[str, ...] = ()
    preprocessing: str = ""
    targets: str = ""
    public: tuple[tuple[str, str], ...] = ()
    features: FeatureSettings | None = None
    is_own: bool = dataclasses.field(default=True, compare=False)

    def __post_init__(self) -> None:
        """Normalises owners and names.

        Raises: InputError for identifiers that are no hashes, a run or folder that is none, or a bound below 0.
        """
        for field in ("examples", "public"):
            pairs = tuple((identifier, visible(name)) for identifier, name in getattr(self, field))
            wrong = [identifier for identifier, _ in pairs if not re.fullmatch("[0-9a-f]{64}", identifier)]
            expect(not wrong, f"{field} by SHA-256 (64 hex digits)", wrong[:1])
            object.__setattr__(self, field, pairs)
        object.__setattr__(self, "owners", {visible(name): Owner(owner) for name, owner in self.owners.items()})
        object.__setattr__(self, "classes", tuple(map(visible, self.classes)))
        is_run = self.run is None or re.fullmatch("[0-9a-f]{32}", self.run)
        expect(is_run, "a run of 32 hex digits, or none", repr(self.run))
        for folder in self.folders:
            plain = Path(folder).is_absolute() and ".." not in Path(folder).parts and folder.isprintable()
            expect(plain, "absolute folders, without ..", repr(folder))
        for field in ("certificate", "total_penalty", "seconds"):
            value = getattr(self, field)
            good = value is None or (math.isfinite(value) and value >= 0)
            expect(good, f"{field} finite and >= 0", value)

    def own(self, function: str, what: str, do: str = "") -> None:
        """Raises InputError for a provenance that was not written here: nothing is opened because it says so."""
        do = f"{do or 'Name it yourself'}, or open the store with trust if you know who made it"
        got = f"{what}, which a file names that was not written on this machine"
        require(self.is_own, function, "what this machine's user named", got, do)

    def dataset(self, function: str) -> str:
        """The data set of its recipe, where it was written here or is embedded; InputError for another's."""
        assert self.recipe is not None
        if self.recipe.dataset != "digits":
            self.own(function, self.recipe.dataset, "Drop the component")
        return self.recipe.dataset

    def trained_on(
        self, features: Features, seconds: float, folders: tuple[str, ...] = (), **changes: Any
    ) -> "Provenance":
        """This provenance, of a component trained on these examples; `folders`: besides their cache."""
        folders = (*([features.folder] if features.folder else []), *folders)
        if self.recipe is not None and self.recipe.solver == "optimum" and self.total_penalty is None:
            changes = {"total_penalty": self.recipe.penalty * len(features), **changes}
        owners = {name: self.owners[name] for _, name in features.examples if name in self.owners}
        fields = {"examples": features.examples, "seconds": seconds, "folders": folders, "owners": owners}
        fields["targets"] = fingerprint(np.ascontiguousarray(features.targets).tobytes())
        return dataclasses.replace(self, **{**fields, **changes})

    def same_training(self, now: "Provenance") -> bool:
        """True where training now would make the component that was made: the same settings, examples and targets."""
        pairs = {field: (getattr(self, field), getattr(now, field)) for field in TRAINED}
        return all(first == second or (field in SAID and not first) for field, (first, second) in pairs.items())

    @property
    def identifiers(self) -> set[str]:
        """The content identifiers of the examples it saw."""
        return {identifier for identifier, _ in self.examples}

    @property
    def output(self) -> str:
        """The outputs that it was trained by, f_lin ("total") or its tangent alone; "" where no recipe says it."""
        return "" if self.recipe is None or self.method == "nlft" else self.recipe.output

    @property
    def images_seen(self) -> tuple[tuple[str, str], ...]:
        """(content identifier, name) of each image that its numbers depend on: its own, public ones, its anchor's."""
        own = dict.fromkeys((*self.examples, *self.public))
        return *self.examples, *self.public, *(pair for pair in images_of(self.moves, False) if pair not in own)

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of its anchor; none where no recipe says them."""
        return () if self.recipe is None else self.recipe.moves

    def protected_units(self) -> set[str]:
        """The names of the units that its account protects: owners where these are the unit, else identifiers.

        Raises: InputError where the unit is an owner, and an example's is not known.
        """
        if self.privacy is None or self.privacy.mechanism.unit == "example":
            return self.identifiers
        unknown = [name for _, name in self.examples if name not in self.owners]
        require(not unknown, "Provenance", "the owner of every example of an owners' account", f"none of {unknown[:1]}")
        return {self.owners[name] for _, name in self.examples}

    @property
    def fields(self) -> dict[str, Any]:
        """All that its file says, as JSON has it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "is_own"}

    def to_json(self, weights: str = "") -> str:
        """The JSON text that `from_json` reads, with the seal of this machine's user where it is theirs.

        Args: weights: the fingerprint of the component's dw (`trees.fingerprint`): the seal counts beside it alone.
        """
        fields = self.fields
        return json.dumps(fields | ({"seal": machine.seal(json.dumps([fields, weights]))} if self.is_own else {}))

    @classmethod
    def from_json(cls, text: str, where: object = "a provenance", weights: str = "") -> "Provenance":
        """The provenance that `to_json` wrote; InputError naming the field that is missing or wrong.

        Args: weights: the fingerprint of the dw that the text came with; without the one under the seal `is_own` is
              False.
        """
        fields = parse_json("Provenance", text, where)
        seal = fields.pop("seal", "")
        fields.pop("is_own", None)  # its seal says so, and never its text
        fields["is_own"] = machine.is_own(json.dumps([fields, weights]), seal)
        return convert(cls, fields, "Provenance", where)


@public
def make_provenance(
    predict: Predictor | FeatureMap, recipe: Recipe | None = None, classes: Sequence[str] = ()
) -> Provenance:
    """The provenance of components of this predictor, whose outputs are these classes; `trained_on` adds the examples.

    Of a feature map the components are statistics, of which the classes must be said, in the order of their sums.

    The anchor is hashed here, once.
    """
    is_recipe = recipe is None or isinstance(recipe, Recipe)
    expect(is_recipe, "a Recipe, or None", type(recipe).__name__)
    is_plain = not isinstance(predict, FeatureMap) or predict.root is None
    do = "Keep the head that is solved from a private release: its noise would be added once for each component"
    expect(is_plain, "a feature map as feature_map gives it", "one of private statistics", do)
    features = predict.settings if isinstance(predict, FeatureMap) else None
    if isinstance(predict, FeatureMap) and classes:
        predict = dataclasses.replace(predict, outputs=len(classes))
    (anchor, head), model = fingerprints(predict.w), predict.model
    do = "Pass the names of the outputs"
    expect(len(classes) in (0, model.classes), f"{model.classes} classes", len(classes), do)
    said = {"classes": tuple(classes), "preprocessing": json.dumps(dataclasses.asdict(model.preprocessing))}
    said["public"] = () if recipe is None else images_of(recipe.moves, True)
    return Provenance(
        predict.method, model.settings, head, anchor, predict.subset.paths, recipe=recipe, features=features, **said
    )


def anchor_of(function: str, origin: Provenance, weights: str | None) -> Pretrained:
    """The pre-trained model of a component, from the file `weights` or, where it was made here, as its recipe says.

    Raises: InputError where a component that another machine made names a file or a hub.
    """
    recipe = origin.recipe
    assert recipe is not None
    if recipe.head not in HEADS:
        origin.own(function, f"the head {recipe.head}", "Train it again")
    if recipe.moves:
        origin.own(function, recipe.moves[0].file, "Repeat its rounds")
    if weights is None and not is_made(recipe.weights):
        origin.own(function, recipe.weights, "Pass weights=")
    return load(weights or recipe.weights, recipe.architecture)


def check_same(function: str, here: Provenance, new: Provenance) -> None:
    """Raises InputError naming the first field in which two components differ and so cannot be summed."""
    check_fields(function, here, new, SUMMED)


def check_one_body(function: str, here: Provenance, new: Provenance) -> None:
    """Raises InputError naming the first field in which two components differ and so their bodies cannot be summed.

    Their heads may be of other classes, where both say which; a head of the same classes must be the same.
    """
    is_own = bool(here.classes and new.classes) and here.classes != new.classes
    check_fields(function, here, new, BODY if is_own else SUMMED)


def check_fields(function: str, here: Provenance, new: Provenance, fields: Sequence[str]) -> None:
    """Raises InputError naming the first of these fields in which two components differ."""
    for field in fields:
        first, second = getattr(here, field), getattr(new, field)
        if field == "config":
            for name in sorted({*first, *second} - ({"classes"} if fields is BODY else set())):
                same(function, f"config.{name}", first.get(name), second.get(name))
        elif field == "subset":
            differing, count = sorted({*first} ^ {*second}), f"{len(first)} leaves"
            same(function, "subset of", count, f"one that differs in {differing[0]}" if differing else count)
        elif field not in SAID or (first and second):
            same(function, field, first, second)


def same(function: str, field: str, first: Any, second: Any) -> None:
    """Raises InputError naming the field where two components have different values of it."""
    do = "Components are summed only at one anchor, configuration, output and subset"
    do = "Heads of the same classes are drawn alike: with one seed" if field == "head" else do
    if field == "classes":
        first, second = (f"{len(names)}, {', '.join(names)[:60]}" for names in (first, second))
    require(first == second, function, f"{field} {first}", second, do)


def check_component(dw: Tree, provenance: Provenance) -> None:
    """Raises InputError for a component that is empty, has other leaves than its provenance says, or is not finite."""
    leaves = trees.leaves(dw)
    do = "Add what finetune or private wrote"
    expect(leaves, "a component with leaves", "none", do)
    differing = sorted({*leaves} ^ {*provenance.subset})
    expect(not differing, "the leaves that the provenance names", f"a difference in {differing[:1]}", do)
    for path, leaf in leaves.items():
        expect(np.isfinite(np.asarray(leaf, np.float32)).all(), f"{path} finite", "NaN or infinity", do)


def check_shapes(dw: Tree, provenance: Provenance, other: Tree, first: Provenance) -> None:
    """Raises InputError naming a leaf that another component has not, or in another shape or dtype.

    Of components with heads of their own the bodies are compared.
    """
    if provenance.head != first.head:
        dw, other = body(dw), body(other)
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in trees.leaves(other).items()}
    differing = sorted({*trees.leaves(dw)} ^ {*shapes})
    expect(not differing, "the leaves of the others", f"a difference in {differing[:1]}")
    for path, leaf in trees.leaves(dw).items():
        shape, dtype = shapes[path]
        of_shape(path, leaf, shape)
        expect(leaf.dtype == dtype, f"{path} in {dtype}, as the others", leaf.dtype, "Cast it first")

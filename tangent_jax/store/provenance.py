"""The provenance of a component: the data it saw, how to train it again, and the components it may be summed with."""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax._version import __version__
from tangent_jax.composition.origin import OPTIONAL
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.names import composed_name, normal_name
from tangent_jax.core.owners import Owner
from tangent_jax.data import Preprocessing
from tangent_jax.io.files import fingerprint
from tangent_jax.io.paths import is_url
from tangent_jax.io.records import convert, parse_json, plain
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.protocol import Arrays
from tangent_jax.models.session import FirstSession
from tangent_jax.pretrained.load import load
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.recipe import AnyRecipe
from tangent_jax.train.features import Features

IDENTIFIER = re.compile("[0-9a-f]{64}")
TRAINED = ("recipe", "anchor", "head", "examples", *OPTIONAL)
"""Fields that are equal for components of the same training."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The origin of a component.

    `config`: the model's settings; `anchor`, `head`: fingerprints of the anchor w without its head, and of the head, as
    linearised (after new head, resets and new class token); `subset`: its leaves; `examples`: (content identifier,
    name) of each example it saw; `recipe`: how it was trained, None if unknown; `privacy`: the privacy account, None if
    none was kept; `seconds`: the training time; `run`: the identity of the run, None without checkpoints; `folders`:
    the caches and checkpoints of these examples, and the URLs of those that are local copies; `total_penalty`: Lambda
    of a component that was solved to its optimum, which stays when examples leave; `certificate`: the bound on its
    distance to that optimum; `owners`: the owner of each example, by the example's name, if known; `classes`: the names
    of its outputs, () if unknown; `preprocessing`: of its inputs, as JSON; `targets`: the fingerprint of the training
    targets; `public`: (content identifier, name) of each public image that whitened its training; `whitening`: what
    whitened it, "images", "norm" (the layer norms' gains and biases) or None; `session`: the first session of its
    anchor, None for pre-trained weights; `features`: the settings of the features that a component of statistics sums,
    None for tangent weights (kinds.py).

    Guarantees: owners have one spelling, classes one Unicode form (NFC); names hold printable characters only.

    >>> origin = tj.store.make_provenance(demo.predict, tj.Recipe()).trained_on(demo.train, seconds=0.1)
    >>> origin.subset, len(origin.examples)
    (('head/bias', 'head/kernel', 'second/bias', 'second/kernel'), 24)
    """

    method: str
    config: dict[str, Any]
    head: str
    anchor: str
    subset: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()
    recipe: AnyRecipe | None = None
    seconds: float = 0.0
    privacy: Spent | None = None
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {
            "tangent-jax": __version__,
            **{name: version(name) for name in ("jax", "flax", "optax", "numpy")},
        }
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
    whitening: str | None = None
    features: FeatureSettings | None = None
    session: FirstSession | None = None

    def __post_init__(self) -> None:
        """Normalises owners and names.

        Raises: InputError for identifiers that are not hashes, an invalid run or folder, or a negative bound.
        """
        for field in ("examples", "public"):
            pairs = tuple((identifier, visible(name)) for identifier, name in getattr(self, field))
            wrong = [identifier for identifier, _ in pairs if not IDENTIFIER.fullmatch(identifier)]
            if wrong:
                raise InputError(f"{field} must be named by SHA-256 (64 hex digits); got {wrong[0]!r}")
            object.__setattr__(self, field, pairs)
        spelled = {owner: Owner(owner) for owner in {*self.owners.values()}}  # few owners of many images
        object.__setattr__(self, "owners", {visible(name): spelled[owner] for name, owner in self.owners.items()})
        object.__setattr__(self, "classes", tuple(visible(composed_name(name)) for name in self.classes))
        if self.run is not None and not re.fullmatch("[0-9a-f]{32}", self.run):
            raise InputError(f"run must be 32 hex digits, or None; got {self.run!r}")
        for folder in self.folders:
            is_absolute = is_url(folder) or Path(folder).is_absolute()
            if not is_absolute or ".." in Path(folder).parts or not folder.isprintable():
                raise InputError(f"folders must be absolute or URLs, without ..; got {folder!r}")
        for field in ("certificate", "total_penalty", "seconds"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field} must be finite and >= 0; got {value}")

    def trained_on(
        self, features: Features, seconds: float, folders: tuple[str, ...] = (), **changes: Any
    ) -> "Provenance":
        """This provenance for a component trained on these examples; `folders`: in addition to their cache."""
        folders = tuple(dict.fromkeys(folder for folder in (features.folder or "", *folders) if folder))
        if self.recipe is not None and self.total_penalty is None:
            changes = {"total_penalty": self.recipe.total_penalty(len(features.targets)), **changes}
        owner_of = {normal_name(name): owner for name, owner in self.owners.items()}
        owners = {name: owner_of[normal_name(name)] for _, name in features.examples if normal_name(name) in owner_of}
        fields = {"examples": features.examples, "seconds": seconds, "folders": folders, "owners": owners}
        fields["targets"] = fingerprint(np.ascontiguousarray(features.targets).tobytes())
        return dataclasses.replace(self, **{**fields, **changes})

    def same_training(self, now: "Provenance") -> bool:
        """True if training now would give the same component: equal settings, examples and targets."""
        pairs = {field: (getattr(self, field), getattr(now, field)) for field in TRAINED}
        return all(first == second or (field in OPTIONAL and not first) for field, (first, second) in pairs.items())

    @property
    def identifiers(self) -> set[str]:
        """The content identifiers of the examples it saw."""
        return {identifier for identifier, _ in self.examples}

    @property
    def output(self) -> str:
        """The outputs that training used: f_lin ("total") or its tangent alone; "" without a recipe."""
        return "" if self.recipe is None else self.recipe.output

    @property
    def images_seen(self) -> tuple[tuple[str, str], ...]:
        """(content identifier, name) of each image that training saw: its own, and public ones; not its anchor's."""
        return self.examples + self.public

    @property
    def anchor_images(self) -> tuple[tuple[str, str], ...]:
        """(content identifier, name) of each image on which its anchor was fine-tuned; no removal changes that."""
        return () if self.session is None else self.session.images

    def protected_units(self) -> set[str]:
        """The names of the units that its privacy account protects: owners if the unit is an owner, else identifiers.

        Raises: InputError if the unit is an owner and the owner of an example is unknown.
        """
        if self.privacy is None or self.privacy.mechanism.unit == "example":
            return self.identifiers
        unknown = [name for _, name in self.examples if name not in self.owners]
        if unknown:
            raise InputError(
                f"owners must name the owner of every example of an owners' account; got none of {unknown[0]}"
            )
        return {self.owners[name] for _, name in self.examples}

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of its file, as JSON has them."""
        return plain(self)

    def to_json(self) -> str:
        """The JSON text that `from_json` reads."""
        return json.dumps(self.fields)

    @classmethod
    def from_json(cls, text: str, where: object = "a provenance") -> "Provenance":
        """Reads the text of `to_json`; InputError names a field that is missing or wrong."""
        return convert(cls, parse_json(text, where), where)


def make_provenance(
    predict: ComponentPredictor, recipe: AnyRecipe | None = None, classes: Sequence[str] = ()
) -> Provenance:
    """The provenance of this predictor's components; `trained_on` adds the examples.

    Args:   recipe: how they are trained, None if unknown; classes: the names of the outputs. A feature map gives
            components of statistics, which need the names, in the order of their sums.
    Edge cases: the anchor is hashed here, once; call it once for many components.

    >>> origin = tj.store.make_provenance(demo.predict, tj.Recipe(seed=3), ["a", "b", "c"])
    >>> origin.recipe.seed, origin.classes
    (3, ('a', 'b', 'c'))
    """
    predict = predict.for_components(len(classes))
    anchor, head = fingerprints(predict.w)
    model = predict.model
    return Provenance(
        method=predict.method,
        config=model.settings,
        head=head,
        anchor=anchor,
        subset=predict.subset.paths,
        recipe=recipe,
        classes=tuple(classes),
        preprocessing=json.dumps(settings_of(model.preprocessing)),
        features=predict.features,
        session=predict.session,
    )


def settings_of(inputs: Preprocessing | Arrays) -> dict[str, Any]:
    """The form of a model's inputs as JSON."""
    return inputs.settings if isinstance(inputs, Preprocessing) else dataclasses.asdict(inputs)


def anchor_of(origin: Provenance, weights: str | None) -> Pretrained:
    """The pre-trained model of a component: from the file `weights`, or from its recipe."""
    recipe = origin.recipe
    assert recipe is not None
    anchor = recipe.anchor
    return load(weights or anchor.weights, anchor.architecture, anchor.ignore_config)

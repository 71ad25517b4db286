"""The provenance of a component: the data it saw, how to train it again, and the components it may be summed with."""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tangent_jax._version import __version__
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.names import check_order, composed_name, normal_name
from tangent_jax.core.owners import Owner
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.io.files import fingerprint
from tangent_jax.io.paths import is_url
from tangent_jax.io.records import convert, parse_json, plain
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.session import FirstSession
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.recipe import AnyRecipe

if TYPE_CHECKING:
    from tangent_jax.models.ntk import ComponentPredictor
    from tangent_jax.models.protocol import Arrays
    from tangent_jax.train.features import Features

IDENTIFIER = re.compile("[0-9a-f]{64}")
Images = tuple[tuple[str, str], ...]
"""(content identifier, name) of each of some images."""


def library_versions() -> dict[str, str]:
    """The versions of this library and of those that decide numbers, by name."""
    return {"tangent-jax": __version__, **{name: version(name) for name in ("jax", "flax", "optax", "numpy")}}


@dataclasses.dataclass(frozen=True)
class Data:
    """The images that a component saw; its anchor's are in its session.

    Attributes:
        examples: Those it was trained on.
        owners: The owner of each, by the example's name, if known.
        targets: The fingerprint of the training targets.
        public: The public images that whitened its training.

    Guarantees:
        Owners have one spelling; names hold printable characters only.

    >>> data = tj.store.Data(examples=(("0" * 64, "a.jpg"),), owners={"a.jpg": "  Ann"})
    >>> data.identifiers == {"0" * 64}, data.owners
    (True, {'a.jpg': 'ann'})
    """

    examples: Images = ()
    owners: dict[str, str] = dataclasses.field(default_factory=dict)
    targets: str = ""
    public: Images = ()

    def __post_init__(self) -> None:
        """Raises InputError for identifiers that are not hashes."""
        for field in ("examples", "public"):
            pairs = tuple((identifier, visible(name)) for identifier, name in getattr(self, field))
            wrong = [identifier for identifier, _ in pairs if not IDENTIFIER.fullmatch(identifier)]
            if wrong:
                raise InputError(f"{field} must be named by SHA-256 (64 hex digits); got {wrong[0]!r}")
            object.__setattr__(self, field, pairs)
        spelled = {owner: Owner(owner) for owner in {*self.owners.values()}}  # few owners of many images
        object.__setattr__(self, "owners", {visible(name): spelled[owner] for name, owner in self.owners.items()})

    @property
    def identifiers(self) -> set[str]:
        """The content identifiers of the examples."""
        return {identifier for identifier, _ in self.examples}

    @property
    def seen(self) -> Images:
        """Each image that training saw: its own, and public ones."""
        return self.examples + self.public

    @cached_property
    def every_identifier(self) -> frozenset[str]:
        """The content identifiers of these; kept, as a store compares those of each new component with all others'."""
        return frozenset(identifier for identifier, _ in self.seen)

    def of(self, features: "Features") -> "Data":
        """The data of a component trained on these features, with the owners and public images known here."""
        owner_of = {normal_name(name): owner for name, owner in self.owners.items()}
        owners = {name: owner_of[normal_name(name)] for _, name in features.examples if normal_name(name) in owner_of}
        targets = fingerprint(np.ascontiguousarray(features.targets).tobytes())
        return dataclasses.replace(self, examples=features.examples, owners=owners, targets=targets)


@dataclasses.dataclass(frozen=True)
class Training:
    """How and where a component was trained.

    Attributes:
        recipe: All settings, None if unknown.
        seconds: The seconds of training.
        run: The identity of the run, None without checkpoints.
        folders: The caches and checkpoints of its examples, and the URLs of those that are local copies.
        privacy: The privacy account, None if none was kept.
        whitening: What whitened it, "images", "norm" (the layer norms' gains and biases) or None.
        total_penalty: Lambda of a component that was solved to its optimum, which stays when examples leave.
        certificate: The bound on its distance to that optimum.
        versions: The versions of the libraries.

    >>> tj.store.Training(tj.Recipe(seed=3), seconds=0.5).recipe.seed
    3
    """

    recipe: AnyRecipe | None = None
    seconds: float = 0.0
    run: str | None = None
    folders: tuple[str, ...] = ()
    privacy: Spent | None = None
    whitening: str | None = None
    total_penalty: float | None = None
    certificate: float | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=library_versions)

    def __post_init__(self) -> None:
        """Raises InputError for an invalid run or folder, or a negative bound."""
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


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The origin of a component: what it is, and so which others it is summed with; on which data; how it was trained.

    Attributes:
        config: The model's settings.
        anchor, head: Fingerprints of the anchor w without its head, and of the head, as linearised (after new head,
            resets and new class token).
        subset: Its leaves.
        classes: The names of its outputs, () if unknown.
        preprocessing: The form of its inputs, as JSON.
        features: The settings of the features that a component of statistics sums, None for tangent weights (kinds.py).
        session: The first session of its anchor, None for pre-trained weights.

    Guarantees:
        Classes have one Unicode form (NFC), and hold printable characters only.

    >>> origin = tj.store.make_provenance(demo.predict, tj.Recipe()).trained_on(demo.train, seconds=0.1)
    >>> origin.subset, len(origin.data.examples), origin.training.seconds
    (('head/bias', 'head/kernel', 'second/bias', 'second/kernel'), 24, 0.1)
    """

    method: str
    config: dict[str, Any]
    head: str
    anchor: str
    subset: tuple[str, ...]
    classes: tuple[str, ...] = ()
    preprocessing: str = ""
    features: FeatureSettings | None = None
    session: FirstSession | None = None
    data: Data = dataclasses.field(default_factory=Data)
    training: Training = dataclasses.field(default_factory=Training)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(visible(composed_name(name)) for name in self.classes))

    def trained_on(
        self, features: "Features", seconds: float, folders: tuple[str, ...] = (), **changes: Any
    ) -> "Provenance":
        """This provenance for a component trained on these examples.

        Args:
            folders: In addition to their cache.
            changes: Other fields of `Training`.
        """
        folders = tuple(dict.fromkeys(folder for folder in (features.folder or "", *folders) if folder))
        if self.recipe is not None and self.training.total_penalty is None:
            changes = {"total_penalty": self.recipe.total_penalty(len(features.targets)), **changes}
        training = dataclasses.replace(self.training, **{"seconds": seconds, "folders": folders, **changes})
        return dataclasses.replace(self, data=self.data.of(features), training=training)

    def with_data(self, **changes: Any) -> "Provenance":
        """This provenance with other fields of its `Data`."""
        return dataclasses.replace(self, data=dataclasses.replace(self.data, **changes))

    def with_training(self, **changes: Any) -> "Provenance":
        """This provenance with other fields of its `Training`."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **changes))

    def same_training(self, now: "Provenance") -> bool:
        """True if training now would give the same component: equal settings, examples and targets."""
        fields = ("recipe", "anchor", "head", "preprocessing", "classes")
        data = (self.data.examples, self.data.targets) == (now.data.examples, now.data.targets)
        return data and all(getattr(self, field) == getattr(now, field) for field in fields)

    @property
    def recipe(self) -> AnyRecipe | None:
        """How it was trained, None if unknown."""
        return self.training.recipe

    @property
    def output(self) -> str:
        """The outputs that training used: f_lin ("total") or its tangent alone; "" without a recipe."""
        return "" if self.recipe is None else self.recipe.output

    @property
    def anchor_images(self) -> Images:
        """Each image on which its anchor was fine-tuned; no removal changes that."""
        return () if self.session is None else self.session.images

    def protected_units(self) -> set[str]:
        """The names of the units that its privacy account protects: owners if the unit is an owner, else identifiers.

        Raises:
            InputError: If the unit is an owner and the owner of an example is unknown.
        """
        data, account = self.data, self.training.privacy
        if account is None or account.mechanism.unit == "example":
            return data.identifiers
        unknown = [name for _, name in data.examples if name not in data.owners]
        if unknown:
            raise InputError(
                f"owners must name the owner of every example of an owners' account; got none of {unknown[0]}"
            )
        return {data.owners[name] for _, name in data.examples}

    def to_json(self) -> str:
        """The JSON text that `from_json` reads."""
        return json.dumps(plain(self))

    @classmethod
    def from_json(cls, text: str, where: object = "a provenance") -> "Provenance":
        """Reads the text of `to_json`; InputError names a field that is missing or wrong."""
        return convert(cls, parse_json(text, where), where)


def make_provenance(
    predict: "ComponentPredictor", recipe: AnyRecipe | None = None, classes: Sequence[str] = ()
) -> Provenance:
    """The provenance of this predictor's components; `trained_on` adds the examples.

    Args:
        recipe: How they are trained, None if unknown.
        classes: The names of the outputs. A feature map gives components of statistics, which need the names, in the
            order of their sums.

    Edge cases:
        The anchor is hashed here, once; call it once for many components.
    Raises:
        InputError: Classes of a predictor that keeps the head of its file, in another order or of other names.

    >>> origin = tj.store.make_provenance(demo.predict, tj.Recipe(seed=3), ["a", "b", "c"])
    >>> origin.recipe.seed, origin.classes
    (3, ('a', 'b', 'c'))
    """
    from tangent_jax.models.anchor import fingerprints

    check_order(getattr(predict, "class_names", ()), classes)
    predict = predict.for_components(len(classes))
    anchor, head = fingerprints(predict.w)
    model = predict.model
    return Provenance(
        method=predict.method,
        config=model.settings,
        head=head,
        anchor=anchor,
        subset=predict.subset.paths,
        classes=tuple(classes),
        preprocessing=json.dumps(settings_of(model.preprocessing)),
        features=predict.features,
        session=predict.session,
        training=Training(recipe),
    )


def settings_of(inputs: "Preprocessing | Arrays") -> dict[str, Any]:
    """The form of a model's inputs as JSON."""
    return inputs.settings if isinstance(inputs, Preprocessing) else dataclasses.asdict(inputs)

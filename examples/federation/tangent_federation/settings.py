"""Settings of a run of the federation, and the request that the server sends to each contributor."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import tangent_jax as tj
from tangent_jax.io.records import convert, parse_json, plain
from tangent_jax.models import FeatureSettings
from tangent_jax.store import StatisticsRecipe
from tangent_jax.store.recipe import AnyRecipe

PARTS = {"lda": ("h",), "place": ("h", "place"), "exact": ("h", "ntk", "place")}
"""The features of each method of statistics."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of `flwr run --run-config`, a dash in the place of each underscore.

    Attributes:
        out: An absolute folder for the store and the results.
        dataset: What a simulated contributor has a shard of (a real one names its own in its node's configuration).
        test: The data set whose test images the server evaluates on, "" for none.
        least: Contributors that must be there before anybody is asked.
        classes: Divided by commas, a public list, which privacy needs, "" for those that contributors name.
        weights: As `tj.load`.
        method: lda, place or exact (statistics), or taft (tangent weights).
        width: The width of the parts beside h.
        solver: optimum or adam, with `penalty`, `passes`, `epochs`, `learning_rate` as `tj.Recipe`.
        merge: mean or inputs, of taft.
        secure: Statistics by SecAgg+, in `limbs` whole numbers each (1: rounded by SecAgg+) of at most `limit`.
        privacy: none, local (each contributor adds noise) or central (the server does, and protects each contributor as
            one user), with `epsilon` and `delta`, and `public`, a data set of images that everybody has and may know,
            "" for none.
        remove: A contributor's name, or an image's content identifier, before anything is asked for.
        most_mb: The largest file that is taken.
        wait: Seconds for answers.
        faults: For trials, such as "nan:0 late:3" (faults.py).
        cache: The contributors' folder of features.
    """

    out: str
    dataset: str = "digits"
    test: str = "digits"
    weights: str = "builtin"
    method: str = "lda"
    width: int = 1024
    solver: str = "optimum"
    penalty: float = 0.1
    passes: int = 12
    epochs: int = 10
    learning_rate: float = 3e-3
    merge: str = "mean"
    secure: bool = False
    limbs: int = 3
    limit: float = 1e6
    privacy: str = "none"
    epsilon: float = 8.0
    delta: float = 1e-3
    public: str = ""
    remove: str = ""
    most_mb: float = 64.0
    least: int = 1
    classes: str = ""
    wait: float = 600.0
    faults: str = ""
    cache: str = "~/.cache/tangent_jax"

    def __post_init__(self) -> None:
        check(self.out.startswith("/"), "out, an absolute folder", repr(self.out))
        check(self.method in (*PARTS, "taft"), f"method {', '.join(PARTS)} or taft", self.method)
        check(self.merge in ("mean", "inputs"), "merge mean or inputs", self.merge)
        check(self.privacy in ("none", "local", "central"), "privacy none, local or central", self.privacy)
        sums = self.method != "taft"
        check(sums or not self.secure, f"method {', '.join(PARTS)} beside secure", self.method)
        check(sums or self.privacy == "none", f"method {', '.join(PARTS)} beside privacy", self.method)
        check(not sums or self.merge == "mean", "merge mean of statistics, which are summed", self.merge)
        check(not self.secure or self.privacy == "none", "secure, or privacy", "both")
        check(self.privacy == "none" or self.classes, "classes, a public list of names, beside privacy", "none")

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> "Settings":
        """The settings of a Flower run."""
        given = {name.replace("-", "_"): value for name, value in run_config.items()}
        unknown = sorted({*given} - {field.name for field in dataclasses.fields(cls)})
        check(not unknown, "known settings", unknown[:1])
        return cls(**given)

    def recipe(self) -> AnyRecipe:
        """The recipe of all components."""
        shared: Any = {"weights": self.weights, "dataset": self.dataset}
        if self.method != "taft":
            features = FeatureSettings(PARTS[self.method], width=self.width)
            return StatisticsRecipe(**shared, features=features)
        if self.solver == "adam":
            return tj.Recipe(**shared, learning_rate=self.learning_rate, epochs=self.epochs)
        near = 1e-9  # the passes decide
        return tj.Recipe(**shared, solver="optimum", penalty=self.penalty, certificate=near, passes=self.passes)


@dataclasses.dataclass(frozen=True)
class Request:
    """The request to one contributor.

    Attributes:
        recipe: The recipe of the component.
        classes: The classes of all contributors, sorted.
        factors: Whether the merge needs the component's Kronecker factors.
        forget: Content identifiers of images that must go.
        public: A data set of public images.
        most_bytes: The most bytes of the file that is taken.
    """

    recipe: AnyRecipe
    classes: tuple[str, ...]
    factors: bool = False
    forget: tuple[str, ...] = ()
    public: str = ""
    most_bytes: int = 1 << 26

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        return json.dumps(plain(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """The request of a text that `to_json` wrote."""
        return convert(cls, parse_json(text, "the request"), "the request")


def check(condition: Any, expected: str, got: object) -> None:
    """Raises InputError where the condition does not hold."""
    if not condition:
        raise tj.InputError(f"federation: expected {expected}; got {got}")

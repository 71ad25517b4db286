"""The settings of commands: small dataclasses whose fields are flags; the Config of a command inherits those it reads.

A field's name is the flag's, its default is the flag's default. A tuple is a flag with several comma-separated values.
Help text, type and bounds are in the table (table.py). Nothing here, and nothing that reads a Config, knows absl.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tangent_jax.core.checks import InputError, about
from tangent_jax.data import MOST_PIXELS, ImageSize
from tangent_jax.io.files import expand_path
from tangent_jax.store.recipe import Recipe

NAMED = (
    *("weights", "architecture", "image_size", "dtype", "linearization", "output"),
    *("loss", "penalty", "epochs", "batch_size", "solver", "certificate", "passes"),
    *("reset", "new_class_token", "head", "head_scale", "seed"),
    *("dataset", "cache_dtype", "method", "blocks", "rank", "radius"),
)
FIELD_OF = {"lr": "learning_rate", "subset": "kind"} | dict(zip(NAMED, NAMED, strict=True))
"""The field of a Recipe that a flag sets; no other flag sets one, whatever its name."""
Needs = Mapping[str, Mapping[str, tuple[Any, ...]]]
NEEDS: Needs = {
    "certificate": {"solver": ("optimum",)},
    "passes": {"solver": ("optimum",)},
    "rank": {"subset": ("adapter", "lora", "lora_b")},
    "concentration": {"sharding": ("dirichlet",)},
    "shards": {"sharding": ("uniform", "hash", "class", "dirichlet")},
    "topology": {"plan": (True,)},
}
"""For each flag, the values of other flags with which it has an effect."""


def only_with(*names: str, **values: Any) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The needs of flags that have an effect only with these values of another flag: one value, or a tuple of them."""
    return {name: {k: v if isinstance(v, tuple) else (v,) for k, v in values.items()} for name in names}


def choice(*values: str) -> Any:
    """A field that takes one of these values, the first by default."""
    return dataclasses.field(default=values[0], metadata={"values": values})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every command: its devices, and the job that it is part of.

    Attributes:
        given: The flags on the command line; None in Python, where other values than the defaults are given.
        url: The URL in --out, while `out` is the folder that is copied there at the end.
        needs: As NEEDS, of this command alone.
    """

    devices: int | None = None
    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    compilation_cache: str | None = None
    given: frozenset[str] | None = dataclasses.field(default=None, metadata={"is_flag": False})
    url: str | None = dataclasses.field(default=None, metadata={"is_flag": False})
    needs: ClassVar[Needs] = {}

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field]:
        """The fields that are flags, by name."""
        return {f.name: f for f in dataclasses.fields(cls) if f.metadata.get("is_flag", True)}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a flag."""
        return cls.fields()[name].default

    def gave(self, name: str) -> bool:
        """True if a flag is on the command line, or has another value than its default."""
        if self.given is None:
            return getattr(self, name) != self.default(name)
        return name in self.given

    def path(self, name: str) -> Path:
        """The path in a flag, with ~ and .. resolved; InputError for a URL, and for text that is no path."""
        with about(f"--{name}"):
            path = expand_path(getattr(self, name))
            path = path.resolve() if ".." in path.parts else path
            if not str(path.absolute()).isprintable():  # a provenance names the folder, once all is trained
                raise InputError(f"must be a path of characters that show; got {str(path)!r}. Rename the folder")
        return path

    def listed(self, name: str, choices: Iterable[str] = ()) -> list[str]:
        """The values of a flag, at least one, each one of `choices` if these are given."""
        values = [*getattr(self, name)]
        choices = [*choices]
        written = ",".join(map(str, values))
        if not values or "" in values:
            raise InputError(f"--{name} must have an entry, and no empty one; got {written or 'none'}")
        if choices and not {*values} <= {*choices}:
            raise InputError(f"--{name} must be of {', '.join(choices)}; got {written}")
        return values

    def numbers(self, name: str, kind: type) -> list:
        """The values of a flag as numbers, at least one."""
        values = self.listed(name)
        try:
            return [kind(value) for value in values]
        except ValueError as error:
            raise InputError(f"--{name} must be numbers separated by commas; got {','.join(values)}") from error

    def positive(self, name: str) -> list[float]:
        """The values of a flag as numbers, at least one, each above 0 and finite."""
        values = self.numbers(name, float)
        if not all(0 < value < float("inf") for value in values):
            raise InputError(f"--{name} must be above 0 and finite; got {','.join(map(str, getattr(self, name)))}")
        return values

    def part_in(self, name: str) -> tuple[int, int]:
        """(I, N) of a flag that names part I, from 0, of N."""
        text = getattr(self, name)
        given = re.fullmatch(r"(\d+)/(\d+)", text)
        if given is None or int(given[1]) >= int(given[2]):
            raise InputError(f"--{name} must be I/N with 0 <= I < N, the number of all parts; got {text}")
        return int(given[1]), int(given[2])

    def text(self, name: str) -> str:
        """The value of a flag as the command line has it; true or false for a flag that is on or off."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ("x" if name == "image_size" else ",").join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def check_effects(self) -> None:
        """Raises InputError for a given flag that has no effect with the others."""
        for name in filter(self.gave, self.fields()):
            for other, values in {**NEEDS.get(name, {}), **self.needs.get(name, {})}.items():
                if other not in self.fields():
                    continue
                value = getattr(self, other)
                given = value if isinstance(value, tuple) else (value,)
                if {*values}.isdisjoint(given):
                    spelled = ",".join(map(str, values))
                    wanted = f"--{other} of {spelled}" if len(values) > 1 else f"--{other}={spelled}"
                    text = ",".join(map(str, given))
                    raise InputError(f"--{name} has an effect only with {wanted}; got --{other}={text}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results(Settings):
    """Where the results go."""

    out: str = "out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Settings):
    """The pre-trained network."""

    weights: str = Recipe.weights
    architecture: str | None = Recipe.architecture
    image_size: ImageSize | None = Recipe.image_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cached(Settings):
    """Where features are kept."""

    cache_dir: str = "~/.cache/tangent_jax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading(Cached):
    """How images are read."""

    cache_dtype: str | None = Recipe.cache_dtype
    skip_unreadable: bool = False
    decode_processes: int = 0
    most_pixels: int = MOST_PIXELS


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureFlags(Model):
    """The features whose statistics are summed."""

    width: int = 4096
    directions: int = 1
    feature_blocks: int | str | None = None
    seed: int = Recipe.seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstSession(Model):
    """The anchor of a first session: read without its images, or written."""

    leave_out_anchor_images: bool = False
    save_anchor: str | None = None
    method: str = Recipe.method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute(Settings):
    """How the network is computed."""

    dtype: str = Recipe.dtype
    linearization: str = Recipe.linearization
    output: str = Recipe.output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """The objective, and its optimizer's epochs."""

    loss: str = Recipe.loss
    penalty: float = Recipe.penalty
    epochs: int = Recipe.epochs
    batch_size: int = Recipe.batch_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimum(Settings):
    """The solver, and how far it goes."""

    solver: str = Recipe.solver
    certificate: float = Recipe.certificate
    passes: int = Recipe.passes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Settings):
    """The log, trace and plan of one long run."""

    metrics: tuple[str, ...] = ("csv",)
    profile_steps: str | None = None
    plan: bool = False
    topology: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single(Model, Reading, Compute, Results):
    """One way to train on a data set, of linearized models that may be added.

    The output is the tangent alone: f_w(x) of a random head would count once, for any number of models.
    """

    dataset: str = Recipe.dataset
    output: str = "tangent"
    blocks: int = 1
    seed: int = Recipe.seed
    held_out: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharded(Single):
    """Models that are trained apart on shards of a data set."""

    lr_nlft: float = 3e-3
    sharding: str = "uniform"
    owners: str | None = None
    concentration: float = 0.5
    at_once: int = 10

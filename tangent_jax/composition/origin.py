"""The fields of a component's provenance that decide which components it may be summed with, and their check."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tangent_jax.core.checks import InputError
from tangent_jax.models.feature_settings import FeatureSettings

BODY = ("method", "config", "preprocessing", "output", "anchor", "features", "subset")
"""Fields that must be equal for bodies to be summed; in `config`, all but the number of classes."""
SUMMED = (*BODY, "classes", "head")
"""Fields that must be equal for components to be summed; those of OPTIONAL if both have them."""
OPTIONAL = ("preprocessing", "output", "classes")
WITHOUT_EFFECT = ("position_filter",)
"""Fields of a model's settings that no component depends on: the anchor holds the positions as they were resampled."""


@runtime_checkable
class Origin(Protocol):
    """What composition reads of a provenance (store/provenance.py): at which anchor a component was trained, and what.

    Attributes:
        config: The model's settings.
        anchor, head: Fingerprints of the anchor without its head, and of the head.
        subset: The paths of its leaves.
        classes: The names of its outputs, () if unknown.
        features: The settings of the features that a component of statistics sums, None for tangent weights.
    """

    @property
    def method(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def head(self) -> str: ...

    @property
    def anchor(self) -> str: ...

    @property
    def subset(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def features(self) -> FeatureSettings | None: ...


def check_same(here: Origin, new: Origin) -> None:
    """Raises InputError naming the first field that differs, so that two components cannot be summed."""
    check_fields(here, new, SUMMED)


def check_one_body(here: Origin, new: Origin) -> None:
    """Raises InputError naming the first field that differs, so that the bodies of two components cannot be summed.

    Heads may differ if both provenances name their classes; heads of the same classes must be equal.
    """
    have_other_classes = bool(here.classes and new.classes) and here.classes != new.classes
    check_fields(here, new, BODY if have_other_classes else SUMMED)


def check_summable(origins: Iterable[Origin], new: Origin) -> None:
    """Raises InputError for a component of another body than these, or with another head for the same classes."""
    others = iter(origins)
    first = next(others, new)
    check_one_body(first, new)
    if new.classes and first.head != new.head:
        for other in others:
            if other.classes == new.classes:
                check_same(other, new)


def check_fields(here: Origin, new: Origin, fields: Sequence[str]) -> None:
    """Raises InputError naming the first of these fields that differs."""
    for field in fields:
        first = getattr(here, field)
        second = getattr(new, field)
        if field == "config":
            without_effect = {*WITHOUT_EFFECT, *(["classes"] if fields is BODY else [])}
            for name in sorted({*first, *second} - without_effect):
                check_equal(f"config.{name}", first.get(name), second.get(name))
        elif field == "subset":
            differing = sorted({*first} ^ {*second})
            count = f"{len(first)} leaves"
            check_equal("subset of", count, f"one that differs in {differing[0]}" if differing else count)
        elif field not in OPTIONAL or (first and second):
            check_equal(field, first, second)


def check_equal(field: str, first: Any, second: Any) -> None:
    """Raises InputError naming a field with two different values."""
    if first == second:
        return
    remedy = "Components are summed only at one anchor, configuration, output and subset"
    if field == "head":
        remedy = "Heads of the same classes are drawn alike: with one seed"
    if field == "classes":
        first, second = (f"{len(names)}, {', '.join(names)[:60]}" for names in (first, second))
    raise InputError(f"{field} must be {first}; got {second}. {remedy}")

"""A model that is made of another, and has of that one all that it does not change."""

import dataclasses
from typing import Any

from jax import Array


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """The members of a model of the protocol that are those of the model `base`."""

    base: Any

    @property
    def preprocessing(self) -> Any:
        """The base's."""
        return self.base.preprocessing

    @property
    def classes(self) -> int:
        """The number of the base's outputs."""
        return self.base.classes

    @property
    def stages(self) -> int:
        """The number of the base's."""
        return self.base.stages

    @property
    def image_size(self) -> int:
        """The base's, in pixels."""
        return self.base.image_size

    def stage_of(self, path: str) -> int:
        """The stage of the base that the leaf belongs to."""
        return self.base.stage_of(path)

    def input_shape(self, stage: int) -> tuple[int, ...]:
        """The shape of one example of the input of a stage of the base."""
        return self.base.input_shape(stage)

    def initial(self, path: str, key: Array) -> Array:
        """A fresh leaf of the base."""
        return self.base.initial(path, key)

    def with_classes(self, classes: int) -> Any:
        """The base with a head of `classes` outputs, as it was before it was wrapped."""
        return self.base.with_classes(classes)

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves of the base of tensors that `to_world` gave."""
        return self.base.from_world(tensors)

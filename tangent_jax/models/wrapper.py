"""A model that wraps another one and inherits every member that it does not change."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from tangent_jax.core.preprocessing import ImageSize


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """The members that a wrapper takes from the model `base`."""

    base: Any

    @property
    def preprocessing(self) -> Any:
        """The base's preprocessing."""
        return self.base.preprocessing

    @property
    def classes(self) -> int:
        """The number of the base's outputs."""
        return self.base.classes

    @property
    def stages(self) -> int:
        """The base's number of stages."""
        return self.base.stages

    @property
    def image_size(self) -> ImageSize:
        """The base's image size, in pixels."""
        return self.base.image_size

    @property
    def input_norms(self) -> dict[str, str]:
        """The base's layer norms below kernels, if it states them."""
        return getattr(self.base, "input_norms", {})

    def stage_of(self, path: str) -> int:
        """The base's stage of a leaf."""
        return self.base.stage_of(path)

    def input_shape(self, stage: int) -> tuple[int, ...]:
        """The shape of one example of the input of a stage of the base."""
        return self.base.input_shape(stage)

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        """A freshly drawn leaf of the base."""
        return self.base.initial(path, key)

    def with_classes(self, classes: int) -> Any:
        """The base, unwrapped, with a head of `classes` outputs."""
        return self.base.with_classes(classes)

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves of the base, from tensors of `to_world`."""
        return self.base.from_world(tensors)

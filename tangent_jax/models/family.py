"""A family of models as one value: it recognises and reads its files, and makes models of settings and of names.

`FAMILIES` in models/load.py lists them all, and nothing else knows a family. A model that contains one of any family,
such as LoRA, is a wrapper of models/parametrize.py.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.files import Tensors


class Naming(NamedTuple):
    """One way in which files name a family's tensors.

    title           in messages
    recognises      true of tensors, by name, that are named so
    read            the model and its weights, the architecture inferred from the tensors
    of_timm         `load(path, NAME)` may name one of timm's architectures
    """

    title: str
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Tensors], Pretrained]
    of_timm: bool = False


def any_name(pattern: str) -> Callable[[Mapping[str, Any]], bool]:
    """Returns the predicate of tensors: the name of at least one begins with the pattern."""
    return lambda tensors: any(re.match(pattern, name) for name in tensors)


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of models.

    name            in the metadata of our files; its own files are tangent_jax/models/NAME.py or NAME/
    title           in messages, such as "a Vision Transformer"
    model           the class of its models: model(config, preprocessing), whose `settings` are the config as JSON
    config          the class of their configurations, a dataclass
    namings         in the order in which they are tried
    architectures   configurations, by the names that users know; may be empty, as `embedded`
    sizes           the fields of a configuration that an architecture decides
    embedded        weights in the package: the file in assets, by name
    is_in_torch     assets/tangent_torch.py computes it, so that it leaves for PyTorch
    """

    name: str
    title: str
    model: type
    config: type
    namings: tuple[Naming, ...]
    architectures: Mapping[str, Any]
    sizes: tuple[str, ...]
    embedded: Mapping[str, str]
    is_in_torch: bool = False

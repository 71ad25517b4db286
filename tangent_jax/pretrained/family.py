"""A family of models: recognises and reads its files, and makes models from settings or names.

`FAMILIES` in pretrained/load.py lists all families; nothing else depends on one. A model that contains one of any
family, such as LoRA, is a wrapper of models/parametrize.py.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tangent_jax.models.anchor import Pretrained
from tangent_jax.pretrained.files import Tensors


class Naming(NamedTuple):
    """One naming scheme of a family's tensors.

    Attributes:
        title: In messages.
        recognises: True for tensors, by name, in this scheme.
        read: The model and its weights, with the architecture inferred from the tensors.
        of_timm: True if `load(path, NAME)` may name an architecture of timm.
        covers: True for the name of a tensor that this scheme has; the scheme that covers the most reads a file.
        model_types: The model types of Hugging Face's config.json that it reads; () if it reads no config.json.
    """

    title: str
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Tensors], Pretrained]
    of_timm: bool = False
    covers: Callable[[str], bool] = bool
    model_types: tuple[str, ...] = ()


def any_name(pattern: str) -> Callable[[Mapping[str, Any]], bool]:
    """Returns a predicate of tensors: at least one name matches the pattern at its start."""
    return lambda tensors: any(re.match(pattern, name) for name in tensors)


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of models.

    Attributes:
        name: In the metadata of our files; the code is tangent_jax/models/NAME.py or NAME/.
        title: In messages, such as "a Vision Transformer".
        model: The class of its models: model(config, preprocessing), whose `settings` are the config as JSON.
        config: The class of their configurations, a dataclass.
        namings: In the order in which they are tried.
        architectures: Configurations by name; may be empty, like `embedded`.
        sizes: The fields of a configuration that an architecture decides.
        embedded: Weights in the package: the file in assets, by name.
        small: A configuration of two blocks, with which the tests go through all families.
    """

    name: str
    title: str
    model: type
    config: type
    namings: tuple[Naming, ...]
    architectures: Mapping[str, Any]
    sizes: tuple[str, ...]
    embedded: Mapping[str, str]
    small: Any

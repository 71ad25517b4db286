"""The public names of the library."""

import inspect
from typing import Any

import tangent_jax as tj


def public_names() -> dict[str, Any]:
    """Every public value by its name below `tangent_jax`, such as "fit" and "privacy.epsilon_of"."""
    names = {}
    for name in vars(tj)["__all__"]:
        value = getattr(tj, name)
        inner = getattr(value, "__all__", None) if inspect.ismodule(value) else None
        names |= {name: value} if inner is None else {f"{name}.{each}": getattr(value, each) for each in inner}
    return names

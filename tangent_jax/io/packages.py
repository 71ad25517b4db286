"""Packages that an extra of tangent-jax installs."""

import importlib
from typing import Any

from tangent_jax.core.checks import InputError


def import_extra(subject: str, module: str, extra: str) -> Any:
    """Returns the module; InputError that says how to install its package, which `subject` needs, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"{subject} needs {package}, which is not installed. pip install 'tangent-jax[{extra}]'"
        ) from error

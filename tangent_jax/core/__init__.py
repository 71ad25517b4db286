"""The foundation of all other packages: notation, trees, identities, messages, files, progress."""

from tangent_jax.core import files, job, machine, placement, records, trees
from tangent_jax.core.checks import (
    InputError,
    expect,
    finite_number,
    instance,
    of_shape,
    one_of,
    refusal,
    require,
    unexpected,
    whole_number,
)
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Dual, Tangent, Tree
from tangent_jax.core.progress import check_stop, is_stopping, progress_bar, request_stop, show_progress

__all__ = [
    "Dual", "InputError", "Tangent", "Tree", "check_stop", "expect", "files", "finite_number", "identity", "instance",
    "is_stopping", "job", "machine", "of_shape", "one_of", "placement", "progress_bar", "records", "refusal",
    "request_stop", "require", "show_progress", "trees", "unexpected", "whole_number",
]  # fmt: skip

"""The foundation of all other packages: checks, files, records, journal, trees, identities, placement, progress.

Authors of commands and experiments use it as a namespace; users of models do not need it.
"""

from tangent_jax.core import files, job, machine, mirrors, placement, records, trees, urls
from tangent_jax.core.checks import (
    InputError,
    expect,
    finite_number,
    instance,
    of_shape,
    one_of,
    refusal,
    require,
    speaking,
    unexpected,
    visible,
    whole_number,
)
from tangent_jax.core.files import expand_path, fingerprint, hold_lock, write_whole
from tangent_jax.core.identities import identity
from tangent_jax.core.journal import Journal
from tangent_jax.core.names import normal_name, other_spellings
from tangent_jax.core.notation import Dual, Tangent, Tree
from tangent_jax.core.progress import check_stop, is_stopping, progress_bar, request_stop, show_progress
from tangent_jax.core.records import convert, read_lines
from tangent_jax.core.rows import Parts
from tangent_jax.core.url_paths import Place

__all__ = [
    "Dual", "InputError", "Journal", "Parts", "Place", "Tangent", "Tree", "check_stop", "convert", "expand_path",
    "expect", "files", "fingerprint", "finite_number", "hold_lock", "identity", "instance", "is_stopping", "job",
    "machine", "mirrors", "normal_name", "of_shape", "one_of", "other_spellings", "placement",
    "progress_bar", "read_lines", "records", "refusal",
    "request_stop", "require", "show_progress", "speaking", "trees", "unexpected", "urls", "visible", "whole_number",
    "write_whole",
]  # fmt: skip

"""What every other package stands on: notation, trees, messages, files, progress."""

from tangent_jax.core import files, trees
from tangent_jax.core.checks import InputError, refusal, require
from tangent_jax.core.notation import Dual, Tangent, Tree
from tangent_jax.core.progress import progress_bar, show_progress

__all__ = [
    "Dual", "InputError", "Tangent", "Tree", "files", "progress_bar", "refusal", "require", "show_progress", "trees",
]  # fmt: skip

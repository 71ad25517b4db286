"""Exports of a predictor for other libraries: folders of weights or a program, with a model card."""

from tangent_jax.exports.folder import FORMATS, check_format, load_export
from tangent_jax.exports.peft import read_peft

__all__ = [
    "FORMATS",
    "check_format",
    "load_export",
    "read_peft",
]

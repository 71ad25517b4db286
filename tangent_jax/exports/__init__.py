"""Exports of a predictor for other libraries: folders of weights or a program, with a model card."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)

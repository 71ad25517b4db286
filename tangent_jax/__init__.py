"""Linearized Vision Transformers and ResNets in JAX: fine-tune, merge, remove data from fine-tuning, train privately.

    f_lin(x) = f_w(x) + J_w f(x) . dw

>>> import tangent_jax as tj
>>> f_lin = tj.linearize(lambda w, x: w["scale"] * x, {"scale": 2.0})
>>> float(f_lin({"scale": 0.5}, 4.0).total)
10.0
"""

from tangent_jax._lazy import public
from tangent_jax._version import __version__ as __version__
from tangent_jax._xla import avoid_wrong_sums

avoid_wrong_sums()
__getattr__, __dir__, __all__ = public(__name__, __file__)

"""Linearized Vision Transformers and ResNets in JAX: fine-tune, merge, remove data from fine-tuning, train privately.

    f_lin(x) = f_w(x) + J_w f(x) . dw

>>> import tangent_jax as tj
>>> f_lin = tj.linearize(lambda w, x: w["scale"] * x, {"scale": 2.0})
>>> float(f_lin({"scale": 0.5}, 4.0).total)
10.0
"""

from typing import TYPE_CHECKING

from tangent_jax._version import __version__ as __version__
from tangent_jax._xla import avoid_wrong_sums

avoid_wrong_sums()

if TYPE_CHECKING:
    from tangent_jax._public import *  # noqa: F403
    from tangent_jax._public import __all__ as __all__
else:

    def __getattr__(name):
        """A public name, at its first use: until then no JAX is imported, and `tangent-jax --help` answers at once."""
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tangent_jax import _public

        globals().update({each: getattr(_public, each) for each in _public.__all__}, __all__=_public.__all__)
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__():
        """The public names, and what is imported."""
        return sorted({*globals(), *__getattr__("__all__")})

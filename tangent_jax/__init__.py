"""Tangent Vision Transformers in JAX: fine-tune, compose, privatise and un-train.

    f_lin(x) = f_w(x) + J_w f(x) . dw

>>> import tangent_jax as tj
>>> f_lin = tj.linearize(lambda w, x: w["scale"] * x, {"scale": 2.0})
>>> float(f_lin({"scale": 0.5}, 4.0).total)
10.0
"""

from tangent_jax import compose
from tangent_jax._version import __version__
from tangent_jax.checks import InputError
from tangent_jax.config import ViTConfig, vit_config
from tangent_jax.data.cache import tail_inputs
from tangent_jax.data.sources import open_dataset
from tangent_jax.fit import Fitted, Settings, accuracy, fit, logits
from tangent_jax.linearize import jacobian, linearize
from tangent_jax.losses import cross_entropy, mean_squared, rescaled_square
from tangent_jax.many import fit_many
from tangent_jax.notation import Dual
from tangent_jax.predict import Predictor
from tangent_jax.privacy import PrivateSettings, fit_private
from tangent_jax.subsets import Subset, make_subset, new_class_token, new_head, reset
from tangent_jax.tangent_vit import TangentViT
from tangent_jax.vit import ViT, init, resize_positions
from tangent_jax.weights import Preprocessing, Pretrained, load, save, save_safetensors

__all__ = [
    "Dual",
    "Fitted",
    "InputError",
    "Predictor",
    "Preprocessing",
    "Pretrained",
    "PrivateSettings",
    "Settings",
    "Subset",
    "TangentViT",
    "ViT",
    "ViTConfig",
    "__version__",
    "accuracy",
    "compose",
    "cross_entropy",
    "fit",
    "fit_many",
    "fit_private",
    "init",
    "jacobian",
    "linearize",
    "load",
    "logits",
    "make_subset",
    "mean_squared",
    "new_class_token",
    "new_head",
    "open_dataset",
    "rescaled_square",
    "reset",
    "resize_positions",
    "save",
    "save_safetensors",
    "tail_inputs",
    "vit_config",
]

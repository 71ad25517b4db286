"""Weights files as all families of models read them: the tensors, the JSON beside them, the checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tangent_jax.core import require, trees
from tangent_jax.core.records import typed
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import Model


class Tensors(NamedTuple):
    """The content of a file: tensors by name, its metadata, and the JSON files beside it by name."""

    tensors: dict[str, np.ndarray]
    metadata: Mapping[str, str]
    beside: Mapping[str, dict[str, Any]]
    path: str

    def config(self, kind: type) -> Any:
        """The fields of `kind` that config.json beside the file gives."""
        known = {field.name for field in dataclasses.fields(kind)}
        fields = {name: value for name, value in self.beside.get("config", {}).items() if name in known}
        return typed(kind, fields, "load", f"config.json beside {self.path}")

    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing in the JSON beside the weights, timm's pretrained_cfg or Hugging Face's; None without."""
        given, where = self.beside.get("config", {}).get("pretrained_cfg"), f"pretrained_cfg beside {self.path}"
        timm: dict[str, Any] = typed(dict[str, Any] | None, given, "load", where) or {}
        hugging_face: dict[str, Any] = self.beside.get("preprocessor_config", {})
        if "mean" in timm:
            names = {"mean": "mean", "std": "std", "crop": "crop_pct", "interpolation": "interpolation"}
            fields = {ours: timm[theirs] for ours, theirs in names.items() if theirs in timm}
        elif "image_mean" in hugging_face:
            interpolation = {2: "bilinear", 3: "bicubic"}.get(hugging_face.get("resample", 2), "bilinear")
            fields = {"mean": hugging_face["image_mean"], "std": hugging_face.get("image_std")}
            fields |= {"crop": hugging_face.get("crop_pct") or 1.0, "interpolation": interpolation}
        else:
            return None
        return typed(Preprocessing, fields, "load", f"the preprocessing beside {self.path}")


def assemble(
    model: Model, flat: Mapping[str, Any], path: str, optional: tuple[str, ...] = (), reshaped: tuple[str, ...] = ()
) -> Pretrained:
    """Returns the model and its tree, every tensor checked for presence, shape and finiteness.

    Args:   optional: ends of paths that are zero where the file has none; reshaped: parts of paths whose tensors may
            have other axes of the same size.
    """
    expected, w = model.shapes(), {}
    for name in flat:
        got = f"{name} {flat[name].shape} in {path}"
        require(name in expected, "load", f"no tensor {name} in this architecture", got)
    for name, shape in expected.items():
        given = flat.get(name, np.zeros(shape, np.float32) if optional and name.endswith(optional) else None)
        require(given is not None, "load", f"the tensor of {name} {shape}", f"none in {path}")
        value = np.asarray(given, np.float32)
        reshapes = any(part in name for part in reshaped)
        fits = value.shape == shape or (reshapes and value.size == np.prod(shape))
        require(fits, "load", f"{name} of shape {shape}", f"shape {value.shape} in {path}")
        require(np.isfinite(value).all(), "load", f"{name} finite", f"NaN or infinity in {path}", "Fetch it again")
        w[name] = jnp.asarray(value.reshape(shape))
    return Pretrained(model, trees.nest(w), path)

"""Weights files, for all families of models: the tensors, the JSON files beside them, and checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tangent_jax.core import expect, trees
from tangent_jax.core.records import convert
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import Model


class Tensors(NamedTuple):
    """The content of a file: tensors by name, its metadata, and the JSON files beside it by name.

    `architecture`: the name that the caller gave, or None.
    """

    tensors: dict[str, np.ndarray]
    metadata: Mapping[str, str]
    beside: Mapping[str, dict[str, Any]]
    path: str
    architecture: str | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor by name."""
        return {name: tuple(value.shape) for name, value in self.tensors.items()}

    def config(self, kind: type) -> Any:
        """The fields of `kind` in the config.json beside the file."""
        known = {field.name for field in dataclasses.fields(kind)}
        fields = {name: value for name, value in self.beside.get("config", {}).items() if name in known}
        return convert(kind, fields, "load", f"config.json beside {self.path}")

    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing in the JSON beside the weights (timm's pretrained_cfg or Hugging Face's), or None."""
        given, where = self.beside.get("config", {}).get("pretrained_cfg"), f"pretrained_cfg beside {self.path}"
        timm: dict[str, Any] = convert(dict[str, Any] | None, given, "load", where) or {}
        hugging_face: dict[str, Any] = self.beside.get("preprocessor_config", {})
        check_images(hugging_face, self.path)
        mode = timm.get("crop_mode")
        expect(mode in (None, "center", "squash"), f"crop_mode center or squash in {where}", mode)
        if "mean" in timm:
            names = {"mean": "mean", "std": "std", "crop": "crop_pct", "interpolation": "interpolation"}
            fields = {ours: timm[theirs] for ours, theirs in names.items() if theirs in timm}
            fields |= {"resize": "exact"} if mode == "squash" else {}
        elif "image_mean" in hugging_face:
            interpolation = {2: "bilinear", 3: "bicubic"}[hugging_face.get("resample", 2)]
            fields = {"mean": hugging_face["image_mean"], "std": hugging_face.get("image_std")}
            fields |= {"interpolation": interpolation, **resizing(hugging_face, self.path)}
        else:
            return None
        return convert(Preprocessing, fields, "load", f"the preprocessing beside {self.path}")


def check_images(config: Mapping[str, Any], path: str) -> None:
    """Raises InputError if preprocessor_config.json wants other images than (x / 255 - mean) / std of RGB.

    Likewise for a filter other than bilinear (2) or bicubic (3), in Pillow's numbers.
    """
    where = f"preprocessor_config.json beside {path}"
    factor = convert(float | int | None, config.get("rescale_factor"), "load", f"rescale_factor of {where}")
    is_plain = all(config.get(name, True) for name in ("do_normalize", "do_rescale"))
    is_plain = is_plain and (factor is None or abs(factor * 255 - 1) < 1e-3)
    expect(is_plain, f"images divided by 255 and normalised, in {where}", "another scale, or none")
    flipped, resample = config.get("do_flip_channel_order"), config.get("resample", 2)
    expect(not flipped, f"channels in the order of RGB in {where}", f"do_flip_channel_order {flipped}")
    expect(resample in (2, 3), f"resample 2 (bilinear) or 3 (bicubic) in {where}", resample)
    resized, padded = config.get("do_resize", True), config.get("do_pad", False)
    expect(resized and not padded, f"images resized and not padded in {where}", f"{resized}, {padded}")


def resizing(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The fields `crop` and `resize`, from `size` and `crop_size` of preprocessor_config.json, or timm's `crop_pct`."""
    named = {name: f"{name} of preprocessor_config.json beside {path}" for name in ("size", "crop_size")}
    given = (convert(dict[str, int] | int | None, config.get(name), "load", where) for name, where in named.items())
    size, crop = ({"side": value} if isinstance(value, int) else value or {} for value in given)
    sides = ({"shortest_edge"}, {"height", "width"}, {"side"}, set())
    good = {*size} in sides and {*crop} in sides[1:] and all(value > 0 for value in (*size.values(), *crop.values()))
    expected = f"sizes by shortest_edge, or by height and width, in preprocessor_config.json beside {path}"
    expect(good, expected, f"{size}, {crop}")
    is_cropped = bool(crop) and config.get("do_center_crop", True)
    before = next((size[side] for side in ("shortest_edge", "height", "side") if side in size), 0)
    after = crop.get("height", crop.get("side", 0))
    fraction = after / before if is_cropped and before and after else config.get("crop_pct") or 1.0
    is_exact = "height" in size or ("side" in size and not is_cropped)
    return {"crop": fraction, "resize": "exact" if is_exact else "short"}


def assemble(
    model: Model, flat: Mapping[str, Any], path: str, optional: tuple[str, ...] = (), reshaped: tuple[str, ...] = ()
) -> Pretrained:
    """The model and its tree, with every tensor checked for presence, shape and finiteness.

    Args:   optional: path endings that are zero if the file lacks them; reshaped: parts of paths whose tensors may have
            other axes of the same size.
    """
    expected, w = model.shapes(), {}
    for name in flat:
        got = f"{name} {flat[name].shape} in {path}"
        expect(name in expected, f"no tensor {name} in this architecture", got)
    for name, shape in expected.items():
        given = flat.get(name, np.zeros(shape, np.float32) if optional and name.endswith(optional) else None)
        expect(given is not None, f"the tensor of {name} {shape}", f"none in {path}")
        value = np.asarray(given, np.float32)
        reshapes = any(part in name for part in reshaped)
        fits = value.shape == shape or (reshapes and value.size == np.prod(shape))
        expect(fits, f"{name} of shape {shape}", f"shape {value.shape} in {path}")
        expect(np.isfinite(value).all(), f"{name} finite", f"NaN or infinity in {path}", "Fetch it again")
        w[name] = jnp.asarray(value.reshape(shape))
    return Pretrained(model, trees.nest(w), path)

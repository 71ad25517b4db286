"""Pre-trained weights: every layout in use, read into one parameter tree.

`load(source)` reads Google's .npz, timm-named or Hugging Face ViT-named .safetensors (a file, a folder
with model.safetensors, or hf-hub:OWNER/NAME), an Orbax checkpoint of ours, "builtin" and "random:L/16".
The architecture is inferred from the tensors; a missing, extra or misshapen one is named. No pickle is
ever loaded.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from tangent_jax import trees, vit
from tangent_jax.checks import refusal, require
from tangent_jax.config import SIZES, ViTConfig, vit_config
from tangent_jax.names import HUGGING_FACE, NPZ, TIMM, Flat, translate
from tangent_jax.notation import Tree

INCEPTION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How a model wants its images: RGB in [0, 1], (x - mean) / std, after resize and centre crop.

    `crop` is the fraction of the resized short side that is kept; `interpolation` bicubic or bilinear.
    """

    mean: tuple[float, ...] = INCEPTION[0]
    std: tuple[float, ...] = INCEPTION[1]
    crop: float = 0.9
    interpolation: str = "bicubic"

    def normalize(self, images: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
        """uint8 images, "b y x 3", as the model wants them."""
        x = images.astype(jnp.float32) / 255
        return ((x - jnp.asarray(self.mean, jnp.float32)) / jnp.asarray(self.std, jnp.float32)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model as loaded: what it is, its parameters (f32), how it wants its images, where it came from."""

    config: ViTConfig
    params: Tree
    preprocessing: Preprocessing
    source: str


OPTIONAL_BIASES = (
    "patch_embedding/bias",
    "attention/query/bias",
    "attention/key/bias",
    "attention/value/bias",
    "head/bias",
)


def load(source: str | os.PathLike, expected: str | None = None) -> Pretrained:
    """Reads a pre-trained Vision Transformer.

    Args:       source: "builtin", "random:SIZE/PATCH" (f32, key 0), hf-hub:OWNER/NAME, a .npz or
                .safetensors file, a folder with model.safetensors, or a checkpoint folder of `save`;
                expected: the architecture the caller asks for, such as "L/16", or None for any.
    Returns:    Pretrained; classes = 0 where the file holds no head.
    Raises:     InputError naming the file, and the tensor with its expected and found shape.
    """
    source = os.fspath(source)
    if source == "builtin":
        with resources.as_file(resources.files("tangent_jax") / "assets/vit_builtin.safetensors") as path:
            found = dataclasses.replace(read_safetensors(path), source="builtin")
    elif source.startswith("random:"):
        config = vit_config(source.removeprefix("random:"))
        found = Pretrained(config, vit.init(config, jax.random.key(0)), Preprocessing(), source)
    elif source.startswith("hf-hub:"):
        found = dataclasses.replace(read_safetensors(download(source.removeprefix("hf-hub:"))), source=source)
    else:
        path = Path(source)
        require(
            path.exists(),
            "load",
            "weights: builtin, random:SIZE/PATCH, hf-hub:OWNER/NAME, .npz, .safetensors or a folder",
            f"{source}, which does not exist",
        )
        if path.is_dir() and not (path / "model.safetensors").exists():
            found = read_orbax(path)
        elif path.suffix == ".npz":
            found = read_npz(path)
        else:
            path = path / "model.safetensors" if path.is_dir() else path
            require(
                path.suffix == ".safetensors",
                "load",
                "a .npz or .safetensors file",
                path.name,
                "Convert it first; pickled checkpoints are never loaded",
            )
            found = read_safetensors(path)
    if expected is not None:
        asked = vit_config(expected)
        for field in ("width", "depth", "heads", "mlp_width", "patch_size"):
            want, got = getattr(asked, field), getattr(found.config, field)
            require(want == got, "load", f"{expected} with {field} {want}", f"{field} {got} in {source}")
    return found


def download(hub_id: str) -> Path:
    """A hub model's safetensors, with the JSON files that describe it beside it."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub_id, allow_patterns=["model.safetensors", "*.json"])) / "model.safetensors"
    except Exception as error:
        raise refusal(
            "load",
            f"the hub to answer for {hub_id}",
            f"{type(error).__name__}",
            "Download model.safetensors where the network allows and pass its path",
        ) from error


def read_safetensors(path: Path) -> Pretrained:
    """timm's, Hugging Face's or our own names, told apart by the tensors."""
    try:
        with safe_open(path, framework="flax") as file:
            metadata = file.metadata() or {}
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise refusal("load", "a whole safetensors file", f"{path} ({error})", "Fetch it again") from error
    if "tangent_jax" in metadata:
        meta = json.loads(metadata["tangent_jax"])
        flat = translate(tensors, TIMM, path) if "cls_token" in tensors else tensors
        return assemble(flat, path, ViTConfig(**meta["config"]), preprocessing_of(meta["preprocessing"]))
    hints = {name: read_json(path.with_name(f"{name}.json")) for name in ("config", "preprocessor_config")}
    hugging_face = any("encoder.layer." in name for name in tensors)
    flat = translate(tensors, HUGGING_FACE if hugging_face else TIMM, path)
    fields: dict[str, Any] = {}
    if "fc_norm.weight" in tensors:
        fields["pool"] = "avg"
    if hugging_face:
        fields["epsilon"] = hints["config"].get("layer_norm_eps", 1e-12)
        act = hints["config"].get("hidden_act", "gelu")
        fields["activation"] = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}.get(act, act)
        if "num_attention_heads" in hints["config"]:
            fields["heads"] = hints["config"]["num_attention_heads"]
    name = f"{hints['config'].get('architecture', '')} {path.name} {' '.join(metadata.values())}".lower()
    if "pre_norm/scale" in flat:
        fields["epsilon"] = 1e-5  # timm's CLIP towers use torch's default
    if "quickgelu" in name:
        fields["activation"] = "quick_gelu"
    return assemble(flat, path, infer(flat, path, **fields), guess_preprocessing(flat, name, hints))


def read_npz(path: Path) -> Pretrained:
    """Google's vision_transformer and big_vision layouts (their GELU is the tanh form)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            tensors = {re.sub(r"^(opt/target/|params/)", "", name): file[name] for name in file.files}
    except Exception as error:
        raise refusal("load", "a whole .npz file of plain arrays", f"{path} ({error})", "Fetch it again") from error
    flat = translate(tensors, NPZ, path)
    position = flat.get("position_embedding")
    if position is not None and int(np.sqrt(np.prod(position.shape[:-1]))) ** 2 == np.prod(position.shape[:-1]):
        # big_vision adds positions to the patches alone: the class token's is zero
        flat["position_embedding"] = np.pad(position.reshape(-1, position.shape[-1]), ((1, 0), (0, 0)))
    return assemble(flat, path, infer(flat, path, activation="gelu_tanh"), Preprocessing())


def infer(flat: Flat, path: Path, **known: Any) -> ViTConfig:
    """The architecture that the tensors have; `known` are fields that the file says itself."""
    needed = ("patch_embedding/kernel", "position_embedding", "block_0/mlp_in/kernel", "class_token")
    for name in needed:
        require(name in flat, "load", f"the tensor of {name}", f"none in {path}", "Pass a Vision Transformer's weights")
    patch, _, _, width = flat["patch_embedding/kernel"].shape
    heads = {size[0]: size[2] for size in SIZES.values()}.get(width, width // 64 if width % 64 == 0 else 0)
    query = flat.get("block_0/attention/query/kernel", np.zeros(0))
    heads = known.pop("heads", query.shape[1] if query.ndim == 3 else heads)
    require(heads >= 1, "load", "a width with known heads (64 features each)", f"width {width} in {path}")
    grid = round(float(np.prod(flat["position_embedding"].shape[:-1]) - 1) ** 0.5)
    return ViTConfig(
        width=width,
        depth=1 + max(int(name.split("/")[0][6:]) for name in flat if name.startswith("block_")),
        heads=heads,
        mlp_width=flat["block_0/mlp_in/kernel"].shape[-1],
        patch_size=patch,
        image_size=grid * patch,
        classes=flat["head/kernel"].shape[-1] if "head/kernel" in flat else 0,
        pre_norm="pre_norm/scale" in flat,
        layer_scale="block_0/layer_scale1/scale" in flat,
        **known,
    )


def assemble(flat: Mapping[str, Any], path: Path, config: ViTConfig, preprocessing: Preprocessing) -> Pretrained:
    """The parameter tree, every tensor checked for presence, shape and finiteness."""
    expected, params = vit.shapes(config), {}
    for name in flat:
        require(
            name in expected, "load", f"no tensor {name} in this architecture", f"{name} {flat[name].shape} in {path}"
        )
    for name, shape in expected.items():
        given = flat.get(name, np.zeros(shape, np.float32) if name.endswith(OPTIONAL_BIASES) else None)
        require(given is not None, "load", f"the tensor of {name} {shape}", f"none in {path}")
        value = np.asarray(given, np.float32)
        reshapes = "/attention/" in name or name in ("class_token", "position_embedding")
        fits = value.shape == shape or (reshapes and value.size == np.prod(shape))
        require(fits, "load", f"{name} of shape {shape}", f"shape {value.shape} in {path}")
        require(np.isfinite(value).all(), "load", f"{name} finite", f"NaN or infinity in {path}", "Fetch it again")
        params[name] = jnp.asarray(value.reshape(shape))
    return Pretrained(config, trees.nest(params), preprocessing, str(path))


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def preprocessing_of(fields: Mapping[str, Any]) -> Preprocessing:
    return Preprocessing(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})


def guess_preprocessing(flat: Flat, name: str, hints: Mapping[str, dict[str, Any]]) -> Preprocessing:
    """What the JSON beside the weights says; else by family: CLIP, MAE and DINO, or AugReg (0.5, 0.5)."""
    timm, hugging_face = hints["config"].get("pretrained_cfg", {}), hints["preprocessor_config"]
    if "mean" in timm:
        return Preprocessing(
            tuple(timm["mean"]), tuple(timm["std"]), timm.get("crop_pct", 0.9), timm.get("interpolation", "bicubic")
        )
    if "image_mean" in hugging_face:
        interpolation = {2: "bilinear", 3: "bicubic"}.get(hugging_face.get("resample", 2), "bilinear")
        return Preprocessing(tuple(hugging_face["image_mean"]), tuple(hugging_face["image_std"]), 1.0, interpolation)
    if "pre_norm/scale" in flat:
        return Preprocessing(*CLIP)
    return Preprocessing(*(IMAGENET if re.search(r"mae|dino|deit", name) else INCEPTION))


def meta_of(model: Pretrained) -> dict[str, Any]:
    return {"config": dataclasses.asdict(model.config), "preprocessing": dataclasses.asdict(model.preprocessing)}


def save_safetensors(path: str | os.PathLike, model: Pretrained) -> None:
    """One file with our names and the configuration in its metadata; written whole or not at all."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    save_file(trees.leaves(model.params), partial, {"tangent_jax": json.dumps(meta_of(model))})
    os.replace(partial, path)


def save(path: str | os.PathLike, model: Pretrained) -> None:
    """An Orbax checkpoint of the parameters with the configuration, atomic, at a folder not yet there."""
    path = Path(path).absolute()
    require(not path.exists(), "save", "a folder that does not exist yet", path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            path,
            ocp.args.Composite(
                params=ocp.args.StandardSave(model.params),  # pyright: ignore
                meta=ocp.args.JsonSave(meta_of(model)),
            ),
        )


def read_orbax(path: Path) -> Pretrained:
    """What `save` wrote, restored against the shapes that its configuration has."""
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            meta = checkpointer.restore(path.absolute(), ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]  # pyright: ignore
            config = ViTConfig(**meta["config"])
            target = trees.nest(
                {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in vit.shapes(config).items()}
            )
            params = checkpointer.restore(path.absolute(), ocp.args.Composite(params=ocp.args.StandardRestore(target)))[
                "params"
            ]  # pyright: ignore
    except Exception as error:
        raise refusal(
            "load",
            "a folder with model.safetensors or an Orbax checkpoint of ours",
            f"{path} ({str(error).splitlines()[0]})",
        ) from error
    return assemble(trees.leaves(params), path, config, preprocessing_of(meta["preprocessing"]))

"""Small photographs on disk and in zips."""

import io
import zipfile

import jax
import numpy as np
from PIL import Image

from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store

RNG = np.random.default_rng(0)


def picture(size=(12, 10), suffix="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (*size[::-1], 3), np.uint8)).save(buffer, suffix)
    return buffer.getvalue()


def write(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())


def summary(dataset):
    return {
        split: list(zip(examples.names, examples.labels.tolist(), strict=True))
        for split, examples in dataset.splits.items()
    }


def as_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def photographs(root, count=6, classes=("cat", "dog")):
    """A folder with train and test, its classes told apart by their brightness."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                image = np.clip(rng.normal(80 + 90 * label, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(image).save(root / split / name / f"{i}.png")
    return root


def solved_heads(root, photos, shards):
    """(the recipe, the cache) of a store of solved heads, one for each of these shards of photographs: root/store."""
    model = VisionTransformer(ViTConfig(24, 2, 2, 48, patch_size=4, image_size=16, classes=2))
    save(root / "tiny.safetensors", Pretrained(model, initial_weights(model, jax.random.key(0)), "tiny"))
    settings = {"kind": "head", "solver": "optimum", "penalty": 0.1, "output": "tangent"}
    recipe = Recipe(weights=str(root / "tiny.safetensors"), dataset=f"folder:{photos}", **settings)
    dataset = open_dataset(recipe.dataset)
    cache = Cache(root / "cache")
    predict = recipe.predictor(dataset.classes, load(recipe.weights))
    features = extract(predict, dataset.train, cache)
    fill(Store(root / "store"), Shards(predict, features, recipe, shards, dataset.classes))
    return recipe, cache

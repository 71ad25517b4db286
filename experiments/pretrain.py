"""Trains the built-in ViT on rendered letters and writes it as one safetensors file.

The file shipped as tangent_jax/assets/vit_builtin.safetensors is this command's output with no flags.
"""

import time
from pathlib import Path

import jax
import numpy as np
from absl import flags

from experiments import binary, characters
from tangent_jax import subsets, vit, weights
from tangent_jax.config import ViTConfig
from tangent_jax.data.decode import decode
from tangent_jax.fit import Settings, fit
from tangent_jax.predict import Predictor

IMAGES = flags.DEFINE_integer(
    "images", 50_000, "Letters rendered for training; 2,000 more measure accuracy.", lower_bound=64
)
EPOCHS = flags.DEFINE_integer("epochs", 12, "Passes over them.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Seed of rendering, initial weights and order.")
OUT = flags.DEFINE_string("out", "out/pretrain", "Folder for vit_builtin.safetensors, result.json and checkpoints.")

CONFIG = ViTConfig(
    width=96, depth=6, heads=3, mlp_width=384, patch_size=4, image_size=16, classes=len(characters.CLASSES)
)
PREPROCESSING = weights.Preprocessing(crop=1.0)


def letters(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rendered letters as the model wants them, "n 16 16 3" uint8, and their classes."""
    images, labels = characters.render(count, seed)
    return np.stack([decode(image, "letter", CONFIG.image_size, PREPROCESSING) for image in images]), labels


def main() -> None:
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    images, labels = letters(IMAGES.value, SEED.value)
    held_out = letters(2_000, SEED.value + 1)
    key = jax.random.key(SEED.value)
    w = vit.init(CONFIG, key)
    everything = subsets.make_subset(CONFIG, "everything")
    predict = Predictor(w, CONFIG, everything.split, "nlft", preprocessing=PREPROCESSING)
    settings = Settings("ce", EPOCHS.value, batch_size=128, learning_rate=1e-3, penalty=1e-4)
    started = time.perf_counter()
    fitted = fit(
        predict,
        everything.zeros(w),
        images,
        labels,
        settings,
        key,
        evaluation=held_out,
        checkpoints=out / "checkpoints",
        progress="pretrain",
    )
    params = jax.tree.map(lambda w, dw: w + dw, w, fitted.dw)
    path = out / "vit_builtin.safetensors"
    weights.save_safetensors(path, weights.Pretrained(CONFIG, params, PREPROCESSING, "builtin"))
    result = {
        "upstream_accuracy": fitted.history[-1]["test_accuracy"],
        "parameters": everything.size,
        "bytes": path.stat().st_size,
        "train_seconds": round(time.perf_counter() - started, 1),
    }
    binary.finish(out, result, history=fitted.history)


if __name__ == "__main__":
    binary.run(main)

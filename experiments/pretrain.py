"""Trains the built-in ViT on rendered letters and writes it as one safetensors file.

The file shipped as tangent_jax/assets/vit_builtin.safetensors is this command's output with no flags.
"""

import time

import jax
import numpy as np
from absl import flags

import tangent_jax as tj
from experiments import binary, characters, common
from experiments.common import F
from tangent_jax.core import trees
from tangent_jax.data.decode import decode
from tangent_jax.models.protocol import initial_weights

common.define("seed", epochs=12, out="out/pretrain")
flags.DEFINE_integer("images", 50_000, "Letters rendered for training; 2,000 more measure accuracy.", lower_bound=64)

CONFIG = tj.ViTConfig(
    width=96, depth=6, heads=3, mlp_width=384, patch_size=4, image_size=16, classes=len(characters.CLASSES)
)
MODEL = tj.VisionTransformer(CONFIG, tj.Preprocessing(crop=1.0))


def letters(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rendered letters as the model wants them, "n 16 16 3" uint8, and their classes."""
    images, labels = characters.render(count, seed)
    return np.stack([decode(image, "letter", CONFIG.image_size, MODEL.preprocessing) for image in images]), labels


def main() -> None:
    out, key = binary.out_folder(), jax.random.key(F.seed)
    images, labels = letters(F.images, F.seed)
    held_out = letters(2_000, F.seed + 1)
    pretrained = tj.Pretrained(MODEL, initial_weights(MODEL, key), "builtin")
    predict = tj.tangent(pretrained, kind="everything", method="nlft")
    started = time.perf_counter()
    with tj.show_progress("pretrain"):
        fitted = tj.fit(
            predict,
            predict.zeros(),
            tj.Batches(images, labels, key, batch_size=128),
            tj.make_objective("ce", penalty=1e-4),
            epochs=F.epochs,
            on_epoch=lambda _, dw: {"test_accuracy": tj.accuracy(predict, dw, *held_out)},
            checkpoints=out / "checkpoints",
        )
    path = out / "vit_builtin.safetensors"
    tj.save(path, tj.Pretrained(MODEL, trees.add(predict.w, fitted.dw), "builtin"))
    result = {
        "upstream_accuracy": fitted.history[-1]["test_accuracy"],
        "parameters": predict.subset.size,
        "bytes": path.stat().st_size,
        "train_seconds": round(time.perf_counter() - started, 1),
    }
    binary.finish(result, history=fitted.history)


if __name__ == "__main__":
    binary.run(main)

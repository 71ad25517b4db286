"""Pre-trains an embedded model on rendered letters, by one of three schemes, and writes it as one safetensors file.

The files shipped as tangent_jax/assets/vit_builtin.safetensors and resnet_builtin.safetensors are this command's output
with no flags, and with --model=resnet.
"""

import dataclasses
import time
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import schemes
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results, choice
from tangent_jax.core.checks import InputError
from tangent_jax.io.progress import shown
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: int = 128
    epochs: int = 12
    images: int = 50_000
    network: str = choice("vit", "resnet")
    out: str = "out/pretrain"
    scheme: str = choice("classes", "mae", "contrastive")
    seed: int = Recipe.seed


def main(config: Config) -> None:
    if config.images < 64:
        raise InputError(f"--images must be 64 at least; got {config.images}")
    if config.network != "vit" and config.scheme != "classes":
        raise InputError(f"--scheme={config.scheme} needs --network=vit; got {config.network}")
    out = command.out_folder(config)
    key = jax.random.key(config.seed)
    images, labels = schemes.letters(config.images, config.seed)
    held_images, held_labels = schemes.letters(2_000, config.seed + 1)
    scheme = schemes.make_scheme(config.scheme, config.network, key, images)
    if not scheme.has_classes:
        labels, held_labels = np.zeros_like(labels), np.zeros_like(held_labels)

    held = tj.Batches(held_images, held_labels)
    data = tj.Batches(images, labels, key, batch_size=config.batch_size)
    settings: Any = {
        "epochs": config.epochs,
        "on_step": measure_of(scheme, held),
        "checkpoints": tj.Checkpoints(out / "checkpoints"),
        "progress": shown,
    }
    started = time.perf_counter()
    with tj.show_progress(f"pretrain {config.network} {config.scheme}"):
        fitted = tj.fit(scheme.predict, data, scheme.objective, start=scheme.dw, **settings)
    pretrained = scheme.finish(fitted.dw)
    plain = config.scheme == "classes"
    path = out / (f"{config.network}_builtin.safetensors" if plain else f"{config.network}_{config.scheme}.safetensors")
    tj.save(path, pretrained)
    result = {
        "scheme": config.scheme,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(pretrained.w)),
        "bytes": path.stat().st_size,
        "train_seconds": round(time.perf_counter() - started, 1),
    }
    if plain:
        predict = tj.Predictor(pretrained.w, pretrained.model, tj.models.make_subset(pretrained.model, "everything"))
        result["upstream_accuracy"] = tj.evaluate(predict, {}, held)
    else:
        known = {"test_accuracy": "upstream_accuracy", "test_error": "reconstruction_error"}
        result |= {
            known[name]: value for name, value in settings["on_step"]({"epoch": config.epochs}, fitted.dw).items()
        }
    command.finish(config, result, history=fitted.history)


def measure_of(scheme: schemes.Scheme, held: tj.Batches) -> tj.metrics.Measure:
    """The measure of each epoch: accuracy, or the error on masked patches."""
    if scheme.has_classes:
        return tj.metrics.Measure(scheme.predict, held)
    fixed = jax.random.key(0)  # one mask per image for all epochs
    masked = Partial(lambda predict, dw, x: predict(dw, x, fixed), scheme.predict)
    return tj.metrics.Measure(masked, held, {"test_error": schemes.masked_error})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

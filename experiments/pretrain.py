"""Pre-trains an embedded model on rendered letters, by one of three schemes, and writes it as one safetensors file.

The files shipped as tangent_jax/assets/vit_builtin.safetensors and resnet_builtin.safetensors are this command's output
with no flags, and with --model=resnet.
"""

import time
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import schemes
from experiments.shared.table import define
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F
from tangent_jax.core.checks import InputError
from tangent_jax.io.progress import shown

define("seed", epochs=12, batch_size=128, images=50_000, out="out/pretrain")
define(network=(*schemes.MODELS,), scheme=(*schemes.SCHEMES,))


def main() -> None:
    if F.images < 64:
        raise InputError(f"--images must be 64 at least; got {F.images}")
    if F.network != "vit" and F.scheme != "classes":
        raise InputError(f"--scheme={F.scheme} needs --network=vit; got {F.network}")
    out = command.out_folder()
    key = jax.random.key(F.seed)
    images, labels = schemes.letters(F.images, F.seed)
    held_images, held_labels = schemes.letters(2_000, F.seed + 1)
    scheme = schemes.make_scheme(F.scheme, F.network, key, images)
    if not scheme.has_classes:
        labels, held_labels = np.zeros_like(labels), np.zeros_like(held_labels)

    held = tj.Batches(held_images, held_labels)
    data = tj.Batches(images, labels, key, batch_size=F.batch_size)
    settings: Any = {
        "epochs": F.epochs,
        "on_step": measure_of(scheme, held),
        "checkpoints": tj.Checkpoints(out / "checkpoints"),
        "progress": shown,
    }
    started = time.perf_counter()
    with tj.show_progress(f"pretrain {F.network} {F.scheme}"):
        fitted = tj.fit(scheme.predict, data, scheme.objective, start=scheme.dw, **settings)
    pretrained = scheme.finish(fitted.dw)
    plain = F.scheme == "classes"
    path = out / (f"{F.network}_builtin.safetensors" if plain else f"{F.network}_{F.scheme}.safetensors")
    tj.save(path, pretrained)
    result = {
        "scheme": F.scheme,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(pretrained.w)),
        "bytes": path.stat().st_size,
        "train_seconds": round(time.perf_counter() - started, 1),
    }
    if plain:
        predict = tj.Predictor(pretrained.w, pretrained.model, tj.models.make_subset(pretrained.model, "everything"))
        result["upstream_accuracy"] = tj.evaluate(predict, {}, held)
    else:
        known = {"test_accuracy": "upstream_accuracy", "test_error": "reconstruction_error"}
        result |= {known[name]: value for name, value in settings["on_step"]({"epoch": F.epochs}, fitted.dw).items()}
    command.finish(result, history=fitted.history)


def measure_of(scheme: schemes.Scheme, held: tj.Batches) -> tj.metrics.Measure:
    """The measure of each epoch: accuracy, or the error on masked patches."""
    if scheme.has_classes:
        return tj.metrics.Measure(scheme.predict, held)
    fixed = jax.random.key(0)  # one mask per image for all epochs
    masked = Partial(lambda predict, dw, x: predict(dw, x, fixed), scheme.predict)
    return tj.metrics.Measure(masked, held, {"test_error": schemes.masked_error})


if __name__ == "__main__":
    command.run(main)

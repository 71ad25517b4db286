"""Merges fine-tuned checkpoints (experts), made here, beside tangents: `tangent-jax tasks --experts`.

    python -m experiments.bench experts --weights=FILE --dataset=folder:birds,folder:signs --lr=1e-3 --lr_nlft=1e-4

An expert is the network, fine-tuned non-linearly on one data set: on all training images if there is a validation split
besides test, else on those that `tasks` does not hold out. It is written as a checkpoint under the tensor names of its
pre-trained network, OUT/experts/NAME/model.safetensors, and read again. Tangents train as in `tasks`, which prints the
result.
"""

import dataclasses
from pathlib import Path

import numpy as np

import tangent_jax as tj
from tangent_jax.commands import tasks
from tangent_jax.commands.shared import command, setup
from tangent_jax.core import trees
from tangent_jax.io.files import write_whole
from tangent_jax.pretrained.load import encode_model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(tasks.Config):
    """The flags."""

    merge: tuple[str, ...] = ("mean", "ties", "inputs", "curvature")
    out: str = "out/bench_experts"


def main(config: Config) -> None:
    out = command.out_folder(config)
    experts = config.experts or [make_expert(config, spec, out / "experts") for spec in config.listed("dataset")]
    tasks.main(dataclasses.replace(config, experts=tuple(map(str, experts))))


def make_expert(config: Config, spec: str, root: Path) -> Path:
    """Fine-tunes the network on a data set, and returns the folder of its checkpoint."""
    dataset = setup.open_tested(spec)
    folder = root / dataset.name
    recipe = setup.recipe(config, dataset=spec, method="nlft")
    predict = setup.predictor(recipe, dataset.classes)
    train, _ = setup.train_and_measured(config, predict, dataset, on_test=False)
    with tj.show_progress(f"{dataset.name}: expert"):
        dw = recipe.fit(predict, train).dw
    leaves = {path: np.asarray(leaf) for path, leaf in trees.leaves(trees.add(predict.w, dw)).items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "model.safetensors", encode_model(predict.model, leaves, "world", None, dataset.classes))
    return folder


if __name__ == "__main__":
    command.run(main, Config)

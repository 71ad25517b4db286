"""The paper's wall-clock table: seconds for training and inference of NLFT and TAFT on one example (batch 1).

Each is timed with the frozen trunk, as in the paper, and from cached features; training is one step of Adam. Figures
are medians of alternating rounds in one process.

The last line of stdout: {"from_images" and "from_features": {"nlft_train", "taft_train", "nlft_inference",
"taft_inference": seconds}, "spread": the same, quartiles' distance, "device"}.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.table import TABLE
from experiments.shared.timing import Operation, compiled, compiled_step, rounds
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Model, Results
from tangent_jax.core.notation import Tree
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Results):
    """The flags."""

    blocks: int = Recipe.blocks
    dtype: str = Recipe.dtype
    linearization: str = Recipe.linearization
    out: str = "out/times"
    repeats: int = 60
    seconds: float = 60.0


CLASSES = 67  # classes of the new head, as in the paper's data set
SOURCES = ("from_images", "from_features")
COLUMNS = ("nlft_train", "taft_train", "nlft_inference", "taft_inference")


def operations(config: Config, method: str) -> list[Operation]:
    """Compiles training and inference of one example by a method, from images and from features."""
    recipe = setup.recipe(config, method=method)
    predict = setup.predictor(recipe, CLASSES)
    model = predict.model
    stage = predict.subset.stage
    optimizer = tj.adam()
    objective = recipe.objective
    label = jnp.zeros(1, int)
    images = jax.random.normal(jax.random.key(0), (1, *model.input_shape(0)))
    features = model.apply(predict.w, images, 0, stage)
    dw = predict.zeros()

    def step(state: tuple[Tree, Any], predict: tj.Predictor, x: jax.Array, start: int) -> tuple[Tree, Any]:
        x = predict.model.apply(predict.w, x, start, stage)
        gradient = jax.grad(lambda dw: objective(predict, dw, x, label))(state[0])
        updates, after = optimizer.update(gradient, state[1], state[0])
        return optax.apply_updates(state[0], updates), after

    def infer(predict: tj.Predictor, dw: Tree, x: jax.Array, start: int) -> jax.Array:
        return predict(dw, predict.model.apply(predict.w, x, start, stage))

    timed = []
    for source, x, start in zip(SOURCES, (images, features), (0, stage), strict=True):
        title = f"{source} {method}"
        state = (dw, optimizer.init(dw))
        timed.append(compiled_step(f"{title}_train", lambda s, p, x, at=start: step(s, p, x, at), [state], predict, x))
        timed.append(compiled(f"{title}_inference", lambda p, dw, x, at=start: infer(p, dw, x, at), predict, dw, x))
    return timed


def draw(config: Config, seconds: dict[str, dict[str, float]], spread: dict[str, dict[str, float]]) -> None:
    """Plots the milliseconds of each method: a group for training and for inference, from each kind of input."""
    groups = {
        f"{work}, {source.replace('_', ' ')}": {
            m: (1000 * seconds[source][f"{m}_{work}"], 1000 * spread[source][f"{m}_{work}"]) for m in ("nlft", "taft")
        }
        for source in SOURCES
        for work in ("train", "inference")
    }
    title = titles.slower(seconds)
    plots.dots(command.out_folder(config) / "times.png", groups, title, "milliseconds an example, batch 1")


def main(config: Config) -> None:
    both = [operation for method in ("nlft", "taft") for operation in operations(config, method)]
    seconds: dict[str, dict[str, float]] = {source: {} for source in SOURCES}
    spread: dict[str, dict[str, float]] = {source: {} for source in SOURCES}
    for row in rounds(both, "rounds", config.repeats, config.seconds):
        source, column = row["operation"].split()
        seconds[source][column], spread[source][column] = row["seconds"], row["spread"]
    lines = [[s.replace("_", " "), *(f"{seconds[s][c]:.4g}" for c in COLUMNS)] for s in SOURCES]
    command.write_table(config, "times", ["seconds an example", *COLUMNS], lines)
    draw(config, seconds, spread)
    command.finish(config, {**seconds, "spread": spread, "device": jax.devices()[0].device_kind})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

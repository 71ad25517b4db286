"""Fine-tunes a pre-trained ViT on a folder of photographs: tangent (TAFT), non-linear (NLFT) or head alone (FC).

--out receives result.json, checkpoints, and dw.safetensors (the tangent weights with their provenance).
With --solver=optimum a --certificate that is not reached in --passes ends with exit code 1, after all is written;
--passes without --certificate asks for the passes alone. It needs --penalty, --certificate or --passes.
"""

import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import anchors, command, setup
from tangent_jax.commands.shared.phases import phase, seconds
from tangent_jax.commands.shared.settings import Compute, FirstSession, Job, Optimum, Reading, Results, Training
from tangent_jax.commands.shared.table import SHARE
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name, other_spellings
from tangent_jax.data import Examples
from tangent_jax.io.checkpoints import checkpoints_in
from tangent_jax.io.records import plain
from tangent_jax.solver.optimum import certificate_of
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(FirstSession, Reading, Compute, Training, Optimum, Job, Results):
    """One model, of one data set."""

    blocks: int = Recipe.blocks
    dataset: str = Recipe.dataset
    factors: bool = False
    head: str = Recipe.head
    images: str | None = dataclasses.field(default=None, metadata={"row": SHARE})
    lr: float = Recipe.learning_rate
    new_class_token: bool = Recipe.new_class_token
    out: str = "out/finetune"
    radius: float | None = Recipe.radius
    rank: int = Recipe.rank
    reset: bool = Recipe.reset
    seed: int = Recipe.seed
    store: str | None = None
    subset: str = Recipe.kind


def main(config: Config) -> None:
    recipe = setup.recipe(config)
    check_flags(config, recipe)
    dataset = setup.open_dataset(recipe.dataset)
    if config.plan:
        from tangent_jax.commands.shared import plan  # it loads every trainer

        return plan.show(recipe, dataset, config.topology)

    # The model, and the images that it trains on.
    predict = setup.predictor(recipe, dataset.classes)
    anchors.check(config, predict)
    images = chosen_images(config, setup.train_images(config, dataset), dataset.name)
    counts = f"{len(images)} train, {len(dataset.test)} test, {len(dataset.classes)} classes"
    read = f"{config.weights} reads {' x '.join(map(str, predict.model.input_shape(0)))}"
    numbers = sum(leaf.size for leaf in trees.leaves(predict.w).values())
    print(f"{dataset.name}: {counts}", read, f"{predict.subset} of {numbers:,}", sep="\n", file=sys.stderr)

    # Their features below the trained blocks, while the training of a new run compiles.
    is_new = not checkpoints_in(config.path("out") / "checkpoints")
    with setup.compiling(config, recipe, predict, images, dataset.test) if is_new else nullcontext():
        train = setup.features(config, predict, images, "train inputs")
        test = setup.features(config, predict, dataset.test, "test inputs")

    # Training, from the last checkpoint if there is one.
    out = command.out_folder(config)
    measure = tj.metrics.Measure(predict, test)
    checkpoints = tj.Checkpoints(f"{command.out_place(config)}/checkpoints")
    with tj.show_progress(f"{config.method}-{config.blocks}"), phase("training"):
        fitted = recipe.fit(predict, train, on_step=measure, checkpoints=checkpoints)

    # The results.
    with phase("writing"):
        write(config, out, fitted, predict, train, recipe, dataset.classes)
        anchors.save(config, predict, fitted.dw, train.examples, dataset, "finetune")
    with phase("evaluation"):
        accuracy = tj.evaluate(predict, fitted.dw, test)
    steady = float(np.median([row["seconds"] for row in fitted.history]))  # of an epoch: the first one also compiles
    result = {
        "method": config.method,
        "learning_rate": config.lr,
        "loss": recipe.loss,
        "seed": config.seed,
        "blocks": recipe.blocks,
        "subset": predict.subset.name,
        "dataset": dataset.name,
        "accuracy": accuracy,
        "train_seconds": round(fitted.seconds, 3),
        "examples_per_second": round(len(train) / steady, 1),
        "trainable_parameters": predict.subset.size,
        "steps": fitted.steps,
        "skipped": train.skipped + test.skipped,
        "solver": config.solver,
        "anchor": config.save_anchor,
        # in NumPy, as trees.norm would compile a program for this one number
        "step_norm": float(np.linalg.norm([np.linalg.norm(leaf) for leaf in trees.leaves(fitted.dw).values()])),
        **(optimum_of(config, fitted) if recipe.is_optimum else {}),
        "run": fitted.run,
    }
    taken = seconds()
    print("seconds:", ", ".join(f"{name} {value:g}" for name, value in taken.items()), file=sys.stderr)
    command.finish(config, result, history=fitted.history, recipe=plain(recipe), phases=taken)
    is_asked = config.gave("certificate") or not config.gave("passes")
    if is_asked and result.get("certificate") is not None and not result["converged"]:
        raise InputError(
            f"--certificate must be reached in --passes; {config.certificate:g} was not: after {fitted.steps} passes "
            f"it is {result['certificate']:.3g}. The result is written. Raise --passes or --penalty, or pass --passes "
            "without --certificate"
        )


def check_flags(config: Config, recipe: tj.Recipe) -> None:
    """Raises InputError for incompatible flags, before any long work."""
    if config.factors and not recipe.is_linear:
        raise InputError("--factors needs --method=taft or fc, whose components factors weigh; got nlft")
    if recipe.is_optimum and not any(config.gave(name) for name in ("penalty", "certificate", "passes")):
        raise InputError(
            f"--penalty must be given with --solver=optimum: at its default of {config.penalty:g} no --certificate is "
            "reached. Try 0.1, or pass --passes without --certificate"
        )
    anchors.check_flags(config, recipe)


def chosen_images(config: Config, train: Examples, name: str) -> Examples:
    """The images of --images: a number or a share, by the seed, or those in a file; all without that flag."""
    images = config.images
    if images is None:
        return train
    try:
        number = float(images)
    except ValueError:
        return train.take(rows_in_file(images, train, name))
    count = number * len(train) if 0 < number < 1 else number
    if not 0.5 < count <= len(train) or (number >= 1 and not number.is_integer()):
        raise InputError(
            f"--images must be a number of the {len(train)} images, a share below 1, or a file; got {images}"
        )
    order = np.random.default_rng([config.seed, 10]).permutation(len(train))
    return train.take(np.sort(order[: round(count)]))


def rows_in_file(file: str, train: Examples, name: str) -> np.ndarray:
    """The rows of the images in the file of --images, by identifier or name."""
    lines = setup.read_words("images", file)
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(zip(train.identifiers(), train.names, strict=True)):
        for word in {pair[0], normal_name(pair[1])}:
            rows.setdefault(word, []).append(row)
    chosen: set[int] = set()
    missing = []
    for word in lines:
        form = next((form for form in (normal_name(word), *other_spellings(word)) if form in rows), None)
        if form is None:
            missing.append(word)
        else:
            chosen.update(rows[form])
    if missing:
        several = f"{len(missing)} of its {len(lines)} lines, such as {missing[0]}"
        raise InputError(f"{file} must name training images of {name}, one a line; {several}, name none")
    return np.array(sorted(chosen))


def write(
    config: Config,
    out: Path,
    fitted: tj.Fitted,
    predict: tj.Predictor,
    train: tj.Features,
    recipe: tj.Recipe,
    classes: tuple[str, ...],
) -> None:
    """Writes the tangent weights with their provenance to a folder, and their factors with --factors."""
    if config.factors:
        curvature = tj.solver.make_curvature(predict, train, recipe.objective, fitted.dw)
        tj.store.write_factors(out / "factors.safetensors", curvature)
    folders = (command.out_place(config),)
    origin = tj.store.make_provenance(predict, recipe, classes)
    origin = origin.trained_on(train, fitted.seconds, folders, run=fitted.run, certificate=certificate_of(fitted))
    tj.store.write_component(out / "dw.safetensors", fitted.dw, {"provenance": origin.to_json()})


def optimum_of(config: Config, fitted: tj.Fitted) -> dict[str, Any]:
    """Returns {"certificate", "converged", "passes"} of a solution."""
    certificate = certificate_of(fitted)
    converged = certificate is not None and certificate <= config.certificate
    return {"certificate": certificate, "converged": converged, "passes": fitted.steps}


if __name__ == "__main__":
    command.run(main, Config, processes=True, to_url=True)

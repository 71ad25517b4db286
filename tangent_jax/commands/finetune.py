"""Fine-tunes a pre-trained ViT on a folder of photographs: tangent (TAFT), non-linear (NLFT) or head alone (FC).

--out receives result.json, checkpoints, and dw.safetensors (the tangent weights with their provenance).
With --solver=optimum a --certificate that is not reached in --passes ends with exit code 1, after all is written;
--passes without --certificate asks for the passes alone. It needs --penalty, --certificate or --passes.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import anchors, command, plan, setup
from tangent_jax.commands.shared.flags import CACHED, COMPUTE, JOB, MODEL, OPTIMUM, TRAINING, F, define, path_of
from tangent_jax.commands.shared.phases import phase, seconds
from tangent_jax.commands.shared.table import SHARE
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.checkpoints import checkpoints_in
from tangent_jax.io.records import plain
from tangent_jax.solver.optimum import certificate_of

define(*MODEL, *CACHED, *COMPUTE, *TRAINING, "dataset", "method", "subset")
define("blocks", "rank", "radius", "lr", "reset", "new_class_token", "head", "seed", *OPTIMUM, *JOB, out="out/finetune")
define("factors", "save_anchor", "leave_out_anchor_images", images=SHARE, store=None)


def main() -> None:
    recipe = setup.recipe()
    if F.factors and not recipe.trained.is_linear:
        raise InputError("--factors needs --method=taft or fc, whose components factors weigh; got nlft")
    if recipe.is_optimum and not any(F[name].present for name in ("penalty", "certificate", "passes")):
        raise InputError(
            f"--penalty must be given with --solver=optimum: at its default of {F.penalty:g} no --certificate is "
            "reached. Try 0.1, or pass --passes without --certificate"
        )
    anchors.check_flags(recipe)
    dataset = setup.open_dataset(recipe.dataset)
    if F.plan:
        return plan.show(recipe, dataset)
    predict = setup.predictor(recipe, dataset.classes)
    anchors.check(predict)
    images = anchors.images_of(dataset)
    counts = f"{len(images)} train, {len(dataset.test)} test, {len(dataset.classes)} classes"
    read = f"{F.weights} reads {' x '.join(map(str, predict.model.input_shape(0)))}"
    numbers = sum(leaf.size for leaf in trees.leaves(predict.w).values())
    trained = f"{predict.subset} of {numbers:,}"
    print(f"{dataset.name}: {counts}", read, trained, sep="\n", file=sys.stderr)
    is_new = not checkpoints_in(path_of("out") / "checkpoints")  # a finished run compiles no training
    with setup.compiling(recipe, predict, images, dataset.test) if is_new else nullcontext():
        train = setup.features(predict, images, "train inputs")
        test = setup.features(predict, dataset.test, "test inputs")
    out = command.out_folder()
    measure = tj.metrics.Measure(predict, test)
    checkpoints = tj.Checkpoints(f"{command.out_place()}/checkpoints")
    with tj.show_progress(f"{F.method}-{F.blocks}"), phase("training"):
        fitted = recipe.fit(predict, train, on_step=measure, checkpoints=checkpoints)
    with phase("writing"):
        write(out, fitted, predict, train, recipe, dataset.classes)
        anchors.save(predict, fitted.dw, train.examples, dataset, "finetune")
    with phase("evaluation"):
        accuracy = tj.evaluate(predict, fitted.dw, test)
    steady = float(np.median([row["seconds"] for row in fitted.history]))  # of an epoch: the first one also compiles
    result = {
        "method": F.method,
        "learning_rate": F.lr,
        "loss": recipe.settings["loss"],
        "seed": F.seed,
        "blocks": recipe.trained.leaves.blocks,
        "subset": predict.subset.name,
        "dataset": dataset.name,
        "accuracy": accuracy,
        "train_seconds": round(fitted.seconds, 3),
        "examples_per_second": round(len(train) / steady, 1),
        "trainable_parameters": predict.subset.size,
        "steps": fitted.steps,
        "skipped": train.skipped + test.skipped,
        "solver": F.solver,
        "anchor": F.save_anchor,
        "step_norm": float(trees.norm(fitted.dw)),
        "seconds": round(fitted.seconds, 3),
        **(optimum_of(fitted) if recipe.is_optimum else {}),
        "run": fitted.run,
    }
    taken = seconds()
    print("seconds:", ", ".join(f"{name} {value:g}" for name, value in taken.items()), file=sys.stderr)
    command.finish(result, history=fitted.history, recipe=plain(recipe), phases=taken)
    is_asked = F["certificate"].present or not F["passes"].present
    if is_asked and result.get("certificate") is not None and not result["converged"]:
        raise InputError(
            f"--certificate must be reached in --passes; {F.certificate:g} was not: after {fitted.steps} passes "
            f"it is {result['certificate']:.3g}. The result is written. Raise --passes or --penalty, or pass --passes "
            "without --certificate"
        )


def write(
    out: Path, fitted: tj.Fitted, predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe, classes: tuple[str, ...]
) -> None:
    """Writes the tangent weights with their provenance to a folder, and their factors with --factors."""
    if F.factors:
        curvature = tj.solver.make_curvature(predict, train, recipe.objective, fitted.dw)
        tj.store.write_factors(out / "factors.safetensors", curvature)
    folders = (command.out_place(),)
    origin = tj.store.make_provenance(predict, recipe, classes)
    origin = origin.trained_on(train, fitted.seconds, folders, run=fitted.run, certificate=certificate_of(fitted))
    tj.store.write_component(out / "dw.safetensors", fitted.dw, {"provenance": origin.to_json()})


def optimum_of(fitted: tj.Fitted) -> dict[str, Any]:
    """Returns {"certificate", "converged", "passes"} of a solution."""
    certificate = certificate_of(fitted)
    converged = certificate is not None and certificate <= F.certificate
    return {"certificate": certificate, "converged": converged, "passes": fitted.steps}


if __name__ == "__main__":
    command.run(main, processes=True, to_url=True)

"""Fine-tunes a pre-trained ViT on a folder of photographs: tangent (TAFT), non-linear (NLFT) or head alone (FC)."""

import sys
from pathlib import Path

from absl import flags
from safetensors.flax import save_file

from experiments import binary, common, pictures
from tangent_jax import trees, weights
from tangent_jax.data.sources import open_dataset
from tangent_jax.files import write_whole
from tangent_jax.provenance import make_provenance
from tangent_jax.subsets import KINDS

DATASET = flags.DEFINE_string(
    "dataset",
    "digits",
    "digits, folder:PATH (class sub-folders or a zip), tfds:NAME[@DATA_DIR], or "
    "caltech256|mit67|aircraft|cub200|cars|dogs|pets:PATH.",
)
METHOD = flags.DEFINE_enum("method", "taft", ["taft", "nlft", "fc"], "Tangent, non-linear, or the head alone.")
BLOCKS = flags.DEFINE_integer(
    "blocks", 1, "How many of the last blocks are trained (0: the head alone).", lower_bound=0
)
SUBSET = flags.DEFINE_enum(
    "subset", "blocks", KINDS, "Which leaves of those blocks: all, biases, layer norms; or head, everything."
)
RATE = flags.DEFINE_float("lr", 1e-3, "Learning rate of Adam.", lower_bound=0.0)
RESET = flags.DEFINE_bool("reset", False, "Re-initialise the trained blocks, norm and head before linearising (PT=F).")
TOKEN = flags.DEFINE_bool("new_class_token", False, "A new class token at the first trained block (CLS=T).")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the new head, of what is reset and of the order of examples.")
OUT = flags.DEFINE_string(
    "out", "out/finetune", "Folder for result.json, curves.png, dw.safetensors, provenance.json, checkpoints."
)


def main() -> None:
    choice = common.Choice(METHOD.value, SUBSET.value, BLOCKS.value, RESET.value, TOKEN.value, RATE.value)
    settings = common.settings_of(RATE.value)
    pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
    dataset = open_dataset(DATASET.value)
    test = common.test_split(dataset)
    task = common.prepare(pretrained, len(dataset.classes), choice, SEED.value)
    print(
        f"{dataset.name}: {len(dataset.splits['train'])} train, {len(test)} test, {len(dataset.classes)} classes",
        task.subset,
        sep="\n",
        file=sys.stderr,
    )
    train_set = task.inputs(dataset.splits["train"], "train inputs")
    test_set = task.inputs(test, "test inputs")
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    fitted = common.train(
        task,
        train_set,
        settings,
        SEED.value,
        evaluation=test_set,
        checkpoints=out / "checkpoints",
        title=f"{METHOD.value}-{BLOCKS.value}",
    )
    save_file(trees.leaves(fitted.dw), out / "dw.safetensors", {"subset": task.subset.name})
    recipe = common.recipe(task, DATASET.value, choice, settings, SEED.value, [SEED.value, 1])
    config, w = task.model.config, task.model.params
    made = make_provenance(config, w, task.subset, train_set.examples, recipe, fitted.seconds, task.predict.method)
    write_whole(out / "provenance.json", made.to_json())
    pictures.history(out / "curves.png", fitted.history, f"{METHOD.value} {task.subset.name} on {dataset.name}")
    result = {
        "method": METHOD.value,
        "blocks": 0 if METHOD.value == "fc" else BLOCKS.value,
        "subset": task.subset.name,
        "dataset": dataset.name,
        "accuracy": fitted.history[-1]["test_accuracy"],
        "train_seconds": round(fitted.seconds, 3),
        "examples_per_second": round(fitted.examples_per_second, 1),
        "trainable_parameters": task.subset.size,
        "steps": fitted.steps,
        "learning_rate": RATE.value,
        "loss": settings.loss,
        "seed": SEED.value,
        "skipped": train_set.skipped + test_set.skipped,
    }
    binary.finish(out, result, history=fitted.history)


if __name__ == "__main__":
    binary.run(main)

"""Makes the tables' data sets from their publishers' archives, or checks a zip of one.

python -m experiments.data NAME --source=FOLDER --to=NAME.zip

NAME, and the folder of an archive that you fetched and unpacked (docs/benchmarks.md has the addresses):

cub50               CUB_200_2011: images.txt, images/ ...: its first 50 classes
textures10          dtd: images/banded/ ...: its first ten textures
gtsrb43             GTSRB_Final_Training_Images: GTSRB/Final_Training/Images/00000/ ...: 36 images of each sign
mnist10             train-images-idx3-ubyte.gz and the three beside it: 120 of each digit
clothing10          clothing-dataset-small, a checkout: train/, validation/, test/
imagenet_sample1000 imagenet-sample-images, a checkout: one photograph of each class

Without --source it checks the zip --to. It fetches nothing. The last line of stdout is the agreement with the zip that
the tables were measured on: {"same": "bytes" | "pixels" | "names"}; names are classes, splits and images, in order.
Photographs are encoded again, so a zip made here agrees in names, for MNIST also in pixels.
"""

import json
import sys
from pathlib import Path

import tangent_jax as tj
from experiments.shared.recipes import RECIPES, agreement, as_zip, chosen_of
from experiments.shared.table import define
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F, path_of
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.progress import check_stop, progress_bar

define("source", "to")
WORDS = {
    "bytes": "the images of the tables, byte for byte",
    "pixels": "the images of the tables, pixel for pixel",
    "names": "the images of the tables by class, split and name; their bytes are of another encoding",
}


def make_zip(name: str, folder: Path) -> bytes:
    """The bytes of the zip of a recipe, with a progress bar."""
    images = []
    with tj.show_progress(name), progress_bar(None, "image") as bar:
        for image in RECIPES[name].make(folder, chosen_of(name)):
            images.append(image)
            bar.update()
            check_stop()
    return as_zip(images)


def main(name: str) -> None:
    recipe = RECIPES[name]
    path = path_of("to") if F.to else Path(f"{name}.zip")
    if F.source and path.exists():
        raise InputError(f"--to must be a zip that does not exist yet; got {path}. Choose another")
    if not F.source and not path.is_file():
        raise InputError(
            f"--source=FOLDER must be given, or --to a zip to check; there is no {path}. Unpack {recipe.archive}"
        )
    content = make_zip(name, path_of("source")) if F.source else path.read_bytes()
    same, counts = agreement(recipe, content, path)
    if F.source:
        write_whole(path, content)
    print(f"{path}: {WORDS[same]}", file=sys.stderr)
    print(json.dumps({"data": name, "file": str(path), "images": counts, "same": same}))


if __name__ == "__main__":
    command.run(main, commands=RECIPES)

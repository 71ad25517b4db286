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
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F, define
from tangent_jax.core.checks import require
from tangent_jax.io.files import expand_path, write_whole
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
    recipe, path = RECIPES[name], expand_path(F.to or f"{name}.zip")
    require(not (F.source and path.exists()), "data", "--to of a zip that does not exist yet", path, "Choose another")
    do = f"Unpack {recipe.archive}"
    require(F.source or path.is_file(), "data", "--source=FOLDER, or a zip to check", f"no {path}", do)
    content = make_zip(name, expand_path(F.source)) if F.source else path.read_bytes()
    same, counts = agreement(recipe, content, path)
    if F.source:
        write_whole(path, content)
    print(f"{path}: {WORDS[same]}", file=sys.stderr)
    print(json.dumps({"data": name, "file": str(path), "images": counts, "same": same}))


if __name__ == "__main__":
    command.run(main, commands=RECIPES)

"""Makes data sets from their publishers' archives, or checks a zip of one of the tables.

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

NAME may also be an official archive of the paper: caltech256, mit67, aircraft, cub200, cars, dogs, pets, or dtd1 to
dtd10 (DTD by one of its ten splits). Then a CSV of its images by their official split is written, by default
FOLDER/NAME.csv, which commands read as --dataset=csv:FOLDER/NAME.csv.
"""

import dataclasses
import json
import sys
from pathlib import Path

import tangent_jax as tj
from experiments.shared.archives import ARCHIVES, table_of
from experiments.shared.recipes import RECIPES, agreement, as_zip, chosen_of
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Settings
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.progress import check_stop, progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The flags."""

    source: str | None = None
    to: str | None = None


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


def write_table(config: Config, name: str) -> None:
    """Writes the CSV of an official archive's images."""
    if not config.source:
        raise InputError(f"--source=FOLDER must be given, where the official archive of {name} is unpacked; got none")
    source = config.path("source")
    path = config.path("to") if config.to else source / f"{name}.csv"
    if path.exists() or not source.absolute().is_relative_to(path.parent.absolute()):
        raise InputError(f"--to must be a CSV that does not exist yet, in --source or a folder above it; got {path}")
    text, counts = table_of(name, source, path.parent)
    write_whole(path, text)
    print(f"{path}: --dataset=csv:{path}", file=sys.stderr)
    print(json.dumps({"data": name, "file": str(path), "images": counts}))


def main(config: Config, name: str) -> None:
    if name in ARCHIVES:
        return write_table(config, name)
    recipe = RECIPES[name]
    path = config.path("to") if config.to else Path(f"{name}.zip")
    if config.source and path.exists():
        raise InputError(f"--to must be a zip that does not exist yet; got {path}. Choose another")
    if not config.source and not path.is_file():
        raise InputError(
            f"--source=FOLDER must be given, or --to a zip to check; there is no {path}. Unpack {recipe.archive}"
        )
    content = make_zip(name, config.path("source")) if config.source else path.read_bytes()
    same, counts = agreement(recipe, content, path)
    if config.source:
        write_whole(path, content)
    print(f"{path}: {WORDS[same]}", file=sys.stderr)
    print(json.dumps({"data": name, "file": str(path), "images": counts, "same": same}))


if __name__ == "__main__":
    command.run(main, Config, commands=[*RECIPES, *ARCHIVES])

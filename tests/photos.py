"""Small photographs on disk and in zips."""

import io
import zipfile

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def picture(size=(12, 10), suffix="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (*size[::-1], 3), np.uint8)).save(buffer, suffix)
    return buffer.getvalue()


def write(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())


def summary(dataset):
    return {
        split: list(zip(examples.names, examples.labels.tolist(), strict=True))
        for split, examples in dataset.splits.items()
    }


def as_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def photographs(root, count=6, classes=("cat", "dog")):
    """A folder with train and test, its classes told apart by their brightness."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                image = np.clip(rng.normal(80 + 90 * label, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(image).save(root / split / name / f"{i}.png")
    return root

"""A tiny TensorFlow Datasets set, prepared as array_record without TensorFlow, in the folders of TFDS."""

import functools
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def picture(i):
    """An encoded picture of a kind that TFDS decodes otherwise than viewers: palette, 16 bits, EXIF, 1 bit."""
    ramp = np.arange(72).reshape(8, 9)
    grey = Image.fromarray((3 * ramp + i).astype(np.uint8))
    turn = Image.Exif()
    turn[0x112] = 6
    kinds = (
        (grey.quantize(16), "PNG", {}),
        (Image.fromarray((900 * ramp).astype(np.uint16)), "PNG", {}),
        (grey.convert("RGB"), "JPEG", {"exif": turn}),
        (Image.fromarray(ramp % 2 == 0), "PNG", {}),
    )
    image, form, options = kinds[i]
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@functools.cache
def prepared():
    """The folder of a version of `tiny`: an image, a class, a second class, a number and a list of labels."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=["cat", "dog", "hen"]),
                "kind": tfds.features.ClassLabel(num_classes=2),
                "number": tfds.features.Scalar(np.int64),
                "tags": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=2)),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(4), "test": self._generate_examples(2)}

        def _generate_examples(self, count):
            for i in range(count):
                row = {"image": io.BytesIO(picture(i)), "label": ["cat", "dog"][i % 2], "kind": (i + 1) % 2}
                yield i, row | {"number": 5 * (i % 2), "tags": [0, 1]}

    root = Path(tempfile.mkdtemp())
    Tiny(data_dir=root, file_format="array_record").download_and_prepare()
    return root / "tiny/1.0.0"


def place(root, where, **fields):
    """Copies the prepared version to root/where, whose dataset_info.json has other `fields`; returns its folder."""
    folder = root / where
    shutil.copytree(prepared(), folder)
    path = folder / "dataset_info.json"
    info = json.loads(path.read_text()) | {"version": folder.name} | fields
    path.write_text(json.dumps({key: value for key, value in info.items() if value is not None}))
    return folder

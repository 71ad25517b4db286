"""TensorFlow Datasets prepared as array_record, read without TensorFlow.

    tfds:NAME[/CONFIG][:VERSION][@DATA_DIR][?image=FEATURE&label=FEATURE&group=FEATURE]

    DATA_DIR/NAME/CONFIG/VERSION/dataset_info.json      a data set with configurations
    DATA_DIR/NAME/VERSION/dataset_info.json             one without

Names and versions mean what `tfds.load` makes of them: without a version the highest one, compared by numbers (10.0.0
after 2.0.0); `1.*.*` is the highest that fits; without a configuration the default that NAME/.config/metadata.json
states. Without DATA_DIR, TFDS's own folder is read. An image is named SPLIT/ROW.

Images are read as the encoded bytes that TFDS stores, the files' own, and decoded like those of a folder: what TFDS
decodes depends on which packages are installed (palettes as numbers, the lower byte of 16 bits, no EXIF).
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.data.columns import Column, as_groups, choose, classes_beside, options
from tangent_jax.data.left_out import note
from tangent_jax.data.rows import Rows
from tangent_jax.io.files import expand_path
from tangent_jax.io.packages import import_extra
from tangent_jax.io.records import first_names, parse_json

TFDS_CLASSES = "tensorflow_datasets."
NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(/(?P<config>[\w+.-]+))?(:(?P<version>(\d+|\*)(\.(\d+|\*)){2}))?")
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


def tfds(where: str) -> Rows:
    """The rows of a TFDS data set in array_record format, by its random-access data sources."""
    package = import_extra("tfds:", "tensorflow_datasets", "data")
    text, chosen = options(where, "tfds:NAME@DATA_DIR", ("image", "label", "group"))
    name, _, data_dir = text.partition("@")
    folder = version_folder(name, data_dir)
    check_features(folder / "features.json")
    check_format(folder)
    try:
        return rows_of(package, folder, name, chosen)
    except InputError:
        raise
    except Exception as error:  # TFDS raises many kinds of errors
        detail = [*str(error).strip().splitlines(), ""][0]
        raise InputError(
            f"the TFDS data set in {folder} must be whole; TFDS says {type(error).__name__}: {detail}. Prepare it again"
        ) from error


def rows_of(package: Any, folder: Path, name: str, chosen: Mapping[str, str]) -> Rows:
    """The rows of a version of a data set; images are not decoded by TFDS."""
    builder: Any = package.builder_from_directory(folder)
    features = dict(builder.info.features)
    supervised = {key for key in builder.info.supervised_keys or () if isinstance(key, str) and key in features}
    stated = supervised or {"image", "label"} & features.keys()
    columns = [column_of(package, feature, title, stated) for title, feature in features.items()]
    labels = [column for _, column in columns]
    image = choose("image", chosen, [column for column, _ in columns], folder)
    label = choose("label", chosen, labels, folder)
    group = choose("group", chosen, labels, folder) if "group" in chosen else None
    encoded = {image: package.decode.SkipDecoding()}
    sources = {split: builder.as_data_source(split, decoders=encoded) for split in builder.info.splits}
    places = [(split, i) for split, source in sources.items() for i in range(len(source))]
    is_listed = isinstance(features[label], package.features.ClassLabel)
    return Rows(
        name,
        folder,
        [f"{split}/{i}" for split, i in places],
        [split for split, _ in places],
        [plain(sources[split][i][label]) for split, i in places],
        partial(read_record, sources, places, image),
        classes=[title.strip() for title in features[label].names] if is_listed else classes_beside(folder),
        groups=None if group is None else as_groups([plain(sources[split][i][group]) for split, i in places]),
    )


# Folders


def version_folder(text: str, data_dir: str) -> Path:
    """The folder of the version that a name means; notes what was chosen of several.

    Raises:
        InputError: It lists the existing versions, if the name means none of them.
    """
    match = NAME.fullmatch(text)
    if match is None:
        raise InputError(
            "a TFDS name is NAME, NAME/CONFIG or NAME/CONFIG:VERSION, such as mini/160px-v2:1.0.0 or mini:1.*.*;"
            f" got {text}"
        )
    root = expand_path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", match["name"]).lower()
    home = root / name
    place = home / (match["config"] or default_config(home))
    wanted = match["version"]
    fitting = [version for version in versions_in(place) if wanted is None or fits(version, wanted)]
    if not fitting:
        found = [
            str(path.parent.relative_to(root))
            for path in sorted({*root.glob("*/*/dataset_info.json"), *root.glob("*/*/*/dataset_info.json")})
        ]
        raise InputError(
            f"the TFDS data set {text} must be prepared in {root}; {first_names(found) or 'none'} is there. Name one,"
            f" or prepare it where TensorFlow is installed: tfds build {name} --file_format=array_record"
        )
    if len(fitting) > 1:
        note(f"read the highest of the versions {', '.join(fitting)} of {name}")
    return place / fitting[-1]


def default_config(home: Path) -> str:
    """The configuration that a data set states as its default, or its only one, with a remark; "" if it has none."""
    metadata = home / ".config/metadata.json"
    configs = sorted(path.name for path in home.iterdir() if versions_in(path)) if home.is_dir() else []
    if versions_in(home) or not configs:
        return ""
    default = parse_json(metadata.read_bytes(), metadata) if metadata.is_file() else {}
    chosen = default.get("default_config_name", configs[0] if len(configs) == 1 else None)
    if chosen not in configs:
        return ""
    if len(configs) > 1:
        note(f"read the configuration {chosen}, the default of {home.name}, of {first_names(configs)}")
    return chosen


def versions_in(folder: Path) -> list[str]:
    """The versions below a folder, in the order of their numbers."""
    inner = folder.iterdir() if folder.is_dir() else ()
    names = [path.name for path in inner if VERSION.fullmatch(path.name) and (path / "dataset_info.json").is_file()]
    return sorted(names, key=lambda name: [*map(int, name.split("."))])


def fits(version: str, wanted: str) -> bool:
    """True for a version that a pattern such as 1.*.* means."""
    pairs = zip(version.split("."), wanted.split("."), strict=True)
    return all(pattern in ("*", number) for number, pattern in pairs)


def check_format(folder: Path) -> None:
    """Raises InputError for a data set that is prepared in a format which only TensorFlow reads."""
    path = folder / "dataset_info.json"
    info = parse_json(path.read_bytes(), path)
    others = info.get("alternativeFileFormats")
    formats = [info.get("fileFormat", "tfrecord"), *(others if isinstance(others, list) else [])]
    if "array_record" not in formats:
        raise InputError(
            f"a TFDS data set must be prepared as array_record; {folder} is {' and '.join(map(str, formats))}, which"
            " only TensorFlow reads. This adds array_record to it (with tensorflow and apache-beam installed):"
            f" python -m tensorflow_datasets.scripts.convert_format --dataset_version_dir={folder}"
            " --out_file_format=array_record"
        )


def check_features(path: Path) -> None:
    """Raises InputError for a features.json with classes that are not TFDS's own.

    TFDS imports, and so runs, any module that a data set names.
    """

    def walk(value: Any) -> None:
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if key in ("pythonClassName", "python_class_name", "type", "proto_cls") and isinstance(entry, str):
                is_own = entry.startswith(TFDS_CLASSES) or "." not in entry
                if not is_own:
                    raise InputError(
                        f"features of {path} must be of classes {TFDS_CLASSES}*; got {entry}. Read it by TFDS yourself"
                        " if you trust it"
                    )
            if isinstance(entry, (dict, list)):
                walk(entry)

    walk(parse_json(path.read_bytes(), path) if path.is_file() else {})


# Features


def column_of(package: Any, feature: Any, name: str, stated: set[str]) -> tuple[Column, Column]:
    """A feature as a column of images, and as a column of labels; `stated`: the names that the data set prefers."""
    kinds = package.features
    holds = type(feature).__name__
    is_tensor = type(feature) in (kinds.Tensor, kinds.Scalar)
    if is_tensor:
        holds = (
            f"{np.dtype(feature.np_dtype).name} of shape {feature.shape}" if feature.shape else str(feature.np_dtype)
        )
    is_number = is_tensor and feature.shape == () and np.dtype(feature.np_dtype).kind in "biuf"
    is_class = isinstance(feature, kinds.ClassLabel)
    is_label = is_class or is_number or isinstance(feature, kinds.Text)
    is_image = isinstance(feature, kinds.Image)
    if is_image and np.dtype(feature.np_dtype).kind == "f":  # stored as the four bytes of each number
        holds, is_image = f"Image of {np.dtype(feature.np_dtype).name}, whose range is not stated", False
    return Column(name, holds, is_image, name in stated), Column(name, holds, is_label, name in stated)


def plain(value: Any) -> Any:
    """A label of TFDS as Python has it: a number, a Boolean or a text."""
    value = value.item() if hasattr(value, "item") else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def read_record(sources: Mapping[str, Any], places: Sequence[tuple[str, int]], image: str, i: int) -> bytes:
    """The encoded image of row i, of TFDS sources that do not decode images; places: the split and record of a row."""
    split, record = places[i]
    return bytes(sources[split][record][image])

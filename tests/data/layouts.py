"""Small data sets in every format: the same rows (FORMATS), and files in the layouts of other libraries."""

import io
import json
import re
import tarfile
from collections import namedtuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from photos import as_zip, picture

from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset

IMAGE, CLASSES = {"_type": "Image"}, ["cat", "dog"]
FEATURES = {"image": IMAGE, "label": {"names": CLASSES, "_type": "ClassLabel"}}


def as_table(columns, features=FEATURES):
    """A table of these columns; bytes are images with paths, as the datasets library keeps them."""
    arrays = {
        name: pa.array(
            [None if v is None else {"bytes": v, "path": f"{i}.png"} for i, v in enumerate(values)],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
        if features and features.get(name) == IMAGE
        else pa.array(values)
        for name, values in columns.items()
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    return pa.table(arrays).replace_schema_metadata(metadata)


def as_parquet(path, columns, features=FEATURES, rows=2):
    """Writes a parquet file with row groups of two rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(as_table(columns, features), path, row_group_size=rows)
    return path


def as_saved(folder, columns, features=FEATURES):
    """Writes a folder as `save_to_disk` does, in two record batches, with a file that belongs to nobody beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = as_table(columns, features)
    for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return folder


def as_tar(path, members):
    """Writes a tar of (name, bytes), or of TarInfo for what is no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return path


def refusal(spec):
    """The one line by which a specification is refused."""
    with pytest.raises(InputError) as error:
        open_dataset(str(spec))
    assert "\n" not in str(error.value)
    return str(error.value)


def refused(spec, match):
    """Asserts that a specification is refused in one line that says this."""
    words = refusal(spec)
    assert re.search(match, words), words


# One data set in every format

Row = namedtuple("Row", "split label image group", defaults=("p",))
"""An image of a data set: its split and class by name (None: no label), its bytes, and its group."""


def by_path(rows):
    """The images by the names that class folders give them: SPLIT/CLASS/GROUP_NUMBER.png."""
    return {f"{row.split}/{row.label}/{row.group}_{i}.png": row.image for i, row in enumerate(rows)}


def write_folder(root, rows):
    for name, image in by_path(rows).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(image)
    return f"folder:{root}"


def write_zip(root, rows):
    return f"folder:{as_zip(root / 'set.zip', by_path(rows))}"


def write_manifest(root, rows):
    classes = sorted({row.label for row in rows})
    items = [[name, row.split, classes.index(row.label)] for name, row in zip(by_path(rows), rows, strict=True)]
    manifest = json.dumps({"classes": classes, "items": items})
    return f"folder:{as_zip(root / 'set.zip', by_path(rows) | {'manifest.json': manifest})}"


def write_csv(root, rows):
    lines = [f"{i}.png,{row.label or ''},{row.split},{row.group}" for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        (root / f"{i}.png").write_bytes(row.image)
    (root / "set.csv").write_text("\n".join(["path,label,split,who", *lines]))
    return f"csv:{root}/set.csv"


def write_json_lines(root, rows):
    cells = [
        {"path": f"./{i}.png", "label": row.label, "split": row.split, "who": row.group} for i, row in enumerate(rows)
    ]
    for i, row in enumerate(rows):
        (root / f"{i}.png").write_bytes(row.image)
    (root / "set.jsonl").write_text("".join(f"{json.dumps(cell)}\n" for cell in cells))
    return f"csv:{root}/set.jsonl"


def columns_by_split(rows):
    """(split, columns, features) of the rows of each split, as a table has them."""
    classes = sorted({row.label for row in rows if row.label})
    for split in dict.fromkeys(row.split for row in rows):
        own = [row for row in rows if row.split == split]
        labels = [None if row.label is None else classes.index(row.label) for row in own]
        columns = {"image": [row.image for row in own], "label": labels, "who": [row.group for row in own]}
        yield split, columns, FEATURES | {"label": {"names": classes, "_type": "ClassLabel"}}


def write_parquet(root, rows):
    for split, columns, features in columns_by_split(rows):
        as_parquet(root / f"data/{split}-00000-of-00001.parquet", columns, features)
    return f"hf:{root}"


def write_partitions(root, rows):
    """As pandas and Spark write them: the columns of split and label are folders."""
    for place in dict.fromkeys((row.split, row.label) for row in rows):
        own = [row for row in rows if (row.split, row.label) == place]
        label = quote(place[1], safe="") if place[1] else "__HIVE_DEFAULT_PARTITION__"
        columns = {"image": [row.image for row in own], "who": [row.group for row in own], "width": [8] * len(own)}
        as_parquet(root / f"split={quote(place[0])}/label={label}/0.parquet", columns, {"image": IMAGE})
    return f"hf:{root}"


def write_arrow(root, rows):
    for split, columns, features in columns_by_split(rows):
        as_saved(root / split, columns, features)
    return f"hf:{root}"


def write_tars(root, rows):
    for split in {row.split for row in rows}:
        members = []
        for i, row in enumerate(rows):
            fields = json.dumps({"cls": row.label, "who": row.group}).encode()
            members += [(f"{i}.png", row.image), (f"{i}.json", fields)] if row.split == split else []
        as_tar(root / f"{split}-000000.tar", members)
    return f"wds:{root}"


NAMED = {"folder": write_folder, "zip": write_zip, "manifest": write_manifest}
TABLES = {
    "csv": write_csv,
    "json lines": write_json_lines,
    "parquet": write_parquet,
    "partitions": write_partitions,
    "arrow": write_arrow,
    "tars": write_tars,
}
FORMATS = NAMED | TABLES
"""The specification of rows that are written below a folder, by format; add a format here. NAMED: its names say all."""

ROWS = [Row("train" if i < 8 else "test", ("cat", "dog")[i % 2], picture(), f"p{i // 4}") for i in range(12)]


def contents(dataset):
    """The class of each image, by split."""
    return {
        split: {part.read(i): dataset.classes[label] for i, label in enumerate(part.labels)}
        for split, part in dataset.splits.items()
    }


def of_split(rows, split):
    """The class of each image of the rows of a split."""
    return {row.image: row.label for row in rows if row.split == split}

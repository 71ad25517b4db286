"""Small data sets in the layouts of other libraries: parquet, arrow, tars, CSV."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


def refused(spec, match):
    """Asserts that a specification is refused in one line."""
    with pytest.raises(InputError, match=match) as error:
        open_dataset(str(spec))
    assert "\n" not in str(error.value)

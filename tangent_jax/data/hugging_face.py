"""Hugging Face data sets on disk: parquet in the hub's layout, and arrow files of `save_to_disk`.

    PATH.parquet                                    one file
    data/train-00000-of-00002.parquet, ...          a split in the name of each file or of a folder around it;
    train/0000.parquet, test/0000.parquet           below PATH, or below a folder of it
    train/data-00000-of-00001.arrow, state.json     a saved DatasetDict, or a saved Dataset; state.json names its files
    split=train/label=cat/0.parquet                 partitions, as of Spark, pandas and DuckDB: folders are columns

Images are a column of the Image feature (bytes and path) or of bytes; labels are ClassLabel, whole numbers or text. The
datasets library writes the features into the metadata of the files' schema, under "huggingface", and into the YAML of
README.md. An image is named SPLIT/PATH, SPLIT/ROW without a path, or SPLIT/ROW/PATH if paths repeat.

Arrow files are memory-mapped. For parquet the row group of an image is read, and the last few stay in memory.
"""

import bisect
import functools
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name
from tangent_jax.data.columns import Column, as_groups, choose, classes_beside, options
from tangent_jax.data.layouts import is_hidden
from tangent_jax.data.left_out import note
from tangent_jax.data.rows import Rows
from tangent_jax.data.sources import check_size, existing_path
from tangent_jax.data.splits import SPELLINGS, by_split, split_of_flag, split_of_name
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.packages import import_extra
from tangent_jax.io.paths import Place, names_below, open_file, stamp_of
from tangent_jax.io.records import convert, parse_json, read_text

MOST_GROUP = 1 << 30  # the most bytes of images in a row group
GROUPS = 4  # row groups kept in memory
SHARD = re.compile(r"(?P<before>.*-)(?P<number>\d{5})-of-(?P<count>\d{5})(?P<hash>(-[0-9a-zA-Z]+)*)\.(parquet|arrow)")
NUMBERED = re.compile(r"(?P<before>)(?P<count>)(?P<number>\d{4})\.parquet")
LABELS = ("label", "labels", "class", "category", "target")
NULL = "__HIVE_DEFAULT_PARTITION__"
READING = threading.Lock()  # threads must not read one row group several times


def hugging_face(where: str) -> Rows:
    """The rows of parquet or arrow files."""
    name, chosen = options(where, "hf:PATH", ("image", "label", "group"))
    path = existing_path(name)
    root = path if path.is_dir() else path.parent
    files = data_files(path) if path.is_dir() else [path]
    relative = {file: str(file.relative_to(root)) for file in files}
    schemas = {file: without_folders(read_whole(file, schema_of), name) for file, name in relative.items()}
    first = files[0]
    places = {file: partition_of(name) for file, name in relative.items()}
    partitions = {file: columns for file, (columns, _) in places.items()}
    image, label, group = columns(schemas[first], partitions[first], chosen, first)
    check_schemas(path, schemas, partitions, [image, label] if group is None else [image, label, group])

    by_name = by_split(root, {file: name for file, (_, name) in places.items()}, series_of)
    names: list[str] = []
    splits: list[str] = []
    labels: list[Any] = []
    groups: list[Any] = []
    ends: list[int] = []
    for split, own in by_name.items():
        paths: list[str | None] = []
        for file in own:
            read = partial(labels_paths_groups, partition=partitions[file], image=image, label=label, group=group)
            own_labels, own_paths, own_groups = read_whole(file, read)
            labels.extend(own_labels)
            paths.extend(own_paths)
            groups.extend(own_groups)
            splits.extend([split or stated_split(file)] * len(own_paths))
            ends.append(len(labels))
        names.extend(names_of(split, paths))
    ordered = tuple(file for own in by_name.values() for file in own)
    return Rows(
        path.stem,
        path,
        names,
        splits,
        labels,
        partial(read_row, ordered, ends, image),
        partial(place_of, ordered, ends, image),
        class_names(schemas[first], label, first) or names_in_readme(root, first, label) or classes_beside(root),
        groups=None if group is None else as_groups(groups),
        row=partial(row_name, tuple(relative[file] for file in ordered), ends),
    )


def check_schemas(
    path: Place, schemas: Mapping[Place, Any], partitions: Mapping[Place, Mapping[str, Any]], used: Sequence[str]
) -> None:
    """Raises InputError unless all files have the columns, of the types and with the classes of the first file."""

    def described(file: Place) -> tuple:
        uses = {field.name: holds_of(field.type) for field in schemas[file] if field.name in used}
        return uses, class_names(schemas[file], used[1], file), {*partitions[file]}

    first, *others = schemas
    for file in others:
        if described(file) != described(first):
            raise InputError(
                f"all files of {path} must have {' and '.join(used)} of one type, and the same classes; {file} differs"
                f" from {first}"
            )


# Files


def partition_of(file: str) -> tuple[dict[str, str | None], str]:
    """(the columns that the folders KEY=VALUE of a file are, its name without them); a split stays in the name."""
    columns: dict[str, str | None] = {}
    folders = []
    for folder in file.split("/")[:-1]:
        key, mark, value = map(unquote, folder.partition("="))
        words = re.split(r"[\W\d_]+", caseless_name(key))
        is_split = split_of_name(value) if "split" in words else caseless_name(value) in SPELLINGS and key not in LABELS
        split = value if is_split else split_of_flag(key, value)
        if mark and not split:
            columns[key] = None if value == NULL else value
        else:
            folders.append(split or folder)
    return columns, "/".join([*folders, PurePath(file).name])


def without_folders(schema: Any, file: str) -> Any:
    """The schema without the columns that the folders KEY=VALUE of a file are: polars writes them into it, too."""
    keys = {unquote(folder.partition("=")[0]) for folder in file.split("/")[:-1] if "=" in folder}
    return arrow().schema([field for field in schema if field.name not in keys], schema.metadata)


def data_files(path: Any) -> list[Any]:
    """The parquet or arrow files below a folder, sorted; with a state.json, those that it names."""
    below = [path / name for name in names_below(path) if not is_hidden(name)]
    states = [file for file in below if file.name == "state.json"]
    saved = {state.parent for state in states}
    files = [file for file in below if file.suffix in (".parquet", ".arrow") and file.parent not in saved]
    files += [file for state in states for file in saved_files(state)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(f"{path} must hold all its files; {missing[0]} is missing. Fetch it again")
    check_series(files)
    if not files:
        raise InputError(f"{path} must hold parquet or arrow files; it holds none. folder:{path} opens images")
    kinds = {file.suffix for file in files}
    if len(kinds) > 1:
        raise InputError(f"{path} must hold one kind of files; it holds {' and '.join(sorted(kinds))}. Name one folder")
    return files


def saved_files(state: Any) -> list[Any]:
    """The files that the state.json of a saved Dataset names."""
    content = parse_json(state.read_bytes(), state)
    where = f"_data_files of {state}"
    entries = convert(tuple[dict[str, Any], ...], content.get("_data_files"), where)
    indices = [name for name, value in content.items() if name.startswith("_indices") and value]
    if indices:
        raise InputError(f"the rows of {state} must be in their order; got {indices[:1]}. Save the data set again")
    names = [convert(str, entry.get("filename"), where) for entry in entries]
    return [state.parent / PurePath(name).name for name in names]


def check_series(files: Sequence[Place]) -> None:
    """Raises InputError unless each numbered series has one file of each number.

    The datasets library writes NAME-00000-of-00002.parquet, also with a hash behind; the hub's conversion to parquet
    writes 0000.parquet, 0001.parquet.
    """
    series: dict[tuple[Place, str], list[tuple[int, int]]] = {}
    for file in files:
        match = SHARD.fullmatch(file.name) or NUMBERED.fullmatch(file.name)
        if match is not None:
            series.setdefault((file.parent, match["before"]), []).append(
                (int(match["number"]), int(match["count"] or 0))
            )
    for (folder, before), entries in series.items():
        numbers = sorted(number for number, _ in entries)
        counts = {count for _, count in entries}
        count = max(counts) or numbers[-1] + 1
        if len(counts) > 1 or numbers != [*range(count)]:
            raise InputError(
                f"{folder} must hold one file of each number of {before}0 to {count - 1}; it holds {numbers}. Fetch it"
                " again, or remove the files of an older upload"
            )


def series_of(name: str) -> str:
    """The name of the series of a file, without its number, hash and suffix."""
    match = SHARD.fullmatch(name)
    if match is not None:
        return match["before"].rstrip("-")
    return re.sub(r"[\W_]*[0-9]+$", "", re.sub(r"\.(parquet|arrow)$", "", name)) or name


def stated_split(file: Any) -> str:
    """The name that stands in the place of a split: before 00000-of-00002, or beside dataset_dict.json; else ""."""
    match = SHARD.fullmatch(file.name) if file.suffix == ".parquet" else None
    if match is not None:
        return match["before"].rstrip("-")
    return file.parent.name if (file.parent.parent / "dataset_dict.json").is_file() else ""


def arrow() -> Any:
    """The package pyarrow."""
    for part in ("compute", "parquet"):
        import_extra("hf:", f"pyarrow.{part}", "data")
    return import_extra("hf:", "pyarrow", "data")


def read_whole(file: Place, read: Any) -> Any:
    """Returns read(file); InputError for a damaged file."""
    try:
        return read(file)
    except InputError:
        raise
    except Exception as error:  # pyarrow raises many kinds of errors
        check_no_pointer(file)
        raise InputError(f"{file} must be whole; {type(error).__name__}: {error}. Fetch it again") from error


def schema_of(file: Place) -> Any:
    """The schema of a file."""
    if file.suffix != ".parquet":
        return map_file(file, stamp_of(file)).schema
    return arrow().parquet.read_schema(source_of(file))


def source_of(file: Place) -> Any:
    """A parquet file as pyarrow takes it: a path, or at a URL a file that is open."""
    return file if isinstance(file, Path) else open_file(file)


@functools.lru_cache(maxsize=1024)
def map_file(file: Place, stamp: tuple) -> Any:
    """The memory-mapped table of an arrow file, in the format of streams or of files."""
    package = arrow()
    if not isinstance(file, Path):
        raise InputError(
            f"files at a URL must be parquet; got {file}. Write it as parquet, or copy it to this machine: arrow files "
            "are mapped"
        )
    content = package.memory_map(str(file))
    check_no_pointer(file)
    if content.read(6) == b"ARROW1":
        content.seek(0)
        return package.ipc.open_file(content).read_all()
    is_whole = content.size() >= 8 and content.read_at(8, content.size() - 8) == b"\xff" * 4 + bytes(4)
    if not is_whole:
        raise InputError(f"{file} must be whole; it lacks its end. Fetch it again")
    content.seek(0)
    return package.ipc.open_stream(content).read_all()


@functools.lru_cache(maxsize=1024)
def map_column(file: Place, stamp: tuple, name: str) -> Any:
    """A column of an arrow file, after a check that its offsets lie inside."""
    column = map_file(file, stamp).column(name)
    column.validate(full=True)
    return column


# Columns


def features_of(schema: Any, file: Place) -> dict[str, dict]:
    """The datasets library's features by column, from the metadata of a schema; empty without them."""
    content = (schema.metadata or {}).get(b"huggingface", b"{}")
    info = parse_json(content, f"the huggingface metadata of {file}").get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return {n: f for n, f in features.items() if isinstance(f, dict)} if isinstance(features, dict) else {}


def class_names(schema: Any, label: str, file: Place) -> tuple[str, ...] | None:
    """The class names of a column of labels, None if the file has none."""
    names = features_of(schema, file).get(label, {}).get("names")
    if names is None:
        return None
    return tuple(name.strip() for name in convert(tuple[str, ...], names, f"the names of {label} in {file}"))


def names_in_readme(root: Place, file: Place, label: str) -> tuple[str, ...] | None:
    """The class names of a column in the README.md of a repository on the hub, which is the folder or the one around.

    Of several configurations it takes the one whose name is a folder of the file, or else `default`.
    """
    for folder in (root, root.parent) if isinstance(root, Path) else (root,):
        path = folder / "README.md"
        try:
            parts = re.split(r"^---\s*$", read_text(path), maxsplit=2, flags=re.MULTILINE) if path.is_file() else []
            if len(parts) == 3 and not parts[0].strip():
                yaml = import_extra("class names of README.md", "yaml", "data")
                content = yaml.load(parts[1], yaml.BaseLoader)  # all as texts: no and 010 are names
                names = listed_names(content.get("dataset_info", []), file.parts, label)
                if names:
                    return names
        except Exception as error:  # people write any text and YAML
            note(f"the class names of {path} are not read: {type(error).__name__}: {[*str(error).splitlines(), ''][0]}")
    return None


def listed_names(info: Any, folders: Sequence[str], label: str) -> tuple[str, ...] | None:
    """The class names of a column in the dataset_info of a repository on the hub, None if it lists none."""
    configurations = {each.get("config_name", "default"): each for each in (info if isinstance(info, list) else [info])}
    wanted = [name for name in (*reversed(folders), "default", *configurations) if name in configurations]
    features = configurations[wanted[0]].get("features", []) if wanted else []
    kinds = {feature["name"]: feature.get("dtype") for feature in features}
    if not isinstance(kinds.get(label), dict) or "class_label" not in kinds[label]:
        return None
    names = kinds[label]["class_label"]["names"]
    by_index = dict(enumerate(names)) if isinstance(names, list) else {int(key): name for key, name in names.items()}
    return tuple(str(by_index[i]).strip() for i in range(len(by_index)))


def holds_of(kind: Any) -> str:
    """The use of a column of this type: "images", "numbers", "Booleans", "texts", or "" for none."""
    types = arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return "images" if place >= 0 and is_bytes(kind.field(place).type) else ""
    if is_bytes(kind):
        return "images"
    if types.is_boolean(kind):
        return "Booleans"
    if types.is_integer(kind) or types.is_floating(kind):
        return "numbers"
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return "texts" if is_text else ""


def is_bytes(kind: Any) -> bool:
    """True for a type of bytes of any length."""
    types = arrow().types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def columns(
    schema: Any, partition: Mapping[str, Any], chosen: dict[str, str], file: Place
) -> tuple[str, str, str | None]:
    """(column of images, column of labels, column of groups if it is chosen) of a file and its partition."""
    features = features_of(schema, file)
    if len({*schema.names}) < len(schema.names):
        raise InputError(f"the columns of {file} must have different names; they are {', '.join(schema.names)}")
    images: list[Column] = []
    labels: list[Column] = []
    for field in schema:
        stated = features.get(field.name, {}).get("_type")
        use = holds_of(field.type)
        kind = str(field.type)
        images.append(Column(field.name, kind, use == "images", stated == "Image"))
        labels.append(Column(field.name, kind, use in ("numbers", "Booleans", "texts"), stated == "ClassLabel"))
    are_labels = [key for key in partition if key.lower() in LABELS]
    stated = [] if any(column.stated or column.name.lower() in LABELS for column in labels) else are_labels
    labels += [Column(key, "folders", True, [key] == stated) for key in partition]
    group = choose("group", chosen, labels, file) if "group" in chosen else None
    return choose("image", chosen, images, file), choose("label", chosen, labels, file), group


# Rows


def names_of(split: str, paths: Sequence[str | None]) -> list[str]:
    """The names of the images of a split: by their paths, by their rows, or by both where paths are alike."""
    times = Counter(paths)
    before = f"{split}/" if split else ""
    return [
        f"{before}{path if path and times[path] == 1 else f'{row}/{path}' if path else row}"
        for row, path in enumerate(paths)
    ]


def row_name(files: tuple[str, ...], ends: list[int], row: int) -> str:
    """The name of a row in an error: its number in its file."""
    place, row_of_file = place_of_row(ends, row)
    return f"row {row_of_file} of {files[place]}"


def labels_paths_groups(
    file: Place, partition: Mapping[str, Any], image: str, label: str, group: str | None
) -> tuple[list[Any], list[str | None], list[Any]]:
    """The labels of a file, the paths of its images, or None, and the groups, [] without their column."""
    kind = schema_of(file).field(image).type
    count = (
        group_ends(file, stamp_of(file))[-1] if file.suffix == ".parquet" else map_file(file, stamp_of(file)).num_rows
    )
    paths: list[str | None] = [None] * count

    def values(name: str) -> list[Any]:
        return [partition[name]] * count if name in partition else column_of(file, name).to_pylist()

    labels = values(label)
    groups = [] if group is None else values(group)
    if arrow().types.is_struct(kind) and kind.get_field_index("path") >= 0:
        paths = arrow().compute.struct_field(column_of(file, image, ".path"), "path").to_pylist()
    return labels, paths, groups


def column_of(file: Place, name: str, field: str = "") -> Any:
    """A column of a file, of parquet this field of it alone."""
    if file.suffix != ".parquet":
        return map_column(file, stamp_of(file), name)
    with arrow().parquet.ParquetFile(source_of(file)) as content:
        return content.read(columns=[name + field]).column(name)


def place_of_row(ends: list[int], row: int) -> tuple[int, int]:
    """The number of the file, or row group, of a row, and the row's number there; `ends`: one past each last row."""
    place = bisect.bisect_right(ends, row)
    return place, row - (ends[place - 1] if place else 0)


def place_of(files: tuple[Place, ...], ends: list[int], image: str, row: int) -> tuple[Place, str]:
    """The file of a row, and the column and row of its image there."""
    place, row_of_file = place_of_row(ends, row)
    return files[place], f"{row_of_file} of {image}"


def read_row(files: tuple[Place, ...], ends: list[int], image: str, row: int) -> bytes:
    """The encoded image of a row."""
    place, row_of_file = place_of_row(ends, row)
    return read_whole(files[place], partial(value_at, image=image, row=row_of_file))


def value_at(file: Place, image: str, row: int) -> bytes:
    """The encoded image of a row of a file."""
    if file.suffix == ".parquet":
        with READING:
            group, row_of_group = place_of_row(group_ends(file, stamp_of(file)), row)
            value = group_column(file, stamp_of(file), group, image)[row_of_group]
    else:
        value = map_column(file, stamp_of(file), image)[row]
    if isinstance(value, arrow().DictionaryScalar):
        value = value.value
    if isinstance(value, arrow().StructScalar):
        value = value["bytes"]
    content = value.as_buffer()
    if content is None:
        raise InputError(f"row {row} of {file} must hold an image; it holds none. Save it with its images")
    check_size(content.size, f"row {row} of {file}")
    return content.to_pybytes()


@functools.lru_cache(maxsize=1024)
def group_ends(file: Place, stamp: tuple) -> list[int]:
    """One past the last row of each row group of a parquet file."""
    content = arrow().parquet.read_metadata(source_of(file))
    return [*accumulate(content.row_group(i).num_rows for i in range(content.num_row_groups))]


@functools.lru_cache(maxsize=GROUPS)
def group_column(file: Place, stamp: tuple, group: int, image: str) -> Any:
    """The images of a row group of a parquet file."""
    with arrow().parquet.ParquetFile(source_of(file)) as content:
        columns = content.metadata.row_group(group)
        sizes = [columns.column(i) for i in range(columns.num_columns)]
        size = sum(c.total_uncompressed_size for c in sizes if f"{c.path_in_schema}.".startswith(f"{image}."))
        if size > MOST_GROUP:
            raise InputError(
                f"a row group must have at most {MOST_GROUP >> 20} MiB of images; one of {file} has {size >> 20} MiB. "
                "Write it with row_group_size=100"
            )
        return content.read_row_group(group, columns=[image], use_threads=False).column(image)

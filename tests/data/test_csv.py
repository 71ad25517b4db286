"""A CSV of images: separators, encodings, paths, labels and splits as people's programs write them."""

import pytest
from data.layouts import refusal, refused
from photos import write

from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import every_owner


def test_csv_columns_are_chosen(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(30):
        (tmp_path / f"a/{i}.png").write_bytes(b"photo %d" % i)
    rows = [f"a/{i}.png,{i % 3},{'xyz'[i % 3]}" for i in range(30)]
    (tmp_path / "l.csv").write_text("\ufeff" + "\n".join(["file,place,kind", *rows]))
    refused(
        f"csv:{tmp_path}/l.csv",
        r"must name one column path and label; it names file, place, kind. Write \?image=COLUMN&label=COLUMN",
    )
    dataset = open_dataset(f"csv:{tmp_path}/l.csv?image=file&label=kind")
    assert (dataset.classes, sum(map(len, dataset.splits.values()))) == (("x", "y", "z"), 30)
    assert open_dataset(f"csv:{tmp_path}/l.csv?image=file&label=place").classes == ("0", "1", "2")


def listing(root, text, *names, encoding="utf-8"):
    """A CSV and its images, the files a/0.png to a/5.png unless named; returns its specification."""
    write(root, *(names or [f"a/{i}.png" for i in range(6)]))
    (root / "l.csv").write_bytes(text.encode(encoding))
    return f"csv:{root / 'l.csv'}"


def table(sep=",", header="path,label,split", rows=None):
    """The text of a CSV of six images, two classes and two splits."""
    rows = rows or [f"a/{i}.png,{'xy'[i % 2]},{'test' if i > 3 else 'train'}" for i in range(6)]
    return "\n".join([header, *rows]).replace(",", sep)


def sizes(dataset):
    return {split: len(part) for split, part in dataset.splits.items()}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("sep", "said"), [(",", None), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_separator_is_found_by_header(tmp_path, sep, said, encoding):
    dataset = open_dataset(listing(tmp_path, table(sep), encoding=encoding))
    assert (dataset.classes, sizes(dataset)) == (("x", "y"), {"train": 4, "test": 2})
    assert dataset.remarks == (() if said is None else (f"the columns of l.csv are divided by {said}",))


def test_separator_is_stated_or_chosen(tmp_path):
    assert open_dataset(listing(tmp_path, "sep=;\r\n" + table(";").replace("\n", "\r\n"))).classes == ("x", "y")
    spec = listing(
        tmp_path,
        table(
            ";", "path,x|y,label,split", [f"a/{i}.png,q,{'xy'[i % 2]},{'test' if i > 3 else 'train'}" for i in range(6)]
        ),
    )
    assert open_dataset(f"{spec}?sep=;").classes == open_dataset(spec).classes == ("x", "y")
    spec = listing(tmp_path, table("^"))
    assert open_dataset(f"{spec}?sep=^").classes == ("x", "y")
    assert open_dataset(f"{listing(tmp_path, table(chr(9)))}?sep=tab").classes == ("x", "y")
    refused(
        listing(tmp_path, "file;kind,b\na/0.png;x,1"), "must show what divides its columns; it has , and ;. Write .sep="
    )
    refused(f"{spec}?sep=ab", "sep must be one character")
    assert open_dataset(listing(tmp_path, table().replace(",x", ', "x"').replace(",y", ', "y"'))).classes == ("x", "y")


def test_other_encoding_says_how_to_save(tmp_path):
    refused(listing(tmp_path, table(), encoding="utf-16-le"), r"UTF-16 with its mark")


@pytest.mark.parametrize(("start", "words"), [(b"\x1f\x8b\x08", "gunzip"), (b"PK\3\4", "Excel"), (b"PAR1", "hf:")])
def test_other_kinds_of_tables_are_named(tmp_path, start, words):
    (tmp_path / "l.csv").write_bytes(start + bytes(64))
    refused(f"csv:{tmp_path}/l.csv", f"must name a CSV file; .* is .*{words}")


def test_blank_columns_and_lines_are_not_read(tmp_path):
    rows = [f"{i},a/{i}.png,{'xy'[i % 2]},train,," for i in range(6)]
    rows[-1] = rows[-1].replace("train", "test")
    spec = listing(tmp_path, table(header=",path,label,split,,", rows=[*rows, ",,,,,", ""]))
    assert sum(sizes(open_dataset(spec)).values()) == 6
    refused(
        listing(tmp_path, table(rows=["a/0.png,x,train", "a/1.png,y"])),
        "must have 3 entries, as its first line; line 3 has 2",
    )
    refused(
        listing(tmp_path, table(rows=["a/0.png,x,train,z"])), "line 2 has 4. An entry that holds the separator ',' must"
    )
    dataset = open_dataset(listing(tmp_path, table() + "\n,x,train"))
    assert dataset.remarks == ("left out 1 row: without a path, such as line 8",)


# Lists without a header


@pytest.mark.parametrize(
    ("row", "header"),
    [
        ("{split},a/{i}.png,{kind}", "split,path,label"),  # Vertex AI
        ("a/{i}.png {n}", "path label"),  # Caffe, mmpretrain, PaddleClas
        ("a/{i}.png  {kind} ", "path label"),
        ("{n} a/{i}.png", "label path"),
        ("a/{i}.png\t{n}", "path\tlabel"),
        ("{kind};a/{i}.png;{SPLIT}", "label;path;split"),
    ],
)
def test_a_missing_header_is_said(tmp_path, row, header):
    """The line that the refusal gives is the header."""
    splits = ["training", "UNASSIGNED", "validation", "training", "training", "validation"]
    rows = [row.format(i=i, n=i % 2, kind="xy"[i % 2], split=s, SPLIT=s.upper()) for i, s in enumerate(splits)]
    words = refusal(listing(tmp_path, "\n".join(rows)))
    assert "its first line is a row" in words
    advised = (
        words.partition("Add this line before it")[2].partition(": ")[2].replace(" ", "\t" if "\t" in row else " ")
    )
    assert advised == header
    dataset = open_dataset(listing(tmp_path, "\n".join([advised, *rows])))
    assert len(dataset.classes) == 2
    assert "split" not in header or sizes(dataset) == {"train": 3, "validation": 2}


def test_columns_without_a_header_may_be_unclear(tmp_path):
    refused(listing(tmp_path, "a/0.png,x,y\na/1.png,x,z"), r"a row, .*\. Add a line that names all columns")
    refused(listing(tmp_path, "my a/0.png 0\nmy a/1.png 1"), r"a row, .*\. Add a line that names all columns")
    spec = listing(tmp_path, "a/0.png,x\na/1.png,x\na/2.png,y")
    refused(f"{spec}?image=a/0.png&label=x", "its first line is a row")


def test_lists_of_several_labels_are_refused(tmp_path):
    """Datumaro's imagenet_txt. The lists are read as each refusal advises."""
    lines = [f"a/{i}.png {i % 2}" for i in range(6)]
    refused(listing(tmp_path, "\n".join(["a/0.png 0 1", *lines[1:]])), "and lines of several labels be left out")
    refused(listing(tmp_path, "\n".join(lines[1:])), "Add this line before it: path label")
    assert open_dataset(listing(tmp_path, "\n".join(["path label", *lines[1:]]))).classes == ("0", "1")


def test_one_hot_columns_are_named(tmp_path):
    rows = [f"a/{i}.png, {i % 2}, {1 - i % 2}, {i}" for i in range(6)]
    spec = listing(tmp_path, "\n".join(["path, x, y z, age", *rows]))
    refused(spec, r'x, y z hold a 1 for the class .* table\["label"\] = table.iloc\[:, 1:3\].idxmax\(axis=1\)')
    refused(listing(tmp_path, "path,x,y\na/0.png,0,1\na/1.png,1,1"), r"it names path, x, y. Write \?label=COLUMN")


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ('{{"source-ref": "s3://b/a/{i}.png", "kind": {n}, "kind-metadata": {{"class-name": "{kind}"}}}}',
         "image=source-ref&label=kind-metadata.class-name"),  # SageMaker
        ('{{"imageGcsUri": "gs://b/a/{i}.png", "classificationAnnotation": {{"displayName": "{kind}"}}}}',
         "image=imageGcsUri&label=classificationAnnotation.displayName"),  # Vertex AI
        ('{{"file_name": "a/{i}.png", "label": "{kind}"}}\n', "image=file_name"),  # Hugging Face
    ],
)  # fmt: skip
def test_json_lines_are_read(tmp_path, line, query):
    spec = listing(tmp_path, "\n".join(line.format(i=i, n=i % 2, kind="xy"[i % 2]) for i in range(6)))
    refused(
        spec, rf"must name one column path.* it names {query.partition('=')[2].partition('&')[0]}, .*Write \?image="
    )
    dataset = open_dataset(f"{spec}?{query}")
    assert (dataset.classes, sum(sizes(dataset).values())) == (("x", "y"), 6)

    bools = [f'{{"path": "a/{i}.png", "label": {"true" if i % 2 else "false"}}}' for i in range(6)]
    assert open_dataset(listing(tmp_path, "\n".join(bools))).classes == ("False", "True")


# Paths


def test_windows_paths_are_found(tmp_path):
    rows = ["a\\0.png,x,train", "A\\1.PNG,y,train", "a/caf\u00e9.png,x,test", "a/3.png,y,test"]
    names = ["a/0.png", "a/1.png", "a/cafe\u0301.png", "a/3.png"]
    dataset = open_dataset(listing(tmp_path, table(rows=rows), *names))
    found = sorted(name for part in dataset.splits.values() for name in part.names)
    assert found == ["a/0.png", "a/1.png", "a/3.png", "a/caf\u00e9.png"]
    assert all(part.read(0) for part in dataset.splits.values() if len(part))
    assert dataset.remarks == ("3 files are written otherwise in l.csv, such as a/0.png for a\\0.png",)


@pytest.mark.parametrize("space", ["\u202f", "\u00a0", "\u2009", "\u3000"])
def test_spaces_of_other_kinds_are_plain(tmp_path, space):
    """macOS writes U+202F before PM."""
    names = [f"shots/{i}{space}PM.png" for i in range(4)]
    rows = [f"shots/{i} PM.png,{'xy'[i % 2]},{'test' if i > 1 else 'train'}" for i in range(4)]
    dataset = open_dataset(listing(tmp_path, table(rows=rows), *names))
    assert dataset.test.names == ("shots/2 PM.png", "shots/3 PM.png")
    assert dataset.test.read(0)
    owners = "".join(f"{row.split(',')[0]},ann\n" for row in rows)
    (tmp_path / "who.csv").write_text(owners)
    assert {*every_owner(names, tmp_path / "who.csv")} == {"ann"}


def test_names_are_found_in_folders_below(tmp_path):
    """HAM10000 has names without suffix, and two folders; NIH's ChestX-ray14 has twelve."""
    names = ["part_1/k0.jpg", "part_2/images/k1.JPG", "part_1/._k1.jpg", "part_2/k2.jpg", "part_1/k3.png", "K0/k.csv"]
    rows = [
        f"{name},{'xy'[i % 2]},{'test' if i > 1 else 'train'}" for i, name in enumerate(["k0", "k1.jpg", "K2", "k3"])
    ]
    spec = listing(tmp_path, table(rows=rows), *names)
    dataset = open_dataset(spec)
    assert dataset.train.names == ("part_1/k0.jpg", "part_2/images/k1.JPG")
    assert dataset.remarks == ("4 files are written otherwise in l.csv, such as part_1/k0.jpg for k0",)
    write(tmp_path, "part_2/k0.jpg")
    refused(
        spec, r"1 of 4 images of .* are several files each \(part_1/k0.jpg, part_2/k0.jpg\), such as 'k0': write paths"
    )
    (tmp_path / "l.csv").write_text(table(rows=[rows[0].replace("k0", "part_1/k0.jpg"), *rows[1:]]))
    assert open_dataset(spec).train.names == dataset.train.names
    refused(f"{spec}?folder=part_1", "3 of 4 .* are missing, such as 'part_1/part_1/k0.jpg'")


@pytest.mark.parametrize(
    "path",
    [
        "my%20a/0.png",
        "'my a/0.png'",
        "file://ROOT/my%20a/0.png",
        ".\\my a\\0.PNG",
        "ROOT/my a/0.PNG",
        "my a/../my a/0.png",
    ],
)
def test_other_spellings_of_paths_are_found(tmp_path, path):
    rows = [f"{path.replace('ROOT', str(tmp_path))},x,train", "b.png,y,train", "c.png,x,test", "d.png,y,test"]
    dataset = open_dataset(listing(tmp_path, table(rows=rows), "my a/0.png", "b.png", "c.png", "d.png"))
    assert dataset.train.names == ("my a/0.png", "b.png")
    assert all("files are written otherwise in l.csv" in remark for remark in dataset.remarks)


@pytest.mark.parametrize("path", ["C:\\data\\a\\0.png", "/kaggle/input/a/0.png", "data/a/0.png", "none.png"])
def test_a_missing_image_is_named_with_its_remedy(tmp_path, path):
    spec = listing(tmp_path, table(header="path,label", rows=[f"{path},x", "a/1.png,y"]), "a/0.png", "a/1.png")
    refused(spec, r"1 of 2 images of .* are missing, such as .*: write paths from the folder of l.csv, or of \?folder=")


def test_paths_may_begin_beside_file(tmp_path):
    rows = ["0.png,x,train", "1.png,y,train", "2.png,x,test", "3.png,y,test"]
    spec = listing(tmp_path, table(rows=rows), *(f"a/b/{i}.png" for i in range(4)))
    dataset = open_dataset(f"{spec}?folder=a/b/")
    assert dataset.train.names == ("a/b/0.png", "a/b/1.png")
    refused(f"{spec}?folder=c", "folder must be the images' folder beside l.csv; there is no c")


# Splits


@pytest.mark.parametrize(
    ("true", "false"), [("True", "False"), ("1", "0"), ("yes", "no"), ("TRUE", "FALSE"), ("1.0", "0.0")]
)
@pytest.mark.parametrize(("column", "split"), [("is_valid", "validation"), ("is_test", "test")])
def test_boolean_column_says_split(tmp_path, column, split, true, false):
    rows = [f"a/{i}.png,{'xy'[i % 2]},{true if i > 3 else false}" for i in range(6)]
    spec = listing(tmp_path, table(header=f"path,label,{column}", rows=rows))
    assert sizes(open_dataset(f"{spec}?split={column}")) == {"train": 4, split: 2}


def test_unread_split_column_is_named(tmp_path):
    rows = [f"a/{i}.png,{'xy'[i % 2]},{i > 20}" for i in range(30)]
    spec = listing(tmp_path, table(header="path,label,is_valid", rows=rows), *(f"a/{i}.png" for i in range(30)))
    assert any("?split=is_valid reads it" in line for line in open_dataset(spec).remarks)


def test_letter_case_of_splits_makes_no_difference(tmp_path):
    rows = [f"a/{i}.png,{'xy'[i % 2]},{'Train' if i < 2 else 'train' if i < 4 else 'Test'}" for i in range(6)]
    assert sizes(open_dataset(listing(tmp_path, table(rows=rows)))) == {"train": 4, "test": 2}


def test_capital_letters_begin_words_of_splits(tmp_path):
    """FER2013's PublicTest."""
    rows = [f"a/{i}.png,{'xy'[i % 2]},{'Training' if i < 4 else 'PublicTest'}" for i in range(6)]
    assert sizes(open_dataset(listing(tmp_path, table(rows=rows)))) == {"train": 4, "test": 2}


# Labels


def test_decimal_commas_are_class_indices(tmp_path):
    rows = [f"a/{i}.png;{10 * (i % 2)},0;{'test' if i > 3 else 'train'}" for i in range(6)]
    assert open_dataset(listing(tmp_path, table(header="path;label;split", rows=rows))).classes == ("0", "10")


def test_classes_of_digits_and_letters_are_listed(tmp_path):
    names = [f"{name}/{i}.png" for name in ("0", "1", "A", "B") for i in range(3)]
    spec = listing(tmp_path, "\n".join(["path,label", *(f"{name},{name[0]}" for name in names)]), *names)
    refused(spec, "a class name among labels .* or list all names of classes in classes.txt in the folder of the data")
    (tmp_path / "classes.txt").write_text("0\n1\nA\nB\n")
    assert open_dataset(spec).classes == open_dataset(f"folder:{tmp_path}").classes == ("0", "1", "A", "B")


@pytest.mark.parametrize(("stray", "row"), [("01", 4), ("-2", 4), ("cat", 4), ("1.5", 4)])
def test_stray_label_keeps_class_indices(tmp_path, stray, row):
    """The classes were 1, 10, 2 in that order."""
    labels = ["0", "1", stray, "2", "10", "-1", "", "1.0", *["0", "1", "2", "10"] * 8]
    names = [f"{i}.png" for i in range(len(labels))]
    rows = [f"{i}.png,{label}" for i, label in enumerate(labels)]
    refused(listing(tmp_path, "\n".join(["path,label", *rows]), *names), f"the label of line {row} in .* is '{stray}'")
    spec = listing(tmp_path, "\n".join(["path,label", *(r for i, r in enumerate(rows) if i != 2)]), *names)
    assert open_dataset(spec).classes == ("0", "1", "2", "10")
    refused(listing(tmp_path, "path,label\n0.png,a\n1.png,-1\n2.png,b", *names), "line 3 in .* is '-1': a class index")


def test_class_named_none_needs_a_list(tmp_path):
    labels = ["cat", "None", "dog", "nan", "cat", "dog"]
    rows = [f"a/{i}.png,{label},{'train' if i < 4 else 'test'}" for i, label in enumerate(labels)]
    dataset = open_dataset(listing(tmp_path, table(rows=rows)))
    assert dataset.classes == ("cat", "dog")
    assert "left out 2 rows of train: without a label" in dataset.remarks[0]
    (tmp_path / "classes.txt").write_text("cat\ndog\nNone\nnan\nbird\n")
    dataset = open_dataset(listing(tmp_path, table(rows=rows)))
    assert (dataset.classes, sum(sizes(dataset).values())) == (("cat", "dog", "None", "nan", "bird"), 6)
    assert "1 of 5 classes have no image here, and keep their places: bird" in dataset.remarks


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "a header and rows"),
        ("path,label\n0.png", "must have 2 entries, as its first line; line 2 has 1"),
        ("path,path\n0.png,a", "must name one column path and label; it names path, path"),
        (
            '{"images": [{"id": 1}],\n "annotations": []}',
            "or JSON with an object in each line; line 1 of .* must be JSON",
        ),
        (
            '{"0.png": "a", "1.png": "b"}',
            "or JSON with an object in each line; .* holds one object. Write {.path.: .* in a line",
        ),
        ('["0.png", "a"]', "or JSON with an object in each line; line 1 of .* must be a JSON object"),
        ("label,path\ntraining,0.png\ntest,0.png", r"must be classes; they are names of splits, test, training"),
        ('path,label\n"0.png,a', "must be a CSV; its line 2 is not"),
        ("path,label,split\n0.png,a,val\n0.png,b,valid", "must have one name, and val and valid both say validation"),
        ("path,label,split\n0.png,a,test\n0.png,b,validation", "a train split"),
        ("path,label\n0.png,nan\n0.png,", "a row of .* must have a label; none of its 2 rows has one; left out 2 rows"),
    ],
)
def test_csv_without_images_is_refused(tmp_path, text, match):
    refused(listing(tmp_path, text, "0.png"), match)

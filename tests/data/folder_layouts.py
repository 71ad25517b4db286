"""Layouts of folders that people have: (name, files, outcome).

An outcome is the number of images by split, or in all where the split is by content, or the words of a refusal.
."""

SPLIT = {"train": 2, "test": 2}


def both(*prefixes, classes=("cat", "dog")):
    """The names of an image of each class under each prefix."""
    return [f"{prefix}{name}/1.png" for prefix in prefixes for name in classes]


FOLDER_LAYOUTS = [
    ("fastai's training and testing", both("training/", "testing/"), SPLIT),
    ("Intel scenes, unzipped", [*both("a/seg_train/seg_train/", "a/seg_test/seg_test/"), "a/seg_pred/seg_pred/1.png"],
     SPLIT),
    ("ImageNet's ILSVRC", [*both("ILSVRC/Data/CLS-LOC/train/", "ILSVRC/Data/CLS-LOC/val/"),
                           "ILSVRC/Data/CLS-LOC/test/1.png", "ILSVRC/Annotations/CLS-LOC/1.xml"],
     {"train": 2, "validation": 2}),
    ("a flat test folder", [*both("train/", "val/"), "test/1.png"], {"train": 2, "validation": 2}),
    ("Kaggle's chest_xray inside itself", both("c/train/", "c/test/", "c/c/train/", "c/c/test/"), SPLIT),
    ("a class folder with folders inside", [*both("train/", "test/"), "train/cat/more/2.png"], {"train": 3, "test": 2}),
    ("files of operating systems", [*both("train/", "test/"), "train/@eaDir/cat/1.png", "__MACOSX/train/cat/1.png"],
     SPLIT),
    ("decomposed and composed names", ["train/caf\u00e9/1.png", "train/b/1.png", "test/cafe\u0301/1.png"],
     {"train": 2, "test": 1}),
    ("two names of one split", both("train/", "train_small/", "test/"), "train and train_small both say train"),
    ("validation images in one folder", [*both("train/", "test/"), "val/images/1.png", "val/annotations.txt"], SPLIT),
    ("a flat test folder inside itself", [*both("s_train/s_train/", "val/"), "s_test/s_test/1.png"],
     {"train": 2, "validation": 2}),
    ("a test folder of other classes", [*both("train/"), *both("test/", classes=("cats", "dogs"))],
     "none of cats, dogs has"),
    ("classes by the names of files", ["train/cat.1.png", "train/dog.1.png", "test1/1.png"],
     r"train holds images in no class folder, such as train/cat.1.png: .*\?folders=classes"),
    ("archives inside",
     ["data/train.zip", "data/test.zip", "data/a.csv"],
     r"left out 2 of 2 files of data: archives .*test\.zip"),
    ("raw photographs", [*both("train/", "test/"), "train/hat/1.CR2", "train/hat/2.NEF", "test/hat/1.png"],
     r"none of hat.*; left out 2 of 2 files of hat: no images by their names \(\.cr2, \.nef\)"),
    ("spaces and underscores", [*both("train/", "test/", classes=("big_dog", "cat")), "test/Big Dog/1.png"],
     "Big Dog and big_dog differ in letter case, spaces or hyphens alone"),
    ("a class of the name of a split beside a class with folders", ["train/1.png", "bus/a/1.png"], 2),
    ("splits inside classes", [f"{name}/{split}/1.png" for name in ("cat", "dog") for split in SPLIT], SPLIT),
    ("years inside classes", [f"{name}/{year}/1.png" for name in ("cat", "dog") for year in (2022, 2023)],
     r"cat, dog, .*the names say no split: if they are splits, .*; if they are classes, .*\?folders=classes"),
    ("folders of other names inside classes",
     [f"{name}/{name}{i}/1.png" for name in ("cat", "dog") for i in range(9)], 18),
    ("folds, sites or parts", both("part1/", "part2/"), r"part1, part2, .*\?train=part1&test=part2"),
    ("variants of one data set", both("p/color/", "p/gray/"), r"if each is a whole data set, name one, .*/p/color$"),
    ("a training folder alone", [f"train/{name}/{i}.png" for name in ("cat", "dog") for i in range(9)], 18),
    ("class folders beside a split", both("", "test/"), "move the class folders"),
]  # fmt: skip

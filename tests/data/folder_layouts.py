"""Layouts of folders that people have: files by name. docs/reference/compatibility.md has the outcomes."""

SPLIT = ("train", "test")


def both(*prefixes, classes=("cat", "dog")):
    """The names of an image of each class under each prefix."""
    return [f"{prefix}{name}/1.png" for prefix in prefixes for name in classes]


FOLDER_LAYOUTS = {
    "fastai's training and testing": both("training/", "testing/"),
    "Intel scenes, unzipped": [*both("a/seg_train/seg_train/", "a/seg_test/seg_test/"), "a/seg_pred/seg_pred/1.png"],
    "ImageNet's ILSVRC":
        [*both("ILSVRC/Data/CLS-LOC/train/", "ILSVRC/Data/CLS-LOC/val/"), "ILSVRC/Data/CLS-LOC/test/1.png",
         "ILSVRC/Annotations/CLS-LOC/1.xml"],
    "a flat test folder": [*both("train/", "val/"), "test/1.png"],
    "Kaggle's chest_xray inside itself": both("c/train/", "c/test/", "c/c/train/", "c/c/test/"),
    "a class folder with folders inside": [*both("train/", "test/"), "train/cat/more/2.png"],
    "files of operating systems": [*both("train/", "test/"), "train/@eaDir/cat/1.png", "__MACOSX/train/cat/1.png"],
    "decomposed and composed names": ["train/caf\u00e9/1.png", "train/b/1.png", "test/cafe\u0301/1.png"],
    "two names of one split": both("train/", "train_small/", "test/"),
    "validation images in one folder": [*both("train/", "test/"), "val/images/1.png", "val/annotations.txt"],
    "a flat test folder inside itself": [*both("s_train/s_train/", "val/"), "s_test/s_test/1.png"],
    "a test folder of other classes": [*both("train/"), *both("test/", classes=("cats", "dogs"))],
    "classes by the names of files": ["train/cat.1.png", "train/dog.1.png", "test1/1.png"],
    "archives inside": ["data/train.zip", "data/test.zip", "data/a.csv"],
    "raw photographs": [*both("train/", "test/"), "train/hat/1.CR2", "train/hat/2.NEF", "test/hat/1.png"],
    "spaces and underscores": [*both("train/", "test/", classes=("big_dog", "cat")), "test/Big Dog/1.png"],
    "a class of the name of a split beside a class with folders": ["train/1.png", "bus/a/1.png"],
    "splits inside classes": [f"{name}/{split}/1.png" for name in ("cat", "dog") for split in SPLIT],
    "years inside classes": [f"{name}/{year}/1.png" for name in ("cat", "dog") for year in (2022, 2023)],
    "folders of other names inside classes": [f"{name}/{name}{i}/1.png" for name in ("cat", "dog") for i in range(9)],
    "folders of letters around classes (SUN397)":
        [f"{name}/{i}.png" for name in ("a/abbey", "a/bar/indoor", "b/beach") for i in range(2)],
    "one folder in each class (Tiny ImageNet)": [f"train/{name}/images/{i}.png" for name in "ab" for i in range(2)],
    "images beside folders inside classes": ["cat/1/1.png", "cat/2/1.png", "dog/1.png", "dog/a/1.png", "emu/3/1.png"],
    "images without a label (CVAT)": [*both("train/", "test/"), "train/no_label/1.png", "train/no_label/2.png"],
    "numbered classes": [f"{split}/{number}/1.png" for split in SPLIT for number in (0, 1, 2, 10)],
    "folds, sites or parts": both("part1/", "part2/"),
    "variants of one data set": both("p/color/", "p/gray/"),
    "a training folder alone": [f"train/{name}/{i}.png" for name in ("cat", "dog") for i in range(9)],
    "class folders beside a split": both("", "test/"),
}  # fmt: skip

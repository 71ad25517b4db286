"""Names of splits: one list of spellings for folders, tars, the names of files, and columns.

    split_of_name("seg_train") == "train"       a word of the name is a spelling, in any letter case; digits end a word
    split_of_flag("is_valid", "True") == "validation"      a column of Booleans says the split by the column's name

`one_name_each` refuses two names of one split: `train` and `train_small` may hold the same images.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.left_out import leave_out
from tangent_jax.io.paths import Place

SPELLINGS: dict[str, str] = {
    **dict.fromkeys(("train", "training", "trn", "trainval"), "train"),
    **dict.fromkeys(("validation", "validate", "val", "valid", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation", "holdout"), "test"),
}
"""Words that name a split. `trainval` or `train_val` is the union of both, which its authors train on."""
TRAIN_AND_VALIDATION = r"train(ing)?[\W_]+(and[\W_]+)?(val|valid|validation|dev)(?![a-rt-z])"
ENDINGS = ("set", "data", "split", "images", "imgs", "img", "dataset")  # trainset is train
YES = ("true", "1", "1.0", "yes", "y", "t")
NO = ("false", "0", "0.0", "no", "n", "f")


def split_of_name(name: str) -> str | None:
    """Returns train, validation or test for the name of a folder, a file or a column's value, or None.

    Raises:
        InputError: A name with words of two splits.
    """
    apart = re.sub("(?<=[a-z])(?=[A-Z])", " ", composed_name(name))
    both = re.sub(TRAIN_AND_VALIDATION, "trainval", caseless_name(apart))
    splits = {SPELLINGS[word] for word in map(spelling, re.split(r"[\W\d_]+", both)) if word}
    if len(splits) > 1:
        raise InputError(f"A name must say one split, and {name} says {' and '.join(sorted(splits))}: rename it")
    return splits.pop() if splits else None


def spelling(word: str) -> str | None:
    """Returns the spelling in a word, which may have an ending such as "set", or None."""
    stems = [word, *(word.removesuffix(ending) for ending in ENDINGS)]
    return next((stem for stem in stems if stem in SPELLINGS), None)


def one_name_each(names: Iterable[str], where: object) -> dict[str, str]:
    """Returns the split of each name that says one, without the other names.

    Raises:
        InputError: It names both of two names of one split.
    """
    splits: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in sorted({*names}):
        split = split_of_name(name)
        if split is None:
            continue
        if split in first:
            raise InputError(
                f"Each split of {where} must have one name, and {first[split]} and {name} both say {split}: "
                "rename one of them, or move it out"
            )
        first[split] = name
        splits[name] = split
    return splits


def split_of_flag(column: str, value: object) -> str | None:
    """Returns the split that a Boolean says in a column such as is_valid or is_train; None if it is no such column.

    True in `is_valid` is validation, True in `is_test` is test, and False in either is train. True in `is_train` or
    `is_training_image` is train, and False is test.
    """
    words = re.split(r"[\W\d_]+", caseless_name(column))
    split = split_of_name(column) if "is" in words else None
    answer = caseless_name(str(value).strip())
    if split is None or answer not in (*YES, *NO):
        return None
    if answer in YES:
        return split
    return "test" if split == "train" else "train"


def split_of(file: str, stem: Callable[[str], str]) -> tuple[str, tuple[str, ...], str]:
    """(split, surrounding folders, name of the split) by a file's relative name; "" if no part names a split."""
    parts = PurePosixPath(file).parts
    for place in reversed(range(len(parts))):
        split = split_of_name(parts[place])
        if split:
            is_file = place == len(parts) - 1
            return split, parts[:place], stem(parts[place]) if is_file else parts[place]
    return "", (), ""


def by_split(
    root: Place, files: Mapping[Any, str], stem: Callable[[str], str], listed_by_user: bool = False
) -> dict[str, list[Any]]:
    """The files of each split, by their names, in their order; files of no split are left out beside others.

    Args:
        files: The name below `root` of each file.
        stem: The name of a series of files, without what tells its files apart.
        listed_by_user: The user named the files one by one, or by a pattern.

    Raises:
        InputError: Two data sets; two names of one split, such as train and train_small, that were found.
    """
    groups: dict[str, list[Any]] = {}
    around: set[str] = set()
    names: set[str] = set()
    for file, relative in files.items():
        split, folders, name = split_of(relative, stem)
        groups.setdefault(split, []).append(file)
        if split:
            around.add("/".join(folders) or ".")
            names.add(name)
    if len(around) > 1:
        raise InputError(f"{root} must hold one data set; it holds {' and '.join(sorted(around))}. Name one of them")
    if not listed_by_user:
        one_name_each(names, root)
    unnamed = groups.pop("") if len(groups) > 1 and "" in groups else []
    leave_out("files", "of no split", len(unnamed), files[unnamed[0]] if unnamed else "")
    return groups

"""The layout of a folder or a zip of images: which folders are splits, and which are classes.

The structure decides before names do. A folder that holds images is a class, whatever its name: `train` beside `bus` is
a class. A folder that holds only folders is a split if its name says one. Folders of other names that hold folders of
the same names may be splits or not, so they are refused with the remedy `?train=FOLDER&test=FOLDER`.
"""

import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence

from tangent_jax.core import InputError
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import SUFFIXES
from tangent_jax.data.splits import one_name_each, same_name, split_of_name

SYSTEM_NAMES = ("__macosx", "@eadir", "thumbs.db", "desktop.ini", "$recycle.bin", "system volume information")
"""Names of files and folders that macOS, Synology and Windows add."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The classes, the images (name, class index) by split ("" without splits), and classes whose folders are empty."""

    classes: tuple[str, ...]
    images: dict[str, list[tuple[str, int]]]
    empty: tuple[str, ...]
    unlabelled: bool  # a folder of the name of a split holds images without class folders, and is left out


class Tree:
    """The visible files and folders below a root, by the names of folders; "" is the root."""

    def __init__(self, names: Sequence[str], folders: Sequence[str]) -> None:
        self.images = [name for name in names if name.lower().endswith(SUFFIXES)]
        self.direct = {name.rpartition("/")[0] for name in self.images}
        self.filled = {folder for name in names for folder in around(name)}
        self.holding = {folder for name in self.images for folder in around(name)}
        self.inner: dict[str, set[str]] = {}
        for folder in {*folders, *(folder for name in names for folder in around(name))} - {""}:
            for path in (folder, *around(folder)):
                if path:
                    self.inner.setdefault(path.rpartition("/")[0], set()).add(path)

    def folders(self, folder: str) -> list[str]:
        """Returns the folders in a folder that hold images at any depth."""
        return sorted(self.inner.get(folder, set()) & self.holding)

    def nested(self, folder: str) -> bool:
        """Returns True for a folder that holds folders of images, and no image itself."""
        return folder in self.holding and folder not in self.direct


def around(name: str) -> list[str]:
    """Returns the folders around a file or folder, the innermost first, and "" last."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def last(folder: str) -> str:
    """Returns the name of a folder without the folders around it."""
    return folder.rpartition("/")[2]


def is_hidden(name: str) -> bool:
    """Returns True for a hidden file, a file in a hidden folder, and files that an operating system adds."""
    return any(part.startswith(".") or part.lower() in SYSTEM_NAMES for part in name.split("/"))


def layout(names: Sequence[str], folders: Sequence[str], where: object, chosen: Mapping[str, str]) -> Layout:
    """Returns the layout of files and folders; `chosen`: the folder of each split, if the caller names them.

    Raises: InputError for a structure that may be read in two ways.
    """
    shown = [name for name in names if not is_hidden(name)]
    tree = Tree(shown, [folder for folder in folders if not is_hidden(folder)])
    split_folders = chosen_folders(tree, chosen, where) if chosen else find_splits(tree, outermost(tree), where)
    if split_folders:
        roots = {split: inside_wrappers(tree, folder) for split, folder in split_folders.items()}
    else:
        roots = {"": outermost(tree)}
    class_folders = {split: classes_in(tree, root) for split, root in roots.items()}
    found = read_classes(tree, class_folders, where)
    if split_folders and not chosen:
        around_splits = {folder.rpartition("/")[0] for folder in split_folders.values()}
        beside = {path for root in around_splits for path in tree.folders(root)} - {*split_folders.values()}
        unlabelled = any(split_of_name(last(path)) for path in beside if path in tree.direct)
        found = dataclasses.replace(found, unlabelled=unlabelled)
    say_left_out(names, shown, tree, found, class_folders)
    return found


def outermost(tree: Tree) -> str:
    """Returns the folder inside all folders that are wrapped around the data set alone."""
    root = ""
    while len(tree.folders(root)) == 1:
        (inner,) = tree.folders(root)
        if not tree.nested(inner) or split_of_name(last(inner)):
            break
        root = inner
    return root


def inside_wrappers(tree: Tree, folder: str) -> str:
    """Returns the folder of a split that holds its classes: seg_train/seg_train of seg_train."""
    while len(tree.folders(folder)) == 1 and folder not in tree.direct and tree.nested(tree.folders(folder)[0]):
        (folder,) = tree.folders(folder)
    return folder


def chosen_folders(tree: Tree, chosen: Mapping[str, str], where: object) -> dict[str, str]:
    """Returns the folder of each split that the caller names, relative to the root."""
    for folder in chosen.values():
        if folder.strip("/") not in tree.holding:
            raise InputError(f"{where} holds no folder {folder} with images: name a folder by its path in {where}")
    return {split: folder.strip("/") for split, folder in chosen.items()}


def find_splits(tree: Tree, root: str, where: object) -> dict[str, str]:
    """Returns the folder of each split in a root, or {} if its folders are classes."""
    tops = tree.folders(root)
    # a few images beside the class folders of a split are strays, unless folders beside it show that it is a class
    named = all(split_of_name(last(folder)) for folder in tops)
    nested = [folder for folder in tops if tree.nested(folder) or (named and tree.folders(folder))]
    direct = [folder for folder in tops if folder not in nested]
    splits = one_name_each([last(folder) for folder in nested], where)
    found = {splits[last(folder)]: folder for folder in nested if last(folder) in splits}
    classes = {same_name(last(folder)) for folder in direct}

    if found and "train" not in found and direct:
        beside = ", ".join(map(last, direct[:3]))
        raise InputError(
            f"{where} holds class folders ({beside}) beside {last(nested[0])}, which holds class folders too: "
            "move the class folders of training images into a folder named train"
        )
    if found:
        bare = [folder for folder in sorted(tree.inner[root] - tree.holding) if split_of_name(last(folder))]
        return {**{str(split_of_name(last(folder))): folder for folder in bare}, **found}

    inner = [{same_name(last(folder)) for folder in tree.folders(inside_wrappers(tree, path))} for path in nested]
    alike = any(one & other for place, one in enumerate(inner) for other in inner[:place])
    if alike and not direct:
        names = ", ".join(map(last, nested[:5]))
        prefix = f"{root}/" if root else ""
        raise InputError(
            f"{where} holds {names}, which hold folders of the same names, and the names say no split: "
            f"say which are splits by folder:PATH?train={prefix}{last(nested[0])}&test={prefix}{last(nested[1])}"
        )
    copies = [folder for folder, one in zip(nested, inner, strict=True) if one and one <= classes]
    for folder in copies:
        tree.inner[root].discard(folder)  # Kaggle's archives hold their whole tree again in a folder inside it
    return {}


def classes_in(tree: Tree, root: str) -> list[str]:
    """Returns the folders of classes in the folder of a split, empty ones too."""
    return sorted(tree.inner.get(root, set()))


def read_classes(tree: Tree, class_folders: Mapping[str, Sequence[str]], where: object) -> Layout:
    """Returns the layout of class folders by split; composed and decomposed spellings of a name are one class."""
    name_of = {path: unicodedata.normalize("NFC", last(path)) for paths in class_folders.values() for path in paths}
    classes = tuple(sorted({*name_of.values()}))
    index = {name: place for place, name in enumerate(classes)}
    class_of = {path: index[name] for path, name in name_of.items()}
    images: dict[str, list[tuple[str, int]]] = {split: [] for split in sorted(class_folders)}
    split_of = {path: split for split, paths in class_folders.items() for path in paths}
    for name in tree.images:
        path = next((folder for folder in around(name) if folder in class_of), None)
        if path is not None:
            images[split_of[path]].append((name, class_of[path]))
    say_case(classes, images, where)
    filled = {name for path, name in name_of.items() if path in tree.filled}
    return Layout(classes, images, tuple(name for name in classes if name not in filled), unlabelled=False)


def say_case(classes: Sequence[str], images: Mapping[str, Sequence[tuple[str, int]]], where: object) -> None:
    """Notes classes whose names differ in letter case alone; refuses them if one has no training image."""
    train = {label for _, label in images.get("train", images.get("", ()))}
    first: dict[str, int] = {}
    for place, name in enumerate(classes):
        other = first.setdefault(same_name(name), place)
        if other != place:
            both = f"the class names {classes[other]} and {name} differ in letter case alone"
            if not {other, place} <= train:
                raise InputError(f"{both} in {where}, and one has no training image: write them alike")
            note(f"{both}: they are two classes")


def say_left_out(
    names: Sequence[str],
    shown: Sequence[str],
    tree: Tree,
    found: Layout,
    class_folders: Mapping[str, Sequence[str]],
) -> None:
    """Records files that are hidden, are no images, or are in no class."""
    images = {*tree.images}
    used = {name for rows in found.images.values() for name, _ in rows}
    paths = {path for several in class_folders.values() for path in several}
    hidden = [name for name in names if is_hidden(name) and "__MACOSX" not in name.split("/")]
    if hidden:
        leave_out(LeftOut("files", "hidden, or added by an operating system", len(hidden), hidden[0]))
    stray = [name for name in tree.images if name not in used]
    by_top: dict[str, list[str]] = {}
    for name in stray:
        by_top.setdefault(name.rpartition("/")[0].split("/")[0], []).append(name)
    for top, several in by_top.items():
        leave_out(LeftOut("images", "in no class folder of a split", len(several), several[0], of=top))
    other: dict[str, list[str]] = {}
    for name in shown:
        if name not in images and name != "manifest.json":
            path = next((folder for folder in around(name) if folder in paths), "")
            other.setdefault(unicodedata.normalize("NFC", last(path)), []).append(name)
    for class_name, several in other.items():
        suffixes = sorted({"." + name.rpartition(".")[2].lower() for name in several if "." in last(name)})
        why = f"no images by their names ({', '.join(suffixes[:4]) or 'no suffix'})"
        leave_out(LeftOut("files", why, len(several), several[0], class_name=class_name or None))

"""The layout of a folder or a zip of images: which folders are splits, and which are classes.

The structure decides before names do. A folder that holds images is a class, whatever its name: `train` beside `bus` is
a class. A folder that holds only folders is a split if its name says one. Classes may hold splits: CLASS/train/IMAGE.
Folders of other names that hold folders of the same names may be splits, classes (with years or cameras inside) or
variants of one data set. They are refused with the question, which `?train=FOLDER&test=FOLDER` or `?folders=classes`
answers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.left_out import leave_out
from tangent_jax.data.sources import SUFFIXES
from tangent_jax.data.splits import one_name_each, split_of_name

SYSTEM_NAMES = (
    *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "system volume information", "$recycle.bin", "recycler"),
    *("@eadir", "#snapshot", "@recently-snapshot", "#recycle", "@recycle", "lost+found"),
)
"""The names, in lower case, of files and folders that systems add: macOS, Windows, Synology, QNAP and Linux."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The classes, and the images (name, class index) by split ("" without splits).

    Attributes:
        empty: The classes whose folders are empty; None where a list names the classes.
    """

    classes: tuple[str, ...]
    images: dict[str, list[tuple[str, int]]]
    empty: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Asked:
    """Explicit options: the folder of each split, or that the outermost folders are classes.

    Attributes:
        group: The pattern of an image's group in its name, if there are groups.
    """

    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: bool = False
    group: str | None = None

    def joined(self) -> "Asked":
        """The options once the folder of each split has been moved to a folder of the split's name."""
        return Asked({split: split for split in self.folders})


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
    """Returns True for a hidden file, a file in a hidden folder, and files that systems add.

    A placeholder of iCloud is not hidden: .IMG_1.jpg.icloud stands for an image that is not downloaded.
    """
    *folders, own = name.split("/")
    is_dotted = own.startswith(".") and not own.lower().endswith(".icloud")
    is_of_system = any(part in SYSTEM_NAMES for part in name.lower().split("/"))
    return is_dotted or is_of_system or any(part.startswith(".") for part in folders)


def layout(names: Sequence[str], folders: Sequence[str], where: object, asked: Asked) -> Layout:
    """Returns the layout of files and folders; `asked`: what the caller says about them.

    Raises:
        InputError: A structure that may be read in two ways.
    """
    shown = [name for name in names if not is_hidden(name)]
    tree = Tree(shown, [folder for folder in folders if not is_hidden(folder)])
    split_folders: dict[str, str] = {}
    if asked.folders:
        split_folders = chosen_folders(tree, asked.folders, where)
    elif not asked.classes:
        split_folders = find_splits(tree, outermost(tree), where)
    if split_folders:
        roots = {split: inside_wrappers(tree, folder) for split, folder in split_folders.items()}
        class_folders = labelled({split: classes_in(tree, root) for split, root in roots.items()})
    else:
        inside = {} if asked.classes else splits_in_classes(tree, outermost(tree), where)
        class_folders = inside or {"": classes_in(tree, outermost(tree))}
    found = read_classes(tree, class_folders)
    say_left_out(names, tree, found, class_folders)
    for split, images in found.images.items():
        if not images:
            raise InputError(f"every split of {where} must have images; there are none in {split or 'it'}. Add some")
    return found


def outermost(tree: Tree) -> str:
    """The folder of the data set inside the folders that hold one folder each."""
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
    folders = {split: folder.strip("/") for split, folder in chosen.items()}
    for split, folder in folders.items():
        if folder not in tree.holding:
            raise InputError(f"{where} holds no folder {folder} with images: name a folder by its path in {where}")
        tops = tree.folders(inside_wrappers(tree, folder))
        if all(tree.nested(top) and split_of_name(last(top)) for top in tops):
            raise InputError(
                f"The folder of {split} must hold class folders, and {folder} holds folders of splits "
                f"({', '.join(map(last, tops[:3]))}): name one of them"
            )
        for other, path in folders.items():
            if other != split and f"{folder}/".startswith(f"{path}/"):
                raise InputError(f"The folders of {other} and {split} must be apart, and {path} holds {folder}")
    return folders


def find_splits(tree: Tree, root: str, where: object) -> dict[str, str]:
    """Returns the folder of each split in a root, or {} if its folders are classes."""
    tops = tree.folders(root)
    # a few images beside the class folders of a split are strays, unless folders beside it show that it is a class
    named = all(split_of_name(last(folder)) for folder in tops)
    nested = [folder for folder in tops if tree.nested(folder) or (named and tree.folders(folder))]
    direct = [folder for folder in tops if folder not in nested]
    splits = one_name_each([last(folder) for folder in nested], where)
    found = {splits[last(folder)]: folder for folder in nested if last(folder) in splits}
    classes = {caseless_name(last(folder)) for folder in direct}

    # images directly in train are in no class; classes beside a split may be those of train
    flat = any(split_of_name(last(folder)) == "train" for folder in direct)
    is_flat = flat and "train" not in found and bool(found or (named and len(tops) > 1))
    if is_flat or (found and "train" not in found and direct):
        raise unclear(tops, where)
    if found:
        bare = [folder for folder in sorted(tree.inner[root] - tree.holding) if split_of_name(last(folder))]
        return {**{str(split_of_name(last(folder))): folder for folder in bare}, **found}

    inner = [{caseless_name(last(folder)) for folder in tree.folders(inside_wrappers(tree, path))} for path in nested]
    alike = any(one & other for place, one in enumerate(inner) for other in inner[:place])
    if alike and not direct and not splits_in_classes(tree, root, where):
        raise unclear(nested, where)
    copies = [folder for folder, one in zip(nested, inner, strict=True) if one and one <= classes]
    for folder in copies:
        tree.inner[root].discard(folder)  # Kaggle's archives hold their whole tree again in a folder inside it
    return {}


def unclear(tops: Sequence[str], where: object) -> InputError:
    """Returns the refusal of folders that may be splits, classes, or variants of one data set."""
    train, test = (quote(folder) for folder in tops[:2])
    return InputError(
        f"{where} holds {', '.join(map(last, tops[:5]))}, and it is not clear which are splits of class folders: if all"
        f" are splits, write folder:{where}?train={train}&test={test}; if they are classes,"
        f" folder:{where}?folders=classes; if each is a whole data set, name one, such as folder:{where}/{tops[0]}"
    )


def splits_in_classes(tree: Tree, root: str, where: object) -> dict[str, dict[str, str]]:
    """Returns the name of the class of each folder by split, for CLASS/SPLIT/IMAGE; {} for any other structure."""
    tops = tree.folders(root)
    inner = [folder for top in tops for folder in tree.folders(top)]
    if not all(map(tree.nested, tops)) or not all(split_of_name(last(path)) for path in inner):
        return {}
    if any(tree.folders(path) for path in inner):
        return {}
    found: dict[str, dict[str, str]] = {}
    for top in tops:
        split_of = one_name_each([last(path) for path in tree.folders(top)], f"{where}/{top}")
        for path in tree.folders(top):
            found.setdefault(split_of[last(path)], {})[path] = class_name(top)
    if "train" not in found:
        return {}
    found["train"] |= {path: class_name(path) for path in tree.inner[root] - tree.holding}
    return found


def classes_in(tree: Tree, root: str) -> dict[str, str]:
    """Returns the name of the class of each folder in the folder of a split, empty ones too."""
    return {path: class_name(path) for path in sorted(tree.inner.get(root, set()))}


def labelled(class_folders: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Returns the splits without those that hold one folder that is no class of train, such as val/images."""
    train = {caseless_name(name) for name in class_folders.get("train", {}).values()}
    return {
        split: folders
        for split, folders in class_folders.items()
        if not train or len(folders) != 1 or train & {caseless_name(name) for name in folders.values()}
    }


def class_name(folder: str) -> str:
    """Returns the name of the class of a folder: composed (NFC), so that both spellings of a name are one class."""
    return composed_name(last(folder))


def read_classes(tree: Tree, class_folders: Mapping[str, Mapping[str, str]]) -> Layout:
    """Returns the layout of class folders, the name of each by split."""
    name_of = {path: name for names in class_folders.values() for path, name in names.items()}
    classes = tuple(sorted({*name_of.values()}))
    index = {name: place for place, name in enumerate(classes)}
    class_of = {path: index[name] for path, name in name_of.items()}
    images: dict[str, list[tuple[str, int]]] = {split: [] for split in sorted(class_folders)}
    split_of = {path: split for split, paths in class_folders.items() for path in paths}
    for name in tree.images:
        path = next((folder for folder in around(name) if folder in class_of), None)
        if path is not None:
            images[split_of[path]].append((name, class_of[path]))
    filled = {name for path, name in name_of.items() if path in tree.filled}
    return Layout(classes, images, tuple(name for name in classes if name not in filled))


def say_left_out(
    names: Sequence[str], tree: Tree, found: Layout, class_folders: Mapping[str, Mapping[str, str]]
) -> None:
    """Records the files that are not read: first those of classes without an image, which a refusal is about."""
    name_of = {path: name for several in class_folders.values() for path, name in several.items()}
    used = {name for rows in found.images.values() for name, _ in rows}
    left: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        path = next((folder for folder in around(name) if folder in name_of), "")
        top = name.rpartition("/")[0].split("/")[0]
        if name in used or name == "manifest.json" or "__MACOSX" in name.split("/"):  # every zip of macOS has one
            continue
        if is_hidden(name):
            key = ("", "files", "hidden, or added by the system")
        elif name.lower().endswith(SUFFIXES):
            key = (top, "images", "in no class folder of a split")
        else:
            empty_class = name_of[path] if path and path not in tree.holding else ""
            key = (empty_class, "files", f"no images by their names ({suffix_of(name)})")
        left.setdefault(key, []).append(name)
    for (of, things, why), several in sorted(left.items(), key=lambda item: not (item[0][0] and item[0][1] == "files")):
        leave_out(things, why, len(several), several[0], of)


def suffix_of(name: str) -> str:
    """Returns the suffix of a file's name in lower case."""
    return "." + name.rpartition(".")[2].lower() if "." in last(name) else "no suffix"

"""The layout of a folder or a zip of images: which folders are splits, and which are classes.

The structure decides before names do. A folder that holds images is a class, whatever its name: `train` beside `bus` is
a class. A folder that holds only folders is a split if its name says one. Classes may hold splits: CLASS/train/IMAGE.

Where class folders hold folders alone, the innermost ones are the classes, named by their paths: a/abbey, b/bar/inner.
If they have the same names, the outer ones may be splits, classes (with years or cameras inside) or variants of one
data set; folders of splits between or in them are no classes either. They are refused with the question, which
`?train=FOLDER&test=FOLDER` or `?folders=classes` answers. Folders whose name says that images have no label, such as
no_label, are left out.
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from functools import partial
from urllib.parse import quote

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.labels import in_order, is_unlabelled
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.sources import SUFFIXES
from tangent_jax.data.splits import SPELLINGS, one_name_each, split_of_name
from tangent_jax.io.records import first_names

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
    """Explicit options: the folder of each split, and that the outermost folders are classes.

    Attributes:
        group: The pattern of an image's group in its name, if there are groups.
    """

    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: bool = False
    group: str | None = None

    def joined(self) -> "Asked":
        """The options once the folder of each split has been moved to a folder of the split's name."""
        return Asked({split: split for split in self.folders}, self.classes)


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

    def innermost(self, folder: str) -> list[str]:
        """Returns the innermost folders below a folder, sorted; a folder that holds images is one."""
        inner = [] if folder in self.direct else sorted(self.inner.get(folder, set()))
        return [leaf for path in inner for leaf in self.innermost(path) or [path]]


def around(name: str) -> list[str]:
    """Returns the folders around a file or folder, the innermost first, and "" last."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def last(folder: str) -> str:
    """Returns the name of a folder without the folders around it."""
    return folder.rpartition("/")[2]


def is_hidden(name: str) -> bool:
    """Returns True for hidden files and folders, and those that systems add; not for iCloud's .IMG_1.jpg.icloud."""
    *folders, own = name.split("/")
    is_dotted = own.startswith(".") and not own.lower().endswith(".icloud")
    is_of_system = any(part in SYSTEM_NAMES for part in name.lower().split("/"))
    return is_dotted or is_of_system or any(part.startswith(".") for part in folders)


def layout(names: Sequence[str], folders: Sequence[str], where: object, asked: Asked) -> Layout:
    """Returns the layout of files and folders; `asked`: what the caller says about them.

    Raises:
        InputError: A structure that may be read in two ways.
    """
    bare = {
        path for path in {*folders, *(path for name in names for path in around(name))} if is_unlabelled(last(path))
    }
    shown = [name for name in names if not is_hidden(name) and bare.isdisjoint(around(name))]
    tree = Tree(shown, [path for path in folders if not is_hidden(path) and bare.isdisjoint((path, *around(path)))])
    split_folders: dict[str, str] = {}
    if asked.folders:
        split_folders = chosen_folders(tree, asked.folders, where)
    elif not asked.classes:
        split_folders = find_splits(tree, outermost(tree), where)
    if asked.folders:
        outer = "&folders=classes after the folders"
    else:
        named = [f"{split}={quote(folder)}" for split, folder in split_folders.items()]
        outer = f"folder:{where}?{'&'.join([*named, 'folders=classes'])}"
    if split_folders:
        roots = {split: inside_wrappers(tree, folder) for split, folder in split_folders.items()}
    else:
        roots = {"": outermost(tree)}
    inside = {} if split_folders or asked.classes else splits_in_classes(tree, roots[""], where)
    found_in = (
        outer_folders
        if asked.classes
        else partial(classes_in, where=where, outer=outer, has_splits=bool(split_folders))
    )
    class_folders = inside or labelled({split: found_in(tree, root) for split, root in roots.items()})
    found = read_classes(tree, class_folders)
    inner = [name for name in found.classes if "/" in name]
    if inner:
        note(
            f"the classes are the {len(inner)} innermost folders, such as {inner[0]}; {outer} makes the outer ones"
            " classes"
        )
    say_left_out(names, tree, found, class_folders, bare)
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
    flat = [folder for folder in direct if split_of_name(last(folder)) == "train"]
    if flat and "train" not in found and (found or (named and len(tops) > 1)):
        raise InputError(
            f"the images of {where}/{flat[0]} must lie in a folder for each class; they lie in it directly. Move them"
            f" to {flat[0]}/CLASS, or list them in a CSV of path,label"
        )
    if found and "train" not in found and direct:
        raise InputError(
            f"the classes of {where} must all lie in folders of splits, or none; {first_names([*map(last, direct)])}"
            f" lie beside {' and '.join(map(last, found.values()))}. Move them to train, or if all are classes, write"
            f" folder:{where}?folders=classes"
        )
    if found:
        bare = [folder for folder in sorted(tree.inner[root] - tree.holding) if split_of_name(last(folder))]
        return {**{str(split_of_name(last(folder))): folder for folder in bare}, **found}

    inner = [{caseless_name(last(folder)) for folder in tree.folders(inside_wrappers(tree, path))} for path in nested]
    copies = [folder for folder, one in zip(nested, inner, strict=True) if one and one <= classes]
    for folder in copies:
        tree.inner[root].discard(folder)  # Kaggle's archives hold their whole tree again in a folder inside it
    return {}


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


def outer_folders(tree: Tree, root: str) -> dict[str, str]:
    """Returns the name of the class of each folder in the folder of a split, empty ones too."""
    return {path: class_name(path) for path in sorted(tree.inner.get(root, set()))}


def classes_in(tree: Tree, root: str, where: object, outer: str, has_splits: bool) -> dict[str, str]:
    """Returns the name of the class of each class folder in the folder of a split, empty ones too.

    Args:
        outer: The specification, or its end, by which the outer folders are the classes.

    Raises:
        InputError: Folders that may be classes or something else.
    """
    tops = tree.folders(root)
    nested = [path for path in tops if tree.nested(path)]
    if not nested:
        return outer_folders(tree, root)
    shown = first_names([*map(last, tops)])
    mixed = [path for path in sorted(tree.direct) if root in around(path) and tree.folders(path)]
    if mixed:
        raise InputError(
            f"the folders in {shown} of {where} must hold images or folders alone, to be classes; {mixed[0]} holds"
            f" both. Move its images to a folder in it, or make {shown} the classes: write {outer}"
        )
    if len(nested) < len(tops):
        note(f"folders in class folders belong to the class, such as those of {nested[0]}")
        return outer_folders(tree, root)
    inner = [{caseless_name(last(path)) for path in tree.folders(inside_wrappers(tree, top))} for top in nested]
    own = [{caseless_name(last(path))} for path in nested]
    if inner == own or (len(inner[0]) == 1 and all(one == inner[0] for one in inner)):
        return outer_folders(tree, root)  # CLASS/CLASS/IMAGE, of archives unpacked twice, or CLASS/images/IMAGE
    leaves = tree.innermost(root)
    between = [folder for leaf in leaves for folder in around(leaf) if root in around(folder)]
    splits = [folder for folder in between if caseless_name(last(folder)) in SPELLINGS]  # not SUN397's train_station
    splits += [leaf for leaf in leaves if caseless_name(last(leaf)) in SPELLINGS]
    if {*splits} & {*between} or len({SPELLINGS[caseless_name(last(folder))] for folder in splits}) > 1:
        raise InputError(
            f"the classes of {where} must be clear; its {shown} hold folders of splits, such as {splits[0]}. Open the"
            f" folder that holds them, {splits[0].rpartition('/')[0]}, or make {shown} the classes: write {outer}"
        )
    if any(one & other for place, one in enumerate(inner) for other in inner[:place]):
        train, test = (quote(folder) for folder in nested[:2])
        others = (
            f"; if they are splits, folder:{where}?train={train}&test={test}; if each is a whole data set, name one,"
            f" such as folder:{where}/{nested[0]}"
        )
        raise InputError(
            f"the classes of {where} must be clear; its {shown} hold folders of the same names: if they are classes,"
            f" write {outer}{'' if has_splits else others}"
        )
    return {path: composed_name(path[len(root) + 1 if root else 0 :]) for path in leaves}


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
    classes = tuple(in_order({*name_of.values()}))
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
    names: Sequence[str], tree: Tree, found: Layout, class_folders: Mapping[str, Mapping[str, str]], bare: Set[str]
) -> None:
    """Records the files that are not read: first those of classes without an image, which a refusal is about."""
    name_of = {path: name for several in class_folders.values() for path, name in several.items()}
    used = {name for rows in found.images.values() for name, _ in rows}
    left: dict[tuple[bool, str, str], list[tuple[str, str]]] = {}
    for name in names:
        path = next((folder for folder in around(name) if folder in name_of), "")
        if name in used or name == "manifest.json" or "__MACOSX" in name.split("/"):  # every zip of macOS has one
            continue
        is_of_empty_class, of, things = False, "", "files"
        unlabelled = [folder for folder in around(name) if folder in bare]
        is_image = name.lower().endswith(SUFFIXES)
        if is_hidden(name):
            why = "hidden, or added by the system"
        elif is_image and unlabelled:
            of, things = unlabelled[-1], "images"
            why = "without a label by their folder's name (rename it to keep them)"
        elif is_image:
            of, things, why = name.rpartition("/")[0].split("/")[0], "images", "in no class folder of a split"
        else:
            is_of_empty_class = bool(path) and path not in tree.holding
            of = name_of[path] if is_of_empty_class else ""
            why = f"no images by their names ({suffix_of(name)})"
        left.setdefault((not is_of_empty_class, things, why), []).append((of, name))
    for (_, things, why), several in sorted(left.items(), key=lambda item: item[0][0]):
        folders = dict.fromkeys(of for of, _ in several if of)
        leave_out(things, why, len(several), several[0][1], first_names([*folders]))


def suffix_of(name: str) -> str:
    """Returns the suffix of a file's name in lower case."""
    return "." + name.rpartition(".")[2].lower() if "." in last(name) else "no suffix"

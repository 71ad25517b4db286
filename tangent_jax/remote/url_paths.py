"""A file or folder at a URL, with the methods of `Path` that data sets use; read in pieces, never copied.

The folder is listed once, at the first access; existence, sizes and states come from that list. An object that differs
from the list when it is read is refused.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tangent_jax.core.checks import require
from tangent_jax.io.files import expand_path
from tangent_jax.remote import urls

BLOCK = 1 << 18  # bytes that are read ahead of a seek
AGAIN = "Run the same command again, once nobody writes there"
SPEAKER = "open_dataset"


class Size(NamedTuple):
    """The size of a file in bytes, named as in `os.stat`; `st_mtime_ns`: a number that identifies its state."""

    st_size: int
    st_mtime_ns: int


class Listing:
    """The files below a URL, listed once."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.known: dict[str, dict[str, Any]] = {}  # files that were accessed before the listing

    @cached_property
    def files(self) -> dict[str, dict[str, Any]]:
        """The file system's information on each file, by its name below the URL."""
        return urls.list_files(SPEAKER, self.url)

    @cached_property
    def folders(self) -> set[str]:
        """The names of all folders below the URL, and "" if there is any file."""
        return {str(parent).removeprefix(".") for name in self.files for parent in PurePosixPath(name).parents}

    def info(self, name: str) -> dict[str, Any] | None:
        """The information on a file; None if it does not exist."""
        return self.known.get(name) or self.files.get(name)


LISTINGS: dict[str, Listing] = {}
"""The listings of this process, by URL; a data set's dates from its opening."""


def listing_of(url: str) -> Listing:
    """The listing of a URL in this process."""
    return LISTINGS.setdefault(url, Listing(url))


class UrlPath:
    """The file or folder `name` below the URL of a listing."""

    def __init__(self, root: str, name: str = "") -> None:
        self.root, self.pure = root, PurePosixPath(name)

    def __reduce__(self) -> tuple:
        return UrlPath, (self.root, self.key)

    @property
    def key(self) -> str:
        """Its name below the listing's URL, "" for the URL itself."""
        return str(self.pure).removeprefix(".") if self.pure == PurePosixPath() else str(self.pure)

    @property
    def listing(self) -> Listing:
        """The listing that contains it."""
        return listing_of(self.root)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}".rstrip("/")

    def __repr__(self) -> str:
        return f"UrlPath({str(self)!r})"

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and str(self) == str(other)

    def __lt__(self, other: "UrlPath") -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(self.root, f"{self.pure / name}")

    @property
    def whole(self) -> PurePosixPath:
        """Its names, from the bucket on."""
        return PurePosixPath(str(self).partition("://")[2])

    @property
    def name(self) -> str:
        """The last of its names."""
        return self.whole.name

    @property
    def stem(self) -> str:
        """The last of its names, without its suffix."""
        return self.whole.stem

    @property
    def suffix(self) -> str:
        """The suffix of its last name, such as ".tar"."""
        return self.whole.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """All names from the bucket on."""
        return self.whole.parts

    @property
    def parent(self) -> "UrlPath":
        """The folder around it."""
        return UrlPath(self.root, f"{self.pure.parent}")

    def absolute(self) -> "UrlPath":
        """Itself: a URL is absolute."""
        return self

    def relative_to(self, other: Any) -> PurePosixPath:
        """Its names below another place of the same file system."""
        return self.whole.relative_to(other.whole)

    # Answers from the listing

    def is_file(self) -> bool:
        """True for a file."""
        return self.listing.info(self.key) is not None

    def is_dir(self) -> bool:
        """True for a folder that holds a file."""
        return self.key not in self.listing.known and self.key in self.listing.folders

    def exists(self) -> bool:
        """True for a file or a folder."""
        return self.is_file() or self.is_dir()

    def below(self) -> Iterator["UrlPath"]:
        """All files and folders below this one."""
        before = f"{self.key}/" if self.key else ""
        for name in sorted({*self.listing.files, *self.listing.folders} - {""}):
            if name.startswith(before):
                yield UrlPath(self.root, name)

    def glob(self, pattern: str) -> Iterator["UrlPath"]:
        """Yields what lies below and fits a pattern such as "*/*.tar", one name for each part."""
        wanted = pattern.split("/")
        for path in self.below():
            own = path.relative_to(self).parts
            if len(own) == len(wanted) and all(map(fnmatchcase, own, wanted)):
                yield path

    def rglob(self, pattern: str) -> Iterator["UrlPath"]:
        """Yields what lies below, at any depth, and whose last name fits a pattern."""
        return (path for path in self.below() if fnmatchcase(path.name, pattern))

    def iterdir(self) -> Iterator["UrlPath"]:
        """Yields what lies in a folder."""
        return self.glob("*")

    def info(self) -> dict[str, Any]:
        """The file system's information on a file; InputError if it does not exist."""
        info = self.listing.info(self.key)
        require(info is not None, SPEAKER, "a file", f"{self}, which does not exist")
        assert info is not None
        return info

    def stat(self) -> Size:
        """The size of a file, and a number of its state."""
        info = self.info()
        return Size(int(info["size"]), hash(urls.state_of(str(self), info)))

    def state(self) -> str | None:
        """Its URL and state as text; None if the file system reports no state."""
        return urls.state_of(str(self), self.info())

    # Reading

    def read_bytes(self) -> bytes:
        """The bytes of a file; InputError if it differs from the listing."""
        size = self.stat().st_size
        content = read_range(self, 0, size)
        self.check_size(len(content), size)
        return content

    def check_size(self, got: int, size: int) -> None:
        """Raises InputError for a file whose size differs from its listing."""
        require(got == size, SPEAKER, f"{self} of {size} bytes, as it was listed", f"{got} bytes: it changed", AGAIN)

    def open(self, mode: str = "rb", cache_type: str = "readahead") -> Any:
        """Opens a file for reading bytes; InputError if it differs from the listing."""
        require(mode == "rb", SPEAKER, "a file to be read", mode)
        fs, path = urls.connect(SPEAKER, str(self))
        info, size = self.info(), self.stat().st_size
        with urls.telling(SPEAKER, str(self)):
            file = fs.open(path, "rb", block_size=BLOCK, cache_type=cache_type)
        now = getattr(file, "details", None)
        if isinstance(now, dict):
            got = urls.state_of("", {**now, "size": size})
            same = got is None or got == urls.state_of("", {**info, "size": size})
            require(same, SPEAKER, f"{self} as it was listed", "another object: it changed while it was read", AGAIN)
        self.check_size(int(getattr(file, "size", None) or size), size)
        return file


Place = Path | UrlPath
"""A file or folder of a data set, local or at a URL."""


def read_range(place: Place, offset: int, size: int) -> bytes:
    """The bytes offset to offset + size of a file, fewer at its end; at a URL only these are read."""
    opened = place.open("rb", "none") if isinstance(place, UrlPath) else place.open("rb")
    with opened as file, urls.telling(SPEAKER, str(place)):
        file.seek(offset)
        return file.read(size)


def name_below(place: Any, root: Any) -> str:
    """The name of a file below a folder, both local or both at a URL."""
    return str(place.relative_to(root))


def as_place(function: str, where: str | os.PathLike) -> Place:
    """The path of a file or folder, local or at a URL; InputError for anything else. It may not exist."""
    if not urls.is_url(where):
        return expand_path(function, where)
    url = os.fspath(where).rstrip("/")
    info = urls.info_of(function, url)
    if info is None:
        LISTINGS[url] = Listing(url)  # listed again at each opening
        return UrlPath(url)
    root, _, name = url.rpartition("/")
    listing_of(root).known[name] = info
    return UrlPath(root, name)

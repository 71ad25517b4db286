"""A file or folder at a URL, with the methods of `Path` that data sets use; read in pieces, never copied.

The folder is listed once, at the first access; existence, sizes and states come from that list. An object that differs
from the list when it is read is refused. Neither etils.epath nor universal_pathlib does either: they ask the server at
each access, so a data set could begin with one version of a file and end with the next.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import expand_path
from tangent_jax.remote import urls

BLOCK = 1 << 18  # bytes that are read ahead of a seek


class Size(NamedTuple):
    """The size of a file in bytes, named as in `os.stat`."""

    st_size: int


class Listing:
    """The files below a URL, listed once."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.known: dict[str, dict[str, Any]] = {}  # files that were accessed before the listing

    @cached_property
    def files(self) -> dict[str, dict[str, Any]]:
        """The file system's information on each file, by its name below the URL."""
        return urls.list_files(self.url)

    @cached_property
    def folders(self) -> set[str]:
        """The names of all folders below the URL, and "" if there is any file."""
        return {str(parent).removeprefix(".") for name in self.files for parent in PurePosixPath(name).parents}

    def info(self, name: str) -> dict[str, Any] | None:
        """The information on a file; None if it does not exist."""
        return self.known.get(name) or self.files.get(name)


LISTINGS: dict[str, Listing] = {}
"""The listings of this process, by URL; a data set's dates from its opening."""


@dataclass(frozen=True, order=True)
class UrlPath:
    """The file or folder `key` below the URL `root`, which is listed; "" is the root itself."""

    root: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.root}/{self.key}".rstrip("/")

    # Names

    @property
    def names(self) -> PurePosixPath:
        """Its names, from the bucket on."""
        return PurePosixPath(str(self).partition("://")[2])

    @property
    def name(self) -> str:
        """The last of its names."""
        return self.names.name

    @property
    def stem(self) -> str:
        """The last of its names, without its suffix."""
        return self.names.stem

    @property
    def suffix(self) -> str:
        """The suffix of its last name, such as ".tar"."""
        return self.names.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """All names from the bucket on."""
        return self.names.parts

    @property
    def parent(self) -> "UrlPath":
        """The folder around it; the root's is the root."""
        return UrlPath(self.root, str(PurePosixPath(self.key).parent).removeprefix("."))

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(self.root, str(PurePosixPath(self.key) / name))

    def absolute(self) -> "UrlPath":
        """Itself: a URL is absolute."""
        return self

    def relative_to(self, other: Any) -> PurePosixPath:
        """Its names below another place of the same file system."""
        return self.names.relative_to(other.names)

    # Answers from the listing

    @property
    def listing(self) -> Listing:
        """The listing that contains it."""
        return LISTINGS.setdefault(self.root, Listing(self.root))

    def is_file(self) -> bool:
        """True for a file."""
        return self.listing.info(self.key) is not None

    def is_dir(self) -> bool:
        """True for a folder that holds a file."""
        return self.key not in self.listing.known and self.key in self.listing.folders

    def exists(self) -> bool:
        """True for a file or a folder."""
        return self.is_file() or self.is_dir()

    def rglob(self, pattern: str) -> Iterator["UrlPath"]:
        """Yields the files and folders below, at any depth, whose last name fits a pattern."""
        before = f"{self.key}/" if self.key else ""
        for key in sorted({*self.listing.files, *self.listing.folders} - {""}):
            if key.startswith(before) and fnmatchcase(PurePosixPath(key).name, pattern):
                yield UrlPath(self.root, key)

    def glob(self, pattern: str) -> Iterator["UrlPath"]:
        """Yields what lies below and fits a pattern such as "*/*.tar", one name for each part."""
        patterns = pattern.split("/")
        for path in self.rglob("*"):
            parts = path.relative_to(self).parts
            if len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns)):
                yield path

    def iterdir(self) -> Iterator["UrlPath"]:
        """Yields what lies in a folder."""
        return self.glob("*")

    def info(self) -> dict[str, Any]:
        """The file system's information on a file; InputError if it does not exist."""
        info = self.listing.info(self.key)
        if info is None:
            raise InputError(f"{self} must be a file; it does not exist")
        return info

    def stat(self) -> Size:
        """The size of a file."""
        return Size(int(self.info()["size"]))

    def state(self) -> str | None:
        """Its URL and state as text; None if the file system reports no state."""
        return urls.state_of(str(self), self.info())

    # Reading

    def read_bytes(self) -> bytes:
        """The bytes of a file; InputError if it differs from the listing."""
        content = read_range(self, 0, self.stat().st_size)
        self.check_size(len(content))
        return content

    def check_size(self, size: int) -> None:
        """Raises InputError for a file whose size differs from its listing."""
        listed = self.stat().st_size
        if size != listed:
            raise self.changed(f"{size} bytes, not {listed}")

    def changed(self, now: str) -> InputError:
        """The InputError for a file that is no longer the listed one."""
        return InputError(
            f"{self} must be as it was listed; got {now}: it changed while it was read. Run the same command again, "
            "once nobody writes there"
        )

    def open(self, mode: str = "rb", cache_type: str = "readahead") -> Any:
        """Opens a file for reading bytes; InputError if it differs from the listing."""
        if mode != "rb":
            raise InputError(f"{self} must be opened for reading bytes; got mode {mode}")
        listed = self.info()
        size = self.stat().st_size
        fs, path = urls.connect(str(self))
        with urls.explain_errors(str(self)):
            file = fs.open(path, "rb", block_size=BLOCK, cache_type=cache_type)
        details = getattr(file, "details", None)
        if isinstance(details, dict):
            state = urls.state_of("", {**details, "size": size})
            if state is not None and state != urls.state_of("", {**listed, "size": size}):
                raise self.changed("another object")
        self.check_size(int(getattr(file, "size", None) or size))
        return file


Place = Path | UrlPath
"""A file or folder of a data set, local or at a URL."""


def read_range(place: Place, offset: int, size: int) -> bytes:
    """The bytes offset to offset + size of a file, fewer at its end; at a URL only these are read."""
    opened = place.open("rb", "none") if isinstance(place, UrlPath) else place.open("rb")
    with opened as file, urls.explain_errors(str(place)):
        file.seek(offset)
        return file.read(size)


def stamp_of(place: Place) -> tuple[int, Any]:
    """The size of a file and the time of its last write, or its state at a URL, which change with the file."""
    if isinstance(place, UrlPath):
        return place.stat().st_size, place.state()
    state = place.stat()
    return state.st_size, state.st_mtime_ns


def name_below(place: Any, root: Any) -> str:
    """The name of a file below a folder, both local or both at a URL."""
    return str(place.relative_to(root))


def as_place(where: str | os.PathLike) -> Place:
    """The path of a file or folder, local or at a URL; InputError for anything else. It may not exist."""
    if not urls.is_url(where):
        return expand_path(where)
    url = os.fspath(where).rstrip("/")
    info = urls.info_of(url)
    if info is None:
        LISTINGS[url] = Listing(url)  # listed again at each opening
        return UrlPath(url)
    root, _, name = url.rpartition("/")
    LISTINGS.setdefault(root, Listing(root)).known[name] = info
    return UrlPath(root, name)

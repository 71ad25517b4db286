"""Folders copied to a URL and back: files by their content, under an index that is written once and never changed.

    URL/objects/SHA-256             the bytes of a file
    URL/index/000000000012.json     {"files": {name: SHA-256}, "writer": random}: the 12th state of the folder

A push writes the objects that are not there yet, then the next index (the commit, `urls.create`), then deletes what no
index names any more. So whoever reads finds one whole state, whenever a push was killed; run again, it writes what is
missing. Two that push at once write the same number: one of them is refused. A number is no promise by itself, as old
indices are deleted: after its commit a push looks whether a higher one is there, and is refused then.
"""

import dataclasses
import json
import re
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from tangent_jax.core import urls
from tangent_jax.core.checks import require
from tangent_jax.core.files import file_fingerprint, fingerprint, inside
from tangent_jax.core.records import convert, parse_json

HASH = re.compile("[0-9a-f]{64}")
MOVED = "Run the same command again, or choose another URL; nothing was changed there"


@dataclasses.dataclass(frozen=True)
class Index:
    """The content of an index: the SHA-256 of each file by its name in the folder, and who wrote it."""

    files: dict[str, str]
    writer: str


class Remote:
    """The states of a folder at a URL. `number`: of the newest, 0 where there is none; `files`: its files."""

    def __init__(self, function: str, url: str) -> None:
        self.function, self.url = function, url.rstrip("/")
        self.number, self.files = 0, dict[str, str]()
        self.objects: set[str] = set()
        self.reload()

    def reload(self) -> None:
        """Reads which state is the newest now, and which objects are there."""
        listed = urls.list_files(self.function, self.url)
        self.objects = {name.removeprefix("objects/") for name in listed if name.startswith("objects/")}
        numbers = [int(match[1]) for name in listed if (match := re.fullmatch(r"index/(\d{12})\.json", name))]
        self.number, self.files = max(numbers, default=0), {}
        if self.number:
            self.files = self.read_index(self.number)

    def read_index(self, number: int) -> dict[str, str]:
        """The files of a state by name; InputError for names that leave the folder, and what is no hash."""
        url = self.index_url(number)
        fields = parse_json(self.function, urls.read(self.function, url), url)
        index: Index = convert(Index, fields, self.function, url)
        for name, whole in index.files.items():
            plain = all(part not in ("", ".", "..") for part in name.split("/")) and name.isprintable()
            good = plain and HASH.fullmatch(whole)
            require(good, self.function, f"plain names and hashes in {url}", repr(name)[:80])
        return index.files

    def index_url(self, number: int) -> str:
        """The URL of an index."""
        return f"{self.url}/index/{number:012d}.json"

    def object_url(self, whole: str) -> str:
        """The URL of the bytes of this SHA-256."""
        return f"{self.url}/objects/{whole}"

    def push(self, root: Path, files: dict[str, str], grow: bool = False) -> None:
        """Makes `files`, the SHA-256 by name below `root`, the newest state; nothing where it is that already.

        `grow`: a file that has changed since it was hashed, as a log does, is copied as it is now.
        Raises: InputError where another writer has made a state since this one was read, for a file that is not what
                `files` says, and where the file system cannot be written to: the newest state is whole in each case.
        """
        if files == self.files and self.number:
            return
        files = {name: self.upload(root / name, whole, grow) for name, whole in files.items()}
        writer, number = uuid.uuid4().hex, self.number + 1
        content = json.dumps(dataclasses.asdict(Index(files, writer))).encode()
        expected, got = f"{self.url} as it was read", "a newer state, of another writer"
        require(urls.create(self.function, self.index_url(number), content), self.function, expected, got, MOVED)
        names = urls.list_files(self.function, f"{self.url}/index")
        if any(name > f"{number:012d}.json" for name in names):
            urls.delete(self.function, [self.index_url(number)])
            require(False, self.function, expected, got, MOVED)
        self.number, self.files = number, files
        dead = sorted(self.objects - {*files.values()})
        old = [f"{self.url}/index/{name}" for name in names if name < f"{number:012d}.json"]
        urls.delete(self.function, old + [self.object_url(whole) for whole in dead])
        self.objects &= {*files.values()}

    def upload(self, path: Path, whole: str, grow: bool) -> str:
        """Writes the object of a file that should have this SHA-256, unless it is there; returns that which it has."""
        if whole in self.objects:
            return whole
        require(path.is_file(), self.function, f"the file {path}", "none")
        is_small = path.stat().st_size <= urls.PIECE
        content = path.read_bytes() if is_small else b""
        got = fingerprint(content) if is_small else file_fingerprint(path)
        expected, do = f"{path} with SHA-256 {whole[:12]}...", "Run the same command again, or tangent-jax store verify"
        require(got == whole or grow, self.function, expected, f"{got[:12]}...: it was altered", do)
        if is_small:
            urls.write(self.function, self.object_url(got), content)
        else:
            urls.upload(self.function, path, self.object_url(got))
        self.objects.add(got)
        return got

    def fetch(self, folder: Path, wanted: Collection[str] | None = None) -> Path:
        """Downloads objects of the newest state, all or those wanted, to `folder`, and returns it: files by SHA-256.

        What is there already with its SHA-256, from a call that was killed, is not fetched again.
        Raises: InputError where an object is gone or is not what its name says.
        """
        for whole in sorted({*self.files.values()} if wanted is None else wanted):
            path = inside(folder, whole)
            if not path.is_file() or file_fingerprint(path) != whole:
                urls.download(self.function, self.object_url(whole), path, whole)
        return folder

    def pull(self, root: Path) -> None:
        """Makes `root` a folder of the files of the newest state alone: a kill leaves some of each, to be pulled again.

        Raises: InputError as `fetch`; then nothing below `root` was changed.
        """
        objects = self.fetch(root.with_name(f"{root.name}.objects"))
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name, whole in self.files.items():
            path = inside(root, *name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(objects / whole, path)
        shutil.rmtree(objects, ignore_errors=True)

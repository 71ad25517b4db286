"""Copies folders to a URL and back: files by their content hash, listed in an index that never changes.

    URL/objects/000000000012-SHA-256    the bytes of a file, written for the 12th state of the folder
    URL/index/000000000012.json         {"files": {name: object}, "writer": random}: that state

A push writes missing objects, then the next index (the commit, `urls.create`), then deletes objects that no index
names. So a reader always finds one whole state, even if a push was killed; another push completes it. Two concurrent
pushes use the same number, so one of them is refused. As old indices are deleted, a number alone does not prove order:
after its commit a push checks for a higher number, and is refused if there is one.

A push may delete long after its commit, so it must never delete what a later state names. Hence the number in an
object's name: a state names objects of the state before it and objects of its own number, and no object that its
writer found dead. A file that comes back is written again, under another name.
"""

import dataclasses
import json
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import file_fingerprint, fingerprint, inside
from tangent_jax.io.records import convert, parse_json
from tangent_jax.remote import urls

INDEX = r"(\d{12})\.json"
OBJECT = re.compile(r"\d{12}-([0-9a-f]{64})")


def newest(names: Iterable[str], before: str = "") -> int:
    """The largest number of an index among names of objects that begin so; 0 for none."""
    return max((int(match[1]) for name in names if (match := re.fullmatch(before + INDEX, name))), default=0)


@dataclasses.dataclass(frozen=True)
class Index:
    """The content of an index: the object of each file by its name in the folder, and its writer."""

    files: dict[str, str]
    writer: str


class Remote:
    """The states of a folder at a URL.

    `number`: of the newest state, 0 for none; `files`: the SHA-256 of its files by name; `objects`: all objects;
    `places`: by SHA-256, those that the next state may name.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.number = 0
        self.files: dict[str, str] = {}
        self.objects: set[str] = set()
        self.places: dict[str, str] = {}
        self.reload()

    def reload(self) -> None:
        """Reads the newest state and the list of objects."""
        listed = urls.list_files(self.url)
        self.objects = {name.removeprefix("objects/") for name in listed if name.startswith("objects/")}
        self.number = newest(listed, "index/")
        self.files = {}
        next_state = self.object_of("", self.number + 1)
        self.places = {name.removeprefix(next_state): name for name in self.objects if name.startswith(next_state)}
        if self.number:
            objects = self.read_index(self.number)
            self.files = {name: place.partition("-")[2] for name, place in objects.items()}
            self.places |= {self.files[name]: place for name, place in objects.items()}

    @property
    def dead(self) -> set[str]:
        """The objects that the newest state does not name: left by a killed push, or of one that runs now."""
        return self.objects - {self.places[sha256] for sha256 in self.files.values()}

    def moved(self, advice: str = "Run the same command again") -> InputError:
        """The InputError for a state that another writer has followed by a newer one."""
        return InputError(f"{self.url} must be as it was read; it has a newer state, of another writer. {advice}")

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Turns an InputError of reading within the `with` block into `moved`, if a newer state exists by now."""
        try:
            yield
        except InputError as error:
            if newest(urls.list_files(f"{self.url}/index")) <= self.number:
                raise
            raise self.moved() from error

    def read(self, url: str) -> bytes:
        """The bytes of an object of this state."""
        with self.steady():
            return urls.read(url)

    def read_index(self, number: int) -> dict[str, str]:
        """The objects of a state by file name; InputError for names that leave the folder, and invalid objects."""
        url = self.index_url(number)
        fields = parse_json(self.read(url), url)
        index: Index = convert(Index, fields, url)
        for name, place in index.files.items():
            is_plain = all(part not in ("", ".", "..") for part in name.split("/")) and name.isprintable()
            if not is_plain or not OBJECT.fullmatch(place):
                raise InputError(f"{url} must hold plain names and hashes; got {repr(name)[:80]}")
        return index.files

    def index_url(self, number: int) -> str:
        """The URL of an index."""
        return f"{self.url}/index/{number:012d}.json"

    def object_of(self, sha256: str, number: int) -> str:
        """The name of an object that is written for the state of this number."""
        return f"{number:012d}-{sha256}"

    def object_url(self, sha256: str) -> str:
        """The URL of the bytes of this SHA-256."""
        return f"{self.url}/objects/{self.places[sha256]}"

    def check_newest(self) -> None:
        """Raises InputError if another writer has made a newer state."""
        if newest(urls.list_files(f"{self.url}/index")) > self.number:
            raise self.moved()

    def push(self, root: Path, files: dict[str, str], grow: bool = False) -> None:
        """Makes `files`, the SHA-256 by name below `root`, the newest state, unless it is already.

        `grow`: a file that changed after it was hashed, such as a log, is copied in its present form.
        Raises: InputError if another writer made a state since this one was read, if a file does not match `files`, or
                if writing fails; the newest state stays whole in each case.
        """
        lost = {*self.places.values()} - self.objects
        if files == self.files and self.number and not self.dead and not lost:
            return
        files = {name: self.upload(root / name, sha256, grow) for name, sha256 in files.items()}
        number = self.number + 1
        places = {name: self.places[sha256] for name, sha256 in files.items()}
        content = json.dumps(dataclasses.asdict(Index(places, uuid.uuid4().hex))).encode()
        advice = "Run the same command again, or choose another URL; nothing was changed there"
        if not urls.create(self.index_url(number), content):
            raise self.moved(advice)
        names = urls.list_files(f"{self.url}/index")
        if newest(names) > number:
            urls.delete([self.index_url(number)])
            raise self.moved(advice)
        self.number = number
        self.files = files
        self.places = {sha256: places[name] for name, sha256 in files.items()}
        dead = sorted(self.dead)
        old = [f"{self.url}/index/{name}" for name in names if newest([name]) < number]
        urls.delete(old + [f"{self.url}/objects/{name}" for name in dead])
        self.objects.difference_update(dead)

    def upload(self, path: Path, sha256: str, grow: bool) -> str:
        """Writes the object of a file with this SHA-256, unless it exists; returns the actual SHA-256."""
        if self.places.get(sha256) in self.objects:  # the listing decides: a bucket may have lost what the index names
            return sha256
        if not path.is_file():
            raise InputError(f"{path} must be a file; it does not exist")
        is_small = path.stat().st_size <= urls.PIECE
        content = path.read_bytes() if is_small else b""
        actual = fingerprint(content) if is_small else file_fingerprint(path)
        if actual != sha256 and not grow:
            raise InputError(
                f"{path} must have SHA-256 {sha256[:12]}...; it was altered, to {actual[:12]}.... Run the same command "
                "again, or tangent-jax store verify"
            )
        place = self.object_of(actual, self.number + 1)
        if is_small:
            urls.write(f"{self.url}/objects/{place}", content)
        else:
            urls.upload(path, f"{self.url}/objects/{place}")
        self.objects.add(place)
        self.places[actual] = place
        return actual

    def fetch(self, folder: Path, wanted: Collection[str] | None = None) -> Path:
        """Downloads objects of the newest state, all or those wanted, to `folder`, and returns it: files by SHA-256.

        Objects of an earlier, killed call are reused.
        Raises: InputError if an object is missing or does not match its name.
        """
        for sha256 in sorted({*self.files.values()} if wanted is None else wanted):
            path = inside(folder, sha256)
            if not path.is_file() or file_fingerprint(path) != sha256:
                with self.steady():
                    urls.download(self.object_url(sha256), path, sha256)
        return folder

    def pull(self, root: Path) -> None:
        """Replaces the files below `root` by those of the newest state; after a kill, pull again.

        Raises: InputError as `fetch`; nothing below `root` has changed then.
        """
        objects = self.fetch(root.with_name(f"{root.name}.objects"))
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name, sha256 in self.files.items():
            path = inside(root, *name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(objects / sha256, path)
        shutil.rmtree(objects, ignore_errors=True)

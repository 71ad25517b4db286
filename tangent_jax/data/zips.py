"""Zips of images: their members by name, read by one open file; what is no readable zip is refused."""

import contextlib
import zipfile
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.data.sources import check_size
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.paths import Place, open_file


class Archive(zipfile.ZipFile):
    """A zip that is open for reading; a process that receives it opens it again.

    Attributes:
        member_of: The member of each name as it is shown, with slashes and in UTF-8. Programs of Windows write
            backslashes; several programs write UTF-8 without the flag that says so.
        changed: The first name of each change.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place if isinstance(place, Path) else open_file(place))
        self.place = place
        self.member_of: dict[str, str] = {}
        self.changed: dict[str, str] = {}
        for info in self.infolist():
            name = info.filename
            if not info.flag_bits & 0x800 and not name.isascii():
                with contextlib.suppress(UnicodeError):
                    name = name.encode("cp437").decode("utf-8")
                    self.changed.setdefault("names without the UTF-8 flag are read as UTF-8", name)
            if "\\" in name:
                name = name.replace("\\", "/")
                self.changed.setdefault("backslashes in names are read as slashes", name)
            name = name.removeprefix("./")
            if name:
                self.member_of[name] = info.filename

    def __reduce__(self) -> tuple:
        return open_zip, (self.place,)

    def place_of(self, name: str) -> tuple[Place, str]:
        """(the zip, the member of a shown name)."""
        return self.place, self.member_of[name]

    def read_image(self, name: str) -> bytes:
        """The bytes of a shown name, up to the size limit of images; thread-safe, as ZipFile locks its file."""
        info = self.getinfo(self.member_of[name])
        check_size(info.file_size, name)
        try:
            with self.open(info) as member:
                return member.read(info.file_size + 1)  # and not all that a damaged member unpacks to
        except Exception as error:  # damaged, encrypted, or compressed in an unknown way
            raise InputError(
                f"{info.filename} in {self.place} must be readable; {type(error).__name__}: {error}"
            ) from error


def open_zip(path: Place) -> Archive:
    """Opens a zip; InputError for another file."""
    check_no_pointer(path)
    try:
        return Archive(path)
    except Exception as error:  # zipfile raises many kinds of errors
        raise InputError(
            f"folder: must name a folder or a zip; {path} is neither: {error}. Unpack it, fetch it again, or open tars"
            " of webdataset's format as wds:"
        ) from error

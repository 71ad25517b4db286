"""Files written whole or not at all, and their hashes."""

import hashlib
import json
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """The text is on disk under `path` when this returns; a kill before that leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    synchronize(partial)
    os.replace(partial, path)
    synchronize(path.parent)


def digest(content: bytes) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(content).hexdigest()


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def synchronize(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_files(folder: Path, expected: str) -> list[str]:
    """One line per file of a folder that is not as written; `expected` is the hash of its list, files.json."""
    listing = folder / "files.json"
    if not listing.exists() or digest(listing.read_bytes()) != expected:
        return [f"{listing}: altered or missing"]
    files = json.loads(listing.read_text())
    found = {str(path.relative_to(folder)): path for path in all_files(folder)}
    wrong = [f"{folder / name}: missing" for name in files if name not in found]
    wrong += [f"{found[name]}: not the store's" for name in found if name not in files and name != "files.json"]
    return wrong + [
        f"{found[name]}: altered" for name in files if name in found and digest(found[name].read_bytes()) != files[name]
    ]

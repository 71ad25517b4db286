"""Whole writes: synced before they are named, and nothing left of one that fails; one lock."""

import errno
import os

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io import files
from tangent_jax.io.files import hold_lock, write_whole, write_whole_folder


@pytest.fixture
def calls(monkeypatch):
    """The order of syncs and renames, by the name of what they touch."""
    seen = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor):
        seen.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(("name", os.path.basename(b))) or replace(a, b))
    return seen


def test_file_is_on_disk_before_its_name(tmp_path, calls):
    write_whole(tmp_path / "here", "text")
    assert calls == [("sync", "here.partial"), ("name", "here"), ("sync", tmp_path.name)]
    assert (tmp_path / "here").read_text() == "text"


def test_folder_is_on_disk_before_its_name(tmp_path, calls):
    with write_whole_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("1")
        name = partial.name
    assert calls.index(("sync", "a")) < calls.index(("sync", name)) < calls.index(("name", "out"))
    assert calls[-1] == ("sync", tmp_path.name)


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    def fail():
        with write_whole_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_lock_is_held_by_one_writer(tmp_path):
    with hold_lock(tmp_path / "lock"):
        expected = rf"{tmp_path} must not be in use; process {os.getpid()} .* holds it"
        with pytest.raises(InputError, match=expected), hold_lock(tmp_path / "lock", wait=False):
            pass
    with hold_lock(tmp_path / "lock", shared=True), hold_lock(tmp_path / "lock", shared=True, wait=False):
        pass


def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch):
    """As Lustre without -o flock is."""

    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with (
        pytest.raises(InputError, match=rf"{tmp_path} must be on a file system with locks \(flock\); got"),
        hold_lock(tmp_path / "a"),
    ):
        pass


def test_missing_fallocate_writes_blocks(tmp_path, monkeypatch):
    """As macOS is."""
    monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "file"
    files.allocate(path, (1 << 20) + 5)
    assert path.read_bytes() == bytes((1 << 20) + 5)

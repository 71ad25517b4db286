"""The rows of features on disk: whole after a kill, shared by sets of images, erased row by row."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Rows
from tangent_jax.features import row_store
from tangent_jax.features.extract import AHEAD, fill
from tangent_jax.features.row_store import LINE, RowStore, erase, identifiers_of
from tangent_jax.io import files, progress
from tangent_jax.io.files import hold_lock

COUNT, SHAPE = 64 * 8 - 10, (3, 5)
ROWS = np.random.default_rng(0).standard_normal((COUNT, *SHAPE)).astype(np.float32)
NAMES = [f"{i:064x}" for i in range(COUNT)]
PATIENCE = 10  # seconds until a test that waits in vain fails


def store_in(folder):
    return RowStore(folder, NAMES, SHAPE, np.dtype("float32"))


def source(computed=None):
    """Computes spans of ROWS; `computed` lists the chunks that were asked for."""

    def compute(spans):
        for span in spans:
            if computed is not None:
                computed.append(span[0] // 64)
            yield ROWS[span], [i for i, image in enumerate(span) if image == 131]

    return compute


def filled(folder, computed=None):
    rows = store_in(folder)
    fill(rows, source(computed))
    return rows


def chunk(number):
    return [*range(COUNT)[number * 64 : (number + 1) * 64]]


def missing(folder):
    """The chunks whose rows a new process finds missing, apart from the skipped row 131."""
    rows = store_in(folder)
    rows.create()
    found = {*rows.missing()} - {131}
    chunks = sorted({row // 64 for row in found})
    assert found | {131} >= {row for number in chunks for row in chunk(number)} - {131}
    return chunks


def has_rows(rows):
    """True if all rows but the skipped one have their values."""
    kept = np.delete(np.arange(COUNT), 131)
    return np.array_equal(rows.open()[kept], ROWS[kept])


def write_chunk(rows, number):
    rows.write(chunk(number), ROWS[chunk(number)])


def test_filled_store_lacks_skipped_rows_alone(tmp_path):
    rows = store_in(tmp_path)
    assert fill(rows, source()) == [131]
    assert has_rows(rows)
    assert rows.missing() == [131]  # it is tried again


def test_sets_of_images_share_their_rows(tmp_path):
    filled(tmp_path)
    others = [NAMES[7], "b" * 64, NAMES[3], "b" * 64]
    rows, asked = RowStore(tmp_path, others, SHAPE, np.dtype("float32")), []

    def compute(spans):
        for span in spans:
            asked.append(span)
            yield np.full((len(span), *SHAPE), 5.0), ()

    fill(rows, compute)
    assert asked == [[1]]  # of two copies one
    assert np.array_equal(rows.open()[[0, 2]], ROWS[[7, 3]])
    assert (rows.open()[[1, 3]] == 5).all()


@pytest.mark.parametrize("is_copied", [False, True], ids=["mounted", "copied"])  # a copy has other times
def test_rows_are_read_from_a_read_only_disk(tmp_path, monkeypatch, is_copied):
    def refuse(*args, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    def opened(path, mode, open_plain=files.open_plain):
        return open_plain(path, mode) if mode in ("r", "rb") else refuse()

    filled(tmp_path)
    if is_copied:
        os.utime(tmp_path / "rows.bin")
    for module in (files, row_store):
        monkeypatch.setattr(module, "open_plain", opened)
    for name in ("chmod", "touch", "unlink", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse)
    computed = []
    assert has_rows(filled(tmp_path, computed))
    assert computed == [2]  # the skipped row alone
    (tmp_path / "examples.txt").open("w").close()
    with pytest.raises(InputError, match=r"Read-only file system\. Name another one, as by tj\.Cache"):
        filled(tmp_path)


def has_holder(lock):
    try:
        with hold_lock(lock, shared=True, wait=False):
            return False
    except InputError:
        return True


def test_no_lock_is_held_while_rows_are_computed(tmp_path):
    def compute(spans):
        for span, made in zip(spans, source()(spans), strict=True):
            end = time.monotonic() + PATIENCE
            while (is_held := has_holder(tmp_path / "lock")) and time.monotonic() < end:
                time.sleep(0.001)  # the chunk before is written
            assert not is_held, span
            yield made

    fill(store_in(tmp_path), compute)


def test_no_lock_is_held_while_rows_are_compared(tmp_path, monkeypatch):
    filled(tmp_path)
    os.utime(tmp_path / "rows.bin")
    held, crc = [], row_store.checksum
    monkeypatch.setattr(row_store, "checksum", lambda *row: held.append(has_holder(tmp_path / "lock")) or crc(*row))
    store_in(tmp_path).create()
    assert held == [False] * (COUNT - 1)


def test_row_rewritten_while_compared_stays(tmp_path, monkeypatch):
    filled(tmp_path)
    os.utime(tmp_path / "rows.bin")
    altered = RowStore.altered
    monkeypatch.setattr(RowStore, "altered", lambda self, at=None: [70] if at is None else altered(self, at))
    assert missing(tmp_path) == []


def test_row_altered_after_its_comparison_is_found(tmp_path, monkeypatch):
    filled(tmp_path)
    os.utime(tmp_path / "rows.bin")
    altered = RowStore.altered

    def compared(self, at=None):
        found = altered(self, at)
        with (tmp_path / "rows.bin").open("r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
        monkeypatch.undo()
        return found

    monkeypatch.setattr(RowStore, "altered", compared)
    store_in(tmp_path).create()
    rows = store_in(tmp_path)
    rows.create()
    assert rows.missing() == [0, 131]


def test_rows_are_computed_while_written(tmp_path, monkeypatch):
    computed, waiting = [], []

    def slow(self, images, values, skipped, write=RowStore.write):
        end = time.monotonic() + PATIENCE
        while len(computed) < min(images[0] // 64 + 2, 8) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
        waiting.append(len(computed) - images[0] // 64)
        write(self, images, values, skipped)

    monkeypatch.setattr(RowStore, "write", slow)
    assert has_rows(filled(tmp_path, computed))
    assert 2 <= max(waiting) <= AHEAD + 2


@pytest.mark.parametrize("bad", [0, 7])
def test_full_disk_keeps_other_chunks(tmp_path, monkeypatch, bad):
    def full(path, pieces, wait=True, write_at=row_store.write_at):
        if path.name == "rows.bin" and bad * 64 * 60 in pieces:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(path, pieces, wait)

    with monkeypatch.context() as patch:
        patch.setattr(row_store, "write_at", full)
        with pytest.raises(OSError, match="No space left on device"):
            filled(tmp_path)
    left = missing(tmp_path)
    assert bad in left
    assert has_rows(filled(tmp_path))


def test_stop_is_met_after_the_chunk(tmp_path):
    computed = []

    def stopping(spans):
        for made in source(computed)(spans):
            if len(computed) == 3:
                progress.request_stop()
            yield made

    with pytest.raises(KeyboardInterrupt):
        fill(store_in(tmp_path), stopping)
    assert computed == [0, 1, 2]
    assert missing(tmp_path) == [3, 4, 5, 6, 7]
    again = []
    assert has_rows(filled(tmp_path, again))
    assert again == [2, 3, 4, 5, 6]  # the skipped row, then from chunk 3 on


def test_source_error_waits_for_predecessors(tmp_path):
    def failing(spans):
        yield from source()(spans[:3])
        raise InputError("an image was expected; got text.")

    with pytest.raises(InputError, match="an image was expected"):
        fill(store_in(tmp_path), failing)
    assert missing(tmp_path) == [3, 4, 5, 6, 7]


def test_a_row_is_on_the_disk_before_its_line(tmp_path, monkeypatch):
    """A power cut may lose what is not."""
    done, fsync, write_lines = [], os.fsync, row_store.write_lines
    rows = store_in(tmp_path)
    rows.create()
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), done.append("synchronised")))
    monkeypatch.setattr(row_store, "write_lines", lambda *a, **b: (done.append("line"), write_lines(*a, **b)))
    write_chunk(rows, 0)
    assert done == ["synchronised", "line"]


def flip(content):
    return content[: 70 * 60] + bytes([content[70 * 60] ^ 1]) + content[70 * 60 + 1 :]


def alter_line(line):
    """The lines with another one at row 200."""
    at = 201 * LINE.itemsize

    def alter(content):
        return content[:at] + line + content[at + LINE.itemsize :]

    return alter


@pytest.mark.parametrize(
    ("name", "harm", "count"),
    [
        ("rows.bin", flip, 1),
        ("rows.bin", lambda content: content[: -60 * 3 + 1], 3),
        ("rows.bin", None, COUNT - 1),
        ("examples.txt", lambda content: content[:-10], 1),
        ("examples.txt", lambda content: content[: LINE.itemsize // 2], COUNT - 1),
        ("examples.txt", lambda content: b"another version\n" + content, COUNT - 1),
        ("examples.txt", alter_line(b"\xff\xfe"), COUNT - 200),  # all after it are moved
        ("examples.txt", alter_line(bytes(LINE.itemsize)), 1),
    ],
)
def test_altered_rows_are_filled_once(tmp_path, name, harm, count):
    filled(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if harm is not None:
        path.write_bytes(harm(content))
    rows = store_in(tmp_path)
    rows.create()
    assert len({*rows.missing()} - {131}) == count
    assert has_rows(filled(tmp_path))
    assert missing(tmp_path) == []


def test_rows_whose_lines_are_damaged_are_erased(tmp_path):
    """No removal would find them."""
    filled(tmp_path)
    path = tmp_path / "examples.txt"
    path.write_bytes(alter_line(bytes(LINE.itemsize))(path.read_bytes()))
    store_in(tmp_path).create()
    assert ROWS[200].tobytes() not in (tmp_path / "rows.bin").read_bytes()
    assert ROWS[201].tobytes() in (tmp_path / "rows.bin").read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from features import test_row_store as t

fsync, left = os.fsync, [int(sys.argv[2])]

def killing(file):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(file)

os.fsync = killing
t.filled(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("fsyncs", [1, 2, 3, 7])
def test_killed_process_leaves_whole_rows(tmp_path, fsyncs):
    tests = os.path.dirname(os.path.dirname(__file__))
    command = [sys.executable, "-c", KILLED.format(tests=tests), str(tmp_path), str(fsyncs)]
    ended = subprocess.run(command, cwd=os.path.dirname(tests), capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    rows = store_in(tmp_path)
    rows.create()
    left = rows.missing()
    there = np.setdiff1d(np.arange(COUNT), left)
    assert len(there) == max(0, 64 * (fsyncs - 2) - (fsyncs > 4))
    assert np.array_equal(rows.open()[there], ROWS[there])
    assert has_rows(filled(tmp_path))


def test_erased_row_is_computed_again(tmp_path):
    filled(tmp_path)
    assert not erase(tmp_path, {"of no image"}.__contains__)
    assert erase(tmp_path, {NAMES[70]}.__contains__)
    assert NAMES[70] not in identifiers_of(tmp_path)
    assert ROWS[70].tobytes() not in (tmp_path / "rows.bin").read_bytes()
    rows = store_in(tmp_path)
    rows.create()
    assert rows.missing() == [70, 131]
    assert has_rows(filled(tmp_path))


@pytest.mark.parametrize("failing", range(3))
def test_failed_erasure_is_completed_by_next(tmp_path, monkeypatch, failing):
    filled(tmp_path)
    writes = []

    def fail(path, pieces, wait=True, write_at=row_store.write_at):
        writes.append(path.name)
        if len(writes) == failing + 1:
            raise OSError(errno.EIO, "Input/output error")
        write_at(path, pieces, wait)

    with monkeypatch.context() as patch:
        patch.setattr(row_store, "write_at", fail)
        with pytest.raises(OSError, match="Input/output"):
            erase(tmp_path, {NAMES[70]}.__contains__)
    assert erase(tmp_path, {NAMES[70]}.__contains__)
    assert ROWS[70].tobytes() not in (tmp_path / "rows.bin").read_bytes()
    assert NAMES[70].encode() not in (tmp_path / "examples.txt").read_bytes()


def test_row_erased_before_it_is_read_again_is_refused(tmp_path):
    rows = filled(tmp_path)
    assert erase(tmp_path, {NAMES[1]}.__contains__)
    with pytest.raises(InputError, match="some were removed"):
        rows.read_again()


def test_erase_refuses_a_wrong_row_size(tmp_path):
    filled(tmp_path)
    path, size = tmp_path / "examples.txt", store_in(tmp_path).nbytes
    content = path.read_bytes()
    for other in (size - 1, size + 1):
        path.write_bytes(
            content.replace(f"{size} bytes".encode().ljust(len(f"{other} bytes")), f"{other} bytes".encode(), 1)
        )
        with pytest.raises(InputError, match="must list the images of rows"):
            erase(tmp_path, {NAMES[1]}.__contains__)


def test_erased_rows_are_not_written(tmp_path):
    rows = store_in(tmp_path)
    rows.create()
    write_chunk(rows, 0)
    erase(tmp_path, {NAMES[70]}.__contains__)
    with pytest.raises(InputError, match="must stay while their features are computed"):
        write_chunk(rows, 1)
    assert missing(tmp_path) == [*range(1, 8)]


# Readers of rows that another program erases


def test_open_rows_are_no_part_of_map(tmp_path):
    rows = filled(tmp_path).open()
    kept = Rows(rows, np.delete(np.arange(COUNT), 131))
    assert np.array_equal(kept, np.delete(ROWS, 131, 0))
    for index in (3, slice(2, 9), [1, 70], (slice(0, 99), 1), np.array([[1, 2], [3, 4]])):
        assert np.array_equal(rows[index], ROWS[index])
        assert not np.may_share_memory(rows[index], rows.base.base)
    assert (rows.shape, rows.dtype, rows.ndim, rows.nbytes, len(rows)) == (ROWS.shape, "f4", 3, ROWS.nbytes, COUNT)


@pytest.mark.parametrize("moment", range(4))
def test_reader_is_told_of_erasure(tmp_path, monkeypatch, moment):
    opened, told = filled(tmp_path).open(), []
    before = opened[64:128]

    def write_at(*arguments, write_at=row_store.write_at):
        if len(told) == moment:
            told.append(refusals(opened))
        write_at(*arguments)
        told.append(refusals(opened))

    monkeypatch.setattr(row_store, "write_at", write_at)
    assert erase(tmp_path, {NAMES[70]}.__contains__)
    assert told[0] == (0 if moment == 0 else 3)
    assert {*told[1:]} == {3}
    assert np.array_equal(before, ROWS[64:128])  # what was read before stays
    assert np.array_equal(opened[71:128], ROWS[71:128])


def refusals(opened):
    """The number of ways to read rows that raise that some were removed; the others give the right rows."""
    ways = (lambda: (opened[70], ROWS[70]), lambda: (opened[:99], ROWS[:99]))
    ways += (lambda: (Rows(opened, np.arange(64, 80))[:8], ROWS[64:72]),)
    refused = []
    for read in ways:
        try:
            values, expected = read()
        except InputError as error:
            refused.append("must stay while their features are in use; some were removed" in str(error))
        else:
            assert np.array_equal(values, expected)
    return sum(refused)


def test_relisted_rows_are_not_zeros(tmp_path):
    opened = filled(tmp_path).open()
    erase(tmp_path, {NAMES[70]}.__contains__)
    filled(tmp_path)  # by a program whose store may have the image
    assert refusals(opened) == 3
    assert np.array_equal(opened[:70], ROWS[:70])


READER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from features import test_row_store as t
from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Rows

rows = t.store_in(Path(sys.argv[1]))
t.fill(rows, t.source())
opened = rows.open()
assert t.np.array_equal(opened[70], t.ROWS[70])
print("open", flush=True)
sys.stdin.readline()
try:
    print("read", opened[70].any())
except InputError as error:
    print(error)
"""


def test_other_process_is_told_of_erasure(tmp_path):
    filled(tmp_path)
    tests = os.path.dirname(os.path.dirname(__file__))
    command = [sys.executable, "-c", READER.format(tests=tests), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=os.path.dirname(tests), stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdout.readline() == "open\n"
        erase(tmp_path, {NAMES[70]}.__contains__)
        said, _ = reader.communicate("\n", timeout=60)
    assert said.startswith(f"the images of {tmp_path} must stay while their features are in use; some were removed, or")

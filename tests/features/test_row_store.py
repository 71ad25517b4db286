"""The rows of features on disk: whole after a kill, filled by several writers, erased row by row."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Rows
from tangent_jax.features import extract, row_store
from tangent_jax.features.extract import AHEAD, fill
from tangent_jax.features.row_store import RowStore, erase
from tangent_jax.io import files, progress
from tangent_jax.io.files import hold_lock
from tangent_jax.io.journal import Journal

COUNT, SHAPE = 64 * 8 - 10, (3, 5)
ROWS = np.random.default_rng(0).standard_normal((COUNT, *SHAPE)).astype(np.float32)
NAMES = [f"{i:064x}" for i in range(COUNT)]
PATIENCE = 10  # seconds until a test that waits in vain fails


def store_in(folder, process=0):
    return RowStore(folder, NAMES, SHAPE, np.dtype("float32"), process=process)


def source(computed=None):
    """Computes spans of ROWS; `computed` lists the chunks that were asked for."""

    def compute(spans):
        for span in spans:
            if computed is not None:
                computed.append(span.start // 64)
            yield ROWS[[*span]], [3] if span.start == 128 else []

    return compute


def filled(folder, computed=None):
    rows = store_in(folder)
    fill(rows, source(computed))
    return rows


def write_chunk(rows, chunk, values=None):
    span = rows.rows(chunk)
    rows.write(span, ROWS[[*span]] if values is None else values)


def test_a_filled_store_has_all_rows_and_names_the_skipped_ones(tmp_path):
    rows = filled(tmp_path)
    assert np.array_equal(rows.inputs, ROWS)
    assert (rows.skipped, store_in(tmp_path).missing()) == ({131}, [])


@pytest.mark.parametrize("is_copied", [False, True], ids=["mounted", "copied"])  # a copy has other times
def test_a_whole_store_is_read_from_a_read_only_disk(tmp_path, monkeypatch, is_copied):
    def refuse(*args, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    def opened(path, mode, open_plain=files.open_plain):
        return open_plain(path, mode) if mode in ("r", "rb") else refuse()

    filled(tmp_path)
    if is_copied:
        os.utime(tmp_path / "inputs.bin")
    monkeypatch.setattr(files, "open_plain", opened)
    for name in ("chmod", "touch", "unlink", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse)
    computed = []
    rows = filled(tmp_path, computed)
    assert (computed, rows.skipped) == ([], {131})
    assert np.array_equal(rows.opened()[:], ROWS)
    (tmp_path / "journal.jsonl").open("w").close()
    os.remove(tmp_path / "complete")
    with pytest.raises(OSError, match="Read-only file system"):
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


def test_the_next_rows_are_computed_while_rows_are_written_and_few_wait(tmp_path, monkeypatch):
    computed, waiting = [], []

    def slow(self, rows, values, skipped, write=RowStore.write):
        end = time.monotonic() + PATIENCE
        while len(computed) < min(rows.start // 64 + 2, 8) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
        waiting.append(len(computed) - rows.start // 64)
        write(self, rows, values, skipped)

    monkeypatch.setattr(RowStore, "write", slow)
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert 2 <= max(waiting) <= AHEAD + 2


@pytest.mark.parametrize("bad", [0, 7])
def test_a_full_disk_is_raised_and_other_chunks_stay(tmp_path, monkeypatch, bad):
    def full(path, pieces, write_at=row_store.write_at):
        if pieces[0][0] == bad * 64 * 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(path, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(row_store, "write_at", full)
        with pytest.raises(OSError, match="No space left on device"):
            filled(tmp_path)
    left = store_in(tmp_path).missing()
    assert bad in left
    assert not (tmp_path / "complete").exists()
    computed = []
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert computed == left


def test_a_request_to_stop_is_met_after_the_chunk_and_the_next_call_goes_on(tmp_path):
    computed = []

    def stopping(spans):
        for made in source(computed)(spans):
            if len(computed) == 3:
                progress.request_stop()
            yield made

    with pytest.raises(KeyboardInterrupt):
        fill(store_in(tmp_path), stopping)
    assert computed == [0, 1, 2]
    assert store_in(tmp_path).missing() == [3, 4, 5, 6, 7]
    again = []
    assert np.array_equal(filled(tmp_path, again).inputs, ROWS)
    assert again == [3, 4, 5, 6, 7]


def test_an_error_of_the_source_is_raised_once_its_predecessors_are_written(tmp_path):
    def failing(spans):
        yield from source()(spans[:3])
        raise InputError("an image was expected; got text.")

    with pytest.raises(InputError, match="an image was expected"):
        fill(store_in(tmp_path), failing)
    assert store_in(tmp_path).missing() == [3, 4, 5, 6, 7]


def test_a_chunk_is_on_the_disk_before_its_line(tmp_path, monkeypatch):
    """A power cut may lose what is not."""
    done, fsync, append = [], os.fsync, Journal.append
    rows = store_in(tmp_path)
    rows.create()
    rows.missing()
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), done.append("synchronised")))
    monkeypatch.setattr(Journal, "append", lambda *a: (done.append("line"), append(*a)))
    write_chunk(rows, 0)
    assert done[:2] == ["synchronised", "line"]


def flip(content):
    return content[: 70 * 60] + bytes([content[70 * 60] ^ 1]) + content[70 * 60 + 1 :]


def alter_line(line):
    def alter(content):
        lines = content.splitlines(keepends=True)
        return b"".join([*lines[:3], line, *lines[4:]])

    return alter


@pytest.mark.parametrize(
    ("name", "harm", "missing"),
    [
        ("inputs.bin", flip, [1]),
        ("inputs.bin", lambda content: content[:-100], [*range(8)]),
        ("inputs.bin", None, [*range(8)]),
        ("journal.jsonl", lambda content: content[:-10], [7]),
        ("journal.jsonl", alter_line(b"\xff\xfe"), [3, 4, 5, 6, 7]),
        ("journal.jsonl", alter_line(b'{"chunk": 1, "crc": 1, "skipped": []}\n'), [3, 4, 5, 6, 7]),
    ],
)
def test_chunks_with_altered_bytes_or_lines_are_missing_and_are_filled_once(tmp_path, name, harm, missing):
    filled(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if harm is not None:
        path.write_bytes(harm(content))
    assert store_in(tmp_path).missing() == missing
    assert np.array_equal(filled(tmp_path).inputs, ROWS)
    assert store_in(tmp_path).missing() == []


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


@pytest.mark.parametrize("fsyncs", [10, 15])
def test_a_killed_process_leaves_whole_chunks_and_the_next_goes_on(tmp_path, fsyncs):
    tests = os.path.dirname(os.path.dirname(__file__))
    command = [sys.executable, "-c", KILLED.format(tests=tests), str(tmp_path), str(fsyncs)]
    ended = subprocess.run(command, cwd=os.path.dirname(tests), capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    rows = store_in(tmp_path)
    left = rows.missing()
    assert 0 < len(left) < 8
    for chunk in {*range(8)} - {*left}:
        assert np.array_equal(rows.read([*rows.rows(chunk)]), ROWS[[*rows.rows(chunk)]])
    computed = []
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert computed == left


def test_two_programs_fill_one_store_and_share_the_work(tmp_path, monkeypatch):
    """In threads, for two programs: each with its own store, of which only the disk is common."""
    monkeypatch.setattr(extract, "TURN", 1)
    both = threading.Barrier(2)
    computed = ([], [])

    def work(own):
        def compute(spans):
            for made in source(own)(spans):
                if len(own) == 1:
                    both.wait(PATIENCE)
                time.sleep(0.02)
                yield made

        fill(store_in(tmp_path), compute)

    threads = [threading.Thread(target=work, args=(own,)) for own in computed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = store_in(tmp_path)
    assert rows.missing() == []
    assert np.array_equal(rows.inputs, ROWS)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 8
    assert {*computed[0], *computed[1]} == {*range(8)}
    assert len(computed[0]) + len(computed[1]) < 16


def test_a_finished_chunk_is_not_written_again(tmp_path):
    first, second = store_in(tmp_path), store_in(tmp_path)
    for rows in (first, second):
        rows.create()
        rows.missing()
    write_chunk(first, 0)
    write_chunk(second, 0, 2 * ROWS[:64])
    assert second.is_shared
    assert np.array_equal(second.read(slice(0, 64)), ROWS[:64])


def test_each_process_of_a_job_has_a_journal_and_reads_those_of_all(tmp_path):
    writers = [store_in(tmp_path, process) for process in range(3)]
    for writer in writers:
        writer.create()
    assert [writer.missing() for writer in writers] == [[*range(8)]] * 3
    for chunk in range(8):
        write_chunk(writers[chunk % 3], chunk)
    assert {path.name for path in tmp_path.glob("journal*")} == {
        "journal.jsonl",
        "journal-1.jsonl",
        "journal-2.jsonl",
    }
    assert [writer.refresh() for writer in writers] == [[]] * 3
    assert store_in(tmp_path).missing() == []


def test_an_erased_row_is_zeros_and_its_chunk_is_missing(tmp_path):
    filled(tmp_path)
    assert not erase(tmp_path, {"of no image"}.__contains__)
    assert erase(tmp_path, {NAMES[70]}.__contains__)
    rows = store_in(tmp_path)
    assert rows.missing() == [1]
    assert not rows.read(70).any()
    assert np.array_equal(np.delete(rows.inputs, 70, 0), np.delete(ROWS, 70, 0))
    assert NAMES[70] not in (tmp_path / "examples.txt").read_text()


def test_a_program_that_computes_erased_rows_does_not_write_them(tmp_path):
    rows = store_in(tmp_path)
    rows.create()
    rows.missing()
    write_chunk(rows, 0)
    erase(tmp_path, {NAMES[70]}.__contains__)
    with pytest.raises(InputError, match="must stay while their features are computed"):
        write_chunk(rows, 1)
    assert not rows.read(slice(64, 128)).any()
    assert store_in(tmp_path).missing() == [*range(1, 8)]


# Readers of rows that another program erases


def test_open_rows_are_the_rows_and_no_part_of_the_map(tmp_path):
    rows = filled(tmp_path).opened()
    assert np.array_equal(rows, ROWS)
    for index in (3, slice(2, 9), [1, 70], (slice(None), 1), np.array([[1, 2], [3, 4]])):
        assert np.array_equal(rows[index], ROWS[index])
        assert not np.may_share_memory(rows[index], rows.base)
    assert (rows.shape, rows.dtype, rows.ndim, rows.nbytes, len(rows)) == (ROWS.shape, "f4", 3, ROWS.nbytes, COUNT)


@pytest.mark.parametrize("moment", ["before a row is overwritten", "between both", "after"])
def test_a_reader_is_told_of_an_erasure_at_any_moment_and_other_rows_stay(tmp_path, monkeypatch, moment):
    rows = filled(tmp_path)
    opened, before, told = rows.opened(), rows.opened()[64:128], []
    reader = threading.Thread(target=lambda: told.append(refusals(opened)))

    def overwrite(path, places, count, zero_rows=row_store.zero_rows):
        if moment == "before a row is overwritten":
            reader.start()
        zero_rows(path, places, count)
        if moment == "between both":
            reader.start()
            time.sleep(0.1)  # it reads before examples.txt names the row

    monkeypatch.setattr(row_store, "zero_rows", overwrite)
    assert erase(tmp_path, {NAMES[70]}.__contains__)
    if moment == "after":
        reader.start()
    reader.join(PATIENCE)
    assert told == [3] or moment == "before a row is overwritten"
    assert refusals(opened) == 3
    assert np.array_equal(before, ROWS[64:128])  # what was read before stays
    assert np.array_equal(opened[71:128], ROWS[71:128])


def refusals(opened):
    """The number of ways to read rows that raise that some were removed; the others give the right rows."""
    ways = (lambda: (opened[70], ROWS[70]), lambda: (np.asarray(opened), ROWS))
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


def test_rows_that_were_erased_and_listed_again_are_not_read_as_zeros(tmp_path):
    opened = filled(tmp_path).opened()
    erase(tmp_path, {NAMES[70]}.__contains__)
    store_in(tmp_path).create()  # of a program whose store may have the image
    assert refusals(opened) == 3
    assert np.array_equal(opened[:70], ROWS[:70])
    filled(tmp_path)
    assert refusals(opened) == 0


READER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from features import test_row_store as t
from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Rows

rows = t.store_in(Path(sys.argv[1]))
t.fill(rows, t.source())
opened = rows.opened()
assert t.np.array_equal(opened[70], t.ROWS[70])
print("open", flush=True)
sys.stdin.readline()
try:
    print("read", opened[70].any())
except InputError as error:
    print(error)
"""


def test_a_process_that_has_rows_open_is_told_of_the_erasure_by_another(tmp_path):
    filled(tmp_path)
    tests = os.path.dirname(os.path.dirname(__file__))
    command = [sys.executable, "-c", READER.format(tests=tests), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=os.path.dirname(tests), stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdout.readline() == "open\n"
        erase(tmp_path, {NAMES[70]}.__contains__)
        said, _ = reader.communicate("\n", timeout=60)
    assert said.startswith(f"the images of {tmp_path} must stay while their features are in use; some were removed.")

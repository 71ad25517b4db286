"""Rows are written while the next are computed: same bytes, few chunks in memory, and every failure is raised."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.features import cache
from tangent_jax.features.cache import CachedRows
from tangent_jax.features.filling import WRITERS, fill, from_images
from tangent_jax.io import progress
from tangent_jax.io.files import hold_lock
from tangent_jax.io.journal import Journal

COUNT, SHAPE = 64 * 8 - 10, (3, 5)
ROWS = np.random.default_rng(0).standard_normal((COUNT, *SHAPE)).astype(np.float32)
PATIENCE = 10  # seconds until a test that waits in vain fails


def rows_in(folder):
    return CachedRows(folder, [f"{i:064x}" for i in range(COUNT)], SHAPE, np.dtype("float32"))


def source(computed, rows):
    """The chunks of ROWS; `computed` lists those that were asked for."""

    def chunks(wanted):
        for chunk in wanted:
            computed.append(chunk)
            yield ROWS[[*rows.rows(chunk)]], [3] if chunk == 2 else []

    return chunks


def filled(folder, computed=None):
    rows = rows_in(folder)
    with hold_lock(folder / "lock"):
        fill(rows, source([] if computed is None else computed, rows), 0)
    return rows


def test_the_next_chunk_is_computed_while_one_is_written_and_two_are_written_at_once(tmp_path, monkeypatch):
    computed, both = [], threading.Barrier(WRITERS)

    def slow(self, chunk, values, skipped, write=CachedRows.write):
        if chunk < WRITERS:
            both.wait(PATIENCE)  # for the other writer
        end = time.monotonic() + PATIENCE
        while len(computed) < min(chunk + 2, 8) and time.monotonic() < end:
            time.sleep(0.001)
        assert len(computed) >= min(chunk + 2, 8), "the next chunk waits for this one to be written"
        write(self, chunk, values, skipped)

    monkeypatch.setattr(CachedRows, "write", slow)
    rows = filled(tmp_path, computed)
    assert np.array_equal(rows.inputs, ROWS)
    assert (rows.skipped, rows_in(tmp_path).missing()) == ({131}, [])


def test_few_chunks_wait_in_memory(tmp_path, monkeypatch):
    computed, waiting, lock, done = [], [], threading.Lock(), []

    def slow(self, chunk, values, skipped, write=CachedRows.write):
        time.sleep(0.02)
        write(self, chunk, values, skipped)
        with lock:
            waiting.append(len(computed) - len(done))
            done.append(chunk)

    monkeypatch.setattr(CachedRows, "write", slow)
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert max(waiting) <= WRITERS + 2  # those that are written, the next one, and one that was just finished


@pytest.mark.parametrize("bad", [0, 7])
def test_a_full_disk_under_a_writer_is_raised_and_other_chunks_stay(tmp_path, monkeypatch, bad):
    def full(path, pieces, write_at=cache.write_at):
        if pieces[0][0] == bad * 64 * 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(path, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write_at", full)
        with pytest.raises(OSError, match="No space left on device"):
            filled(tmp_path)
    left = rows_in(tmp_path).missing()
    assert bad in left
    assert not (tmp_path / "complete").exists()
    computed = []
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert computed == left


def test_a_request_to_stop_is_met_after_the_chunk_and_the_next_call_goes_on(tmp_path):
    rows, computed = rows_in(tmp_path), []
    chunks = source(computed, rows)

    def stopping(wanted):
        for chunk in chunks(wanted):
            if len(computed) == 3:
                progress.request_stop()
            yield chunk

    with pytest.raises(KeyboardInterrupt):
        fill(rows, stopping, 0)
    assert computed == [0, 1, 2]
    assert rows_in(tmp_path).missing() == [3, 4, 5, 6, 7]
    again = []
    assert np.array_equal(filled(tmp_path, again).inputs, ROWS)
    assert again == [3, 4, 5, 6, 7]


def test_images_that_are_decoded_in_place_are_written_as_they_were(tmp_path, monkeypatch):
    """The decoder gives the next chunk in the memory of the last, which may still be written."""
    rows, decoded = rows_in(tmp_path), []

    def late(self, chunk, values, skipped, write=CachedRows.write):
        end = time.monotonic() + PATIENCE
        while len(decoded) < min(chunk + 2, 8) and time.monotonic() < end:
            time.sleep(0.001)
        write(self, chunk, values, skipped)

    def decode(wanted):
        place = np.zeros((64, *SHAPE), np.float32)
        for chunk in wanted:
            place[: len(rows.rows(chunk))] = ROWS[[*rows.rows(chunk)]]
            decoded.append(chunk)
            yield place[: len(rows.rows(chunk))], {}

    monkeypatch.setattr(CachedRows, "write", late)
    fill(rows, lambda wanted: from_images(None, decode(wanted), False), 0)
    assert np.array_equal(rows.inputs, ROWS)


def test_lines_of_several_threads_are_one_chain(tmp_path, monkeypatch):
    rows, fsync = rows_in(tmp_path), os.fsync
    rows.make()
    rows.missing()
    monkeypatch.setattr(os, "fsync", lambda file: (time.sleep(0.01), fsync(file)))
    with ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(rows.write, chunk, ROWS[[*rows.rows(chunk)]], []) for chunk in range(8)]:
            result.result()
    assert rows_in(tmp_path).missing() == []
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 8


def test_a_chunk_is_synchronised_before_its_line(tmp_path, monkeypatch):
    """A power cut may lose what is not: the order of both, for each of the chunks that are under way."""
    done, fsync, append = [], os.fsync, Journal.append
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), done.append((threading.get_ident(), "synchronised"))))
    monkeypatch.setattr(Journal, "append", lambda *a: (done.append((threading.get_ident(), "line")), append(*a)))
    filled(tmp_path)
    lines = [i for i, (_, what) in enumerate(done) if what == "line"]
    own = [[what for thread, what in done[:i] if thread == done[i][0]] for i in lines]
    assert len(own) == 8
    assert all(before[-1:] == ["synchronised"] for before in own)
    assert all(before.count("synchronised") > 2 * before.count("line") for before in own)


def test_an_error_of_the_source_is_raised_once_its_predecessors_are_written(tmp_path):
    rows = rows_in(tmp_path)

    def failing(wanted):
        yield from source([], rows)(wanted[:3])
        raise InputError("decode: expected an image; got text.")

    with pytest.raises(InputError, match="expected an image"):
        fill(rows, failing, 0)
    assert rows_in(tmp_path).missing() == [3, 4, 5, 6, 7]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from models import test_filling as t

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
    rows = rows_in(tmp_path)
    left = rows.missing()
    assert 0 < len(left) < 8
    for chunk in {*range(8)} - {*left}:
        assert np.array_equal(rows.inputs[[*rows.rows(chunk)]], ROWS[[*rows.rows(chunk)]])
    computed = []
    assert np.array_equal(filled(tmp_path, computed).inputs, ROWS)
    assert computed == left

"""The journal: what was committed is read after any cut, any changed byte is told, a kill leaves it before or after."""

import errno
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import hold_lock
from tangent_jax.io.journal import START, Journal

ENTRIES = [{"n": 0, "text": "é\n"}, {"n": 1}, {"n": 2, "more": [1.5, None, {"previously": "x"}]}]


def opened(folder, counted=False):
    return Journal(folder / "journal.jsonl", counted)


def loaded(folder, counted=False):
    journal = opened(folder, counted)
    journal.load()
    return journal


def written(folder, counted=False, entries=ENTRIES):
    journal = opened(folder, counted)
    for entry in entries:
        journal.append(entry)
    return journal


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("counted", [False, True])
def test_appended_lines_are_read_by_all(tmp_path, counted):
    journal = written(tmp_path, counted, [*ENTRIES, {"a": (1, 2)}])
    assert journal.entries == loaded(tmp_path, counted).entries == [*ENTRIES, {"a": [1, 2]}]
    assert journal.last() == loaded(tmp_path, counted).last() != START
    lines = journal.path.read_bytes().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert json.loads(lines[0])["previous"] == START
    assert {*files(tmp_path)} == {"journal.jsonl", *(["HEAD"] if counted else [])}


@pytest.mark.parametrize("counted", [False, True])
def test_open_journal_reads_others_changes(tmp_path, counted):
    """Lines that were added are parsed alone; a journal that was cut, replaced or altered is read anew, or refused."""
    journal = written(tmp_path, counted)
    entries = journal.entries
    loaded(tmp_path, counted).append({"n": 3})
    journal.load()
    assert journal.entries is entries
    assert [entry["n"] for entry in entries] == [0, 1, 2, 3]
    (tmp_path / "other").mkdir()
    for others in (ENTRIES[:2], [{"n": 9}, *ENTRIES, {"n": 4}]):  # shorter, and of other lines
        for path in (tmp_path / "other").iterdir():
            path.unlink()
        written(tmp_path / "other", counted, others)
        for path in (tmp_path / "other").iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        journal.load()
        assert journal.entries == loaded(tmp_path, counted).entries == others
        journal.append({"n": 5})
        assert loaded(tmp_path, counted).entries == [*others, {"n": 5}]
    text = journal.path.read_bytes()
    journal.path.write_bytes(text.replace(b'"n": 9', b'"n": 8'))
    with pytest.raises(InputError, match="was altered at line 2 or before"):
        journal.load()
    journal.path.write_bytes(text)
    journal.load()
    assert journal.entries == loaded(tmp_path, counted).entries


def test_a_long_journal_is_read_in_a_second(tmp_path):
    lines, previous = [], START
    for n in range(20000):
        lines.append(json.dumps({"n": n, "names": "x" * 300, "previous": previous}).encode())
        previous = hashlib.sha256(lines[-1]).hexdigest()
    (tmp_path / "journal.jsonl").write_bytes(b"\n".join([*lines, b""]))
    began = time.process_time()
    assert len(loaded(tmp_path).entries) == 20000
    assert time.process_time() - began < 2  # 0.2 s; 6 where each line copies those before it


def test_missing_counted_journal_is_told(tmp_path):
    assert loaded(tmp_path).entries == []
    assert files(tmp_path) == {}
    with pytest.raises(InputError, match=r"the journal .*/journal\.jsonl is missing"):
        loaded(tmp_path, counted=True)
    opened(tmp_path, counted=True).settle()
    assert loaded(tmp_path, counted=True).entries == []
    (tmp_path / "HEAD").unlink()
    with pytest.raises(InputError, match=r"the journal .*/HEAD is missing"):
        loaded(tmp_path, counted=True)


@pytest.mark.parametrize("counted", [False, True])
def test_cut_line_is_replaced(tmp_path, counted):
    """As a kill leaves it: HEAD counts the lines before."""
    journal = written(tmp_path, counted, ENTRIES[:2])
    before = files(tmp_path)
    journal.append(ENTRIES[2])
    last = journal.path.read_bytes()[len(before["journal.jsonl"]) :]
    for cut in range(len(last) + 1):
        for name, content in before.items():
            (tmp_path / name).write_bytes(content)
        journal.path.write_bytes(before["journal.jsonl"] + last[:cut])
        is_whole = cut == len(last)
        left, again = files(tmp_path), loaded(tmp_path, counted)
        assert again.entries == ENTRIES[: 2 + is_whole]
        assert again.rest == (b"" if is_whole else last[:cut])
        assert files(tmp_path) == left  # reading writes nothing
        again.append({"after": cut})
        assert loaded(tmp_path, counted).entries == [*ENTRIES[: 2 + is_whole], {"after": cut}]
        assert loaded(tmp_path, counted).rest == b""


def test_uncounted_cut_journal_is_shorter(tmp_path):
    content = written(tmp_path).path.read_bytes()
    for cut in range(len(content)):
        (tmp_path / "journal.jsonl").write_bytes(content[:cut])
        assert loaded(tmp_path).entries == ENTRIES[: content[:cut].count(b"\n")]


def test_changed_byte_is_told_by_file(tmp_path):
    written(tmp_path, counted=True)
    for name, content in files(tmp_path).items():
        for at in range(len(content)):
            for changed in (content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :], content[:at]):
                (tmp_path / name).write_bytes(changed)
                with pytest.raises(InputError, match=f"{tmp_path}/journal.jsonl"):
                    loaded(tmp_path, counted=True)
        (tmp_path / name).write_bytes(content)
    assert loaded(tmp_path, counted=True).entries == ENTRIES


@pytest.mark.parametrize("order", [[1, 2], [0, 2], [0, 2, 1], [0, 0, 1, 2], [0, 1, 1, 2], [2]])
def test_missing_or_moved_lines_are_told(tmp_path, order):
    path = written(tmp_path).path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in order))
    with pytest.raises(InputError, match="altered at line"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"7", b"null", b"{}", b'{"previous": 1}', b"\xff\xfe", b"[" * 99999, b'{"previous": {}}']
)
def test_unknown_line_is_refused(tmp_path, line):
    """And a caller who goes on from there, as a cache does, loses nothing else."""
    path = written(tmp_path).path
    path.write_bytes(path.read_bytes() + line + b"\nmore\nand more")
    journal = opened(tmp_path)
    with pytest.raises(InputError, match=r"altered at line 4 or before\. Restore it") as error:
        journal.load()
    assert "\n" not in str(error.value)
    assert journal.entries == ENTRIES
    assert journal.rest == line + b"\nmore\nand more"
    journal.append({"on": True})
    assert loaded(tmp_path).entries == [*ENTRIES, {"on": True}]


@pytest.mark.parametrize("counted", [False, True])
def test_late_writer_is_refused(tmp_path, counted):
    first, second = written(tmp_path, counted), loaded(tmp_path, counted)
    second.append({"by": "second"})
    before = files(tmp_path)
    with pytest.raises(InputError, match="was changed by another process since it was read"):
        first.append({"by": "first"})
    assert files(tmp_path) == before
    first.load()
    first.append({"by": "first"})
    assert loaded(tmp_path, counted).entries == [*ENTRIES, {"by": "second"}, {"by": "first"}]
    first.path.unlink()
    with pytest.raises(InputError, match="changed by another process"):
        first.append({})
    assert not first.path.exists()


def test_many_writers_take_turns_by_a_lock(tmp_path):
    def write(i):
        with hold_lock(tmp_path / "lock"):
            loaded(tmp_path).append({"i": i})

    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(write, range(40))]) == 40
    assert sorted(entry["i"] for entry in loaded(tmp_path).entries) == [*range(40)]


def test_line_is_on_disk_before_counted(tmp_path, monkeypatch):
    journal, synced = written(tmp_path, counted=True), []

    def fsync(descriptor, real=os.fsync):
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), journal.path.stat().st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append({"n": 3})
    size = journal.path.stat().st_size
    assert synced == [("journal.jsonl", size), ("HEAD.partial", size), (tmp_path.name, size)]


@pytest.mark.parametrize("counted", [False, True])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, counted):
    journal = written(tmp_path, counted)
    before = files(tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                journal.append({"n": 3})
            assert files(tmp_path) == before
    assert journal.entries == ENTRIES
    journal.append({"n": 3})
    assert loaded(tmp_path, counted).entries == [*ENTRIES, {"n": 3}]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_stopped_append_is_before_or_after(tmp_path, monkeypatch, counted, begun):
    """Also from nothing, where the next process begins it again."""
    entries, outcomes = ENTRIES if begun else [], []
    for moment in range(20):
        folder, left = tmp_path / f"{moment}", [moment]
        folder.mkdir()
        journal = written(folder, counted, entries)
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink"):
                real = getattr(os, name)

                def call(*args, real=real, left=left, **more):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                    return real(*args, **more)

                patch.setattr(os, name, call)
            try:
                journal.append({"new": 1})
                finished = True
            except Killed:
                finished = False
        again = opened(folder, counted)
        if counted and not (folder / "HEAD").exists():
            again.settle()
        again.load()
        outcomes.append([*again.entries])
        again.append({"then": 2})
        assert loaded(folder, counted).entries == [*outcomes[-1], {"then": 2}]
        if finished:
            break
    before, after = entries, [*entries, {"new": 1}]
    assert outcomes == sorted(outcomes, key=lambda state: state != before)
    assert outcomes[0] in (before, after)
    assert outcomes[-1] == after
    assert len(outcomes) > 1


@pytest.mark.parametrize("name", ["journal.jsonl", "HEAD"])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_no_link_is_followed_or_written_through(tmp_path, name, kind):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in ("a", "b"):
        written(tmp_path / folder, counted=True)
    (tmp_path / "b" / name).unlink()
    (os.link if kind == "hard" else os.symlink)(tmp_path / "a" / name, tmp_path / "b" / name)
    before, refused = files(tmp_path / "a"), []
    journal = opened(tmp_path / "b", counted=True)
    for use in (journal.load, lambda: journal.append({"n": 3})):
        try:
            use()
        except InputError as error:
            refused.append(str(error))
    assert files(tmp_path / "a") == before
    assert refused or (kind, name) == ("hard", "HEAD")  # HEAD is replaced, never written to

"""Decoding ahead: the same images in the same order from threads and from processes, and no process that stays."""

import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import in_long
from PIL import Image

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.workers import Decoder, decode_chunks

ROOT = Path(__file__).resolve().parents[2]
CHUNKS = [range(0, 4), range(5, 9), range(9, 13), range(13, 17), range(17, 20)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A zip of thirty random pictures in two classes, every seventh of them unreadable."""
    path, numbers = tmp_path_factory.mktemp("zip") / "pictures.zip", np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as file:
        for i in range(30):
            buffer = io.BytesIO()
            Image.fromarray(numbers.integers(0, 256, (20, 20 + i, 3), np.uint8)).save(buffer, "PNG")
            file.writestr(f"{'ab'[i % 2]}/{i}.png", f"no image {i}".encode() if i % 7 == 0 else buffer.getvalue())
    return path


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_chunks_come_in_order(archive, processes):
    examples = open_dataset(f"folder:{archive}").train
    examples = examples.take(np.arange(len(examples))[::-1])
    serial = Decoder(examples.read, examples.names, 8, Preprocessing())
    chunks = decode_chunks(serial, CHUNKS, processes)
    unreadable = []
    for rows, (images, errors) in zip(CHUNKS, chunks, strict=True):
        assert images.shape == (len(rows), 8, 8, 3)
        for place, row in enumerate(rows):
            want = serial(row)
            if isinstance(want, InputError):
                assert str(errors.pop(place)) == str(want)
                unreadable.append(row)
                want = 0
            assert (images[place] == want).all()
        assert not errors
    assert unreadable


def test_unshared_examples_are_refused():
    decoder = Decoder(lambda i: np.zeros((9, 9, 3), np.uint8), ("a",), 8, Preprocessing())
    with pytest.raises(InputError, match=r"such that processes can receive them; .*lambda.* decode in threads"):
        next(decode_chunks(decoder, [range(1)], 1))
    assert not next(decode_chunks(decoder, [range(1)]))[0].any()


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.workers import Decoder, decode_chunks

def read(row):
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # the parent answers it
    time.sleep(0.05)
    return b""

if __name__ == "__main__":
    for images, errors in decode_chunks(Decoder(read, ("a",) * 10**6, 8, Preprocessing()), [range(4)] * 10**4, 2):
        print(len(errors), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, *in_long(signal.SIGINT)])
def test_no_process_outlives_its_parent(tmp_path, number):
    """Interrupted at the terminal, which tells all of them, or killed."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "script.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout.readline() == "4\n"
    (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
    _, messages = parent.communicate(timeout=60)  # the pipes close once no process is left
    assert messages.count("Traceback") == (number == signal.SIGINT), messages  # the script's own
    if number == signal.SIGINT:
        assert not [*tmp_path.glob("tangent_jax-decoded-*")]

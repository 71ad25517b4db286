"""The seal of this machine's user: folders, weights and data that a file names are trusted only if it was made here.

    seal(text) = HMAC-SHA-256(key, text),    key: 32 random bytes in ~/.local/state/tangent_jax/key, of mode 0600

A component from another party may name any folder to be deleted and any data to be opened. Its seal does not match, so
nothing that it names is used until the caller allows it. A lost key only means that existing files count as another's.
"""

import contextlib
import functools
import hmac
import os
from pathlib import Path

from tangent_jax.io.files import make_private, open_plain, synchronize

KEY_BYTES = 32


def key_path() -> Path:
    """The path of the key; XDG_STATE_HOME changes its folder."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(home)) / "tangent_jax" / "key"


@functools.cache
def read_key(path: Path) -> bytes | None:
    """The key in a file, created if it is missing; None if no file can be kept."""
    try:
        with contextlib.suppress(FileNotFoundError), open_plain(path, "rb") as file:
            return file.read() or None
        if not path.parent.exists():
            make_private(path.parent)
        partial = path.with_name(f"key.{os.getpid()}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(KEY_BYTES))
        synchronize(partial)
        with contextlib.suppress(FileExistsError):  # another process was first: use its key
            os.link(partial, path)
        partial.unlink()
        with open_plain(path, "rb") as file:
            return file.read() or None
    except OSError:
        return None


def seal(text: str) -> str:
    """The seal of a text, hex; "" if this machine keeps no key."""
    key = read_key(key_path())
    return "" if key is None else hmac.digest(key, text.encode(errors="surrogatepass"), "sha256").hex()


def is_own(text: str, said: object) -> bool:
    """True if `said` is this machine's user's seal of the text."""
    expected = seal(text)
    if not expected or not isinstance(said, str):
        return False
    return hmac.compare_digest(expected.encode(), said.encode(errors="replace"))

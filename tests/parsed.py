"""Parses commands as a binary does, and checks that every flag has an effect: `parsed BINARY FILE`, one a line."""

import importlib
import shlex
import sys
from pathlib import Path

from run_binary import module_of

from tangent_jax.commands.shared.flags import EVERY, F, check_effects, define

if __name__ == "__main__":
    binary, path = sys.argv[1:]
    sys.argv = [binary]
    importlib.import_module(module_of(binary))
    define(*EVERY)
    for line in Path(path).read_text().splitlines():
        for name in F:
            F[name].unparse()
        F([binary, *(word for word in shlex.split(line) if word.startswith("--"))])
        check_effects()

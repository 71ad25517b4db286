"""The frame of every binary: flags in, one clear line for bad input, the result as the last line of stdout."""

import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from absl import app, flags, logging

import tangent_jax as tj
from tangent_jax.core import require
from tangent_jax.core.files import write_whole


def out_folder() -> Path:
    """The folder of --out, made now."""
    out = Path(flags.FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    return out


def finish(result: dict[str, Any], **more: Any) -> None:
    """result.json in --out (with `more`), and the result as the last line of stdout."""
    write_whole(out_folder() / "result.json", json.dumps({**result, **more}, indent=1) + "\n")
    print(json.dumps(result))


def run(main: Callable[..., None], commands: Collection[str] = ()) -> None:
    """Bad input is one line on stderr and exit code 1; an interruption says how to go on.

    `commands`: what the one argument besides the flags may be; main is called with it.
    """

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.ERROR)
        given, name = argv[1:], Path(argv[0]).stem
        expected = f"one command of {', '.join(commands)}" if commands else "flags only"
        try:
            good = len(given) == 1 and given[0] in commands if commands else not given
            require(good, name, expected, " ".join(given) or "none")
            main(*given)
        except tj.InputError as error:
            print(error, file=sys.stderr)
            sys.exit(1)
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("\ninterrupted; the same command goes on from the last checkpoint", file=sys.stderr)
            sys.exit(130)

    app.run(guarded)

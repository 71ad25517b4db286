"""The frame of every binary: flags in, one clear line for bad input, the result as the last line of stdout."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, logging

from tangent_jax.checks import InputError, require
from tangent_jax.files import write_whole


def finish(out: Path, result: dict[str, Any], **more: Any) -> None:
    """result.json (with `more`), and the result as the last line of stdout."""
    write_whole(out / "result.json", json.dumps({**result, **more}, indent=1) + "\n")
    print(json.dumps(result))


def run(main: Callable[[], None]) -> None:
    """Bad input is one line on stderr and exit code 1; an interruption says how to go on."""

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        try:
            require(len(argv) == 1, Path(argv[0]).stem, "flags only", " ".join(argv[1:]))
            main()
        except InputError as error:
            print(error, file=sys.stderr)
            sys.exit(1)
        except OSError as error:
            print(f"{Path(argv[0]).stem}: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("\ninterrupted; the same command goes on from the last checkpoint", file=sys.stderr)
            sys.exit(130)

    app.run(guarded)

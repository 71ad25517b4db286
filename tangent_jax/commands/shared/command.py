"""The frame of every binary: reads flags, reports bad input in one line, prints the result as the last line of stdout.

A binary with `processes` can run as one job of several processes. Only process 0 writes; the others use temporary
folders for --out and --store, and print nothing on stdout.
"""

import atexit
import dataclasses
import gc
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from absl import app, logging
from absl.flags import Error

import tangent_jax as tj
from tangent_jax.commands.shared import codes, flags, phases
from tangent_jax.commands.shared.settings import Job, Results, Settings
from tangent_jax.commands.shared.table import TABLE
from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, about
from tangent_jax.data.identifiers import index_in
from tangent_jax.io import hosts, job
from tangent_jax.io.files import write_whole
from tangent_jax.io.paths import connect, is_url, upload
from tangent_jax.io.progress import check_stop, request_stop, warn_in_lines

S = TypeVar("S", bound=Settings)
SCRATCH: list[tempfile.TemporaryDirectory] = []  # the temporary folders of a job's other processes
PEER = re.compile(
    r"connection (reset|closed|refused)( by( remote)? peer)?|broken pipe|socket closed|timed out waiting|"
    r"remote process exited|heartbeat timeout|barrier timed out",
    re.IGNORECASE,
)
"""Messages of Gloo, NCCL and JAX's coordination service once another process has ended."""


def out_folder(config: Results) -> Path:
    """The folder of --out, created if it does not exist."""
    out = config.path("out")
    placement.call_in_all(partial(out.mkdir, parents=True, exist_ok=True))
    return out


def check_out(path: Path) -> None:
    """Raises InputError for a path that cannot be created or written, before any long work."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"--out must be in a folder that can be written to; got {path}")
    store = next((place for place in (path, *path.parents) if tj.store.is_store(place)), None)
    if store is not None:
        raise InputError(f"--out must not be in a store, which would not verify then; got {path} in the store {store}")


def out_place(config: Results) -> str:
    """The URL in --out, or the absolute path of its folder."""
    return config.url or os.path.abspath(config.path("out"))


@contextmanager
def out_at_url(config: S) -> Iterator[S]:
    """Yields the config with a temporary folder in place of a URL in --out; `finish` copies its files."""
    if not isinstance(config, Results) or not is_url(config.out):
        yield config
        return
    connect(config.out)
    with tempfile.TemporaryDirectory(prefix="tangent_jax-") as folder:
        yield dataclasses.replace(config, out=folder, url=config.out.rstrip("/"))


def finish(config: Results, result: dict[str, Any], **more: Any) -> None:
    """Writes result.json in --out (with `more`), at a URL last, and prints the result as the last line of stdout."""
    try:
        text = json.dumps({**result, **more}, indent=1, allow_nan=False)
    except ValueError as error:
        raise InputError("the result must be finite numbers; it has NaN or infinity. Lower --lr") from error
    out = out_folder(config)
    path = out / "result.json"
    if path.exists() and path.read_bytes() == f"{text}\n".encode():
        print(f"the same result as before: {path} is unchanged", file=sys.stderr)
    else:
        write_whole(path, text + "\n")
    if config.url:
        files = [path for path in sorted(out.rglob("*")) if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "result.json"):
            upload(path, f"{config.url}/{path.relative_to(out)}")
    if hosts.is_writer():
        print(json.dumps(result))


def markdown(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def write_table(config: Results, name: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table in Markdown as NAME.md in --out, and prints it."""
    text = markdown(columns, rows)
    (out_folder(config) / f"{name}.md").write_text(text)
    print(text, file=sys.stdout if hosts.is_writer() else sys.stderr)


def stop(number: int, _: object) -> None:
    """The handler of SIGINT and SIGTERM: the first signal stops work at its next update, the second at once."""
    print("\nstopping at the next step (again: at once)", file=sys.stderr, flush=True)
    request_stop()
    signal.signal(number, lambda *_: sys.exit(codes.of_signal(number)))


def run(
    main: Callable[..., None],
    config: type[Settings] = Settings,
    commands: Collection[str] = (),
    processes: bool = False,
    to_url: bool = False,
    table: Mapping[str, partial] = TABLE,
) -> None:
    """Runs a binary; bad input gives one line on stderr and exit code 1, an interruption a line about resuming.

    `main` receives the config of the flags, and the only argument besides flags, if `commands` lists its values.

    Args:
        processes: True if several processes may run it as one job.
        to_url: True if --out may be a URL.
    """

    def guarded(argv: list[str]) -> None:
        phases.begin()
        jax.config.update("jax_numpy_dtype_promotion", "standard")  # as core/promotion.py: the environment may differ
        jax.config.update("jax_numpy_rank_promotion", "allow")
        if not flags.sets_verbosity():
            logging.set_verbosity(logging.WARNING)  # absl's own default shows what packages log as information
        warn_in_lines()
        given = argv[1:]
        name = Path(argv[0]).stem
        try:
            settings = flags.read(config)
            check_given(settings, given, commands)
            settings.check_effects()
            settings = join(settings, processes)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            with out_at_url(settings) if to_url else nullcontext(settings) as settings:
                if isinstance(settings, Results):
                    check_out(settings.path("out").absolute())
                with with_services(settings), index_beside_cache(settings):
                    main(settings, *given)
            check_stop()
        except tj.InputError as error:
            print(f"{name}: {error}", file=sys.stderr)
            leave(codes.FAILED)
        except Exception as error:
            leave_without_reader(error)
            line = in_one_line(error, jax.distributed.is_initialized())
            if line is None:
                raise
            print(f"{name}: {line}", file=sys.stderr)
            leave(codes.FAILED)
        except KeyboardInterrupt:
            print("\ninterrupted; the same command resumes from what is saved", file=sys.stderr)
            sys.exit(codes.STOPPED)

    if sys.stderr is None:  # closed, as by `2>&-`: print would write to stdout
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    atexit.register(gc.freeze)  # else the interpreter's last collection takes a quarter of a second
    flags.define(config, table)
    try:
        app.run(guarded, flags_parser=parsed)
    except BrokenPipeError as error:  # of the text of --help
        leave_without_reader(error)
        raise
    except SystemExit:  # with its code, whether or not somebody still reads what is buffered
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                silence_stdout()
        raise


def index_beside_cache(config: Settings) -> AbstractContextManager:
    """Returns a context in which --cache_dir, if it is given, holds the index of content identifiers too.

    A plan makes no folder: it reads and keeps identifiers in the default index.
    """
    folder = getattr(config, "cache_dir", None)
    if folder is None or getattr(config, "plan", False) or folder == config.default("cache_dir"):
        return nullcontext()
    with about("--cache_dir"):
        return index_in(tj.Cache(folder).path)


@contextmanager
def with_services(config: Settings) -> Iterator[None]:
    """Within the `with` block, keeps compiled programs, and writes the log and the trace that the flags name."""
    if config.compilation_cache is not None:
        keep_programs(config.path("compilation_cache"))
    if not (isinstance(config, Job) and isinstance(config, Results)):
        yield
        return
    writers = [name for name in config.metrics if name]
    with tj.log_steps(config.out, writers, profile_steps(config.profile_steps)):
        yield


def keep_programs(folder: Path) -> None:
    """Makes JAX store every compiled program in a folder, for later starts.

    Raises:
        OSError: If the folder cannot be written; JAX would only warn, at each program.
    """
    path = folder.absolute()
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()
    jax.config.update("jax_compilation_cache_dir", str(path))
    # JAX's default stores programs that took a second; most here take less, and a run has dozens
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def profile_steps(text: str | None) -> tuple[int, int] | None:
    """The steps of --profile_steps=FIRST:LAST; InputError for other text."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise InputError(f"--profile_steps must be FIRST:LAST with 1 <= FIRST <= LAST, such as 10:20; got {text}")
    return int(first), int(last)


def check_given(config: Settings, given: list[str], commands: Collection[str]) -> None:
    """Raises InputError for other arguments than `run` says, and for a store at a URL: before any work."""
    written = " ".join(given) or "none"
    if not commands and given:
        raise InputError(f"all arguments must be flags, --NAME=VALUE; got {written}")
    if commands and (len(given) != 1 or given[0] not in commands):
        raise InputError(f"the argument besides flags must be one of {', '.join(commands)}; got {written}")
    if getattr(config, "store", None):
        config.path("store")


def leave_without_reader(error: Exception) -> None:
    """Ends the process if nobody reads its stdout any more: its reader, such as `head`, has ended."""
    if not isinstance(error, BrokenPipeError):
        return
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        silence_stdout()
        leave(codes.FAILED)


def silence_stdout() -> None:
    """Sends stdout nowhere, so that the interpreter's end has no error to print."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_one_line(error: Exception, is_job: bool) -> str | None:
    """An error in one line; None for one that has a traceback, as no user causes it: in a job its line is enough."""
    ended = PEER.search(str(error)) if is_job else None
    if ended:
        return f"another process of the job ended ({ended[0]}). Start all again: they resume from what is saved"
    if isinstance(error, OSError):
        return str(error)
    if isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)):
        return of_device(error)
    return " ".join(f"{type(error).__name__}: {error}".split()) if is_job else None


def of_device(error: Exception) -> str:
    """An error of memory or of a device, in one line."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    is_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in first
    return f"{'there is not enough memory' if is_memory else 'the device failed'}: {first}"


def parsed(argv: list[str]) -> list[str]:
    """The arguments besides flags; a wrong flag ends the process with one line, --help without an error."""
    try:
        return flags.parse(argv)
    except Error as error:
        name = Path(argv[0]).stem
        text = " ".join(str(error).replace(" ?", "?").split())
        sys.exit(f"{name}: {text}{'' if text.endswith('?') else '.'} Try {name} --help.")
    except SystemExit:  # absl has printed the help
        sys.exit(codes.DONE)


def join(config: S, processes: bool) -> S:
    """Joins the job of the flags or the cluster, takes the requested devices, and names them on stderr.

    Returns the config of this process: process 0 alone writes to --out and --store, others to temporary folders.
    """
    place = config.coordinator, config.processes, config.process_id
    if getattr(config, "shard", None):  # a part is trained alone, even if the cluster describes a job
        if place != (None, None, None):
            raise InputError("--shard must be given without --coordinator, --processes and --process_id; got both")
        check_device(lambda: None)
    else:
        if not processes and config.processes not in (None, 1):
            raise InputError(
                f"--processes must be 1; got {config.processes}. Start one process, which uses all devices of its host"
            )
        check_device(lambda: job.start(*place))
    may_differ = {"process_id", "out", "store", "cache_dir"}
    alike = [(name, getattr(config, name)) for name in config.fields() if name not in may_differ]
    placement.check_alike(lambda: [np.frombuffer(repr(sorted(alike)).encode(), np.uint8)])
    placement.use_devices(config.devices)
    if hosts.is_writer():
        print(placement.devices_in_words(), file=sys.stderr)
    if not processes and jax.process_count() > 1:
        raise InputError(
            f"this command must run as one process; got a job of {jax.process_count()}. Start it in one process of "
            "the cluster's job"
        )
    if hosts.is_writer():
        return config
    SCRATCH.append(tempfile.TemporaryDirectory())
    atexit.register(SCRATCH[0].cleanup)
    own = {"out", "store"} & {*config.fields()}
    return dataclasses.replace(config, **{name: str(Path(SCRATCH[0].name) / name) for name in own})


def leave(code: int) -> None:
    """Ends the process after an error; in a job at once, as a normal exit would wait for the others."""
    if not jax.distributed.is_initialized():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    for folder in SCRATCH:
        folder.cleanup()
    if hosts.is_writer():
        time.sleep(1)  # process 0 coordinates the others, which are leaving too
    os._exit(code)


def check_device(start: Callable[[], None]) -> None:
    """Starts JAX; raises InputError if JAX_PLATFORMS names a device that does not exist."""
    try:
        start()
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platform = os.environ.get("JAX_PLATFORMS", "")
        reason = (str(error).splitlines() or [f"none for JAX_PLATFORMS={platform}"])[0]
        raise InputError(
            f"JAX_PLATFORMS must name a device of this machine; {reason}. Unset it, or install tangent-jax[cuda12]"
        ) from error

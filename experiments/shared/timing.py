"""Compiled operations, timed in alternating rounds in one process."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

import tangent_jax as tj
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import check_stop, progress_bar

Row = dict[str, Any]


class Operation(NamedTuple):
    """A program, a function that calls it (and may replace its arguments), and the number of runs in one call.

    `program` is None for other libraries' operations (PyTorch's). A run may be a loop of `steps`: times are of one.
    """

    name: str
    call: Callable[[], Any]
    program: Any = None
    runs: int = 1
    steps: int = 1

    @property
    def mebibytes(self) -> float | None:
        """The memory of the program, if known: arguments, results and temporaries."""
        if self.program is None:
            return None
        memory = self.program.memory_analysis()
        if memory is None:  # a device without this information
            return None
        sizes = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        return (sizes - memory.alias_size_in_bytes) / 2**20


def compiled(name: str, f: Callable, *arguments: Any) -> Operation:
    """Compiles one call of f."""
    program = jax.jit(f).lower(*arguments).compile()
    return Operation(name, lambda: program(*arguments), program)


def compiled_step(name: str, f: Callable, states: list[Any], *arguments: Any) -> Operation:
    """Compiles f(state, *arguments) -> state, called for each state, whose memory the next one reuses."""
    program = jax.jit(f, donate_argnums=0).lower(states[0], *arguments).compile()
    current = [jax.tree.map(jax.numpy.array, state) for state in states]

    def call() -> Any:
        current[:] = [program(state, *arguments) for state in current]
        return current

    return Operation(name, call, program, len(states))


def rounds(operations: Iterable[Operation], title: str, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Times the operations and returns a row for each: median and quartiles' distance over alternating rounds."""
    ready = []
    for operation in operations:
        jax.block_until_ready(operation.call())
        ready.append(operation)
    times: list[list[float]] = [[] for _ in ready]
    began = time.perf_counter()
    with tj.show_progress(title), progress_bar(repeats, "round") as bar:
        for _ in range(repeats):
            for operation, taken in zip(ready, times, strict=True):
                started = time.perf_counter()
                jax.block_until_ready(operation.call())
                taken.append(time.perf_counter() - started)
            bar.update()
            if time.perf_counter() - began > seconds:
                break
    return [
        {
            "operation": operation.name,
            "seconds": float(np.median(taken)) / operation.steps,
            "spread": float(np.subtract(*np.percentile(taken, [75, 25]))) / operation.steps,
            "rounds": len(taken),
            "memory_mib": operation.mebibytes,
            "program": operation.program,
            "runs": operation.runs,
        }
        for operation, taken in zip(ready, times, strict=True)
    ]


def measured(makes: dict[str, Callable[[], Operation]], deadline: float, each: float) -> list[Row]:
    """A row for each operation: its time and memory, or a line with the reason why there is none.

    What is compiled is timed for `each` seconds at least, also where the deadline has passed.

    Args:
        deadline: By `time.monotonic`, after which no operation is compiled.
        each: The most seconds to time one.
    """
    ready = []
    rows = {}
    for name, make in makes.items():
        check_stop()
        if time.monotonic() > deadline:
            rows[name] = {"name": name, "failed": "no time left"}
            continue
        try:
            operation = make()
            jax.block_until_ready(operation.call())
            ready.append(operation._replace(name=name))
        except Exception as error:  # any error of an untried compiler or device: the row names it
            rows[name] = failed(name, error)
    left = max(min(deadline - time.monotonic(), each * len(ready)), each)
    for row in rounds(ready, "measuring", 20, left) if ready else []:
        figures = {"ms": f"{1e3 * row['seconds']:.4g}", "±": f"{1e3 * row['spread']:.2g}"}
        memory = {} if row["memory_mib"] is None else {"MiB": f"{row['memory_mib']:.0f}"}
        rows[row["operation"]] = {"name": row["operation"], "seconds": row["seconds"], **figures, **memory}
    return [rows[name] for name in makes]


def failed(name: str, error: Exception) -> Row:
    """The row of an operation without a figure."""
    first = (str(error).splitlines() or [""])[0][:160]
    is_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in first
    return {"name": name, "failed": "out of memory" if is_memory else f"{type(error).__name__}: {first}"}


def standard(config: tj.models.ViTConfig, w: Tree, x: jax.Array, start: int) -> jax.Array:
    """The standard network, from the input of stage `start`: every block on every token; outputs "b c"."""
    end = config.depth + 1
    model = tj.models.VisionTransformer(config.replace(pool="avg"))  # forms no query row
    tokens = model.replace(depth=end).apply(w, x, start, end)  # of which no block up to this end is the last
    return model.apply(w, tokens[:, 0], end)


def steady(fitted: tj.Fitted) -> float:
    """The training time with the median epoch's time for all epochs, as the first one also compiles."""
    return float(np.median([row["seconds"] for row in fitted.history])) * len(fitted.history)

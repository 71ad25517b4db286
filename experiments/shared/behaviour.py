"""Questions about results on a device, and their measured answers, for `bench accelerator`.

    bits        ten runs in one process; a row alone and in a batch; random draws beside those of the machine's CPU
    precision   the functions whose error JAX's default precision of products raises (TF32 on a GPU)
    memory      temporary memory of a trunk's forward pass and derivatives
    compile     seconds to trace and to compile a loop over blocks, and a scan

The runs of one process share their compiled programs: nothing here compares two processes, or two devices of a kind.
Distances from a CPU's results are those of agreement.py.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

import tangent_jax as tj
from experiments.shared import operations, timing
from experiments.shared.agreement import relative
from experiments.shared.timing import Row
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import check_stop
from tangent_jax.models.vit.forward import block, forward

RUNS = 10
Questions = dict[str, Callable[[], Row]]


def answers(pretrained: tj.Pretrained, small: bool, deadline: float) -> Iterator[Row]:
    """A row for each question: its answer, or the reason why there is none; none is begun after the deadline."""
    asked = {**bits(pretrained), **draws(small), **precisions(small), **memory(pretrained), **compilation(pretrained)}
    for name, ask in asked.items():
        check_stop()
        if time.monotonic() > deadline:
            yield {"name": name, "failed": "no time left"}
            continue
        try:
            yield {"name": name, **ask()}
        except Exception as error:  # any error of an untried compiler or device: the row names it
            yield timing.failed(name, error)


# Bits


def bits(pretrained: tj.Pretrained) -> Questions:
    """Ten runs of the library's computations, and the feature of one row in batches of three sizes."""
    predict = tj.tangent(pretrained, 1)
    x, y = operations.inputs_of(predict, 64)
    data = tj.Batches(x, y, jax.random.key(3), batch_size=16)
    objective = tj.make_objective(penalty=0.1)
    parts = {f"shard {i}": tj.Component(random_like(predict.zeros(), i)) for i in range(8)}
    hosted = {name: tj.Component(jax.device_get(part.dw)) for name, part in parts.items()}
    survivors = {name: part for name, part in parts.items() if name != "shard 3"}

    def removal() -> Tree:
        held = dict(reversed(parts.items()))
        tj.compose(held)
        del held["shard 3"]
        return tj.compose(held)

    trunks = {
        "float32, default": (jnp.float32, None),
        "float32, highest": (jnp.float32, "highest"),
        "bfloat16": (jnp.bfloat16, None),
    }
    return {
        "fit: the same bits in ten runs": partial(same_bits, lambda: tj.fit(predict, data, objective, epochs=2).dw),
        "solve: the same bits in ten runs": partial(
            same_bits, lambda: tj.solve(predict, data, objective, certificate=None, passes=4).dw
        ),
        "composition: the same bits in ten runs": partial(same_bits, lambda: tj.compose(parts)),
        "composition: the same bits as NumPy's on the host": partial(
            same_bits, lambda: tj.compose(parts), lambda: tj.compose(hosted)
        ),
        "removal: the same bits as without the component from the start": partial(
            same_bits, removal, lambda: tj.compose(survivors)
        ),
        **{
            f"feature: the same bits alone, of 8 and of 32 images, {name}": partial(feature, predict, *of_trunk)
            for name, of_trunk in trunks.items()
        },
    }


def random_like(dw: Tree, seed: int) -> Tree:
    """Random tangent weights, another draw for every leaf."""
    leaves, structure = jax.tree.flatten(dw)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def same_bits(run: Callable[[], Tree], reference: Callable[[], Tree] | None = None) -> Row:
    """Whether ten runs, and the reference, have the same bits, as the library promises."""
    prints = [trees.fingerprint(run()) for _ in range(RUNS)]
    found = {*prints, *([] if reference is None else [trees.fingerprint(reference())])}
    if len(found) == 1:
        return {"answer": f"yes, {RUNS} of {RUNS}", "right": "yes"}
    return {"answer": f"no, {len(found)} distinct results", "right": "NO, promised"}


def feature(predict: tj.Predictor, dtype: Any, precision: str | None) -> Row:
    """Whether the trunk's output for an image is the same alone and in a batch; else the relative difference."""
    trunk = tj.models.Trunk(predict.model, predict.w, predict.subset.stage, dtype)
    images = jax.random.normal(jax.random.key(5), (32, *predict.model.input_shape(0)))
    with jax.default_matmul_precision(precision):
        alone, *others = jax.device_get([trunk(images[5:6])[0], trunk(images[:8])[5], trunk(images)[5]])
    same = [other.tobytes() == alone.tobytes() for other in others]
    found = ["yes" if is_same else f"no, {relative(x, alone):.0e}" for is_same, x in zip(same, others, strict=True)]
    return {"answer": f"of 8: {found[0]}; of 32: {found[1]}"}


def draws(small: bool) -> Questions:
    """Draws of one key, beside those of the machine's CPU."""
    n = 1000 if small else 1_000_000
    logits = np.linspace(0, 1, 16, dtype=np.float32)
    functions: dict[str, Callable[[jax.Array], jax.Array]] = {
        "bits": partial(jax.random.bits, shape=(n,)),
        "uniform": partial(jax.random.uniform, shape=(n,)),
        "normal": partial(jax.random.normal, shape=(n,)),
        "permutation": partial(jax.random.permutation, x=n),
        "categorical": partial(jax.random.categorical, logits=logits, shape=(n,)),
    }
    return {f"random {name}: the same as on a CPU": partial(same_draws, f) for name, f in functions.items()}


def same_draws(draw: Callable[[jax.Array], jax.Array]) -> Row:
    """The draws of one key on the device against the CPU's."""
    key = jax.random.key(7)
    on_cpu = jax.device_put(key, jax.devices("cpu")[0])
    return {"answer": different(*(np.asarray(jax.jit(draw)(k), np.float64) for k in (key, on_cpu)))}


def different(got: np.ndarray, want: np.ndarray) -> str:
    """How many numbers differ, and the largest relative difference."""
    differ = got != want
    sizes = np.maximum(np.abs(want[differ]), np.finfo(np.float32).tiny)
    largest = np.max(np.abs(got - want)[differ] / sizes, initial=0)
    return f"{differ.sum()} of {len(want)} differ" + (f", relative at most {largest:.0e}" if largest else "")


# Precision


def precisions(small: bool) -> Questions:
    """The functions that JAX's default precision may reach, each with its reference in NumPy and its operands."""
    n = 32 if small else 512
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 64))
    positive = a @ a.T / n + np.eye(n)
    lower = np.linalg.cholesky(positive)
    images, kernel = rng.standard_normal((8, 32, 32, 16)), rng.standard_normal((3, 3, 16, 32))
    convolve = partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )

    def windows(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        patches = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))
        return np.tensordot(patches, kernel, ((4, 5, 3), (0, 1, 2)))

    functions: dict[str, tuple[Callable, Callable, tuple[np.ndarray, ...]]] = {
        "product": (jnp.dot, np.dot, (a, b)),
        "convolution": (convolve, windows, (images, kernel)),
        "Cholesky factor": (jnp.linalg.cholesky, np.linalg.cholesky, (positive,)),
        "linear solve": (jnp.linalg.solve, np.linalg.solve, (positive, b)),
        "triangular solve": (partial(solve_triangular, lower=True), np.linalg.solve, (lower, b)),
        "eigvalsh": (jnp.linalg.eigvalsh, np.linalg.eigvalsh, (positive,)),
        "singular values": (partial(jnp.linalg.svd, compute_uv=False), partial(np.linalg.svd, compute_uv=False), (a,)),
        "cumsum": (partial(jnp.cumsum, axis=1), partial(np.cumsum, axis=1), (a,)),
    }
    return {f"default precision: {name}": partial(precision, *case) for name, case in functions.items()}


def precision(f: Callable, exact: Callable, operands: tuple[np.ndarray, ...]) -> Row:
    """The errors of f in float32 by default and with the precision "highest", over the largest exact number."""
    want = exact(*operands)
    errors = []
    for name in (None, "highest"):
        with jax.default_matmul_precision(name):
            got = jax.jit(f)(*(jnp.asarray(operand, jnp.float32) for operand in operands))
        errors.append(np.max(np.abs(np.float64(got) - want)) / np.max(np.abs(want)))
    default, highest = errors
    word = "changes" if default > 3 * highest else "no change"
    return {"answer": f"{word}: error {default:.0e}, with highest {highest:.0e}"}


# Programs of blocks


def blocks_of(pretrained: tj.Pretrained) -> tuple[Any, Tree, jax.Array]:
    """The layout, the weights of all blocks but the last in bfloat16, and an input of theirs, "b n d"."""
    model: Any = pretrained.model
    layout = model.config
    w = {f"block_{i}": pretrained.w[f"block_{i}"] for i in range(layout.depth - 1)}
    return layout, trees.cast(w, jnp.bfloat16), jnp.ones((32, layout.tokens, layout.width), jnp.bfloat16)


def memory(pretrained: tj.Pretrained) -> Questions:
    """Temporary memory of the blocks below the last, and of their derivatives by the weights."""
    layout, w, x = blocks_of(pretrained)

    def run(w: Tree, x: jax.Array) -> jax.Array:
        return forward(layout, trees.pair(w, {}), x, 1, layout.depth).primal

    def closed_form(w: Tree, dw: Tree, x: jax.Array) -> jax.Array | None:
        return forward(layout, trees.pair(w, dw), x, 1, layout.depth).tangent

    def by_jvp(w: Tree, dw: Tree, x: jax.Array) -> jax.Array | None:
        return tj.linearize(run, w)(dw, x).tangent

    def by_linearize(w: Tree, dw: Tree, x: jax.Array) -> jax.Array:
        return jax.linearize(lambda w: run(w, x), w)[1](dw)

    def gradient(w: Tree, x: jax.Array) -> Tree:
        return jax.grad(lambda w: jnp.sum(run(w, x), dtype=jnp.float32))(w)

    programs = {
        "forward pass": (run, w, x),
        "tangent, closed form": (closed_form, w, w, x),
        "tangent, jax.jvp": (by_jvp, w, w, x),
        "tangent, jax.linearize applied once": (by_linearize, w, w, x),
        "gradient": (gradient, w, x),
    }
    sizes = f"depth {len(w)}, batch {len(x)}, bfloat16"
    return {f"temporary memory, {sizes}: {name}": partial(temporary, *case) for name, case in programs.items()}


def temporary(f: Callable, *arguments: Any) -> Row:
    """The temporary memory of a compiled program."""
    used = jax.jit(f).lower(*arguments).compile().memory_analysis()
    if used is None:
        raise NotImplementedError("the device does not tell the memory of a program")
    return {"answer": f"{used.temp_size_in_bytes / 2**20:.1f} MiB"}


def compilation(pretrained: tj.Pretrained) -> Questions:
    """Seconds to make the program of the tangent of a loop over blocks, and of a scan over stacked blocks.

    `memory` compiles the same products before, so that the loop does not pay alone for a GPU's choice of kernels.
    """
    layout, w, x = blocks_of(pretrained)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *w.values())

    def one(x: jax.Array, p: Tree) -> tuple[jax.Array, None]:
        return block(layout, trees.pair(p, {}), x, None)[0], None

    def loop(w: Tree, x: jax.Array) -> jax.Array:
        for p in w.values():
            x = one(x, p)[0]
        return x

    def scan(stacked: Tree, x: jax.Array) -> jax.Array:
        return jax.lax.scan(one, x, stacked)[0]

    sizes = f"depth {len(w)}, batch {len(x)}, bfloat16"
    return {
        f"loop over blocks, {sizes}: seconds to trace and compile": partial(seconds, loop, w, x),
        f"scan over blocks, {sizes}: seconds to trace and compile": partial(seconds, scan, stacked, x),
    }


def seconds(f: Callable, w: Tree, x: jax.Array) -> Row:
    """The seconds to trace and to compile the derivative of f along w, where no cache has it."""

    def tangent(w: Tree, x: jax.Array) -> Any:
        now = time.time() % 1  # a constant that no program in a cache on the disk has
        return jax.jvp(lambda w: f(w, x), (w,), (w,))[1], now

    jax.clear_caches()
    began = time.perf_counter()
    lowered = jax.jit(tangent).lower(w, x)
    traced = time.perf_counter()
    lowered.compile()
    return {"answer": f"{traced - began:.2f} and {time.perf_counter() - traced:.2f}"}

"""What privacy costs: one step of the last block, private and not, ours and others', in one process, alternating.

All steps train the last block, final norm and head of a ViT on the same inputs, noise and momentum included. Rows of
jax_privacy and Opacus appear where they are installed (pip install .[parity]). Opacus trains the same layers without
the tangent, which it does not have. Memory is the compiled program's own; PyTorch's is not comparable and left out.

The last line of stdout: {"private_over_ordinary", "memory_private_over_ordinary", "vmapped_over_private",
"jax_privacy_over_private", "jax_privacy_class_query_over_private", "opacus_over_private", "machine"}.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from tqdm import tqdm

from experiments import binary
from tangent_jax import subsets, vit
from tangent_jax.config import vit_config
from tangent_jax.fit import State
from tangent_jax.linearize import linearize
from tangent_jax.losses import cross_entropy
from tangent_jax.notation import Tree
from tangent_jax.predict import Predictor
from tangent_jax.privacy import ClippedSum, PrivateSettings, clipped_sum, noise_key
from tangent_jax.privacy.train import MOMENTUM, descend, micro_batches, update

SIZE = flags.DEFINE_enum("size", "L", ["Ti", "S", "B", "L"], "ViT size, patches of 16 at 224 pixels.")
BATCH = flags.DEFINE_integer("batch_size", 32, "Examples: the whole data of a full-batch step.", lower_bound=2)
REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds over all operations, at most.", lower_bound=1)
SECONDS = flags.DEFINE_float("max_seconds", 150.0, "Time for the rounds; one is always run.")
OUT = flags.DEFINE_string("out", "out/bench_private", "Folder for result.json and bench_private.md.")

CLASSES = 200


class Operation(NamedTuple):
    """A step that replaces what it holds, and the bytes its program needs, where known."""

    name: str
    call: Callable[[], Any]
    memory: int | None = None


def compiled(name: str, step: Callable, *arguments: Any) -> Operation:
    """A jitted step of (state, key, arguments); the state is given up to it."""
    *_, dw = arguments
    others = arguments[:-1]
    state = State(dw, MOMENTUM.init(dw))
    program = jax.jit(step, donate_argnums=0).lower(state, noise_key(0, 0), *others).compile()
    memory: Any = program.memory_analysis()
    held = [jax.tree.map(jnp.array, state)]

    def call() -> Any:
        held[0] = program(held[0], noise_key(0, 1), *others)
        return held[0]

    sizes = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return Operation(name, call, sizes - memory.alias_size_in_bytes)


def operations() -> Iterator[Operation]:
    config = vit_config(f"{SIZE.value}/16", classes=CLASSES).replace(depth=1)  # the last block is all that is run
    w, last = jax.block_until_ready(vit.init(config, jax.random.key(0))), subsets.make_subset(config, blocks=1)
    dw, n = last.zeros(w), BATCH.value
    tokens = jax.random.normal(jax.random.key(2), (n, config.tokens, config.width))
    x, y = vit.one_query_input(config, tokens)[0], jnp.arange(n) % CLASSES
    settings = PrivateSettings(3.0, 1e-5, learning_rate=1e-6, micro_batch=n)
    predict = Predictor(w, config, last.split, output="tangent")
    order, present = jnp.arange(n, dtype=jnp.int32)[None], jnp.ones((1, n))

    def ordinary(state: State, key: jax.Array, predict: Any, x: jax.Array, y: jax.Array) -> State:
        rows = order[0]
        gradient = jax.grad(lambda dw: jnp.mean(cross_entropy(predict(dw, x[rows]), y[rows])))(state.dw)
        return descend(state, gradient, settings.clip_norm, settings.learning_rate)

    def private(state: State, key: jax.Array, predict: Any, x: jax.Array, y: jax.Array) -> State:
        total = micro_batches(predict, state.dw, x, y, order, present, 1, settings=settings)
        return update(state, total, n, key, settings)

    def vmapped(state: State, key: jax.Array, predict: Any, x: jax.Array, y: jax.Array) -> State:
        total = clipped_sum(predict, state.dw, x, y, present[0], loss=cross_entropy, clip_norm=1.0)
        return update(state, total, n, key, settings)

    yield compiled("ordinary step", ordinary, predict, x, y, dw)
    yield compiled("private step, norms in closed form", private, predict, x, y, dw)
    yield compiled("private step, our vmapped gradients", vmapped, predict, x, y, dw)
    if find_spec("jax_privacy"):
        for name, of, inputs in (
            ("jax_privacy, class-query block", predict, x),
            ("jax_privacy, full linearised block", full_block(config, last.split, w), tokens),
        ):
            yield compiled(name, partial(by_jax_privacy, settings=settings), of, inputs, y, dw)
    if find_spec("opacus"):
        yield by_opacus(config, np.array(tokens), np.array(y))
    for name in ("jax_privacy", "opacus"):
        if not find_spec(name):
            print(f"bench_private: {name} is not installed, and left out", file=sys.stderr)


def full_block(config: Any, split: int, w: Tree) -> Any:
    """The last block on every token and the head, linearised by jax.jvp; the tangent alone."""

    def standard(w: Tree, x: jax.Array) -> jax.Array:
        x = vit.Block(config).apply({"params": w[f"block_{split}"]}, x)  # pyright: ignore
        return vit.ViT(config).apply({"params": w}, x[:, 0], config.depth, method="tail")  # pyright: ignore

    return jax.tree_util.Partial(lambda w, dw, x: linearize(standard, w)(dw, x).tangent, w)


def by_jax_privacy(
    state: State, key: jax.Array, predict: Any, x: jax.Array, y: jax.Array, settings: PrivateSettings
) -> State:
    from jax_privacy import clipped_grad  # pyright: ignore

    def loss(dw: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(cross_entropy(predict(dw, x), y))

    clipped = clipped_grad(loss, l2_clip_norm=settings.clip_norm, batch_argnums=(1, 2), microbatch_size=8)
    total = ClippedSum(clipped(state.dw, x, y), jnp.zeros(1), jnp.zeros((), int), settings.clip_norm)
    return update(state, total, len(y), key, settings)


def by_opacus(config: Any, tokens: np.ndarray, labels: np.ndarray) -> Operation:
    """Ghost clipping and noise on the last block, final norm and head, every token a query."""
    import torch  # pyright: ignore
    from opacus.grad_sample import GradSampleModuleFastGradientClipping  # pyright: ignore
    from opacus.optimizers import DPOptimizerFastGradientClipping  # pyright: ignore
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping  # pyright: ignore
    from torch import nn  # pyright: ignore

    d, f, h = config.width, config.mlp_width, config.heads

    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.norm = (nn.LayerNorm(d, eps=1e-6) for _ in range(3))
            self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
            self.mlp_in, self.mlp_out, self.head = nn.Linear(d, f), nn.Linear(f, d), nn.Linear(d, CLASSES)

        def forward(self, x: Any) -> Any:
            z = self.norm1(x)
            q, k, v = (part(z).unflatten(-1, (h, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
            a = torch.softmax(q @ k.transpose(-1, -2) * (d // h) ** -0.5, -1)
            x = x + self.out((a @ v).transpose(1, 2).flatten(-2))
            x = x + self.mlp_out(nn.functional.gelu(self.mlp_in(self.norm2(x))))
            return self.head(self.norm(x[:, 0]))

    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = GradSampleModuleFastGradientClipping(Tail(), max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9),
        noise_multiplier=10.0,
        max_grad_norm=1.0,
        expected_batch_size=len(labels),
    )
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss(reduction="mean"))
    x, y = torch.from_numpy(tokens), torch.from_numpy(labels.astype(np.int64))

    def call() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return Operation("Opacus, ghost clipping, no tangent", call)


def main() -> None:
    made = []
    for operation in operations():
        jax.block_until_ready(operation.call())
        made.append(operation)
    times: list[list[float]] = [[] for _ in made]
    began = time.perf_counter()
    for _ in tqdm(range(REPEATS.value), f"{SIZE.value}/16 batch {BATCH.value}", unit="round", file=sys.stderr):
        for operation, taken in zip(made, times, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(operation.call())
            taken.append(time.perf_counter() - started)
        if time.perf_counter() - began > SECONDS.value:
            break
    rows = [
        {
            "operation": operation.name,
            "seconds": float(np.median(taken)),
            "spread": float(np.subtract(*np.percentile(taken, [75, 25]))),
            "memory_mib": None if operation.memory is None else operation.memory / 2**20,
        }
        for operation, taken in zip(made, times, strict=True)
    ]
    ordinary, private = rows[:2]
    lines = ["| step | ms | ± | MiB | over the private step |", "|---|---|---|---|---|"]
    for row in rows:
        memory = "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
        cells = [row["operation"], f"{row['seconds'] * 1e3:.0f}", f"{row['spread'] * 1e3:.0f}", memory]
        lines.append(f"| {' | '.join(cells)} | {row['seconds'] / private['seconds']:.2f} |")
    markdown = "\n".join(lines) + "\n"
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench_private.md").write_text(markdown)
    print(markdown)
    result: dict[str, Any] = {"private_over_ordinary": private["seconds"] / ordinary["seconds"]}
    result["memory_private_over_ordinary"] = private["memory_mib"] / ordinary["memory_mib"]
    words = {"vmapped": "our vmapped", "jax_privacy": "full linearised", "opacus": "Opacus"}
    words["jax_privacy_class_query"] = "jax_privacy, class"
    for name, word in words.items():
        for row in rows:
            if word in row["operation"]:
                result[f"{name}_over_private"] = row["seconds"] / private["seconds"]
    result["machine"] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    binary.finish(out, result, rows=rows)


if __name__ == "__main__":
    binary.run(main)

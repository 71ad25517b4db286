"""The cost of privacy: one step of the last block, private and not, ours and others', in one process, alternating.

All steps train the last block, final norm and head of a ViT on the same inputs, with noise and momentum. Rows of
jax_privacy and Opacus appear if these are installed (pip install .[parity]). Opacus trains the same layers without the
tangent, which it does not support. Memory is the compiled program's; PyTorch's is not comparable and left out.

The last line of stdout: {"private_over_ordinary", "memory_private_over_ordinary", "vmapped_over_private",
"discrete_over_private", "jax_privacy_over_private", "jax_privacy_class_query_over_private", "opacus_over_private",
"machine"}.
"""

import dataclasses
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import timing
from experiments.shared.operations import CLASSES, inputs_of, private_step_of, private_steps, random_vit
from experiments.shared.table import TABLE
from experiments.shared.timing import Operation
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results, choice
from tangent_jax.core.notation import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: int = 32
    out: str = "out/bench_private"
    repeats: int = 5
    seconds: float = 150.0
    size: str = choice("L", "Ti", "S", "B")


RATIOS = {  # name: a word of the row to compare with the private step
    "vmapped_over_private": "our vmapped",
    "discrete_over_private": "discrete",
    "jax_privacy_over_private": "full linearised",
    "jax_privacy_class_query_over_private": "jax_privacy, class",
    "opacus_over_private": "Opacus",
}


def operations(config: Config) -> Iterator[Operation]:
    vit = tj.models.vit_config(f"{config.size}/16", classes=CLASSES).replace(depth=1)  # only the last block runs
    pretrained = random_vit(vit)
    n = config.batch_size
    for make in private_steps(pretrained, n).values():
        yield make()
    predict = tj.tangent(pretrained, output="tangent")
    tokens = jax.random.normal(jax.random.key(2), (n, vit.tokens, vit.width))
    if find_spec("jax_privacy"):
        dw, (x, y), full = predict.zeros(), inputs_of(predict, n), full_block(config, vit, pretrained.w)
        yield private_step_of("jax_privacy, class-query block", by_jax_privacy, predict, dw, x, y)
        yield private_step_of("jax_privacy, full linearised block", by_jax_privacy, full, dw, tokens, y)
    if find_spec("opacus"):
        yield by_opacus(vit, np.array(tokens), np.arange(n) % CLASSES)
    for name in ("jax_privacy", "opacus"):
        if not find_spec(name):
            print(f"bench private: {name} is not installed, and left out", file=sys.stderr)


def full_block(config: Config, vit: tj.models.ViTConfig, w: Tree) -> Any:
    """The last block on every token and the head, linearised by jax.jvp; the tangent alone."""
    return Partial(lambda w, dw, x: tj.linearize(lambda w, x: timing.standard(vit, w, x, 1), w)(dw, x).tangent, w)


def by_jax_privacy(predict: Any, dw: Tree, x: jax.Array, y: jax.Array) -> tj.privacy.ClippedSum:
    from jax_privacy import clipped_grad  # pyright: ignore

    def loss(dw: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(tj.losses.CrossEntropy()(predict(dw, x), y))

    clipped = clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=8)
    return tj.privacy.ClippedSum(clipped(dw, x, y), jnp.zeros(1), jnp.zeros((), int), 1.0)


def by_opacus(vit: Any, tokens: np.ndarray, labels: np.ndarray) -> Operation:
    """Ghost clipping and noise on the last block, final norm and head, every token a query."""
    import torch  # pyright: ignore
    from opacus.grad_sample import GradSampleModuleFastGradientClipping  # pyright: ignore
    from opacus.optimizers import DPOptimizerFastGradientClipping  # pyright: ignore
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping  # pyright: ignore
    from torch import nn  # pyright: ignore

    d = vit.width
    f = vit.mlp_width
    h = vit.heads

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
    settings = {"noise_multiplier": 10.0, "max_grad_norm": 1.0, "expected_batch_size": len(labels)}
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9), **settings)
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss(reduction="mean"))
    x = torch.from_numpy(tokens)
    y = torch.from_numpy(labels.astype(np.int64))

    def call() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return Operation("Opacus, ghost clipping, no tangent", call)


def main(config: Config) -> None:
    rows = timing.rounds(
        operations(config), f"{config.size}/16 batch {config.batch_size}", config.repeats, config.seconds
    )
    for row in rows:
        row |= {"program": None}
    ordinary, private = rows[:2]
    lines = []
    for row in rows:
        memory = "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
        cells = [row["operation"], f"{row['seconds'] * 1e3:.0f}", f"{row['spread'] * 1e3:.0f}", memory]
        lines.append([*cells, f"{row['seconds'] / private['seconds']:.2f}"])
    command.write_table(config, "bench_private", ["step", "ms", "±", "MiB", "over the private step"], lines)
    result: dict[str, Any] = {"private_over_ordinary": private["seconds"] / ordinary["seconds"]}
    result["memory_private_over_ordinary"] = private["memory_mib"] / ordinary["memory_mib"]
    for name, word in RATIOS.items():
        seconds = [row["seconds"] for row in rows if word in row["operation"]]
        result |= {name: seconds[0] / private["seconds"]} if seconds else {}
    result["machine"] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    command.finish(config, result, rows=rows)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

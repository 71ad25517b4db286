"""LoRA: low-rank factors as separate leaves, trained instead of a kernel.

    W = W_0 + A B            A "inputs r", drawn; B "r outputs", 0 at the anchor
    dW = dA B + A dB         = A_0 dB at the anchor: the tangent is linear in dB, and composes

Source: Hu et al. 2021 (scale 1: the learning rate is searched). A network with LoRA is again a model of the protocol,
so

subsets, features, per-example norms, stores and exports work as for any other. Adapters are leaves of the ViT itself.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.models.frozen_head import WithFrozenHead
from tangent_jax.models.protocol import normal
from tangent_jax.models.wrapper import Wrapper
from tangent_jax.rules import probe, total


@dataclasses.dataclass(frozen=True)
class LoRA(Wrapper):
    """A model whose last `blocks` blocks have factors of `rank` at every kernel: `.../lora_a`, `.../lora_b`."""

    rank: int
    blocks: int

    def __post_init__(self) -> None:
        if isinstance(self.base, LoRA):
            raise InputError("the model must have no LoRA yet; got one that has it")
        whole_number("blocks", self.blocks, 1, self.base.stages - 2)
        sizes = [min(math.prod(a[:-1]), math.prod(b[1:])) for a, b in self.factor_shapes().values()]
        if not sizes:
            raise InputError(f"the last {self.blocks} blocks must have leaves named .../kernel; got none")
        whole_number("rank", self.rank, 1, min(sizes))

    def factor_shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """The shapes of A and B by their module."""
        shapes, last = self.base.shapes(), self.base.stages - 1
        factors_of = {}
        for path, shape in shapes.items():
            module, _, name = path.rpartition("/")
            if name == "kernel" and last - self.blocks <= self.base.stage_of(path) < last:
                inputs = len(shape) - len(shapes.get(f"{module}/bias", shape[-1:]))
                factors_of[module] = (*shape[:inputs], self.rank), (self.rank, *shape[inputs:])
        return factors_of

    def shapes(self) -> dict[str, tuple[int, ...]]:
        own = {}
        for module, (a, b) in self.factor_shapes().items():
            own |= {f"{module}/lora_a": a, f"{module}/lora_b": b}
        return self.base.shapes() | own

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        """A from N(0, 1 / inputs), B of 0; other leaves as the base draws them."""
        module, _, name = path.rpartition("/")
        if name not in ("lora_a", "lora_b"):
            return self.base.initial(path, key)
        shape = self.factor_shapes()[module][name == "lora_b"]
        deviation = math.prod(shape[:-1]) ** -0.5 if name == "lora_a" else 0.0
        return normal(key, shape, deviation)

    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Float[Array, "b ..."]:
        pairs: Any = merge_factors(trees.pair(w, {}))
        plain = jax.tree.map(lambda leaf: leaf.primal, pairs, is_leaf=lambda node: isinstance(node, Dual))
        return self.base.apply(plain, x, start, stop)

    @property
    def dual(self) -> Callable[..., Dual] | None:
        dual = self.base.dual
        return dual and (lambda pairs, x, start=0: dual(merge_factors(pairs), x, start))

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.base.settings, "lora_rank": self.rank, "lora_blocks": self.blocks}

    @property
    def input_norms(self) -> dict[str, str]:
        """The base's, and those of A, which reads what its kernel reads."""
        norms = super().input_norms
        of_a = {f"{module}/lora_a": norms.get(f"{module}/kernel") for module in self.factor_shapes()}
        return norms | {path: norm for path, norm in of_a.items() if norm is not None}

    def stage_of(self, path: str) -> int:
        """A factor's stage is its kernel's."""
        module, _, name = path.rpartition("/")
        return self.base.stage_of(f"{module}/kernel" if name in ("lora_a", "lora_b") else path)

    def with_classes(self, classes: int) -> "LoRA":
        return dataclasses.replace(self, base=self.base.with_classes(classes))

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The base's names; the factors keep our paths."""
        own = {path: leaf for path, leaf in flat.items() if "/lora_" in path}
        return self.base.to_world({path: leaf for path, leaf in flat.items() if path not in own}) | own

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        own = {path: leaf for path, leaf in tensors.items() if "/lora_" in path}
        return self.base.from_world({path: leaf for path, leaf in tensors.items() if path not in own}) | own


WRAPPERS: dict[str, type[Wrapper]] = {"frozen_head": WithFrozenHead, "lora": LoRA}
"""The classes of wrappers by their names in files."""


def unwrap(model: Any) -> tuple[Any, tuple[dict[str, dict[str, Any]], ...]]:
    """Returns the model inside all wrappers, and the wrappers as {name: fields but `base`}, innermost first."""
    name = next((name for name, kind in WRAPPERS.items() if type(model) is kind), None)
    if name is None:
        return model, ()
    base, inner = unwrap(model.base)
    own = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.name != "base"}
    return base, (*inner, {name: own})


def merge_factors(node: Any) -> Any:
    """The pairs, with W + A B and its tangent for every kernel W with factors."""
    if isinstance(node, Dual):
        return node
    inner = {name: merge_factors(child) for name, child in node.items() if not name.startswith("lora_")}
    if "lora_a" in node:
        inner["kernel"] = low_rank(node["kernel"], node["lora_a"], node["lora_b"])
    return inner


def low_rank(kernel: Dual, a: Dual, b: Dual) -> Dual:
    """W + A B and its tangent dW + dA B + A dB; a None costs no product."""
    w = kernel.primal + jnp.tensordot(a.primal, b.primal, 1)
    tangents = kernel.tangent, a.tangent, b.tangent
    if any(isinstance(tangent, probe.Probe) for tangent in tangents):
        return Dual(w, LowRank(kernel.tangent, a, b))  # pyright: ignore[reportArgumentType]
    from_a = None if a.tangent is None else jnp.tensordot(a.tangent, b.primal, 1)
    from_b = None if b.tangent is None else jnp.tensordot(a.primal, b.tangent, 1)
    return Dual(w, total(kernel.tangent, from_a, from_b))


class LowRank(probe.Probe):
    """The tangent of W + A B if one of its leaves is a Probe: each factor's use is a separate einsum."""

    def __init__(self, dw: Any, a: Dual, b: Dual) -> None:
        self.dw, self.a, self.b = dw, a, b

    def einsum(self, spec: str, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The einsum of x and dW + dA B + A dB, with a separate einsum for each factor."""
        terms, ys = spec.split("->")
        xs, ws = terms.split(",")
        cut = self.a.primal.ndim - 1
        first, last = f"{ws[:cut]}r", f"r{ws[cut:]}"
        (a, da), (b, db) = self.a, self.b
        order = [(first, a, da), (last, b, db)]
        if not {*ws[:cut]} <= {*xs}:  # x enters B first if a key's kernel was moved to the query's side
            order.reverse()
        (ps, p, dp), (qs, q, dq) = order
        between = "".join(axis for axis in xs if axis not in ps or axis in ys) + "r"
        parts = [None if self.dw is None else probe.einsum(spec, x, self.dw)]
        if dp is not None:
            parts.append(jnp.einsum(f"{between},{qs}->{ys}", probe.einsum(f"{xs},{ps}->{between}", x, dp), q))
        if dq is not None:
            parts.append(probe.einsum(f"{between},{qs}->{ys}", jnp.einsum(f"{xs},{ps}->{between}", x, p), dq))
        result = total(*parts)
        assert result is not None
        return result

    def times(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        raise NotImplementedError

    def broadcast(self, shape: tuple[Any, ...], beside: Any = None) -> Float[Array, "..."]:
        raise NotImplementedError

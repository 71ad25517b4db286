"""Features of the tangent: a random sketch psi of gradients that no class decides, beside the features h of the head.

    phi_v(x) = J_w (v . h)(x)             the gradient of one number of h in the body's trained leaves, v random, "d"
    psi(x)   = sum_v S_v phi_v(x)         "m",    E <psi(x), psi(x')> = sum_v <phi_v(x), phi_v(x')>

Source: NTK features by few random outputs (pseudo-NTK; Mohamadi, Bae and Sutherland 2023, "A Fast, Well-Founded
Approximation to the Empirical Neural Tangent Kernel"). S is a TensorSketch (Pham and Pagh 2013), which reads a kernel's
gradient sum_t x_t s_t^T as inputs and signals (linear/signals.py) and never forms it:

    S (x s^T) = IFFT(FFT(C x) FFT(D s))   C, D: count sketches, random signs at random places

Where a kernel reads many tokens, as below the class query, a transform of each of them would cost more than
their sum X^T S: one leaf's gradient is formed then, for as long as its own count sketch takes.
"""

import dataclasses
import hashlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, check_stop, identity, progress_bar, require, trees, whole_number
from tangent_jax.core.boundary import public, public_class
from tangent_jax.data.sources import Examples
from tangent_jax.linear.signals import Leaf, Probed
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.features import Cache, Features
from tangent_jax.models.predict import Predictor
from tangent_jax.models.subsets import subset_of

PARTS = ("h", "relu", "ntk")
FEW_TOKENS = 4  # transforms of more cost more than their sum


@public_class
@partial(
    jax.tree_util.register_dataclass,
    data_fields=["predict", "projection", "center", "root"],
    meta_fields=["parts", "directions", "width", "seed"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class FeatureMap:
    """x -> rows "b k" of features of a pre-trained model: those named in `parts`, side by side.

    `h`: the features before the head, "d"; `relu`: relu(h R), R random (RanPAC), "width"; `ntk`: psi, "width".
    `predict`: the tangent model whose head shows h and v . h; `projection`: R; `directions`: the number of v;
    `center`, `root`: where they are given, rows z become (z - center) root at length 1 (privacy/statistics.py).
    Called as a predictor is: map(head, x) = rows(x) kernel + bias, so that `evaluate` and `outputs` take it.
    """

    predict: Predictor
    projection: Array
    parts: tuple[str, ...]
    directions: int
    width: int
    seed: int
    center: Array | None = None
    root: Array | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of each part; whitened rows are one part."""
        if self.root is not None:
            return self.root.shape[1:]
        return tuple(len(self.projection) if part == "h" else self.width for part in self.parts)

    @property
    def identity(self) -> str:
        """Of all that decides the rows."""
        settings = self.parts, self.directions, self.width, self.seed, self.predict.subset.paths
        whitened = () if self.root is None else (self.center, self.root)
        return identity(settings, fingerprints(self.predict.w), self.projection, *whitened)

    def __call__(self, head: Tree, x: Array) -> Array:
        return self.rows(x) @ head["kernel"] + head["bias"]

    def rows(self, x: Array) -> Array:
        """The features of inputs "b ...", "b k"."""
        if "ntk" in self.parts:
            probed = self.predict.probed(self.predict.zeros(), x, at_zero=True)
            outputs, psi = probed.outputs, self.sketch(probed)
        else:
            outputs = self.predict(self.predict.zeros(), x)
            psi = outputs[:, :0]
        h = outputs[:, : len(self.projection)]
        parts = {"h": h, "relu": jax.nn.relu(h @ self.projection), "ntk": psi}  # compiled: those of no use are dropped
        z = jnp.concatenate([parts[part] for part in self.parts], 1)
        if self.root is None:
            return z
        z = (z - self.center) @ self.root
        return z / jnp.maximum(jnp.linalg.norm(z, axis=1, keepdims=True), jnp.finfo(z.dtype).tiny)

    def sketch(self, probed: Probed) -> Array:
        """psi, "b m", of a forward pass over probes."""
        b, c = probed.outputs.shape
        units = jnp.eye(c, dtype=probed.outputs.dtype)[c - self.directions :]
        leaves: dict[str, Leaf] = probed.rows(jnp.broadcast_to(units[:, None], (self.directions, b, c)))
        plain: Any = jnp.zeros((b, self.width), probed.outputs.dtype)
        waves: Any = jnp.zeros((b, self.width // 2 + 1), jnp.fft.rfft(plain[:0, :2]).dtype)
        for path, leaf in leaves.items():
            if leaf.layout is None:
                plain += self.folded(leaf.s.reshape(b, -1), path)
            elif leaf.x.shape[1] <= FEW_TOKENS:
                waves += self.waves(path, leaf)
            else:
                x = jnp.broadcast_to(leaf.x, (*leaf.x.shape[:2], leaf.s.shape[3], leaf.x.shape[3]))
                gradient = jnp.einsum("bthi,bvtho->bvhio", x, leaf.s)
                plain += self.folded(gradient.reshape(b, -1), path)
        return plain + jnp.fft.irfft(waves, self.width)

    def waves(self, path: str, leaf: Leaf) -> Array:
        """The Fourier transform of a kernel's part of psi, "b m/2+1"."""
        x, s = leaf.x, jnp.moveaxis(leaf.s, 1, 3)  # "b t h i", "b t h v o"
        b, t, heads = s.shape[:3]
        s = s.reshape(b, t, heads, -1)
        total: Any = 0
        for head in range(heads):
            own = x[:, :, head if x.shape[2] > 1 else 0]
            pair = self.placed(own, f"{path} in"), self.placed(s[:, :, head], f"{path} out {head}")
            a, d = (jnp.fft.rfft(part) for part in pair)
            total += jnp.sum(a * d, 1)
        return total

    def placed(self, x: Array, name: str) -> Array:
        """The count sketch of the last axis, of `width` numbers: random signs, random places, as full as each other."""
        padded, rng = self.signed(x, name)
        places = rng.permutation(padded.shape[-1]).reshape(-1, self.width)
        return padded[..., places].sum(-2)

    def folded(self, x: Array, name: str) -> Array:
        """Another count sketch: random signs, places in turn from a random one on, which no memory access waits for."""
        padded, rng = self.signed(x, name)
        folded = padded.reshape(*x.shape[:-1], -1, self.width).sum(-2)
        return jnp.roll(folded, int(rng.integers(self.width)), -1)

    def signed(self, x: Array, name: str) -> tuple[Array, np.random.Generator]:
        """The last axis with random signs, padded to a multiple of `width`; and what draws the places of this name."""
        n = x.shape[-1]
        rng = np.random.default_rng(np.frombuffer(hashlib.sha256(f"{self.seed} {name}".encode()).digest(), np.uint32))
        signs = jnp.asarray(rng.choice((-1.0, 1.0), n), x.dtype)
        padding = jnp.zeros((*x.shape[:-1], -n % self.width), x.dtype)
        return jnp.concatenate([x * signs, padding], -1), rng

    def features(self, examples: Examples, cache: Cache | None = None) -> Features:
        """The inputs of this map for every example, computed once and then read from the cache."""
        return self.predict.features(examples, cache)


@public
def feature_map(
    pretrained: Pretrained,
    parts: tuple[str, ...] = ("h", "ntk"),
    *,
    blocks: int = 1,
    directions: int = 4,
    width: int = 4096,
    seed: int = 0,
) -> FeatureMap:
    """Makes the feature map of a pre-trained model, which its head does not decide.

    Args:       parts: of h, relu, ntk; blocks: the last ones whose leaves, with the final norm's, ntk's gradients are
                of; directions: the number of random v; width: m; seed: of v, of R and of the sketch.
    Raises:     InputError for other parts, a model without a closed form, or one whose head is no kernel "d c".
    """
    known = [part for part in PARTS if part in parts]
    require(len(known) == len(parts) > 0, "feature_map", f"different parts of {', '.join(PARTS)}", ", ".join(parts))
    whole_number("feature_map", "blocks", blocks, 0, pretrained.model.stages - 2)
    whole_number("feature_map", "directions", directions, 1, 1024)
    whole_number("feature_map", "width", width, 2, 1 << 16)
    whole_number("feature_map", "seed", seed, 0, (1 << 32) - 1)
    shape = pretrained.model.shapes().get("head/kernel", ())
    require(len(shape) == 2, "feature_map", "a model whose head is a kernel (d, c)", f"shape {shape}")
    d = shape[0]
    rng = np.random.default_rng([seed, 31])
    v = rng.standard_normal((d, directions)) / d**0.5
    model: Any = pretrained.model.with_classes(d + directions)
    dtype = trees.leaves(pretrained.w)["head/kernel"].dtype
    kernel = jnp.asarray(np.concatenate([np.eye(d), v], 1), dtype)
    head = {"kernel": kernel, "bias": jnp.zeros(d + directions, dtype)}
    first = model.stages - 1 - blocks
    subset = subset_of(model, f"body-{blocks}", lambda p: model.stage_of(p) >= first and not p.startswith("head/"))
    predict = Predictor({**pretrained.w, "head": head}, model, subset)
    projection = jnp.asarray(rng.standard_normal((d, width)) / d**0.5, dtype)
    return FeatureMap(predict, projection, tuple(parts), directions, width, seed)


def rows_of(map_: FeatureMap, data: Features, batch: int = 32) -> np.ndarray:
    """The features of all examples, "n k", f32."""
    n, parts = len(data), []
    with progress_bar(n, "example") as bar:
        for start in range(0, n, batch):
            x = np.asarray(data.inputs[start : start + batch])
            padded = np.concatenate([x, np.zeros((batch - len(x), *x.shape[1:]), x.dtype)])
            parts.append(np.asarray(_rows(map_, padded))[: len(x)])
            bar.update(len(x))
            check_stop()
    return np.concatenate(parts)


_rows = jax.jit(FeatureMap.rows)

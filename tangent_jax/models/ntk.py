"""NTK features: a random sketch psi of gradients, which needs no classes, beside the features h before the head.

    z(x)     = (h / |h|, psi / |psi|)       |z|^2 = 2: a function of one image, so sums over images stay sums
    phi_v(x) = J_w (v . h)(x)               the gradient of one number of h in the body's trained leaves, v random, "d"
    psi(x)   = sum_v S_v phi_v(x)           "m",    E <psi(x), psi(x')> = sum_v <phi_v(x), phi_v(x')>

Source: NTK features by few random outputs (pseudo-NTK; Mohamadi, Bae and Sutherland 2023, "A Fast, Well-Founded
Approximation to the Empirical Neural Tangent Kernel"). A kernel's gradient is X^T S, of inputs X "t i" and signals S
"t o" (linear/signals.py). It is sketched from both sides, without forming it:

    (X R)^T (S Q)        "r r", r^2 = m;   R "i r", Q "o r": one random sign in each row, as many in each column

R and Q are count sketches (Charikar, Chen and Farach-Colton 2002), so E R R^T = I, and inner products of two gradients
stay in the mean.

Both h and psi are sums over tokens, which forget where a token lies. A further part keeps it, at the cost of no block:

    place(x) = S vec(c),    c_ij = mean of t_p over the patches p in cell (i, j) of 7 x 7        "49 d" -> "m"

t: the tokens after a third of the blocks, as the next one reads them, LN(x_l); S: a count sketch. Its ancestor is the
histogram of oriented gradients (Dalal and Triggs 2005): local features, summed cell by cell.
"""

import dataclasses
import hashlib
import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.signals import Leaf
from tangent_jax.linear.tangent import ByAutodiff, RowsOfJ, check_factors
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.feature_settings import PARTS, SUMS, FeatureSettings
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import Model, prepare
from tangent_jax.models.session import FirstSession
from tangent_jax.models.subsets import Subset, subset_of

CELLS = 7  # rows and columns of cells of the part `place`


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["predict", "projection", "center", "root"],
    meta_fields=["parts", "directions", "width", "seed", "outputs"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class FeatureMap(ByAutodiff):
    """x -> rows "b k" of features of a pre-trained model: the `parts`, side by side.

    `h`: the features before the head, "d"; `relu`: relu(h R), R random (RanPAC), "width"; `ntk`: psi, "width"; `place`:
    the tokens' means over cells, "width". Each part has length 1.

    A map is called like a predictor: map(head, x) = score_rows(head, rows(x)). So `evaluate`, `outputs` and `export`
    take it, and recipes and stores handle it like a predictor, with statistics as components.

    Attributes:
        predict: The tangent model whose head outputs h and v . h.
        projection: R.
        directions: The number of v.
        outputs: The number of heads, if known.
        center, root: If given, rows z become (z - center) root at length 1 (privacy/statistics.py).

    >>> head = demo.statistics.solve()
    >>> demo.map.rows(demo.test.inputs).shape, demo.map(head, demo.test.inputs).shape
    ((12, 6), (12, 3))
    """

    method: ClassVar[str] = "statistics"
    """What its components are, in provenances."""
    output: ClassVar[str] = "total"
    """Its outputs are the scores of a head."""

    predict: Predictor
    projection: Float[Array, "d m"]
    parts: tuple[str, ...]
    directions: int
    width: int
    seed: int
    outputs: int = 0
    center: Float[Array, "k"] | None = None
    root: Float[Array, "k r"] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each part; whitened rows are one part."""
        if self.root is not None:
            return self.root.shape[1:]
        return tuple(len(self.projection) if part == "h" else self.width for part in self.parts)

    @property
    def blocks(self) -> int:
        """The number of last blocks whose gradients ntk takes."""
        model = self.predict.model
        return model.stages - 1 - min(map(model.stage_of, self.predict.subset.paths))

    @property
    def features(self) -> FeatureSettings:
        """The arguments of `feature_map` that made it, and the compute dtype."""
        dtype = jnp.dtype(self.dtype or self.projection.dtype).name
        return FeatureSettings(self.parts, self.blocks, self.directions, self.width, self.seed, dtype)

    @property
    def identity(self) -> str:
        """The identity of all that decides the rows."""
        own = self.features.identity(fingerprints(self.predict.w)[0])
        return own if self.root is None else identity(own, self.center, self.root)

    @property
    def w(self) -> Tree:
        """The anchor, with the head that outputs h and v . h."""
        return self.predict.w

    @property
    def anchor_model(self) -> Model:
        """The model that w is of, whose head outputs h and v . h."""
        return self.predict.model

    @property
    def model(self) -> Model:
        """The model, with as many outputs as the heads."""
        return self.predict.model.with_classes(self.outputs) if self.outputs else self.predict.model

    @property
    def subset(self) -> Subset:
        """The leaves of its components, which are statistics; their size is that of many images, others are smaller."""
        k = sum(self.sizes)
        size = k * (k + 1) // 2 + (k + 1) * self.outputs
        return Subset("statistics", SUMS, self.predict.subset.stage, size)

    @property
    def session(self) -> FirstSession | None:
        """The first session of the anchor."""
        return self.predict.session

    @property
    def dtype(self) -> Any:
        """The compute dtype."""
        return self.predict.dtype

    def in_dtype(self, dtype: Any) -> "FeatureMap":
        """The map with another compute dtype, None for that of the weights."""
        return dataclasses.replace(self, predict=self.predict.in_dtype(dtype))

    def bind(self, head: Tree) -> "FeatureMap":
        """The map with the number of outputs of a head of `Statistics.solve`; InputError for another tree."""
        return dataclasses.replace(self, outputs=outputs_of(head, sum(self.sizes)))

    def for_components(self, classes: int) -> "FeatureMap":
        """The map whose components are statistics of this many named classes; InputError for a private map."""
        if self.root is not None:
            raise InputError(
                "predict must be a feature map as feature_map makes it; got one of private statistics. Keep the head"
                " that is solved from a private release: its noise would be added once for each component."
            )
        return dataclasses.replace(self, outputs=classes) if classes else self

    def zeros(self) -> Tree:
        """A head of zeros."""
        k, dtype = sum(self.sizes), self.projection.dtype
        shapes = {"bias": (self.outputs,), "center": (k,), "kernel": (k, self.outputs)}
        return {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}

    def __call__(self, dw: Tree, x: Shaped[Array | np.ndarray, "b ..."]) -> Float[Array, "b c"]:
        return score_rows(dw, self.rows(x))

    def rows(self, x: Shaped[Array | np.ndarray, "b ..."]) -> Float[Array, "b k"]:
        """The features of inputs."""
        return self.rows_by_depth(x, (self.blocks,))[0]

    @promotes
    def rows_by_depth(self, x: Shaped[Array | np.ndarray, "b ..."], depths: tuple[int, ...]) -> Float[Array, "l b k"]:
        """The features by the last 0, 1, ... blocks, for each of `depths`, in one pass.

        Guarantees:
            Of each depth those of the map with as many blocks, up to rounding.
        """
        if x.shape[0] == 0:  # no gradient of no example
            return jnp.zeros((len(depths), 0, sum(self.sizes)), self.plain(x).dtype)
        if "ntk" in self.parts:
            probed = self.predict.probe(self.predict.zeros(), x, at_zero=True)
            outputs, by_stage = probed.outputs, self.sketch(probed)
        else:
            outputs, by_stage = self.plain(x), {}
        h = outputs[:, : len(self.projection)]
        last, every = self.predict.model.stages - 1, []
        place = self.place(x).astype(h.dtype) if "place" in self.parts else None
        zero = jnp.zeros((h.shape[0], self.width), h.dtype)  # not len(h): an export's batch has any size
        for depth in depths:
            psi = sum((part for stage, part in by_stage.items() if stage >= last - depth), start=zero)
            # compiled: unused parts are dropped
            parts = {"h": h, "relu": jax.nn.relu(h @ self.projection), "ntk": psi, "place": place}
            every.append(self.whitened(jnp.concatenate([at_length_1(parts[part]) for part in self.parts], 1)))
        return jnp.concatenate([z[None] for z in every])  # jax2onnx has no stack

    def plain(self, x: Shaped[Array | np.ndarray, "b ..."]) -> Float[Array, "b c"]:
        """h and v . h of inputs, without gradients."""
        model, start = self.predict.model, self.predict.subset.stage
        w, x = prepare(model, self.predict.w, x, self.dtype, start)
        return self.predict.answer(Dual(model.apply(w, x, start), None))

    def place(self, x: Shaped[Array | np.ndarray, "b ..."]) -> Float[Array, "b m"]:
        """The part `place` of inputs; blocks below its own that the map starts with are run for it again."""
        model: Any = self.predict.model
        start, stage = self.predict.subset.stage, place_stage(model)
        w, x = prepare(model, self.predict.w, x, self.dtype, start)
        tokens = model.patch_grid(w, model.apply(w, x, start, stage), stage)
        return self.sketch_vector(cell_means(tokens).reshape(tokens.shape[0], -1), "place")

    def whitened(self, z: Float[Array, "b k"]) -> Float[Array, "b r"]:
        """(z - center) root at length 1, if these are given; else z."""
        if self.root is None or self.center is None:
            return z
        return at_length_1((z - self.center) @ self.root)

    def sketch(self, probed: RowsOfJ) -> dict[int, Float[Array, "b m"]]:
        """The part of psi of each stage's leaves, from a forward pass with probes."""
        b, c = probed.outputs.shape
        units = jnp.eye(c, dtype=probed.outputs.dtype)[c - self.directions :]
        leaves = probed.rows(jnp.broadcast_to(units[:, None], (self.directions, b, c)))
        by_stage: dict[int, list[str]] = {}
        for path in sorted(leaves):
            by_stage.setdefault(self.predict.model.stage_of(path), []).append(path)
        return {
            stage: self.sketch_stage(stage, {path: leaves[path] for path in paths}) for stage, paths in by_stage.items()
        }

    def sketch_stage(self, stage: int, leaves: dict[str, Leaf]) -> Float[Array, "b m"]:
        """The part of psi of one stage: its vectors in signed places, and (X R)^T (S Q) of each kernel.

        Kernels of a stage with inputs of one size share R, so that those of one input (q, k, v) share X R; Q is each
        kernel's own. Heads and directions that share an input are one S.
        """
        side = math.isqrt(self.width)
        vectors = [leaf.s.reshape(leaf.s.shape[0], -1) for leaf in leaves.values() if leaf.layout is None]
        psi: Any = self.sketch_vector(jnp.concatenate(vectors, 1), f"{stage} vectors") if vectors else 0
        for path, leaf in leaves.items():
            if leaf.layout is None:
                continue
            b, t, heads, n = leaf.x.shape
            s = leaf.s.transpose(0, 2, 3, 1, 4).reshape(b, t, heads, -1)  # "b k t h o" -> "b t h ko"
            xr = self.grouped(leaf.x, side, f"{stage} inputs {n}")
            sq = self.grouped(s, side, path)
            product = jnp.einsum("bthi,btho->bio", xr, sq, preferred_element_type=leaf.s.dtype)
            psi += product.reshape(b, -1)
        return psi

    def sketch_vector(self, x: Float[Array, "b n"], name: str) -> Float[Array, "b m"]:
        """Sums of every m-th number with random signs."""
        signed = x * jnp.asarray(self.random(name).choice((-1.0, 1.0), x.shape[1]), x.dtype)
        zeros = jnp.zeros((x.shape[0], -x.shape[1] % self.width), x.dtype)
        padded = jnp.concatenate([signed, zeros], 1)  # jax2onnx pads no batch of any size
        return padded.reshape(x.shape[0], -1, self.width).sum(1)

    def grouped(self, x: Float[Array, "b t h n"], m: int, name: str) -> Float[Array, "b t h {m}"]:
        """x R: sums of random, evenly filled groups with random signs, others for each head."""
        heads, n = x.shape[2:]
        rng = self.random(name)
        signs = rng.choice((-1.0, 1.0), (heads, n, 1))
        places = rng.permuted(np.tile(np.arange(n) % m, (heads, 1)), axis=1)
        r = jnp.where(jnp.asarray(places)[..., None] == jnp.arange(m), jnp.asarray(signs), 0).astype(x.dtype)
        return x @ r[0] if heads == 1 else jnp.einsum("bthn,hnm->bthm", x, r)  # sums by a product: the fastest way

    def random(self, name: str) -> np.random.Generator:
        """The generator of this name's signs and places."""
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        return np.random.default_rng(np.frombuffer(digest, np.uint32))


ComponentPredictor = Predictor | FeatureMap
"""A predictor whose dw is a component: of a network, or of the head on a feature map."""


def at_length_1(z: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """The rows divided by their L2 norm; a row of zeros stays."""
    return z / jnp.maximum(jnp.linalg.norm(z, axis=1, keepdims=True), jnp.finfo(z.dtype).tiny)


def cell_means(tokens: Float[Array, "b y x d"]) -> Float[Array, "b i j d"]:
    """Means over CELLS x CELLS cells; those of a grid that is no multiple share patches at their borders.

    Edge cases:
        A grid of fewer rows or columns than CELLS has as many cells as these.
    """
    rows, columns = (cell_weights(n, tokens.dtype) for n in tokens.shape[1:3])
    return jnp.einsum("iy,jx,byxd->bijd", rows, columns, tokens)


def cell_weights(n: int, dtype: Any) -> Float[Array, "i n"]:
    """The weight of each of n patches in a cell's mean along one axis: from floor(i n / g) to ceil((i + 1) n / g)."""
    g = min(CELLS, n)
    i, y = np.arange(g)[:, None], np.arange(n)
    inside = (y >= i * n // g) & (y < -(-(i + 1) * n // g))
    return jnp.asarray(inside / inside.sum(1, keepdims=True), dtype)


def place_stage(model: Model) -> int:
    """The stage whose input the part `place` reads: the first above a third of the blocks."""
    depth = model.stages - 2
    return depth - default_blocks(depth) + 1


def default_blocks(depth: int) -> int:
    """Two thirds of a model's blocks, rounded, and at least one: best over five data sets (docs/benchmarks.md)."""
    return max(1, round(2 * depth / 3))


def feature_map(
    pretrained: Pretrained,
    parts: tuple[str, ...] = ("h", "ntk"),
    *,
    blocks: int | None = None,
    directions: int = 1,
    width: int = 4096,
    seed: int = 0,
) -> FeatureMap:
    """The feature map of a pre-trained model; its head has no influence.

    Args:
        parts: Some of h, relu, ntk, place.
        blocks: ntk takes gradients of the last blocks and the final norm, None for two thirds of the blocks (one, if
            ntk is not among the parts).
        directions: The number of random v.
        width: m, a square with ntk.
        seed: The seed of all that is random.

    Raises:
        InputError: Unknown parts, a model without a closed form, or a head that is no kernel "d c".

    >>> map_ = tj.models.feature_map(demo.model, ("h", "ntk"), width=16)
    >>> tj.solver.rows_of(map_, demo.train).shape
    (24, 22)
    """
    known = [part for part in PARTS if part in parts]
    if not (len(known) == len(parts) > 0):
        raise InputError(f"parts must be different ones of {', '.join(PARTS)}; got {', '.join(parts)}")
    depth = pretrained.model.stages - 2
    if blocks is None:
        blocks = default_blocks(depth) if "ntk" in parts else min(1, depth)
    whole_number("blocks", blocks, 0, depth)
    whole_number("directions", directions, 1, 1024)
    whole_number("width", width, 4, 1 << 16)
    if "ntk" in parts and math.isqrt(width) ** 2 != width:
        raise InputError(f"width must be the square of a whole number, such as 1024 or 4096; got {width}")
    whole_number("seed", seed, 0, (1 << 32) - 1)
    shape = pretrained.model.shapes().get("head/kernel", ())
    if len(shape) != 2:
        raise InputError(f"the model's head must be a kernel (d, c); got shape {shape}")
    d = shape[0]
    rng = np.random.default_rng([seed, 31])
    v = rng.standard_normal((d, directions)) / d**0.5
    model: Any = pretrained.model.with_classes(d + directions)
    dtype = trees.leaves(pretrained.w)["head/kernel"].dtype
    kernel = jnp.asarray(np.concatenate([np.eye(d), v], 1), dtype)
    head = {"kernel": kernel, "bias": jnp.zeros(d + directions, dtype)}
    first = model.stages - 1 - blocks
    subset = subset_of(model, f"body-{blocks}", lambda p: model.stage_of(p) >= first and not p.startswith("head/"))
    if "place" in parts:
        if not hasattr(model, "patch_grid"):
            raise InputError(f"the part place needs a model with a patch_grid; got a {type(model).__name__}")
        subset = dataclasses.replace(subset, stage=min(subset.stage, place_stage(model)))
    predict = Predictor({**pretrained.w, "head": head}, model, subset, session=pretrained.session)
    if "ntk" in parts:
        check_factors(predict, "Take the parts h or relu")
    projection = jnp.asarray(rng.standard_normal((d, width)) / d**0.5, dtype)
    return FeatureMap(predict, projection, tuple(parts), directions, width, seed)


def outputs_of(head: Tree, k: int) -> int:
    """The number of classes c of a head of k features; InputError for another tree."""
    got = {path: np.shape(leaf) for path, leaf in trees.leaves(head).items()}
    c = (*got.get("bias", ()), 0)[0]
    if got != {"bias": (c,), "center": (k,), "kernel": (k, c)}:
        raise InputError(f"head must have a center ({k},), a kernel ({k}, c) and a bias (c,); got {got}")
    return c


@promotes
def score_rows(head: Tree, rows: Any) -> Any:
    """The scores "n c" of rows of features "n k" by a head of `Statistics.solve`: (rows - center) kernel + bias.

    Raises:
        InputError: Another tree, and rows of other features.

    >>> rows = tj.solver.rows_of(demo.map, demo.test)
    >>> tj.models.score_rows(demo.statistics.solve(), rows).shape
    (12, 3)
    """
    if np.ndim(rows) != 2:
        raise InputError(f'rows must have shape "n k"; got {np.shape(rows)}')
    outputs_of(head, np.shape(rows)[1])
    if isinstance(rows, np.ndarray):  # on the host, in the dtype of the rows
        head = jax.tree.map(np.asarray, head)
    return (rows - head["center"]) @ head["kernel"] + head["bias"]

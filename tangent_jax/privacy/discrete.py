"""Discrete Gaussian noise for a clipped sum, on a grid: safe against floating-point attacks.

    S = sum over micro-batches m of round(S_m / gamma)      whole numbers, added without rounding
    G = gamma (S + K) / B                                   K_j ~ N_Z(0, s^2), P(k) proportional to exp(-k^2 / 2 s^2)

Neighbours differ by one example whose gradient becomes zero in its place (zero-out adjacency, Kairouz et al. 2021). If
it were removed instead, later examples would move to other micro-batches, which would round differently. S then changes
by at most Delta / gamma: the micro-batch of b examples changes by C, its two float sums err by at most b^2 2^-24 C
(Higham 2002, if each example enters a leaf once), and rounding adds gamma to each of d numbers:

    Delta = C (1 + 2^-20 + b^2 2^-22) + gamma sqrt(d),      gamma a power of two near C max(2^-20, sigma 2^-23)

Source: Canonne, Kamath and Steinke 2020. Its privacy cost is that of the Gaussian. Let x = S + N(0, s^2 - 4), and draw
k ~ N_Z(x, 4), which does not depend on S otherwise. Then k has the law of S + K, up to 2^-110 of each probability
(Peikert 2010, theorem 3.1, by Poisson's summation). So S + K is post-processing of a Gaussian mechanism's release, and
s^2 >= (sigma Delta / gamma)^2 + 4 gives it the noise multiplier sigma.

    K = X_0 + 216 X_1 + z X_2       X_i ~ N_Z(0, 384^2) of an alias table (Walker 1977), compared to 96 bits

is N_Z of variance 384^2 (1 + 216^2 + z^2) up to 2^-88 of each probability, by the same sum over the whole numbers, for
1 <= z <= 216^2 (Micciancio and Walter 2017). With the table, K_j is within 2^-80 of its law in total variation;
`accounting.py` adds that to delta. The bits come from ChaCha20, one block for each number: no step reads a float, and
the time does not depend on the numbers. Assumptions: ChaCha20 is not broken; a program gives the same bits for the same
inputs; and, where an example enters a leaf by several tokens, their sum errs no more than stated above.
"""

import dataclasses
import functools
import math
import os
from decimal import Decimal, localcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32, UInt32

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.privacy.chacha import chacha
from tangent_jax.privacy.clipping import ClippedSum
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.noise import noise_key

WIDTH, STRIDE = 384, 216  # the table's standard deviation; the factor of the second draw
HALF = 4096  # the table holds -HALF to HALF - 1
LOW = 15  # bits of the lower half
LARGEST = 2.0**30  # limit of a micro-batch's sum in grid units; cutting beyond it moves no two sums apart
NUMBERS, PARTS = 2**28, 2**16  # the largest counts of trained numbers and of micro-batches


class Halves(NamedTuple):
    """Whole numbers high 2^15 + low, int32 each: their sums over PARTS micro-batches do not overflow."""

    high: Array
    low: Array


def spacing_of(mechanism: Mechanism) -> Float32[Array, ""]:
    """gamma: the least power of two not below C max(2^-20, sigma 2^-23)."""
    least = jnp.float32(mechanism.clip_norm) * jnp.maximum(2.0**-20, jnp.float32(mechanism.noise_multiplier) * 2.0**-23)
    bits = jax.lax.bitcast_convert_type(least, jnp.uint32)
    return jax.lax.bitcast_convert_type((bits + 0x7FFFFF) & jnp.uint32(0xFF800000), jnp.float32)


def sensitivity_of(mechanism: Mechanism, dw: Tree, batch: int) -> float | Array:
    """The largest change, in L2, of a sum over micro-batches of `batch` examples: C, or Delta on a grid."""
    if mechanism.noise == "gaussian":
        return mechanism.clip_norm
    return mechanism.clip_norm * (1 + 2.0**-20 + batch**2 * 2.0**-22) + spacing_of(mechanism) * numbers_of(dw) ** 0.5


def numbers_of(dw: Tree) -> int:
    """The count of the numbers in a tree."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(dw))


def on_grid(clipped: ClippedSum, mechanism: Mechanism) -> ClippedSum:
    """The clipped sum of one micro-batch; for discrete noise in whole multiples of gamma, each leaf as Halves."""
    if mechanism.noise == "gaussian":
        return clipped
    spacing = spacing_of(mechanism)

    def halves(leaf: Array) -> Halves:
        multiples = jnp.round(leaf / spacing.astype(leaf.dtype))
        whole = jnp.clip(multiples, -LARGEST, LARGEST).astype(jnp.int32)
        return Halves(whole >> LOW, whole & (2**LOW - 1))

    sensitivity = sensitivity_of(mechanism, clipped.value, clipped.norms.size)
    return dataclasses.replace(clipped, value=jax.tree.map(halves, clipped.value), sensitivity=sensitivity)


def discrete_mean(clipped: ClippedSum, mechanism: Mechanism, count: float | Array, key: Array) -> Tree:
    """gamma (S + K) / B in float32, the private gradient; `clipped`: a sum of `on_grid`, `key`: of `step_key`.

    Guarantees:
        It depends only on the whole numbers S + K, however S was divided into micro-batches.
    """
    spacing = spacing_of(mechanism)
    stride = stride_of(jnp.float32(mechanism.noise_multiplier) * clipped.sensitivity / spacing)
    leaves, structure = jax.tree.flatten(clipped.value, is_leaf=lambda leaf: isinstance(leaf, Halves))
    sizes = [leaf.low.size for leaf in leaves]
    # One loop with a single iteration for all leaves. XLA cannot know that, nor move its body, which reads the index;
    # without the loop it computes every block again for each of its words.
    turns, zeros = jnp.minimum(key[0] | 1, 1).astype(jnp.int32), jnp.zeros(sum(sizes), jnp.int32)
    noise = jax.lax.fori_loop(0, turns, lambda turn, _: discrete_normal(key, len(zeros), stride, turn), zeros)
    noises = jnp.split(noise, np.cumsum(sizes[:-1]))

    def noisy(total: Halves, noise: Array) -> Array:
        noise = noise.reshape(total.low.shape)
        low = total.low + (noise & (2**LOW - 1))
        high = total.high + (noise >> LOW) + (low >> LOW)
        low &= 2**LOW - 1
        return (high.astype(jnp.float32) * 2.0**LOW + low.astype(jnp.float32)) * spacing / count

    return jax.tree.unflatten(structure, map(noisy, leaves, noises))


def stride_of(scale: Array) -> Array:
    """z: the least with which the noise's variance is at least scale^2 + 4, despite rounding in float32."""
    rest = jnp.square(scale / WIDTH) * (1 + 2.0**-18) - STRIDE**2
    return jnp.ceil(jnp.sqrt(jnp.maximum(rest, 1.0))).astype(jnp.int32)


def discrete_normal(
    key: UInt32[Array, "8"], count: int, stride: int | Array, first: int | Array = 0
) -> Int32[Array, "n"]:
    """X_0 + 216 X_1 + z X_2 in int32, "count": N_Z(0, 384^2 (1 + 216^2 + z^2)); `first`: the first block's counter."""
    counter = jax.lax.iota(jnp.uint32, count) + jnp.uint32(first)
    words = chacha(key, counter, jnp.zeros(3, jnp.uint32))  # the nonce is 0: each key is used once
    near, middle, far = (draw(words[i : i + 3]) for i in (0, 3, 6))
    return near + STRIDE * middle + stride * far


def draw(words: list[UInt32[Array, "n"]]) -> Int32[Array, "n"]:
    """N_Z(0, 384^2) from 96 random bits: they pick a column of the table, and one of its two numbers."""
    thresholds, other = alias_table()
    column = (words[0] >> 19).astype(jnp.int32)
    bits = [words[0] & jnp.uint32(2**19 - 1), words[1], words[2]]
    below = jnp.zeros(column.shape, bool)
    for ours, limits in reversed([*zip(bits, thresholds, strict=True)]):
        limit = jnp.asarray(limits)[column]
        below = (ours < limit) | ((ours == limit) & below)
    return jnp.where(below, column, jnp.asarray(other)[column]) - HALF


@functools.cache
def alias_table() -> tuple[UInt32[np.ndarray, "3 m"], Int32[np.ndarray, "m"]]:
    """(thresholds, other): column c gives c where 83 random bits lie below its threshold, else other[c].

    The probabilities are those of `table_shares`, exactly. Thresholds: uint32 "3 columns".
    """
    shares, room = table_shares(), 1 << 83
    other = list(range(2 * HALF))
    small = [c for c, share in enumerate(shares) if share < room]
    large = [c for c, share in enumerate(shares) if share >= room]
    while small:
        column, giver = small.pop(), large[-1]
        other[column] = giver
        shares[giver] -= room - shares[column]
        if shares[giver] < room:
            small.append(large.pop())
    thresholds = [min(share, room - 1) for share in shares]  # a full column gives its own number in either case
    words = [
        [t >> 64 for t in thresholds],
        [t >> 32 & 0xFFFFFFFF for t in thresholds],
        [t & 0xFFFFFFFF for t in thresholds],
    ]
    return np.array(words, np.uint32), np.array(other, np.int32)


def table_shares() -> list[int]:
    """The probabilities of -HALF, ..., HALF - 1 in units of 2^-96, rounded down; zero takes the rest."""
    with localcontext(prec=60):
        exact = [(Decimal(-k * k) / (2 * WIDTH**2)).exp() for k in range(HALF)]
        total = exact[0] + 2 * sum(exact[1:])
        side = [int(p / total * 2**96) for p in exact[1:]]
    return [0, *reversed(side), 2**96 - 2 * sum(side), *side]


def step_key(mechanism: Mechanism, seed: int | None, step: int) -> Array:
    """The key of a step's noise, fresh at every call; with a seed, a function of seed and step, which is NOT private.

    Discrete noise: 256 bits of the operating system's entropy, uint32 "8". Gaussian noise: `noise_key`.
    """
    if mechanism.noise == "gaussian":
        return noise_key(seed, step)
    if seed is not None:
        return jnp.asarray(np.random.SeedSequence([seed, step]).generate_state(8))
    return jnp.asarray(placement.agree(np.frombuffer(os.urandom(32), np.uint32)))  # each host would draw another key


def check_grid(mechanism: Mechanism, dw: Tree, batch: int, parts: int) -> None:
    """Raises InputError if the grid is too coarse or whole numbers overflow; Gaussian noise has no grid."""
    if mechanism.noise == "gaussian":
        return
    numbers = numbers_of(dw)
    if numbers > NUMBERS:
        raise InputError(
            f"dw must have at most {NUMBERS} numbers under discrete noise; got {numbers}. Train fewer leaves."
        )
    if parts > PARTS:
        raise InputError(
            f"micro-batches must be at most {PARTS} under discrete noise; got {parts}. Take larger micro-batches."
        )
    ratio = float(sensitivity_of(mechanism, dw, batch)) / float(mechanism.clip_norm)
    if ratio > 2:
        raise InputError(
            f"a sum on the grid must move by at most twice the clip norm; got {ratio:.3g}."
            " Take smaller micro-batches, less noise or fewer leaves."
        )

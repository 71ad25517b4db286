"""Statistics as whole numbers, which a secure sum adds without an error.

    v = floor((x + R) 2^(24 limbs) / 2 R),    v = sum_j l_j 2^(24 j),    0 <= l_j < 2^24         |x| < R = 2^p

SecAgg+ of Flower clips to a range, rounds at random to whole numbers and adds modulo 2^32. Limbs are whole numbers in
its range already, so it rounds nothing; up to 255 of them add below 2^32. One limb alone is left to SecAgg+'s own
rounding, to a multiple of 2 R / 2^24.
"""

import math

import numpy as np

from tangent_federation.settings import check

BITS = 24
MOST = (1 << 8) - 1
"""The most contributors whose limbs add below 2^32."""


def encode(x: np.ndarray, limit: float, limbs: int) -> np.ndarray:
    """The limbs of numbers "n" of at most `limit`, "limbs n", as floats, the least significant first.

    Raises:
        InputError: A number that is not finite or beyond the limit: it would spoil everybody's sum.
    """
    check(1 <= limbs <= 3, "1 to 3 limbs", limbs)
    x = np.asarray(x, np.float64)
    largest = float(np.abs(x).max(initial=0.0)) if np.isfinite(x).all() else np.inf
    check(largest <= limit, f"numbers of at most {limit:g}", largest)
    scale, limit = 1 << BITS, power_of_two(limit)
    if limbs == 1:
        return ((x / limit + 1) * (scale / 2))[None]
    left = to_integers(x, limit, limbs)
    parts = []
    for _ in range(limbs - 1):
        parts.append(left % scale)
        left = left // scale
    return np.array([*parts, left], np.float64)


def power_of_two(limit: float) -> float:
    """The least power of two that is more: numbers are divided by it without rounding, to less than 1."""
    return math.ldexp(1.0, math.frexp(limit)[1])


def to_integers(x: np.ndarray, limit: float, limbs: int) -> np.ndarray:
    """The whole numbers of the numbers, as Python integers: 72 bits are more than any dtype's."""
    power = BITS * limbs
    mantissa, exponent = np.frexp(x / limit)  # x / limit = mantissa 2^exponent, |mantissa| < 1
    whole = np.ldexp(mantissa, 53).astype(np.int64).astype(object)
    shift = exponent.astype(np.int64) - 53 + power - 1
    half = 1 << (power - 1)
    return np.array(
        [half + (w << int(s) if s >= 0 else w >> int(-s)) for w, s in zip(whole, shift, strict=True)], object
    )


def decode(limbs: np.ndarray, limit: float, count: int) -> np.ndarray:
    """The sum of numbers of `count` contributors, "n", f64, from the sums of their limbs "limbs n"."""
    limbs, power, limit = np.asarray(limbs), BITS * len(limbs), power_of_two(limit)
    total = np.zeros(limbs.shape[1], object)
    for j, part in enumerate(limbs):
        total += np.array([int(v) for v in part], object) << (BITS * j)
    offset, scale = count << (power - 1), 1 << (power - 1)
    return np.array([float((v - offset) / scale) for v in total], np.float64) * limit

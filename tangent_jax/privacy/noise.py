"""Gaussian noise for a clipped sum, and its key.

    G = (S + sigma C N(0, I)) / B       S a clipped sum of sensitivity C, B the expected number of examples in it

The noise is drawn once, for the sum over all micro-batches, in the units of S; B is public. Normals are computed by Box
and Muller (1958) from Threefry's bits (Salmon et al. 2011), not by `jax.random.normal`, for two reasons. In float32 its
tail ends at z = 5.4. If one neighbour's noise ends before the other's, delta grows by up to sqrt(d) phi(z) / sigma a
step of d numbers: by 6e-4 in 50 steps of d = 455,000 and sigma = 10 (here, with z = 7.4, by 1e-9). And on a CPU it
takes four times the time, as it writes every round of the generator to memory. Neither generator is cryptographic, and
the rounding of floating-point noise leaks information about S (Mironov 2012): `discrete.py` avoids both.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Key, UInt32

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.trees import check_key
from tangent_jax.privacy.clipping import ClippedSum

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def noisy_mean(clipped: ClippedSum, noise_multiplier: float | Array, count: float | Array, key: Array) -> Tree:
    """(S + sigma C N(0, I)) / B, the private gradient.

    Args:
        noise_multiplier: sigma, in units of the sensitivity C that `clipped` carries.
        count: B > 0.
        key: Secret, and used once: `noise_key`.

    Guarantees:
        The noise of every coordinate is N(0, (sigma C / B)^2), for any micro-batches.

    Raises:
        InputError: A noise multiplier that is not positive.

    >>> x, y = demo.train.inputs, demo.train.targets
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 1.0}
    >>> clipped = tj.privacy.clipped_gradients(demo.predict, demo.dw, x, y, **settings)
    >>> gradient = tj.privacy.noisy_mean(clipped, 2.0, len(y), tj.privacy.secret_key())
    >>> jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, demo.dw)
    True
    """
    if not isinstance(noise_multiplier, Array) and not noise_multiplier > 0:
        raise InputError(f"noise_multiplier must be > 0; got {noise_multiplier}")
    check_key(key)
    scale = noise_multiplier * clipped.sensitivity

    def noisy(i: int, leaf: Array) -> Array:
        noise = standard_normal(jax.random.fold_in(key, i), leaf.shape)
        return (leaf + jnp.asarray(scale * noise, leaf.dtype)) / count

    leaves, structure = jax.tree.flatten(clipped.value)
    return jax.tree.unflatten(structure, [noisy(i, leaf) for i, leaf in enumerate(leaves)])


def noise_key(seed: int | None, step: int) -> Array:
    """64 bits of the operating system's entropy, fresh at every call; with a seed, a function of seed and step.

    Anyone who knows or guesses the seed can subtract the noise: such a run is NOT private.
    """
    if seed is not None:
        return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
    return secret_key()


def secret_key() -> Array:
    """A key of 64 bits of the operating system's entropy, the same in all processes of a job.

    >>> tj.privacy.secret_key().shape
    ()
    """
    bits = placement.agree(np.frombuffer(os.urandom(8), np.uint32))  # each host would draw another key
    return jax.random.wrap_key_data(jnp.asarray(bits), impl="threefry2x32")


def standard_normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Float32[Array, "..."]:
    """N(0, 1) in float32, by Box and Muller.

        z = sqrt(-2 log u) cos(2 phi)       u in (0, 1] of 40 bits, phi in [-pi/2, pi/2) of 32

    The last 8 bits of u are also bits of phi; float32 rounds them away unless |phi| < 0.02.

    Guarantees:
        |z| reaches sqrt(80 log 2) = 7.45.
    """
    u, v = threefry(key, int(np.prod(shape)))
    phi = v.astype(jnp.int32).astype(jnp.float32) * (np.pi * 2**-32)
    square, sine = jnp.square(phi), jnp.ones_like(phi)
    for k in range(14, 0, -2):  # Taylor series, accurate to 2e-7; XLA's own cosine takes ten times as long
        sine = 1 - square / (k * (k + 1)) * sine
    more = ((v & 0xFF).astype(jnp.float32) + 1) * 2**-8
    radius = jnp.sqrt(-2 * jnp.log((u.astype(jnp.float32) + more) * 2**-32))
    return (radius * (1 - 2 * square * jnp.square(sine))).reshape(shape)


def threefry(key: Key[Array, ""], count: int) -> tuple[UInt32[Array, "n"], UInt32[Array, "n"]]:
    """Threefry-2x32 of the counters (0, 0), (1, 0), ...: as in JAX, with the 20 rounds unrolled for XLA to fuse."""
    a, b = jax.random.key_data(key)
    schedule = (a, b, a ^ b ^ jnp.uint32(0x1BD11BDA))
    x, y = jax.lax.iota(jnp.uint32, count) + a, jnp.full(count, b)
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            x += y
            y = x ^ ((y << turn) | (y >> (32 - turn)))
        x += schedule[(group + 1) % 3]
        y += schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y

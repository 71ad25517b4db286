"""ChaCha20 (RFC 8439): random bits that are unpredictable without their 256-bit key.

XLA fuses the unrolled rounds into one loop if each block of 16 words gives one number: 20 ns a number on a CPU core. If
each word or two gave a number, XLA would compute every block again for each of them.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import UInt32

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
COLUMNS = (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)
DIAGONALS = (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)


def chacha(
    key: UInt32[Array, "8"], counter: UInt32[Array, "..."], nonce: UInt32[Array, "3"]
) -> list[UInt32[Array, "..."]]:
    """The 16 words of each block, uint32, each of the shape of `counter`.

    Args:
        key: uint32 "8".
        counter: uint32, one for each block.
        nonce: uint32 "3".
    """
    words = [*(jnp.uint32(word) for word in CONSTANTS), *key, counter, *nonce]
    start = [jnp.broadcast_to(word, counter.shape) for word in words]
    state = list(start)
    for _ in range(10):
        for a, b, c, d in COLUMNS + DIAGONALS:
            for into, by, turned, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[into] += state[by]
                mixed = state[turned] ^ state[into]
                state[turned] = (mixed << turn) | (mixed >> (32 - turn))
    return [a + b for a, b in zip(state, start, strict=True)]

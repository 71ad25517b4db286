"""Data sets of images: sources, decoding, preprocessing, shards.

Users need `tj.open_dataset`, `tj.examples` and `tj.shards`; authors of commands also use the rest.
"""

from tangent_jax.core.owners import Owner
from tangent_jax.core.preprocessing import ImageSize, Preprocessing, check_image_size
from tangent_jax.data.decode import MOST_PIXELS
from tangent_jax.data.decode import decode as decode_image
from tangent_jax.data.identifiers import content_identifier, index_in
from tangent_jax.data.sources import SUFFIXES, Dataset, Examples
from tangent_jax.data.workers import Decoder, decode_chunks

__all__ = [
    "MOST_PIXELS",
    "SUFFIXES",
    "Dataset",
    "Decoder",
    "Examples",
    "ImageSize",
    "Owner",
    "Preprocessing",
    "check_image_size",
    "content_identifier",
    "decode_chunks",
    "decode_image",
    "index_in",
]

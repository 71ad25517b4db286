"""Data sets of images: sources, decoding, preprocessing, shards."""

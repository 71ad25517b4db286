"""The models that Hugging Face's code saved, and what PyTorch answers: written by models/make_fixtures.py."""

from pathlib import Path

import numpy as np

from tangent_jax.pretrained.load import load

FIXTURES = np.load(Path(__file__).with_name("models") / "fixtures.npz")
MODERN = [name.removeprefix("modern ") for name in FIXTURES if name.startswith("modern ")]


def modern(name, folder):
    """The model in the files that Hugging Face's saved, which are written to the folder."""
    (folder / "model.safetensors").write_bytes(FIXTURES[f"modern {name}"].tobytes())
    (folder / "config.json").write_bytes(FIXTURES[f"config of {name}"].tobytes())
    return load(folder)

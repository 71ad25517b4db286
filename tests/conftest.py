"""Fixtures: f64, and what lies in ../shared (tests that need it skip, visibly, where it is absent)."""

import os
from pathlib import Path

import jax
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def shared():
    if not (SHARED / "weights").is_dir():
        pytest.skip("../shared is absent: needs its weights and photographs")
    return SHARED


@pytest.fixture(scope="session")
def vit_tiny(shared):
    return shared / "weights/vit_tiny_patch16_224_augreg_in21k_ft_in1k.safetensors"

"""Positions at another image size: the filter is that of the program whose names the file has."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from helpers import assert_rel_close, small
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import modern

from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.positions import FILTERS, resample, resampling
from tangent_jax.pretrained.load import load, save

SIDES = st.integers(1, 24)


def by_pytorch(row, new, scale):
    """PyTorch's bicubic `interpolate` without antialiasing of one row of numbers, tap by tap."""
    a, out = -0.75, []
    for i in range(new):
        at = (i + 0.5) * scale - 0.5
        first, t = int(np.floor(at)), at - np.floor(at)
        far, near = (
            lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a,
            lambda x: ((a + 2) * x - (a + 3)) * x * x + 1,
        )
        weights = far(t + 1), near(t), near(1 - t), far(2 - t)
        taps = [row[min(max(first + k, 0), len(row) - 1)] for k in (-1, 0, 1, 2)]
        out.append(sum(w * x for w, x in zip(weights, taps, strict=True)))
    return np.array(out)


@settings(deadline=None)
@given(old=SIDES, new=SIDES, seed=st.integers(0, 9))
def test_bicubic_is_that_of_pytorch(old, new, seed):
    row = np.random.default_rng(seed).standard_normal(old)
    assert_rel_close(resampling(old, new, "bicubic_plain") @ row, by_pytorch(row, new, old / new))
    assert_rel_close(resampling(old, new, "bicubic_offset") @ row, by_pytorch(row, new, old / (new + 0.1)))


@settings(deadline=None)
@given(old=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES))
def test_google_filter_is_scipys(old, new):
    grid = 1 + np.random.default_rng(0).random((*old, 2))
    want = scipy.ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    if want.shape == (*new, 2) and want.min() > 0:
        assert_rel_close(resample(grid, *new, "linear_corners"), want.astype(np.float32), 1e-6)


@settings(deadline=None)
@given(name=st.sampled_from([*FILTERS]), old=SIDES, new=SIDES)
def test_weights_sum_to_one(name, old, new):
    weights = resampling(old, new, name)
    assert weights.shape == (new, old)
    assert np.abs(weights.sum(1) - 1).max() < 1e-12
    if name != "bicubic_offset":
        assert np.abs(resampling(old, old, name) - np.eye(old)).max() < 1e-12


OWNERS = {"dinov2": "bicubic_plain", "dinov2 registers": "bicubic", "siglip": "bicubic_plain", "clip": "bicubic_plain"}
OWNERS |= {"siglip2": "bilinear"}


@pytest.mark.parametrize("name", OWNERS)
def test_resampling_is_the_naming_programs(tmp_path, name):
    found = modern(name, tmp_path)
    assert found.model.config.position_filter == OWNERS[name]
    save(tmp_path / "ours.safetensors", found)
    again = load(tmp_path / "ours.safetensors")
    assert again.model == found.model
    for size in (8, 20, (8, 20)):
        first, second = (p.with_image_size(size).w["position_embedding"] for p in (found, again))
        assert (first == second).all()


def test_version_0_4_file_resamples_as_before(untyped):
    model, _ = small()
    assert "position_filter" not in model.settings
    assert model.config.position_filter == "bicubic"
    with pytest.raises(
        InputError, match=r"position_filter must be one of bicubic, bilinear, bicubic_plain, .*; got cubic"
    ):
        ViTConfig(12, 1, 3, 20, position_filter="cubic")


def test_next_resize_begins_with_file_positions():
    whole = Pretrained(*small(position_filter="bicubic_plain"), "here")
    twice = whole.with_image_size(20).with_image_size(12)
    assert (twice.w["position_embedding"] == whole.with_image_size(12).w["position_embedding"]).all()
    back = twice.with_image_size(8)
    assert back.model == whole.model
    assert (back.w["position_embedding"] == whole.w["position_embedding"]).all()


def test_changed_positions_are_not_taken_back():
    made = Pretrained(*small(), "here").with_image_size(12)
    moved = Pretrained(made.model, {**made.w, "position_embedding": made.w["position_embedding"] + 1}, "", made.resized)
    want = Pretrained(moved.model, moved.w, "").with_image_size(8)
    assert (moved.with_image_size(8).w["position_embedding"] == want.w["position_embedding"]).all()


def test_pixels_beside_whole_patches_are_not_read():
    model, w = small()
    with pytest.warns(UserWarning, match=re.escape("of (11, 15) pixels, (8, 12) are read: whole patches of 4 pixels")):
        wide, resized = model.with_image_size(w, (11, 15))
    x = np.random.default_rng(0).standard_normal((2, 11, 15, 3)).astype(np.float32)
    whole, same = model.with_image_size(w, (8, 12))
    assert_rel_close(wide.apply(resized, jnp.asarray(x)), whole.apply(same, jnp.asarray(x[:, :8, :12])))

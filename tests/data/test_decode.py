"""Images of every kind: what each becomes, and which are refused."""

import io

import numpy as np
import pytest
from PIL import Image

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing, sides
from tangent_jax.data.decode import decode, size_of

WHOLE = Preprocessing(crop=1.0)


def encoded(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "AVIF"])
def test_a_photograph_is_turned_upright(orientation, kind):
    upright = np.zeros((20, 30, 3), np.uint8)
    upright[:5, :5] = 255  # top left
    turned = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1), 7: np.rot90(upright.swapaxes(0, 1), 2), 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(np.ascontiguousarray(turned)), kind, exif=exif)
    got = decode(content, "photo", (20, 30), WHOLE)
    assert got.shape == upright.shape
    assert np.abs(got.astype(int) - upright).mean() < 8  # JPEG's own error


def test_picture_covers_crop_or_is_exact():
    """A red left half, a blue right one, 40 pixels wide and 20 high."""
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:, :20, 0] = picture[:, 20:, 2] = 255
    for size, resize, want in [
        (8, "short", (16, 8)),
        (8, "exact", (8, 8)),
        ((8, 4), "short", (16, 8)),
        ((4, 16), "short", (16, 8)),
        ((4, 16), "exact", (16, 4)),
    ]:
        preprocessing = Preprocessing(crop=1.0, resize=resize)
        assert preprocessing.resized_shape((40, 20), size) == want
        got = decode(picture, "", size, preprocessing)
        height, width = sides(size)
        assert got.shape == (height, width, 3)
        assert (got[:, 0, 0] > 200).all()  # the middle stays in the middle
        assert (got[:, -1, 2] > 200).all()
    assert Preprocessing(crop=0.5).resized_shape((40, 20), (4, 16)) == (32, 16)
    assert Preprocessing(crop=0.5, resize="exact").resized_shape((40, 20), (4, 16)) == (32, 8)
    assert Preprocessing(crop=1.0).resized_shape((31, 77), 23) == (23, 57)  # torchvision: int(23 * 77 / 31)
    with pytest.raises(InputError, match="resize must be one of short, exact, none; got squash"):
        Preprocessing(resize="squash")


def test_transparent_is_white():
    hidden = Image.new("RGBA", (9, 9), (255, 0, 0, 0))
    half = Image.new("LA", (9, 9), (0, 128))
    palette = Image.new("P", (9, 9))
    assert (decode(encoded(hidden), "", 8, WHOLE) == 255).all()
    assert (decode(encoded(half), "", 8, WHOLE) == 127).all()
    assert (decode(encoded(palette, transparency=0), "", 8, WHOLE) == 255).all()
    assert (decode(encoded(Image.new("RGBA", (9, 9), (9, 8, 7, 255))), "", 8, WHOLE) == [9, 8, 7]).all()


@pytest.mark.parametrize("size", [(60000, 1), (1, 60000), (10000, 8940)])
def test_too_large_image_is_refused_undecoded(size):
    with pytest.raises(InputError, match="at most 89,000,000 pixels"):
        decode(encoded(Image.new("1", size)), "bomb.png", 224, Preprocessing())


def test_impossible_preprocessing_is_refused():
    for changes, match in [
        ({"std": (0.0, 1.0, 1.0)}, "std must be three numbers above 0"),
        ({"mean": (0.5,)}, "mean must be three numbers"),
        ({"crop": 0.0}, "crop must be in"),
        ({"interpolation": "cubic"}, "bicubic, lanczos; got cubic"),
    ]:
        with pytest.raises(InputError, match=match):
            Preprocessing(**changes)


def test_defaults_are_augregs():
    assert Preprocessing() == Preprocessing((0.5,) * 3, (0.5,) * 3, 0.9, "bicubic")
    noise = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)))
    for name, kind in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
        picture = Image.open(io.BytesIO(noise)).convert("RGB").resize((int(35 * 70 / 50), 35), kind)
        left = round((picture.size[0] - 32) / 2)
        want = np.asarray(picture.crop((left, 2, left + 32, 34)))  # round(1.5) = 2
        assert (decode(noise, "", 32, Preprocessing(crop=0.9, interpolation=name)) == want).all()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_width_is_resized_first(interpolation):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 60, 3), np.uint8))
    kind = Image.Resampling[interpolation.upper()]
    rows = [noise.crop((0, y, 60, y + 1)).resize((50, 1), kind) for y in range(400)]
    want = Image.fromarray(np.concatenate([np.asarray(row) for row in rows])).resize((50, 50), kind)
    squash = Preprocessing(crop=1.0, interpolation=interpolation, resize="exact")
    assert (decode(encoded(noise), "", 50, squash) == np.asarray(want)).all()


def test_unsupported_format_starts_no_decoder(monkeypatch):
    """EPS reaches Ghostscript, whatever the file is called."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("a program ran"))
    content = encoded(Image.new("RGB", (16, 16)), "EPS")
    for read in (lambda: decode(content, "photo.jpg", 16, WHOLE), lambda: size_of(content, "photo.jpg")):
        with pytest.raises(InputError, match=r"photo.jpg must be a picture .*; it begins with b.%!PS"):
            read()

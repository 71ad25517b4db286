"""Letters rendered from the fonts that matplotlib ships: the upstream task of the built-in ViT.

A glyph is warped (affine and elastic), its stroke thickened or thinned, crossed by stray strokes, reduced to 8 x 8 like
scikit-learn's digits (4 x 4 block counts of a 32 x 32 bitmap), and given noise. It contains only letters, so that
handwritten digits, the downstream task, are new classes.
"""

import string
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter, map_coordinates
from tqdm import tqdm

CLASSES = string.ascii_uppercase + string.ascii_lowercase
FONTS = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic"]
FONTS += ["STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10", "cmb10"]
SIDE, MARGIN = 32, 6


def glyph(font: ImageFont.FreeTypeFont, letter: str, stroke: int) -> np.ndarray:
    """One letter, its ink scaled to fill a box of 32 x 32 inside a margin, in [0, 1]."""
    image = Image.new("L", (160, 160))
    ImageDraw.Draw(image).text((40, 30), letter, 255, font, stroke_width=stroke)
    ink = image.crop(image.getbbox())
    factor = SIDE / max(ink.size)
    ink = ink.resize([max(3, round(s * factor)) for s in ink.size], Image.Resampling.BILINEAR)
    canvas = Image.new("L", (SIDE + 2 * MARGIN, SIDE + 2 * MARGIN))
    canvas.paste(ink, ((canvas.width - ink.width) // 2, (canvas.height - ink.height) // 2))
    return np.asarray(canvas, np.float32) / 255


def names() -> np.ndarray:
    """The printed letter of every class, "c 8 8 3" uint8: its name as an image, neither warped nor noisy."""
    font = ImageFont.truetype(Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf", 72)
    inks = np.stack([glyph(font, letter, 2)[MARGIN:-MARGIN, MARGIN:-MARGIN] for letter in CLASSES])
    counts = (inks > 0.4).reshape(-1, 8, 4, 8, 4).sum((2, 4))
    return np.repeat((counts * (255 / 16)).astype(np.uint8)[..., None], 3, -1)


def deform(ink: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random rotation, shear, scale, shift and elastic warp, as a 32 x 32 bitmap."""
    angle = rng.normal(0, 0.15)
    shear = rng.normal(0, 0.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    affine = turn @ np.array([[1, 0], [shear, 1]]) / np.diag(rng.uniform(0.75, 1.1, 2)).sum(0)
    centre = (SIDE - 1) / 2
    grid = np.stack(np.meshgrid(*2 * [np.arange(SIDE) - centre], indexing="ij"))
    elastic = gaussian_filter(rng.normal(0, 1, (2, SIDE, SIDE)), (0, 5, 5)) * rng.uniform(0, 35)
    at = np.einsum("ij,jyx->iyx", affine, grid) + elastic + centre + MARGIN + rng.normal(0, 1, (2, 1, 1))
    return map_coordinates(ink, at, order=1) > rng.uniform(0.25, 0.6)


def render(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` letters as 8 x 8 uint8 RGB images, "n 8 8 3", and their classes, "n"."""
    rng = np.random.default_rng(seed)
    folder = Path(get_data_path()) / "fonts/ttf"
    fonts = [ImageFont.truetype(folder / f"{name}.ttf", 72) for name in FONTS]
    inks = np.stack([[[glyph(font, letter, stroke) for stroke in (0, 2, 4)] for font in fonts] for letter in CLASSES])
    labels = rng.permutation(np.arange(count) % len(CLASSES))
    images = np.empty((count, 8, 8), np.uint8)
    for i, label in enumerate(tqdm(labels, "render letters", unit="image", mininterval=0.5)):
        bitmap = deform(inks[label, rng.integers(len(fonts)), rng.integers(3)], rng)
        if rng.random() < 0.15:  # a stray stroke
            canvas = Image.fromarray(bitmap)
            ImageDraw.Draw(canvas).line([tuple(rng.uniform(0, SIDE, 2)) for _ in range(2)], 1, int(rng.integers(1, 3)))
            bitmap = np.asarray(canvas)
        counts = bitmap.reshape(8, 4, 8, 4).sum((1, 3))
        images[i] = np.clip(np.round(counts + rng.normal(0, 0.5, (8, 8)) * (rng.random() < 0.5)), 0, 16) * (255 / 16)
    return np.repeat(images[..., None], 3, -1), labels.astype(np.int32)

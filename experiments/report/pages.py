"""report.html: the influence of images on a model, with thumbnails, in one self-contained file."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data import Examples
from tangent_jax.data.decode import decode
from tangent_jax.io.files import write_whole

SHOWN = 16  # images of a gallery
THUMBNAIL = 96  # pixels of a side
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem } p { max-width: 46rem }
.gallery { display: flex; flex-wrap: wrap; gap: 10px }
figure { margin: 0; width: 116px; font-size: 12px; overflow-wrap: anywhere }
figure img { width: 116px; height: 116px; object-fit: cover; border-radius: 4px; display: block }
.pair { display: flex; gap: 18px; align-items: flex-start; margin: 14px 0; padding-top: 12px }
.pair { border-top: 1px solid #ddd }
table { border-collapse: collapse } td { padding: 2px 14px 2px 0 } b { font-weight: 600 }
"""
ABOUT = (
    "Every number is of the linearised model at its optimum without the image: in closed form by the kernel, to within "
    "the certificate by the solver. A margin is the logit of the label less the largest of the others; below 0 the "
    "model is wrong."
)
ERRORS = "Training images that the model without them contradicts most."
HARMFUL = "The test loss falls most when one of these leaves."
HELPFUL = "The test loss rises most when one of these leaves."
PAIRS = (
    "The test images with the lowest margins; beside each the training images that raised and lowered its margin most."
)


class Findings(NamedTuple):
    """The influence of training images, for the page.

    Attributes:
        margins: The margins of each training image by the fit without it, "n".
        loss: The change of the test loss when it is removed, "n".
        effect: The change of each test image's margin, "n m"; `test_margins`, "m".
    """

    classes: Sequence[str]
    margins: np.ndarray
    loss: np.ndarray
    effect: np.ndarray
    test_margins: np.ndarray


class Page:
    """The page of one model: its findings, the images by split, and the classes predicted for them."""

    def __init__(self, findings: Findings, images: Mapping[str, Examples], predicted: Mapping[str, np.ndarray]) -> None:
        self.findings = findings
        self.images = images
        self.predicted = predicted

    def figure(self, split: str, i: int, note: str) -> str:
        """A thumbnail with its label, the model's prediction, and a note."""
        source = self.images[split]
        names = self.findings.classes
        label = names[int(source.labels[i])]
        guess = names[int(self.predicted[split][i])]
        lines = [f"<b>{html.escape(label)}</b>"]
        if guess != label:
            lines.append(f"seen as {html.escape(guess)}")
        lines.append(html.escape(note))
        name = html.escape(source.names[i], quote=True)
        image = f'<img alt="{name}" src="{thumbnail(source.read(i), source.names[i])}">'
        return f'<figure title="{name}">{image}{"<br>".join(lines)}</figure>'

    def gallery(self, title: str, text: str, order: Sequence[int], values: np.ndarray, unit: str) -> str:
        """Training images in an order, each with its value."""
        figures = "".join(self.figure("train", int(i), f"{unit} {values[i]:+.2g}") for i in order[:SHOWN])
        return f'<h2>{title}</h2><p>{text}</p><div class="gallery">{figures}</div>'

    def pair(self, z: int) -> str:
        """A test image with the training images that raised and lowered its margin most."""
        effect = self.findings.effect[:, z]
        parts = []
        for title, order in (("helped most", np.argsort(effect)), ("hurt most", np.argsort(-effect))):
            figures = "".join(self.figure("train", int(i), f"margin {-effect[i]:+.2f}") for i in order[:4])
            parts.append(f'<div><b>{title}</b><div class="gallery">{figures}</div></div>')
        tested = self.figure("test", z, f"margin {self.findings.test_margins[z]:+.2f}")
        return f'<div class="pair">{tested}{"".join(parts)}</div>'


def thumbnail(image: bytes | np.ndarray, name: str) -> str:
    """The image, encoded or a uint8 array, as a small data URL."""
    pixels = decode(image, name, THUMBNAIL, Preprocessing())
    content = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(content, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def write(path: Path, page: Page, numbers: Mapping[str, Any]) -> None:
    """Writes the page: label errors, harmful and helpful images, and test images with those that helped and hurt."""
    findings = page.findings
    harmful = np.argsort(findings.loss)
    doubtful = np.argsort(findings.margins)
    listed = [(name, value) for name, value in numbers.items() if isinstance(value, (int, float))]
    table = "".join(f"<tr><td>{name.replace('_', ' ')}</td><td>{value:.4g}</td></tr>" for name, value in listed)
    errors = [i for i in doubtful if findings.margins[i] < 0]
    harm = [i for i in harmful if findings.loss[i] < 0]
    help = [i for i in harmful[::-1] if findings.loss[i] > 0]
    body = [
        "<h1>The influence of each image</h1>",
        f"<p>{ABOUT}</p><table>{table}</table>",
        page.gallery("Probable label errors", ERRORS, errors, findings.margins, "margin"),
        page.gallery("Most harmful", HARMFUL, harm, findings.loss, "test loss"),
        page.gallery("Most helpful", HELPFUL, help, findings.loss, "test loss"),
        f"<h2>Test images, and what they owe to training images</h2><p>{PAIRS}</p>",
        *(page.pair(int(z)) for z in np.argsort(findings.test_margins)[:6]),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Influence</title><style>{STYLE}</style>'
    write_whole(path, head + "\n".join(body) + "</html>\n")

"""report.html: what images do to a model, with thumbnails, in one file that needs nothing else."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tangent_jax.core.files import write_whole
from tangent_jax.data.decode import decode
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.data.sources import Examples

SIDE, SHOWN = 96, 16  # pixels of a thumbnail; images of a gallery
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem } p { max-width: 46rem }
.gallery { display: flex; flex-wrap: wrap; gap: 10px } figure { margin: 0; width: 116px; font-size: 12px }
figure img { width: 116px; height: 116px; object-fit: cover; border-radius: 4px; display: block }
.pair { display: flex; gap: 18px; align-items: flex-start; margin: 14px 0; padding-top: 12px }
.pair { border-top: 1px solid #ddd }
table { border-collapse: collapse } td { padding: 2px 14px 2px 0 } b { font-weight: 600 }
"""


class Findings(NamedTuple):
    """`margins`: of each training image by the fit without it, "n"; `own`: what it adds to its own margin, "n"; `loss`:
    how the test loss changes when it leaves, "n"; `effect`: how each test image's margin does, "n m"; `test_margins`.
    """

    classes: Sequence[str]
    margins: np.ndarray
    own: np.ndarray
    loss: np.ndarray
    effect: np.ndarray
    test_margins: np.ndarray


def write(
    path: Path,
    found: Findings,
    images: Mapping[str, Examples],
    predicted: Mapping[str, np.ndarray],
    numbers: Mapping[str, Any],
) -> None:
    """The page: label errors, harmful and helpful images, and test images with what helped and hurt them."""

    def figure(split: str, i: int, note: str) -> str:
        source, label = images[split], int(images[split].labels[i])
        guess = found.classes[int(predicted[split][i])]
        lines: list[str] = [f"<b>{html.escape(found.classes[label])}</b>"]
        lines += [f"seen as {html.escape(guess)}"] if guess != found.classes[label] else []
        caption = "<br>".join([*lines, html.escape(note)])
        name = html.escape(source.names[i], quote=True)
        return f'<figure title="{name}"><img alt="{name}" src="{thumbnail(source, i)}">{caption}</figure>'

    def gallery(title: str, text: str, order: Sequence[int], note: Any) -> str:
        shown = "".join(figure("train", int(i), note(i)) for i in order[:SHOWN])
        return f'<h2>{title}</h2><p>{text}</p><div class="gallery">{shown}</div>'

    doubtful = [i for i in np.argsort(found.margins) if found.margins[i] < 0]
    harmful, helpful = np.argsort(found.loss), np.argsort(-found.loss)
    pairs = []
    for z in np.argsort(found.test_margins)[:6]:
        effect = found.effect[:, z]
        helped = "".join(figure("train", int(i), f"margin {-effect[i]:+.2f}") for i in np.argsort(effect)[:4])
        hurt = "".join(figure("train", int(i), f"margin {-effect[i]:+.2f}") for i in np.argsort(-effect)[:4])
        one = figure("test", int(z), f"margin {found.test_margins[z]:+.2f}")
        pairs.append(
            f'<div class="pair">{one}<div><b>helped most</b><div class="gallery">{helped}</div></div>'
            f'<div><b>hurt most</b><div class="gallery">{hurt}</div></div></div>'
        )
    shown = [(name, value) for name, value in numbers.items() if isinstance(value, (int, float))]
    table = "".join(f"<tr><td>{name.replace('_', ' ')}</td><td>{value:.4g}</td></tr>" for name, value in shown)
    body = [
        "<h1>What each image does</h1>",
        "<p>Every number is exact for the linearised model: the prediction of the model that was never trained on the "
        "image, in closed form. A margin is the logit of the label less the largest of the others; below 0 the model "
        "is wrong.</p>",
        f"<table>{table}</table>",
        gallery(
            "Probable label errors",
            "Training images that the model without them contradicts most.",
            doubtful,
            lambda i: f"margin {found.margins[i]:.2f}",
        ),
        gallery(
            "Most harmful",
            "The test loss falls most when one of these leaves.",
            [i for i in harmful if found.loss[i] < 0],
            lambda i: f"test loss {found.loss[i]:+.2g}",
        ),
        gallery(
            "Most helpful",
            "The test loss rises most when one of these leaves.",
            [i for i in helpful if found.loss[i] > 0],
            lambda i: f"test loss {found.loss[i]:+.2g}",
        ),
        "<h2>Test images, and what they owe to training images</h2>",
        "<p>The test images with the lowest margins; beside each the training images that raised and lowered its "
        "margin most.</p>",
        *pairs,
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Influence</title><style>{STYLE}</style>'
    write_whole(path, head + "\n".join(body) + "</html>\n")


def thumbnail(examples: Examples, i: int) -> str:
    """The image as a data URL."""
    pixels = decode(examples.read(i), examples.names[i], SIDE, Preprocessing())
    content = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(content, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"

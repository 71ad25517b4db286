"""Pages from templates: values are escaped by default, and pages fetch nothing and run no scripts."""

import base64
import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from tangent_jax.core.checks import visible
from tangent_jax.io.files import write_whole

TEMPLATES = Path(__file__).with_name("templates")


def count(number: int, noun: str = "") -> str:
    """A number with its noun: 1 image, 1,437 images."""
    return f"{number:,}" + (f" {noun}{'' if number == 1 or not noun else 's'}" if noun else "")


def day(time: str) -> str:
    """The day of a journal's time, in words: 23 November 2026."""
    moment = datetime.datetime.fromisoformat(time)
    return f"{moment.day} {moment:%B %Y}"


def clock(time: str) -> str:
    """The time of day of a journal's time: 14:05 UTC."""
    return f"{datetime.datetime.fromisoformat(time):%H:%M} UTC"


def span(seconds: float) -> str:
    """A duration in words: 0.31 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def percent(value: float) -> str:
    """A fraction as percent: 91.4 %."""
    return f"{100 * value:.1f} %"


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign: +0.4, −1.2, 0.0."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def cosine(value: float) -> str:
    """A cosine in two places: .83, −.04, 1."""
    text = f"{abs(value):.2f}"
    sign = "\N{MINUS SIGN}" if value < 0 and float(text) else ""
    return sign + ("1" if float(text) == 1 else text.removeprefix("0")) if value == value else "\N{EN DASH}"


def short(text: str) -> str:
    """The beginning of a fingerprint or an identifier."""
    return text[:12]


def plain(value: Any) -> str:
    """A setting's value: text as it is, anything else as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def shown(value: Any) -> Any:
    """A value for a page: foreign text without characters that reorder or hide other text."""
    return "\n".join(map(visible, value.split("\n"))) if type(value) is str else value


def raster(cosines: np.ndarray) -> str:
    """A heat map of one pixel a pair as a data URL: blue above 0, orange below, fainter near 0, nothing for NaN."""
    values = np.nan_to_num(cosines)[..., None]
    pixels = np.where(values > 0, [0, 114, 178, 0], [213, 94, 0, 0]) + [0, 0, 0, 255] * np.abs(values)
    content = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def environment() -> Environment:
    """The templates with their filters; a missing value is an error."""
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        lstrip_blocks=True,
    )
    for function in (count, day, clock, span, percent, points, cosine, short, plain, raster):
        pages.filters[function.__name__] = function
    return pages


def write_page(path: Path, template: str, **values: Any) -> None:
    """Writes a page, whole or not at all; its user alone can read it, as it shows images and their owners."""
    write_whole(path, environment().get_template(template).render(**values) + "\n", private=True)

"""Pages from templates: values are escaped by default, and pages fetch nothing and run no scripts."""

import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tangent_jax.core.checks import visible
from tangent_jax.io.files import write_whole

TEMPLATES = Path(__file__).with_name("templates")


def count(number: int, noun: str = "") -> str:
    """A number with its noun: 1 image, 1,437 images."""
    return f"{number:,}" + (f" {noun}{'' if number == 1 or not noun else 's'}" if noun else "")


def moment(time: str) -> str:
    """A journal's time in words: 23 November 2026, 14:05 UTC."""
    at = datetime.datetime.fromisoformat(time)
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def percent(value: float) -> str:
    """A fraction as percent: 91.4 %."""
    return f"{100 * value:.1f} %"


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign: +0.4, −1.2, 0.0."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def shown(value: Any) -> Any:
    """A value for a page: foreign text without characters that reorder or hide other text."""
    return "\n".join(map(visible, value.split("\n"))) if type(value) is str else value


def write_page(path: Path, template: str, **values: Any) -> None:
    """Writes a page, whole or not at all; its user alone can read it, as it names images and their owners."""
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        lstrip_blocks=True,
    )
    for function in (count, moment, percent, points):
        pages.filters[function.__name__] = function
    write_whole(path, pages.get_template(template).render(**values) + "\n", private=True)

"""Pages from templates: every value is escaped by default, and a page may fetch nothing and run nothing."""

import datetime
import json
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tangent_jax.core.files import write_whole

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
    """A duration as a reader says it: 0.31 s, 12 s, 3 min 20 s, 2 h 5 min."""
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


def short(text: str) -> str:
    """The beginning of a fingerprint or an identifier."""
    return text[:12]


def plain(value: Any) -> str:
    """A setting's value: text as it is, anything else as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def environment() -> Environment:
    """The templates with their filters; a value that no one gave is an error."""
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (count, day, clock, span, percent, points, short, plain):
        pages.filters[function.__name__] = function
    pages.filters["quoted"] = shlex.quote
    return pages


def write_page(path: Path, template: str, **values: Any) -> None:
    """Writes a page, whole or not at all."""
    write_whole(path, environment().get_template(template).render(**values) + "\n")

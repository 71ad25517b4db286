"""The model card of an export: README.md, one page in Hugging Face's format.

YAML for machines, then Markdown for people. YAML strings are written as JSON, which YAML reads; text of others is
escaped. The card names no image, no owner, no component and no path of this machine.
"""

import json
import string
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from tangent_jax._version import __version__
from tangent_jax.core.checks import InputError
from tangent_jax.exports.loading import loading
from tangent_jax.exports.summary import Summary
from tangent_jax.io.records import convert
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.parametrize import unwrap
from tangent_jax.privacy.mechanism import PrivacyCost

NAMED = 100  # classes that the card names
MARKS = {*string.punctuation} - {*"-,.'()/"}
LIMITS = (
    "f_lin needs w and dw: w + dw is another model. Removal does not cover the pre-trained anchor, settings that were "
    "chosen with removed data, and exports made before: this one is such an export for every later removal."
)


def make_card(
    predict: ComponentPredictor, said: Mapping[str, Any], summary: Summary | None, format: str, classes: Sequence[str]
) -> str:
    """Returns the text of an export's README.md; equal for equal exports.

    Args:
        said: The provenance of `export`. The card uses `privacy` (a PrivacyCost), `removals` ({"examples", their
            number; "receipts", by name}), `merge`, `license`, `opset`, and `accuracy` {data set: of its test images}.
        summary: The summary of the components, None if they are not known.

    Raises:
        InputError: An accuracy outside 0..1, and another kind of cost or removals.
    """
    base, wrappers = unwrap(predict.model)
    title = " with ".join([type(base).__name__, *(name for wrapper in wrappers for name in wrapper)])
    body, head = fingerprints(predict.w)
    names = ", ".join(map(plain, classes[:NAMED])) + f" and {len(classes) - NAMED} more" * (len(classes) > NAMED)
    opset = f", ONNX opset {said['opset']}" if "opset" in said else ""
    facts = {
        "Model": f"{plain(title)}, {predict.method}; outputs: {predict.output}",
        "Anchor": f"SHA-256 of its leaves: body `{body}`, head `{head}`",
        "First session": f"{plain(predict.session)}; no removal changes it" if predict.session else "",
        "Classes": f"{predict.model.classes}, {names or 'without names'}",
        "Trained leaves": f"{plain(predict.subset.name)}, {predict.subset.size} numbers",
        "Components": components(summary),
        "Settings of every component": plain(settings(summary)),
        "Merged by": plain(said.get("merge", "not known")),
        "Accuracy": accuracy(said.get("accuracy") or {}),
        "Privacy": privacy(said.get("privacy")),
        "Removals": removals(said.get("removals")),
        "Versions": f"exported by tangent-jax {__version__}, jax {version('jax')}{opset}",
        "Licence": plain(said.get("license", "not known: that of the pre-trained weights holds")),
    }
    tags = ["tangent-jax", "tangent-transformer", predict.method, format]
    front = {"license": str(said.get("license", "unknown")), "library_name": "tangent-jax", "tags": tags}
    yaml = [f"{key}: {quote(value)}" for key, value in front.items()]
    lines = [f"- **{name}**: {text}" for name, text in facts.items() if text]
    page = ["---", *yaml, "---", f"# {plain(title)}, fine-tuned with tangent_jax", "", *lines, ""]
    return "\n".join([*page, "## How to load it", "", loading(predict, format), "", LIMITS, ""])


def components(summary: Summary | None) -> str:
    """Returns the numbers of components, images and owners."""
    if summary is None or not summary.components:
        return "not known"
    public = f", and {summary.public} public images, which nothing protects" * (summary.public > 0)
    return f"{summary.components}, of {summary.images} images of {summary.owners or 'unknown'} owners{public}"


def settings(summary: Summary | None) -> str:
    """Returns the settings that all components share."""
    known = summary.settings if summary else {}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value not in (None, ())) or "not known"


def accuracy(measured: Any) -> str:
    """Returns the accuracies {data set: of its test images} in words."""
    if not isinstance(measured, Mapping):
        raise InputError(f"accuracy must be {{data set: number}}; got {measured}.")
    for name, value in measured.items():
        is_valid = isinstance(value, (int, float)) and 0 <= value <= 1
        if not is_valid:
            raise InputError(f"accuracy on {name} must be in 0..1; got {value}.")
    shown = "; ".join(f"{plain(name)}, test images: {value:.4g}" for name, value in measured.items())
    return shown or "not measured for this export"


def privacy(spent: Any) -> str:
    """Returns the privacy cost of all components together, or that there is no account."""
    if spent is None:
        return "no account of all components was kept: this model promises no differential privacy"
    cost = convert(PrivacyCost, spent, "privacy")
    stated = f"epsilon {cost.epsilon:.4g} at delta {cost.delta:g}, neighbouring data sets by {plain(cost.neighbouring)}"
    seeded = "NOT private: a seed drew the noise. With fresh noise it would be "
    return f"{'' if cost.private else seeded}{stated}, of dw; the numbers of images and owners are public"


def removals(known: Any) -> str:
    """Returns the number of removals before the export, and of the examples that left."""
    if known is None:
        return "not known"
    examples = convert(int, known.get("examples"), "examples of removals")
    receipts = convert(dict[str, str], known.get("receipts"), "receipts of removals")
    return f"{len(receipts)} before this export, of {examples} examples"


def quote(value: Any) -> str:
    """Returns JSON on one line that YAML reads as the same value, with unprintable characters in YAML's escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def plain(text: object) -> str:
    """Returns text from others, escaped for Markdown, on one line."""
    shown = "".join(c if c.isprintable() else " " for c in str(text))
    return "".join(f"\\{c}" if c in MARKS else c for c in shown)

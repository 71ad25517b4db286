"""The model card of an export: README.md, in Hugging Face's format.

    ---
    YAML for machines: licence, library, tags, data sets, metrics
    ---
    text for people: anchor, data, training, accuracy, privacy, removals, versions, licence, loading, limits

Unknown facts are stated as unknown. YAML strings are written as JSON, which YAML reads. Markdown in names is escaped.
The card contains nothing of one image, no owner, and no path of this machine.
"""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

import numpy as np

from tangent_jax._version import __version__
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.loading import loading
from tangent_jax.io.records import convert
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.parametrize import unwrap
from tangent_jax.models.protocol import input_dtype
from tangent_jax.pretrained.load import EMBEDDED, load
from tangent_jax.privacy.mechanism import PrivacyCost
from tangent_jax.store.receipts import statement
from tangent_jax.store.summary import ComponentSummary, Summary, without_folders

NAMED = 100  # classes that the card names
LIBRARIES = {"onnx": "onnx", "peft": "peft", "torch": "pytorch"}
METHODS = {"taft": "the tangent f_w(x) + J_w f(x) . dw", "nlft": "the non-linear network f_(w + dw)(x)",
           "statistics": "a head on features of the anchor, solved from sums of their second moments"}  # fmt: skip


@dataclass(frozen=True)
class Removed:
    """The removals before an export: the number of forgotten examples, and the fingerprints of the receipts."""

    examples: int
    receipts: dict[str, str]


def make_card(predict: ComponentPredictor, said: Mapping[str, Any], format: str, classes: Sequence[str]) -> str:
    """The text of an export's README.md; equal for equal exports.

    Args:   said: the provenance that `export` writes. The card uses `of` (a Summary), `privacy` (a PrivacyCost),
            `accuracy` {data set: of its test images}, `removals` (Removed), `merge` and `license`.
    Raises: InputError for an accuracy outside 0..1, and for another kind of cost or removals.
    """
    summary = summary_of(said.get("of"))
    parts = summary.components if summary else ()
    licence = licence_of(predict, said)
    accuracy = said.get("accuracy") or {}
    if not isinstance(accuracy, Mapping):
        raise InputError(f"accuracy must be {{data set: number}}; got {accuracy}.")
    for name, value in accuracy.items():
        is_valid = isinstance(value, (int, float)) and 0 <= value <= 1
        if not is_valid:
            raise InputError(f"accuracy on {name} must be in 0..1; got {value}.")
    base, wrappers = unwrap(predict.model)
    title = " with ".join([type(base).__name__, *(name for wrapper in wrappers for name in wrapper)])
    measured = [f"{plain(name)}, test images: {value:.4g}" for name, value in accuracy.items()]
    own = f"{plain(licence)}, as its exporter says."
    sections = {
        "Anchor": anchor(predict, parts, title),
        "Data": data(summary, classes, predict.model.classes),
        "Training": training(predict, said, parts),
        "Accuracy": measured or ["Not measured for this export."],
        "Privacy": privacy(said.get("privacy"), parts),
        "Removals": removals(said.get("removals")),
        "Versions": versions(said, parts),
        "Licence": [EMBEDDED_LICENCE if licence and not said.get("license") else own if licence else NO_LICENCE],
        "How to load it": loading(predict, format),
        "Limits": [LIMITS],
    }
    text = [
        f"## {name}\n\n" + "\n".join(f"- {line}" if len(lines) > 1 else line for line in lines)
        for name, lines in sections.items()
    ]
    head = front(title, predict, parts, format, accuracy, licence)
    return "\n".join(["---", *head, "---", f"# {plain(title)}, fine-tuned with tangent_jax", "", "\n\n".join(text), ""])


EMBEDDED_LICENCE = "Apache-2.0, that of tangent_jax, whose embedded weights these are."
NO_LICENCE = "Not known: the licence of the pre-trained weights holds, and this export does not know it."
LIMITS = (
    "f_lin needs w and dw: w + dw is another model. A composition promises that a component can be taken out, not that "
    "its images do not show while it is in. Removal does not cover the pre-trained anchor, settings chosen with the "
    "removed data, and exports made before, as this one is for every later removal (docs/explanation/guarantees.md of "
    "tangent_jax)."
)


def front(
    title: str,
    predict: ComponentPredictor,
    parts: Sequence[ComponentSummary],
    format: str,
    accuracy: Mapping[str, float],
    licence: str,
) -> list[str]:
    """The lines of the YAML, each a key and a value that JSON and YAML read alike."""
    fields: dict[str, Any] = {"license": licence or "unknown", "library_name": LIBRARIES.get(format, "tangent-jax")}
    pipeline = "image-classification" if input_dtype(predict.model) == "uint8" else "other"
    if pipeline != "other":
        fields["pipeline_tag"] = pipeline
    fields["tags"] = ["tangent-jax", "tangent-transformer", predict.method, format]
    fields["datasets"] = data_sets(parts) or [*accuracy]
    results = [
        {
            "task": {"type": pipeline},
            "dataset": {"type": name, "name": name, "split": "test"},
            "metrics": [{"type": "accuracy", "value": value}],
        }
        for name, value in accuracy.items()
    ]
    if results:
        fields["model-index"] = [{"name": title, "results": results}]
    return [f"{key}: {quote(value)}" for key, value in fields.items() if value]


def quote(value: Any) -> str:
    """JSON on one line that YAML reads as the same value, with unprintable characters in YAML's escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def plain(text: object) -> str:
    """Text from others, escaped for Markdown, on one line."""
    shown = "".join(c if c.isprintable() else " " for c in str(text))
    return "".join(f"\\{c}" if c in MARKS else c for c in shown)


MARKS = {*string.punctuation} - {*"-,.'()/"}


def summary_of(components: Any) -> Summary | None:
    """The summary in an export's provenance; None if `of` is something else, as `export` takes any JSON."""
    try:
        return convert(Summary, components, "of")
    except InputError:
        return None


def data_sets(parts: Sequence[ComponentSummary]) -> list[str]:
    """The names of the data sets of the components' recipes."""
    places = [without_folders(part.recipe.dataset) for part in parts if part.recipe]
    # folders of splits in several places have the name of the training images'
    specs = [re.split("[?@&]", place.replace("?train=", "", 1) if ":?" in place else place)[0] for place in places]
    return sorted({PurePath(spec.partition(":")[2] or spec).stem for spec in specs})


def anchor(predict: ComponentPredictor, parts: Sequence[ComponentSummary], title: str) -> list[str]:
    """The architecture, its weights and their fingerprint."""
    settings = ", ".join(f"{name} {value}" for name, value in predict.model.settings.items() if value is not None)
    files = sorted({without_folders(part.recipe.anchor.weights) for part in parts if part.recipe}) or ["not known"]
    lines = [f"Architecture: {plain(title)} ({plain(settings)[:2000]})", f"Weights: {plain(', '.join(files))}"]
    sessions = dict.fromkeys(str(own) for own in (predict.session, *(part.session for part in parts)) if own)
    lines += [f"First session: {plain(own)}; no removal changes it" for own in sessions]
    body, head = fingerprints(predict.w)
    return [*lines, f"Fingerprints as it was linearised (SHA-256 of the leaves): body `{body}`, head `{head}`"]


def count_in_words(parts: Sequence[ComponentSummary]) -> str:
    """The number of components, in words."""
    return f"{len(parts)} component{'s' * (len(parts) != 1)}"


def data(summary: Summary | None, classes: Sequence[str], count: int) -> list[str]:
    """The numbers of examples, components and owners, and the classes."""
    names = ", ".join(map(plain, classes[:NAMED])) + f" and {len(classes) - NAMED} more" * (len(classes) > NAMED)
    shown = f"Classes ({count}): {names or 'without names'}"
    if summary is None or not summary.components:
        return ["Examples: not known", "Owners: not known", shown]
    sets = data_sets(summary.components)
    of = f", of {plain(', '.join(sets))}" if sets else ""
    whitened = f"Public images, which whitened the training, and nothing protects: {summary.public}"
    return [
        f"Examples: {summary.examples}, in {count_in_words(summary.components)}{of}",
        *[whitened] * (summary.public > 0),
        f"Owners: {summary.owners or 'not known'}",
        shown,
    ]


def training(predict: ComponentPredictor, said: Mapping[str, Any], parts: Sequence[ComponentSummary]) -> list[str]:
    """The method, the trained leaves, and the settings that all components share."""
    lines = [f"Method: {predict.method}, {METHODS[predict.method]}; its outputs are the {predict.output}"]
    lines.append(f"Subset: {plain(predict.subset.name)}, {predict.subset.size} numbers")
    if parts:
        lines.append(f"Composed of {count_in_words(parts)}, merged by {plain(said.get('merge', 'what is not known'))}")
    recipes = [part.recipe.settings for part in parts if part.recipe]
    if not recipes or len(recipes) < len(parts):
        return [*lines, "Settings: not known of every component"]
    alike = {
        name: value
        for name, value in recipes[0].items()
        if value not in (None, ()) and all(other.get(name) == value for other in recipes)
    }
    shown = [f"{name} {without_folders(value) if isinstance(value, str) else value}" for name, value in alike.items()]
    return [*lines, f"Settings of every component: {plain(', '.join(shown))}"]


def privacy(spent: Any, parts: Sequence[ComponentSummary]) -> list[str]:
    """The privacy cost of all components together, or that there is no account."""
    if spent is None:
        accounts = sum(part.privacy is not None for part in parts)
        some = f" ({accounts} of {len(parts)} components have one of their own)" if accounts else ""
        return [f"No account of all components was kept{some}: this model promises no differential privacy."]
    cost = convert(PrivacyCost, spent, "privacy")
    stated = f"epsilon {cost.epsilon:.4g} at delta {cost.delta:g}, neighbouring data sets by {plain(cost.neighbouring)}"
    seeded = "NOT private: a seed drew the noise. With fresh noise it would be "
    beside = "It is of dw; the numbers of images and owners in these files are as they are."
    return [f"{'Spent by all components together: ' if cost.private else seeded}{stated}. {beside}"]


def removals(known: Any) -> list[str]:
    """The number of examples removed before, and the fingerprints of the receipts."""
    if known is None:
        return ["Not known: this export says of no store what was removed from it."]
    removed = convert(Removed, known, "removals")
    lines = [f"Receipt {plain(name)}, SHA-256 `{plain(text)}`" for name, text in sorted(removed.receipts.items())]
    count = f"Removals from the store before this export: {len(lines)}, of {removed.examples} examples"
    return [count, *lines, *([f"What each promises: {statement('drop', False)}"] if lines else [])]


def versions(said: Mapping[str, Any], parts: Sequence[ComponentSummary]) -> list[str]:
    """The versions that made the export, and those that trained it."""
    here = f"tangent-jax {__version__}, jax {version('jax')}"
    trained = sorted({", ".join(f"{name} {v}" for name, v in sorted(part.versions.items())) for part in parts})
    opset = [f"ONNX opset {said['opset']}"] if "opset" in said else []
    return [f"Exported by {here}", *opset, *(f"Trained by {plain(line)}" for line in trained)]


def licence_of(predict: ComponentPredictor, said: Mapping[str, Any]) -> str:
    """The licence that the exporter states, or that of embedded weights, by their content; "" if unknown."""
    if said.get("license"):
        return str(said["license"])
    own = trees.leaves(predict.w)
    for name in EMBEDDED:
        body = {path: leaf for path, leaf in trees.leaves(load(name).w).items() if not path.startswith("head/")}
        if all(path in own and np.array_equal(own[path], leaf) for path, leaf in body.items()):
            return "apache-2.0"
    return ""

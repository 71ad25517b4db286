"""The picture of accuracy against the number of contributors, from finished results.

--finished=compose=FOLDER,rivals=FOLDER,session=FOLDER,...: folders of result.json, any number of each. compose gives a
line for each method (1: one model of all images), a mean over the folders of one data set, such as one for each seed.
rivals gives federated averaging and, as horizontal lines, the network fine-tuned on all images. session gives exact
composition at the anchor of a first session, whose accuracy no number of contributors changes: that of the chosen
shares, if any share above 0 was chosen. hog gives LDA on HOG, which no number changes, either.

The last line of stdout: {DATASET: {LINE: {CONTRIBUTORS: accuracy}}}; a network has the key "all".
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.shared import plots, titles
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import without_groups
from tangent_jax.io.files import expand_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    finished: tuple[str, ...] = ()
    out: str = "out/bench_contributors"


ALL = "all"
SESSION = "exact, first session"
LINES = {"exact": "exact", "place": "place", "session": SESSION, "lda": "LDA", "ranpac": "RanPAC"}
LINES |= {"hog": "HOG + LDA, no network", "taft": "TAFT (linearized)", "soup": "soup of models"}
LINES |= {"fedavg": "federated averaging"}
"""The lines of the picture, from the top, by their methods."""


class Point(NamedTuple):
    """A value of a line of a data set; `at`: the number of contributors, or ALL."""

    dataset: str
    line: str
    at: str
    accuracy: float


def main(config: Config) -> None:
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for job, folder in finished(config):
        for point in READ[job](json.loads((folder / "result.json").read_text())):
            found.setdefault(point.dataset, {}).setdefault(point.line, {}).setdefault(point.at, []).append(
                point.accuracy
            )
    result = {
        dataset: {
            line: {at: float(np.mean(own)) for at, own in values.items()} for line, values in ordered(lines).items()
        }
        for dataset, lines in found.items()
    }
    draw(config, result)
    rows = [[d, line, at, f"{v:.4f}"] for d in result for line, row in result[d].items() for at, v in row.items()]
    command.write_table(config, "contributors", ["data set", "line", "contributors", "accuracy"], rows)
    command.finish(config, result)


def finished(config: Config) -> list[tuple[str, Path]]:
    """The job and the folder of each entry of --finished."""
    entries = [entry.partition("=") for entry in config.listed("finished")]
    for name, _, folder in entries:
        if name not in READ or not (expand_path(folder or ".") / "result.json").exists():
            raise InputError(
                f"--finished must be JOB=FOLDER with JOB of {', '.join(READ)} and a result.json in FOLDER; "
                f"got {name}={folder}"
            )
    return [(name, expand_path(folder)) for name, _, folder in entries]


def ordered(lines: dict[str, Any]) -> dict[str, Any]:
    """The lines in the order of LINES, networks last."""
    first = {line: lines[line] for line in LINES.values() if line in lines}
    return first | lines


def of_compose(result: dict[str, Any]) -> Iterator[Point]:
    """The points of a result of compose."""
    dataset = re.split(r"[?:/]", re.sub(r"\.\w+$", "", without_groups(result["dataset"])))[-1]
    for at, row in {"1": result["full"], **result["shards"]}.items():
        yield from (Point(dataset, LINES[name], at, row[name]) for name in LINES if name in row)


def of_rivals(result: dict[str, Any]) -> Iterator[Point]:
    """The points of a result of rivals."""
    for dataset, row in result["rivals"].items():
        for cell in row.values():
            blocks = "1 block" if cell["blocks"] == 1 else f"{cell['blocks']} blocks"
            if cell["method"] == "fedavg":
                yield Point(dataset, LINES["fedavg"], f"{cell['contributors']}", cell["mean"])
            else:
                yield Point(dataset, f"network, {blocks}", ALL, cell["mean"])


def of_session(result: dict[str, Any]) -> Iterator[Point]:
    """The points of a result of session."""
    for dataset, row in result["session"].items():
        if any(row["shares"]["exact"]):
            yield Point(dataset, SESSION, ALL, row["chosen"]["exact"]["mean"])


def of_hog(result: dict[str, Any]) -> Iterator[Point]:
    """The points of a result of hog."""
    for dataset, row in result["hog"].items():
        yield Point(dataset, LINES["hog"], ALL, row["accuracy"])


READ = {"compose": of_compose, "rivals": of_rivals, "session": of_session, "hog": of_hog}


def draw(config: Config, result: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draws a panel for each data set, side by side; a value for ALL numbers of contributors is a horizontal line."""
    rows = [row for lines in result.values() for row in lines.values()]
    counts = sorted({int(at) for row in rows for at in row if at != ALL}) or [1]
    names = ordered(dict.fromkeys(line for lines in result.values() for line in lines))
    panels = []
    for dataset, lines in result.items():
        values = {name: lines.get(name, {}) for name in names}  # a colour for each line, drawn or not
        drawn = {name: [row.get(f"{c}", row.get(ALL, np.nan)) for c in counts] for name, row in values.items()}
        networks = [name for name in names if name.startswith("network")]
        panel = {"x": counts, "lines": drawn, "ticks": counts, "title": dataset, "dashed": networks}
        panels.append({**panel, "xlabel": "contributors (1: all images together)", "ylabel": "test accuracy"})
    plots.curves(command.out_folder(config) / "contributors.png", panels, titles.contributed(result), beside=True)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

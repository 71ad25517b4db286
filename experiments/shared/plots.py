"""Pictures as PNG files beside the JSON, in one style: 960 pixels wide, panels stacked, no legends.

A line's name stands at its end, a dot's in its row. A colour has the same meaning in all pictures. Titles are computed
from the values (titles.py).
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.optimize import isotonic_regression

STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "errorbar.capsize": 3,
}
"""The style of every picture; text of 11 points stays readable at 600 pixels."""
plt.rcParams.update(STYLE)
WIDTH = 6.4  # inches

PALETTE = {  # Okabe and Ito's colours, with grey for yellow, which is invisible on white
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "black": "#000000",
    "grey": "#808080",
}
MARKERS = "osD^vP<X>p*"
"""A marker for each line of a panel, as most of these colours look alike in grey."""
MEANINGS = {"taft": "blue", "nlft": "vermilion", "soup": "vermilion", "sisa": "vermilion", "fc": "green"}
MEANINGS |= {"test": "blue", "train": "sky"}
EXPLAINED = {"taft": "tangent", "nlft": "non-linear", "soup": "non-linear", "fc": "head alone"}


def word(name: str) -> str:
    """The first word of a name, which MEANINGS and EXPLAINED may hold."""
    return re.split(r"[\W_]", name.lower())[0]


def short(name: str) -> str:
    """A name in titles: "taft" is TAFT."""
    return re.sub(r"^(taft|nlft|sisa|fc|lda)\b", lambda match: match[0].upper(), name.replace("_", " "))


def shown(name: str) -> str:
    """A name in pictures: "taft" is TAFT (tangent)."""
    explanation = EXPLAINED.get(word(name)) if re.fullmatch(r"[a-zA-Z]+(-\d+)?", name) else None
    return f"{short(name)} ({explanation})" if explanation else short(name)


def number(value: float, spread: float = 0.0) -> str:
    """A value with as many decimals as its spread supports, three at most; without a spread, three digits."""
    if not spread:
        return f"{value:.3f}" if 0.001 <= abs(value) < 1 else f"{value:.3g}"
    decimals = int(np.clip(np.ceil(-np.log10(spread)), 2 if abs(value) < 10 else 0, 3))
    return f"{value:.{decimals}f} ± {spread:.{decimals}f}"


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: that of its first word in MEANINGS, or one of the others."""
    names = [*names]
    chosen: dict[str, str] = {}
    for name in names:
        colour = PALETTE.get(MEANINGS.get(word(name), ""))
        if colour and colour not in chosen.values():
            chosen[name] = colour
    others = cycle([colour for colour in PALETTE.values() if colour not in chosen.values()] or PALETTE.values())
    return {name: chosen.get(name) or next(others) for name in names}


def save(figure: Figure, path: Path, title: str) -> None:
    """Writes a figure under its title and frees it."""
    figure.suptitle(textwrap.fill(title, 60), x=0.01, ha="left")
    figure.savefig(path)
    plt.close(figure)


def spaced(heights: Sequence[float], gap: float) -> np.ndarray:
    """The heights nearest to the given ones, in order, at least `gap` apart, within 0..1 if possible."""
    order = np.argsort(heights, kind="stable")
    steps = gap * np.arange(len(order))
    free = isotonic_regression(np.asarray(heights)[order] - steps).x
    result = np.empty(len(order))
    result[order] = np.clip(free, 0, max(0.0, 1 - steps[-1])) + steps
    return result


def name_ends(
    axes: Axes, ends: Mapping[str, tuple[float, float]], colour: Mapping[str, str], write: Callable[[str], str] = shown
) -> None:
    """Writes names in the right margin at the heights of their lines' ends, without overlap, joined to the lines.

    The panels must be laid out: heights are relative to them.
    """
    to_panel = axes.transData + axes.transAxes.inverted()
    line = 1.3 * plt.rcParams["font.size"] * axes.figure.dpi / 72 / axes.get_window_extent().height
    heights = spaced([to_panel.transform(end)[1] for end in ends.values()], line)
    for (name, end), height in zip(ends.items(), heights, strict=True):
        join = {"arrowstyle": "-", "color": colour[name], "lw": 1, "shrinkA": 2, "shrinkB": 0, "relpos": (0, 0.5)}
        at: Any = {"xytext": (1.05, height), "textcoords": "axes fraction", "va": "center", "arrowprops": join}
        axes.annotate(write(name), end, annotation_clip=False, **at)


def curves(path: Path, panels: Sequence[Mapping[str, Any]], title: str, beside: bool = False) -> None:
    """Plots panels, in two columns if there are more than three; all in one wide row if `beside`.

    A panel has `x`, `lines` {name: y or (y, spread)}, `xlabel`, `ylabel`, and optionally `title`, `log` (axes), `ticks`
    and `dashed` (names of reference lines).
    """
    columns = len(panels) if beside else 1 + (len(panels) > 3)
    rows = -(-len(panels) // columns)
    width = WIDTH * max(1.0, 0.85 * columns) if beside else WIDTH
    height = 0.8 + (3.2 if rows == 1 else 2.4) * rows
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    drawn = [*zip(panels, grid.flat, strict=False)]
    ends = [draw_panel(axes, panel) for panel, axes in drawn]
    for i, (panel, axes) in enumerate(drawn):
        below = panels[i + columns : i + columns + 1]
        before = panels[i - i % columns]
        axes.set_xlabel("" if any(other["xlabel"] == panel["xlabel"] for other in below) else panel["xlabel"])
        axes.set_ylabel("" if before is not panel and before["ylabel"] == panel["ylabel"] else panel["ylabel"])
    figure.draw_without_rendering()  # lays the panels out
    for (panel, axes), last in zip(drawn, ends, strict=True):
        if len(last) > 1:
            name_ends(axes, last, colour_lines(panel), shown if columns == 1 else short)
    save(figure, path, title)


def colour_lines(panel: Mapping[str, Any]) -> dict[str, str]:
    """The colours of a panel's lines; reference lines are black."""
    dashed = panel.get("dashed", ())
    return colours(name for name in panel["lines"] if name not in dashed) | dict.fromkeys(dashed, PALETTE["black"])


def draw_panel(axes: Axes, panel: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Draws a panel, and returns the last point of each of its lines."""
    ends = {}
    colour = colour_lines(panel)
    for i, (name, line) in enumerate(panel["lines"].items()):
        x = np.asarray(panel["x"])
        values, spread = line if isinstance(line, tuple) else (line, None)
        y = np.asarray(values, float)
        finite = np.isfinite(y)
        style: Any = {"marker": MARKERS[i % len(MARKERS)] if finite.sum() < 60 else ""}
        if name in panel.get("dashed", ()):
            style = {"ls": "--", "lw": 1}
        bars = None if spread is None else np.asarray(spread)[finite]
        axes.errorbar(x[finite], y[finite], bars, color=colour[name], **style)
        if finite.any():
            last = np.flatnonzero(finite)[-1]
            ends[name] = float(x[last]), float(y[last])
    axes.set_title(panel.get("title", ""))
    if "y" not in panel.get("log", ""):
        axes.locator_params(axis="y", nbins=6)
    for axis in panel.get("log", ""):
        axes.set(**{f"{axis}scale": "log"})
        write_plainly(getattr(axes, f"{axis}axis"), *getattr(axes, f"get_{axis}lim")())
    if "ticks" in panel:
        axes.set_xticks(panel["ticks"], [f"{tick:g}" for tick in panel["ticks"]])
        axes.xaxis.set_minor_formatter(NullFormatter())
    return ends


def write_plainly(axis: Axis, low: float, high: float) -> None:
    """Labels a logarithmic axis with plain numbers; over few decades also at 2 and 5 times powers of ten."""
    digits = "25" if high < 100 * low else ""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in digits else "")


def dots(
    path: Path,
    groups: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
    xlabel: str = "",
    level: tuple[float, str] | None = None,
) -> None:
    """Plots {group: {name: (mean, spread)}}, a row for each value; `level`: a reference value and its name.

    With `xlabel` the groups share that axis; without it each group has its own axis, labelled by its name.
    """
    sizes = [len(rows) for rows in groups.values()]
    most_lines = max(shown(name).count("\n") + 1 for rows in groups.values() for name in rows)
    row = 0.27 if most_lines == 1 else 0.22 * most_lines  # inches
    height = 0.9 + row * sum(sizes) + (0.35 if xlabel else 0.6) * len(groups)
    layout: Any = {"sharex": bool(xlabel), "height_ratios": [size + 0.5 for size in sizes], "squeeze": False}
    figure, grid = plt.subplots(len(groups), 1, figsize=(WIDTH, height), **layout)
    names = [*dict.fromkeys(name for rows in groups.values() for name in rows)]
    colour = colours(names)
    if len(names) > len(PALETTE):  # a repeated colour has no meaning
        colour = dict.fromkeys(names, PALETTE["blue"])
    for (group, rows), axes in zip(groups.items(), grid.flat, strict=True):
        for at, (name, (mean, spread)) in enumerate(rows.items()):
            axes.errorbar(mean, at, xerr=spread or None, fmt="o", ms=7, color=colour[name])
            axes.text(1.02, at, number(mean, spread), transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(rows)), map(shown, rows))
        axes.set(title=group, ylim=(len(rows) - 0.4, -0.6), xmargin=0.08)
        axes.tick_params(length=0)
        axes.locator_params(axis="x", nbins=5)
        axes.spines["left"].set_visible(False)
        if level:
            axes.axvline(level[0], ls="--", lw=1, color=PALETTE["black"])
    for axes in grid.flat:  # after everything on a shared axis is drawn
        low, high = axes.get_xlim()
        if 0 < low < high / 2 and not level:
            axes.set_xlim(left=0)
    grid[-1, 0].set_xlabel(textwrap.fill(xlabel + (f" (dashed: {level[1]})" if level else ""), 60))
    save(figure, path, title)


def roofline(path: Path, rows: Sequence[Mapping[str, Any]], peak: Mapping[str, float], title: str) -> None:
    """Plots achieved FLOP/s against FLOPs per byte, under the measured roof; a marker for each operation."""
    figure, axes = plt.subplots(figsize=(WIDTH, 4.4))
    points: dict[str, list] = {}
    for row in rows:
        points.setdefault(row["operation"], []).append((row["gflop"] / row["gbyte"], row["gflop"] / row["seconds"]))
    colour = colours(points)
    for i, (name, own) in enumerate(points.items()):
        axes.scatter(*zip(*own, strict=True), color=colour[name], marker=MARKERS[i % len(MARKERS)], zorder=3)
    intensity = [at for own in points.values() for at, _ in own]
    at = np.geomspace(min(intensity) / 2, max(intensity) * 2, 200)
    axes.plot(at, np.minimum(peak["flops_per_second"], at * peak["bytes_per_second"]) / 1e9, color="black", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte accessed", ylabel="GFLOP/s (line: the measured roof)")
    write_plainly(axes.xaxis, *axes.get_xlim())
    write_plainly(axes.yaxis, *axes.get_ylim())
    figure.draw_without_rendering()
    name_ends(axes, {name: own[-1] for name, own in points.items()}, colour)
    save(figure, path, title)

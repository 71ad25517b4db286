"""Curves and bars as PNG files beside the JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974", "#64b5cd")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure and frees it."""
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def history(path: Path, rows: Sequence[Mapping[str, float]], title: str) -> None:
    """Plots the loss (of a solver's passes the certificate, or the gradient) and accuracies by epoch, side by side."""
    shared = {"x": [row["epoch"] for row in rows], "xlabel": "pass over the data" if "passes" in rows[0] else "epoch"}
    names = [name for name in ("train_accuracy", "test_accuracy") if any(name in row for row in rows)]
    # a run resumed with other test images has no accuracy of its earlier epochs
    accuracies = {name.replace("_", " "): [row.get(name, float("nan")) for row in rows] for name in names}
    known = {"gradient_norm": "norm of the gradient", "loss": "training loss"}
    column = next(name for name in known if name in rows[0])
    lines = distances(rows) if "certificate" in rows[0] else {known[column]: [row[column] for row in rows]}
    losses = {**shared, "lines": lines, "ylabel": next(iter(lines)), "log": "y"}
    curves(path, [losses, {**shared, "lines": accuracies, "ylabel": "accuracy"}], title)


def distances(rows: Sequence[Mapping[str, float]], name: str = "distance from the optimum") -> dict[str, list[float]]:
    """Two lines of a solver's passes: the estimated distance from the optimum, and the bounds, where there are some."""
    bounds = [row.get("certificate", float("nan")) for row in rows]
    estimates = [row.get("estimate", bound) for row, bound in zip(rows, bounds, strict=True)]
    return {f"{name}, estimated": estimates, f"{name}, at most": bounds}


def bars(
    path: Path,
    groups: Sequence[str],
    series: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    ylabel: str = "test accuracy",
) -> None:
    """Plots grouped bars: `series` maps a name to (mean, spread) per group. Bars of accuracy start above 0."""
    figure, axes = plt.subplots(figsize=(max(4.4, 1.4 + 0.6 * len(groups) * len(series)), 3.6), layout="constrained")
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        at = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        means, spreads, colour = [m for m, _ in values], [s for _, s in values], COLOURS[i % len(COLOURS)]
        drawn = axes.bar(at, means, width * 0.92, yerr=spreads, capsize=2, label=name, color=colour)
        axes.bar_label(drawn, [f"{m:.3f}" if abs(m) < 1 else f"{m:.3g}" for m, _ in values], fontsize=7, padding=2)
    lowest = min(mean for values in series.values() for mean, _ in values)
    floor = max(0.0, lowest - 0.1) if ylabel == "test accuracy" else min(0.0, 1.1 * lowest)
    axes.set(ylabel=ylabel, ylim=(floor, None), title=title)
    axes.set_xticks(range(len(groups)), groups)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, ncols=min(4, len(series)), loc="outside lower center", fontsize=8)
    save(figure, path)


def horizontal_bars(path: Path, rows: Sequence[tuple[str, float]], title: str) -> None:
    """Plots one horizontal bar per named accuracy, top to bottom."""
    figure, axes = plt.subplots(figsize=(6.4, 0.5 + 0.42 * len(rows)), layout="constrained")
    names = [name for name, _ in rows]
    drawn = axes.barh(names, [value for _, value in rows], color=[COLOURS[0]] * 3 + [COLOURS[2]] * (len(rows) - 3))
    axes.bar_label(drawn, [f"{value:.1%}" for _, value in rows], padding=3)
    axes.invert_yaxis()
    start = min(value for _, value in rows) - 0.05  # where differences are seen
    axes.set(xlim=(start, max(value for _, value in rows) + 0.03), title=title, xticks=[])
    axes.set_xlabel(f"the axis starts at {start:.0%}")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    save(figure, path)


def curves(path: Path, panels: Sequence[Mapping[str, Any]], title: str) -> None:
    """Plots panels side by side: each has `x`, `lines` {name: y or (y, spread)}, `xlabel`, `ylabel`, and perhaps `log`,
    `ticks`, and `levels` {name of a line: y}, dashed in its colour."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(0.8 + 4.4 * len(panels), 3.6), layout="constrained", squeeze=False
    )
    for panel, drawn in zip(panels, axes[0], strict=True):
        for name, line in panel["lines"].items():
            y, spread = line if isinstance(line, tuple) else (line, None)
            base = name.removesuffix(", NLFT")  # in its colour, dashed
            style = "-" if base == name else "--"
            colour = COLOURS[list(panel["lines"]).index(base) % len(COLOURS)]
            marker = "o" if style == "-" and np.isfinite(y).sum() < 60 else ""
            drawn.plot(panel["x"], y, style, color=colour, marker=marker, ms=3, label=name)
            if spread is not None:
                low, high = np.subtract(y, spread), np.add(y, spread)
                drawn.fill_between(panel["x"], low, high, color=colour, alpha=0.15, lw=0)
        for name, level in panel.get("levels", {}).items():
            drawn.axhline(level, ls="--", lw=1, color=COLOURS[list(panel["lines"]).index(name) % len(COLOURS)])
        drawn.set(xlabel=panel["xlabel"], ylabel=panel["ylabel"])
        for axis in panel.get("log", ""):
            drawn.set(**{f"{axis}scale": "log"})
        if "ticks" in panel:
            drawn.set_xticks(panel["ticks"], [f"{tick:g}" for tick in panel["ticks"]])
            drawn.xaxis.set_minor_formatter(NullFormatter())
        drawn.spines[["top", "right"]].set_visible(False)
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if len(panel["lines"]) > 6 else {}
        drawn.legend(frameon=False, fontsize=8, **beside)
    figure.suptitle(title)
    save(figure, path)


def roofline(path: Path, rows: Sequence[Mapping[str, Any]], peak: Mapping[str, float]) -> None:
    """Plots achieved FLOP/s against FLOPs per byte, under the measured roof; one marker an operation."""
    figure, axes = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
    names = list(dict.fromkeys(row["operation"] for row in rows))
    for i, name in enumerate(names):
        points = [row for row in rows if row["operation"] == name]
        at = [row["gflop"] / row["gbyte"] for row in points], [row["gflop"] / row["seconds"] for row in points]
        axes.scatter(*at, label=name, color=plt.get_cmap("tab20")(i), marker="osD^vP*X<>"[i % 10])
    intensity = [row["gflop"] / row["gbyte"] for row in rows]
    at = np.geomspace(min(intensity) / 2, max(intensity) * 2, 200)
    axes.plot(at, np.minimum(peak["flops_per_second"], at * peak["bytes_per_second"]) / 1e9, color="black", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte accessed", ylabel="GFLOP/s", title="Roofline")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)

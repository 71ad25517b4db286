"""The roofline picture: achieved FLOP/s against FLOPs per byte, under the measured roof."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.shared.plots import MARKERS, WIDTH, colours, name_ends, save, write_plainly


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

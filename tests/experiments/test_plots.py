"""Pictures: every name beside its line and over no other, colours that all tell apart, titles from the values."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from experiments.shared import plots, titles

NAMES = ("taft", "nlft", "fc", "soup", "sisa_mean", "sisa_vote", "greedy soup", "chance")


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, open and drawn."""
    drawn = []

    def save(figure, path, title):
        figure.suptitle(title)
        figure.savefig(path)
        drawn.append(figure)

    monkeypatch.setattr(plots, "save", save)
    yield drawn
    for figure in drawn:
        plt.close(figure)


def names_in(figure):
    """{name: its box in pixels} of the names of lines in a drawn figure, without what joins them."""
    texts = [text for axes in figure.axes for text in axes.texts]
    return [(text.get_text(), Text.get_window_extent(text)) for text in texts]


ENDS = {
    "all at one height": np.full(8, 0.5),
    "two heaps": np.array([0, 0, 0, 0, 1, 1, 1, 1.0]),
    "apart": np.arange(8.0),
}


@pytest.mark.parametrize(("panels", "ends"), [(1, "all at one height"), (3, "two heaps"), (4, "apart")])
def test_labels_are_ordered_and_apart(tmp_path, figures, ends, panels):
    lines = {name: [0.5, end] for name, end in zip(NAMES, ENDS[ends], strict=True)}
    panel = {"x": [1, 2], "lines": lines, "xlabel": "x", "ylabel": "y", "dashed": ["chance"]}
    plots.curves(tmp_path / "p.png", [panel] * panels, "title")
    (figure,) = figures
    boxes = names_in(figure)
    assert len(boxes) == panels * len(NAMES)
    for i, (name, box) in enumerate(boxes):
        assert not [other for other, another in boxes[i + 1 :] if box.overlaps(another)], name
        assert box.x1 <= figure.bbox.x1 + 1  # inside the picture
    for axes in figure.axes:
        places = [Text.get_window_extent(text).y0 for text in axes.texts]
        assert sorted(places) == [places[i] for i in np.argsort(ENDS[ends], kind="stable")]


def test_lines_are_told_apart_without_colours(tmp_path, figures):
    lines = {name: [0.5, end] for name, end in zip(NAMES, np.linspace(0, 1, 8), strict=True)}
    plots.curves(tmp_path / "p.png", [{"x": [1, 2], "lines": lines, "xlabel": "x", "ylabel": "y"}], "title")
    (axes,) = figures[0].axes
    markers = [line.get_marker() for line in axes.lines if line.get_marker() not in ("_", "None", "")]
    assert len({*markers}) == len(NAMES)


def test_label_stays_at_line_end():
    np.testing.assert_allclose(plots.spaced([0.9, 0.1, 0.5], 0.1), [0.9, 0.1, 0.5])
    np.testing.assert_allclose(plots.spaced([0.5, 0.5], 0.1), [0.45, 0.55])
    np.testing.assert_allclose(plots.spaced([1.0, 1.0, 0.0], 0.2), [0.8, 1.0, 0.0])


def test_colour_has_one_meaning():
    blue, vermilion = plots.PALETTE["blue"], plots.PALETTE["vermilion"]
    for name in ("taft", "TAFT-1", "TAFT"):
        assert plots.colours(["nothing", name])[name] == blue
    assert plots.colours(["soup"])["soup"] == plots.colours(["NLFT-1"])["NLFT-1"] == vermilion
    chosen = plots.colours(["tangent_lora", "taft_inputs", "taft", "soup", "nlft", "fc", "x", "y"])
    assert len({*chosen.values()}) == len(chosen) == len(plots.PALETTE)
    assert plots.shown("taft") == "TAFT (tangent)"
    assert plots.shown("sisa_mean") == "SISA mean"


def test_pictures_share_width_and_hold_title(tmp_path, figures):
    panel = {"x": [1, 2], "lines": {"taft": [0.1, 0.2]}, "xlabel": "epoch", "ylabel": "accuracy"}
    plots.curves(tmp_path / "c.png", [panel], "a title")
    cells = {"FC": (0.8, 0.01), "TAFT-1": (0.9, 0.02)}
    plots.dots(tmp_path / "d.png", {"one": cells, "two": cells}, "a title", "accuracy", (0.5, "chance"))
    plots.dots(tmp_path / "o.png", {"one": cells, "two": cells}, "a title")
    flops = {"flops_per_second": 1e9, "bytes_per_second": 1e8}
    row = {"operation": "step", "gflop": 1.0, "gbyte": 0.1, "seconds": 2.0}
    plots.roofline(tmp_path / "r.png", [row, {**row, "operation": "forward", "seconds": 1.0}], flops, "a title")
    for figure, name in zip(figures, "cdor", strict=True):
        assert Image.open(tmp_path / f"{name}.png").width == 960
        assert figure.get_suptitle() == "a title"
        assert not figure.legends
        assert not [axes for axes in figure.axes if axes.get_legend()]
    assert [text for text, _ in names_in(figures[1])] == ["0.80 ± 0.01", "0.90 ± 0.02"] * 2
    low, high = figures[1].axes[0].containers[1].lines[2][0].get_segments()[0][:, 0]  # of TAFT's spread
    assert (low, high) == pytest.approx((0.88, 0.92))


def test_dots_lie_on_their_axis(tmp_path, figures):
    groups = {"one": {"a": (0.4, 0.0), "b": (0.85, 0.0)}, "two": {"a": (0.74, 0.0), "b": (0.9, 0.02)}}
    plots.dots(tmp_path / "d.png", groups, "title", "accuracy")
    plots.dots(tmp_path / "e.png", {"one": {"a": (0.8, 0.0), "b": (0.85, 0.0)}}, "title", "accuracy")
    for axes, rows in zip(figures[0].axes, groups.values(), strict=True):
        low, high = axes.get_xlim()
        assert low == 0
        assert all(low < mean + spread < high for mean, spread in rows.values())
    assert figures[1].axes[0].get_xlim()[0] > 0.7


@pytest.mark.parametrize(
    ("added", "full", "said"),
    [
        ((0.75, 0.5), (0.74, 0.55), "-5.0 (soup), +1.0 (TAFT)"),
        ((0.75, 0.5), (0.75, 0.51), "-1.0 (soup), 0.0 (TAFT)"),
        ((0.7, 0.7, 0.6, 0.4), (0.7, 0.71, 0.65, 0.6), "-20.0 (exact) to 0.0 (TAFT)"),
        ((0.75, 0.5, 0.5, 0.5), (0.76, 0.51, 0.51, 0.51), "-1.0 (each of 4 methods)"),
    ],
)
def test_title_compares_sum_with_one_model(added, full, said):
    names = ("taft", "soup", "lda", "exact")
    parts = [dict(zip(names, values, strict=False)) for values in (added, full)]
    title = titles.composed("cub50", 50, parts[0] | {"greedy": 0.1}, parts[1])
    assert title == f"cub50: 50 models added change accuracy by {said} points against one model of all data"


def test_title_of_equals_has_no_numbers():
    equal = dict.fromkeys(("exact", "ridge", "ranpac", "lda"), 0.75)
    title = titles.composed("cub50", 10, equal, {**equal, "lda": 0.7502})
    assert title == "cub50: 10 models added are as accurate as one model of all data"


def test_features_are_named_by_what_differs():
    differing = titles.differing(["h+ntk 8x1 4096", "h+ntk 1x1 4096"])
    assert differing == {"h+ntk 8x1 4096": "8 blocks", "h+ntk 1x1 4096": "1 block"}
    assert titles.differing(["h 0x1 64", "h+ntk 0x2 64"])["h+ntk 0x2 64"] == "h + psi, 2 directions"
    assert [*titles.differing(["h+ntk 8x1 4096"]).values()] == ["8 blocks"]

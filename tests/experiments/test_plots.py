"""Pictures: every name beside its line and over no other, colours that all tell apart, titles from the values."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from tangent_jax.commands.shared import plots, titles

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
def test_names_are_beside_their_lines_in_order_and_never_overlap(tmp_path, figures, ends, panels):
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


def test_a_name_stays_at_the_end_of_its_line_where_there_is_room():
    np.testing.assert_allclose(plots.spaced([0.9, 0.1, 0.5], 0.1), [0.9, 0.1, 0.5])
    np.testing.assert_allclose(plots.spaced([0.5, 0.5], 0.1), [0.45, 0.55])
    np.testing.assert_allclose(plots.spaced([1.0, 1.0, 0.0], 0.2), [0.8, 1.0, 0.0])


DEUTERANOPIA = np.array(  # of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(colour, seen):
    """CIE L*a*b* of a colour "#rrggbb" as eyes of the matrix `seen` see it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    relative = XYZ @ np.clip(seen @ linear, 0, 1) / WHITE
    f = np.where(relative > 216 / 24389, np.cbrt(relative), (24389 / 27 * relative + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA], ids=["all cones", "deuteranopia"])
def test_any_two_colours_are_told_apart_and_from_white(seen):
    points = np.array([lab(colour, seen) for colour in (*plots.PALETTE.values(), "#ffffff")])
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e3 * np.eye(len(points))
    assert apart.min() > 15  # 2.3 is just noticeable side by side


def test_one_colour_has_one_meaning_and_no_two_lines_have_one_colour():
    blue, vermilion = plots.PALETTE["blue"], plots.PALETTE["vermilion"]
    for name in ("taft", "TAFT-1", "TAFT"):
        assert plots.colours(["nothing", name])[name] == blue
    assert plots.colours(["soup"])["soup"] == plots.colours(["NLFT-1"])["NLFT-1"] == vermilion
    chosen = plots.colours(["tangent_lora", "taft_inputs", "taft", "soup", "nlft", "fc", "x"])
    assert len({*chosen.values()}) == len(chosen) == len(plots.PALETTE)
    assert plots.shown("taft") == "TAFT (tangent)"
    assert plots.shown("sisa_mean") == "SISA mean"


def test_pictures_of_every_kind_are_as_wide_as_each_other_and_hold_their_title(tmp_path, figures):
    rows = [{"epoch": i, "loss": 1 / i, "train_accuracy": 0.1 * i, "test_accuracy": 0.1} for i in range(1, 5)]
    solved = [{**row, "passes": row["epoch"], "gradient_norm": row["loss"], "estimate": row["loss"]} for row in rows]
    plots.history(tmp_path / "h.png", rows, "a title", 40)
    plots.history(tmp_path / "s.png", [{**solved[0], "certificate": 1.0}, *solved[1:]], "a title", 40)
    cells = {"FC": (0.8, 0.01), "TAFT-1": (0.9, 0.02)}
    plots.dots(tmp_path / "d.png", {"one": cells, "two": cells}, "a title", "accuracy", (0.5, "chance"))
    plots.dots(tmp_path / "o.png", {"one": cells, "two": cells}, "a title")
    flops = {"flops_per_second": 1e9, "bytes_per_second": 1e8}
    row = {"operation": "step", "gflop": 1.0, "gbyte": 0.1, "seconds": 2.0}
    plots.roofline(tmp_path / "r.png", [row, {**row, "operation": "forward", "seconds": 1.0}], flops, "a title")
    for figure, name in zip(figures, "hsdor", strict=True):
        assert Image.open(tmp_path / f"{name}.png").width == 960
        assert figure.get_suptitle() == "a title"
        assert not figure.legends
        assert not [axes for axes in figure.axes if axes.get_legend()]
    assert [text for text, _ in names_in(figures[2])] == ["0.80 ± 0.01", "0.90 ± 0.02"] * 2
    low, high = figures[2].axes[0].containers[1].lines[2][0].get_segments()[0][:, 0]  # of TAFT's spread
    assert (low, high) == pytest.approx((0.88, 0.92))


def test_every_dot_lies_on_its_axis_which_starts_at_0_where_values_differ_by_half(tmp_path, figures):
    groups = {"one": {"a": (0.4, 0.0), "b": (0.85, 0.0)}, "two": {"a": (0.74, 0.0), "b": (0.9, 0.02)}}
    plots.dots(tmp_path / "d.png", groups, "title", "accuracy")
    plots.dots(tmp_path / "e.png", {"one": {"a": (0.8, 0.0), "b": (0.85, 0.0)}}, "title", "accuracy")
    for axes, rows in zip(figures[0].axes, groups.values(), strict=True):
        low, high = axes.get_xlim()
        assert low == 0
        assert all(low < mean + spread < high for mean, spread in rows.values())
    assert figures[1].axes[0].get_xlim()[0] > 0.7


def cells(**means):
    return {name.replace("_", "-"): {"mean": mean, "spread": 0.0} for name, mean in means.items()}


TITLES = {  # (title, what it says)
    "trained": (
        titles.trained("TAFT on digits", [{"epoch": 1, "test_accuracy": 0.1}, {"epoch": 2, "test_accuracy": 0.875}]),
        "TAFT on digits: test accuracy 0.875 after 2 epochs",
    ),
    "composed": (
        titles.composed("cub50", 50, {"taft": 0.75, "soup": 0.5, "greedy": 0.1}, {"taft": 1.0, "soup": 0.625}),
        "cub50: 50 models added have 80 % (soup), 75 % (TAFT) of one model's accuracy",
    ),
    "contributed": (
        titles.contributed(
            {"a": {"exact": {"1": 0.5, "50": 0.5002}}, "b": {"exact": {"1": 0.5, "50": 0.4}}, "c": {"LDA": {"1": 0.1}}}
        ),
        "Exact composition of any number of contributors: 0.500 on a and 0.500 (one) and 0.400 (50) on b",
    ),
    "forgotten": (
        titles.forgotten("cub50", 25, 50, {"taft": [0.8, 0.74], "sisa_mean": [0.7, 0.6]}, 1),
        "cub50: 25 of 50 shards removed cost 6.0 (TAFT), 10.0 (SISA mean) points",
    ),
    "attacked": (
        titles.attacked("digits", {"a": {"before": 0.6, "after": 0.5}, "b": {"before": 0.7, "after": 0.4}}),
        "digits: the strongest attack has AUC 0.70 (before), 0.50 (after); 0.5 is chance",
    ),
    "proved": (
        titles.proved("One run", 0.7, 1.625, 3.0),
        "One run proves epsilon 0.70 (1.62 for a Gaussian); claimed is 3.00",
    ),
    "penalised": (
        titles.penalised("digits", [{"penalty": p, "score": s} for p, s in ((0.1, 0.9), (1, 0.9), (10, 0.8))]),
        "digits: penalty 1 has the highest leave-one-out accuracy, 0.900",
    ),
    "seen": (
        titles.seen("digits", {r: {"nothing": (a, 0.1), "exact": (0.5, 0.1)} for r, a in (("x", 0.6), ("y", 0.8))}),
        "digits: the attack finds y best, with AUC 0.80 nothing, 0.50 exact",
    ),
    "highest": (
        titles.highest("Fine-tuning", {"a": cells(FC=0.1, TAFT_1=0.2), "b": cells(FC=0.3, TAFT_1=0.2)}),
        "Fine-tuning: highest is TAFT-1 on a, FC on b",
    ),
    "tangent_above": (
        titles.tangent_above({"a": {"1": {s: cells(taft=t, nlft=0.5) for s, t in (("full", 0.6), ("fc", 0.4))}}}),
        "TAFT has the higher mean in 1 of 2 cells",
    ),
    "protected": (
        titles.protected(
            "cub50", {n: {"1": {"mean": 0.0}, "8": {"mean": m}} for n, m in (("example", 0.8), ("30", 0.25))}
        ),
        "cub50, epsilon 8: protecting owners, not images, costs 55.0 points for 30 owners",
    ),
    "moved": (
        titles.moved("cub50", [-0.007, 0.005], [0.3, 0.07]),
        "cub50: no component changes accuracy by more than 0.7 points; the last of 2 moves the mean by 7.0 %",
    ),
    "warmed": (
        titles.warmed("cub50", {"1": {"passes": 10, "passes_cold": 44}, "15": {"passes": 18, "passes_cold": 43}}),
        "cub50: forgetting 1, 15 images takes 10, 18 passes; solving from zero 43 to 44",
    ),
    "likeliest": (
        titles.likeliest("digits", {"softmax": {"nll": 0.3}, "Laplace": {"nll": 0.25}}),
        "digits: Laplace has the lowest mean -log p, 0.250; softmax has 0.300",
    ),
    "shared_body": (
        titles.shared_body({"mean": [0.5, 1.0], "soup": [0.5, 0.5]}),
        "2 tasks on one body: mean has 75 % of the single models' accuracy, soup 50 %",
    ),
    "slower": (
        titles.slower({"from_images": {"taft_train": 3.0, "nlft_train": 2.0}}),
        "Time of a tangent step over a non-linear one: 1.50 from images",
    ),
    "fastest": (
        titles.fastest([{"operation": n, "fraction_of_peak": f} for n, f in (("step", 0.2), ("forward", 0.7))]),
        "Of the measured peak FLOP/s operations reach 20 % (step) to 70 % (forward)",
    ),
    "predicted": (
        titles.predicted("digits", {n: {"optimum": s} for n, s in (("Newton", 0.9), ("TRAK", 0.5), ("exact", 0.95))}),
        "Models without half of digits: Newton predicts them best, 0.90 of the exact 0.95",
    ),
    "taken_out": (
        titles.taken_out("digits", 0.9, 0.875),
        "digits: models trained apart, added, have 0.900; with one of them taken out, 0.875",
    ),
    "featured": (
        titles.featured({"h": 0.8, "h+ntk 1x4 512": 0.91}),
        "Exact composition: h+ntk 1x4 512 is best with 0.910; h has 0.800",
    ),
    "released_once": (
        titles.released_once(
            {d: {"1": {"mean": a}, "8": {"mean": b}} for d, a, b in (("a", 0.5, 0.75), ("b", 0.7, 0.85))}
        ),
        "One private release has 0.60 at epsilon 1, 0.80 at 8, on average",
    ),
}


@pytest.mark.parametrize("name", TITLES)
def test_a_title_says_what_its_values_are(name):
    got, want = TITLES[name]
    assert got == want


def test_every_title_has_its_case():
    own = {name for name, value in vars(titles).items() if callable(value) and value.__module__ == titles.__name__}
    assert own - {"percent"} == {*TITLES}

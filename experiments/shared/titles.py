"""Titles of the experiments' pictures, computed from their values."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.shared.plots import short


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"


def composed(dataset: str, count: int, added: Mapping[str, float], full: Mapping[str, float]) -> str:
    """The accuracy of models added minus that of one model of all data, by method, in points; of many the ends."""
    points = {name: round(100 * (added[name] - full[name]), 1) for name in full}
    if not any(points.values()):
        return f"{dataset}: {count} models added are as accurate as one model of all data"
    ranked = sorted(points, key=lambda name: points[name])
    signed = {name: f"{points[name]:+.1f}" if points[name] else "0.0" for name in ranked}
    changes = [f"{change} ({short(name)})" for name, change in signed.items()]
    text = ", ".join(changes) if len(changes) < 4 else f"{changes[0]} to {changes[-1]}"
    if len({*signed.values()}) == 1 < len(changes):
        text = f"{signed[ranked[0]]} (each of {len(changes)} methods)"
    return f"{dataset}: {count} models added change accuracy by {text} points against one model of all data"


def proved(what: str, bound: float, gaussian: float | None, claimed: float) -> str:
    """The epsilons that an attacker proves, for any mechanism and for a Gaussian one, against the claimed one."""
    besides = "" if gaussian is None else f" ({gaussian:.2f} for a Gaussian)"
    return f"{what} proves epsilon {bound:.2f}{besides}; claimed is {claimed:.2f}"


def contributed(lines: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The accuracy of exact composition for one and for the most contributors; `lines`: {data set: {line: {at: y}}}."""
    texts = []
    for dataset, row in lines.items():
        counts = sorted((int(at), value) for at, value in row.get("exact", {}).items() if at.isdecimal())
        if counts:
            (_, first), (most, last) = counts[0], counts[-1]
            many = f"{last:.3f}" if abs(last - first) < 5e-4 else f"{first:.3f} (one) and {last:.3f} ({most})"
            texts.append(f"{many} on {dataset}")
    return f"Exact composition of any number of contributors: {' and '.join(texts)}" if texts else "Contributors"


def forgotten(dataset: str, gone: int, count: int, lines: Mapping[str, Sequence[float]], at: int) -> str:
    """The points of accuracy that each method loses as shards leave."""
    lost = [f"{100 * (values[0] - values[at]):.1f} ({short(name)})" for name, values in lines.items()]
    return f"{dataset}: {gone} of {count} shards removed cost {', '.join(lost)} points"


def attacked(subject: str, auc: Mapping[str, Mapping[str, float]]) -> str:
    """The AUC of the strongest attack on each model; `auc`: {attack: {model: AUC}}."""
    models = next(iter(auc.values()))
    strongest = [f"{max(row[model] for row in auc.values()):.2f} ({model})" for model in models]
    return f"{subject}: the strongest attack has AUC {', '.join(strongest)}; 0.5 is chance"


def penalised(dataset: str, tried: Sequence[Mapping[str, float]]) -> str:
    """The penalty with the highest leave-one-out accuracy, the larger of equals."""
    best = max(tried, key=lambda row: (row["score"], row["penalty"]))
    return f"{dataset}: penalty {best['penalty']:g} has the highest leave-one-out accuracy, {best['score']:.3f}"


def seen(dataset: str, groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """The request that the attack finds best where nothing is removed, and its AUC after each way of removal."""
    first = next(iter(next(iter(groups.values()))))
    request = max(groups, key=lambda name: groups[name][first][0])
    texts = [f"{auc:.2f} {way}" for way, (auc, _) in groups[request].items()]
    return f"{dataset}: the attack finds {request} best, with AUC {', '.join(texts)}"


def highest(what: str, table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The column with the highest mean of each row of {row: {column: cell}}, or how often each is highest."""
    best = {row: max(cells, key=lambda column: cells[column]["mean"]) for row, cells in table.items()}
    columns = sorted({*best.values()}, key=[*best.values()].index)
    where = {column: [row for row in best if best[row] == column] for column in columns}
    texts = [
        f"{short(c)} on {' and '.join(rows) if len(rows) < 3 else f'{len(rows)} of {len(best)}'}"
        for c, rows in where.items()
    ]
    return f"{what}: highest is {', '.join(texts)}"


def tangent_above(table: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]]) -> str:
    """The number of cells of {data set: {epsilon: {subset: {method: cell}}}} in which TAFT has the higher mean."""
    cells = [cell for by_epsilon in table.values() for row in by_epsilon.values() for cell in row.values()]
    both = [cell["taft"]["mean"] > cell["nlft"]["mean"] for cell in cells if {"taft", "nlft"} <= cell.keys()]
    return f"TAFT has the higher mean in {sum(both)} of {len(both)} cells" if both else "Accuracy by epsilon"


def protected(dataset: str, table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The price of protecting owners instead of images at the largest epsilon; `table`: {owners: {epsilon: cell}}."""
    epsilon = max(table["example"], key=float)
    images = table["example"][epsilon]["mean"]
    costs = [
        f"{100 * (images - row[epsilon]['mean']):.1f} points for {n} owners"
        for n, row in table.items()
        if n != "example"
    ]
    return f"{dataset}, epsilon {epsilon}: protecting owners, not images, costs {', '.join(costs)}"


def moved(dataset: str, change: Sequence[float], relative: Sequence[float]) -> str:
    """The most that one component changes the accuracy, and how far the last to come moves the mean."""
    most = 100 * max(map(abs, change))
    count = len(change)
    last = f"the last of {count} moves the mean by {100 * relative[-1]:.1f} %"
    return f"{dataset}: no component changes accuracy by more than {most:.1f} points; {last}"


def warmed(dataset: str, counts: Mapping[str, Mapping[str, Any]]) -> str:
    """The passes of each removal from the old optimum and from zero; `counts`: rows by number of images."""
    cold = [row["passes_cold"] for row in counts.values()]
    several = f"{min(cold)}" if min(cold) == max(cold) else f"{min(cold)} to {max(cold)}"
    warm = ", ".join(f"{row['passes']}" for row in counts.values())
    return f"{dataset}: forgetting {', '.join(counts)} images takes {warm} passes; solving from zero {several}"


def likeliest(dataset: str, table: Mapping[str, Mapping[str, float]]) -> str:
    """The probabilities with the lowest negative log-likelihood, against plain softmax."""
    best = min(table, key=lambda name: table[name]["nll"])
    lowest = table[best]["nll"]
    plain = table["softmax"]["nll"]
    return f"{dataset}: {best} has the lowest mean -log p, {lowest:.3f}; softmax has {plain:.3f}"


def slower(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """The time of a tangent step over that of a non-linear one, by its inputs."""
    ratios = [
        f"{row['taft_train'] / row['nlft_train']:.2f} {source.replace('_', ' ')}" for source, row in seconds.items()
    ]
    return f"Time of a tangent step over a non-linear one: {', '.join(ratios)}"


def fastest(rows: Sequence[Mapping[str, Any]]) -> str:
    """The operations that are farthest from the measured peak, and nearest to it."""
    ends = [pick(rows, key=lambda row: row["fraction_of_peak"]) for pick in (min, max)]
    texts = [f"{percent(row['fraction_of_peak'])} ({row['operation']})" for row in ends]
    return f"Of the measured peak FLOP/s operations reach {' to '.join(texts)}"


def predicted(dataset: str, scores: Mapping[str, Mapping[str, float]]) -> str:
    """The estimate that ranks the optima of halves best, against the exact answer."""
    others = {how: row["optimum"] for how, row in scores.items() if how != "exact"}
    best = max(others, key=others.__getitem__)
    score = f"{others[best]:.2f} of the exact {scores['exact']['optimum']:.2f}"
    return f"Models without half of {dataset}: {best} predicts them best, {score}"


def taken_out(dataset: str, added: float, left: float) -> str:
    """The accuracy of models added, and of those that are left as one is taken out."""
    return f"{dataset}: models trained apart, added, have {added:.3f}; with one of them taken out, {left:.3f}"


def differing(keys: Iterable[str]) -> dict[str, str]:
    """The settings of features ("h+ntk 8x1 4096") in words: only what differs between them."""
    columns: dict[str, list[str]] = {}
    for key in keys:
        parts, shape, width = key.split()
        blocks, directions = shape.split("x")
        columns[key] = [
            parts.replace("ntk", "psi").replace("+", " + "),
            f"{blocks} block{'s' * (blocks != '1')}",
            f"{directions} direction{'s' * (directions != '1')}",
            f"width {width}",
        ]
    varied = [len({*column}) > 1 for column in zip(*columns.values(), strict=True)]
    if not any(varied):
        varied[1] = True
    return {key: ", ".join(itertools.compress(column, varied)) for key, column in columns.items()}


def featured(mean: Mapping[str, float]) -> str:
    """The features with the highest mean accuracy, and those with the least."""
    best = max(mean, key=mean.__getitem__)
    worst = min(mean, key=mean.__getitem__)
    return f"Exact composition, held out: {mean[best]:.3f} with {best}, {mean[worst]:.3f} with {worst}"


def released_once(cells: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The accuracy of one private release at the least and the largest epsilon, over {data set: {epsilon: cell}}."""
    least, most = (pick(next(iter(cells.values())), key=float) for pick in (min, max))
    means = [sum(row[e]["mean"] for row in cells.values()) / len(cells) for e in (least, most)]
    return f"One private release has {means[0]:.2f} at epsilon {least}, {means[1]:.2f} at {most}, on average"

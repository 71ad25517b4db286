"""Titles of pictures: the result that a picture shows, computed from its values."""

from collections.abc import Mapping, Sequence

from tangent_jax.commands.shared.plots import short


def trained(name: str, rows: Sequence[Mapping[str, float]], unit: str = "epochs") -> str:
    """The accuracy of a model after its last epoch, pass or step."""
    last = rows[-1]
    accuracies = [
        f"{images} accuracy {last[key]:.3f} " for images in ("test", "train") if (key := f"{images}_accuracy") in last
    ]
    count, unit = last.get("epoch", last.get("step", last.get("passes"))), "passes" if "passes" in last else unit
    return f"{name}: {''.join(accuracies[:1])}after {count} {unit}"


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


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"


def proved(what: str, bound: float, gaussian: float | None, claimed: float) -> str:
    """The epsilons that an attacker proves, for any mechanism and for a Gaussian one, against the claimed one."""
    besides = "" if gaussian is None else f" ({gaussian:.2f} for a Gaussian)"
    return f"{what} proves epsilon {bound:.2f}{besides}; claimed is {claimed:.2f}"


def shared_body(ratios: Mapping[str, Sequence[float]]) -> str:
    """The way of merging tasks that has most of the single models' accuracy on average, and the one with least."""
    means = {way: sum(values) / len(values) for way, values in ratios.items()}
    best = max(means, key=means.__getitem__)
    worst = min(means, key=means.__getitem__)
    count = len(next(iter(ratios.values())))
    text = (
        f"{count} tasks on one body: {best.replace('_', ' ')} has {percent(means[best])} of the single models' accuracy"
    )
    return f"{text}, {worst.replace('_', ' ')} {percent(means[worst])}"

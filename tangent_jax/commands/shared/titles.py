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
    """The share of one model's accuracy that the sum of models trained apart has, by method; of many the ends."""
    of_one = {name: added[name] / full[name] if full[name] else 0.0 for name in full}
    ranked = sorted(full, key=lambda name: -of_one[name])
    shares = [f"{percent(of_one[name])} ({short(name)})" for name in ranked]
    text = ", ".join(shares) if len(shares) < 4 else f"{shares[0]} to {shares[-1]}"
    if len({percent(share) for share in of_one.values()}) == 1 < len(shares):
        text = f"{percent(of_one[ranked[0]])} (each of {len(shares)} methods)"
    return f"{dataset}: {count} models added have {text} of one model's accuracy"


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

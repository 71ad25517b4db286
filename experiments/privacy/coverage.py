"""Measures how often the 95 % interval of an attack's AUC (`tj.audit.Ranking.points`) holds the truth.

Scores of others are N(0, 1). Those of members are N(shift, 1), or, as "extremes", above or below all others with the
same AUC: of all laws the one whose AUC varies most. Each draw has fresh scores and its own bootstrap.

The last line of stdout: {"coverage": {LAW: {"MEMBERS / OTHERS": {SHIFT: share of draws}}}, "width": the mean width of
the intervals, with the same keys}.
"""

import dataclasses

import numpy as np
from scipy.stats import norm

import tangent_jax as tj
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.io.progress import progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    out: str = "out/coverage"
    repeats: int = 2000


SIZES = ((20, 20), (10, 10), (10, 1000))
SHIFTS = (0.5, 2, 3)
LAWS = ("normal", "extremes")


def main(config: Config) -> None:
    cases = [(law, *size, shift) for law in LAWS for size in SIZES for shift in SHIFTS]
    result: dict[str, dict] = {"coverage": {}, "width": {}}
    with tj.show_progress("intervals"), progress_bar(len(cases), "case") as bar:
        for law, members, others, shift in cases:
            low, high = intervals(config, law, members, others, shift)
            truth = norm.cdf(shift / 2**0.5)
            of_case = {"coverage": (low <= truth) & (truth <= high), "width": high - low}
            for name, values in of_case.items():
                row = result[name].setdefault(law, {}).setdefault(f"{members} / {others}", {})
                row[f"{shift:g}"] = float(values.mean())
            bar.update()
    command.finish(config, result, repeats=config.repeats)


def intervals(config: Config, law: str, members: int, others: int, shift: float) -> np.ndarray:
    """(low, high) of the AUC in each of --repeats draws, "2 draws"."""
    rng = np.random.default_rng([0, members, others, round(10 * shift)])
    scores = rng.standard_normal((config.repeats, members + others))
    if law == "normal":
        scores[:, :members] += shift
    else:
        is_above = rng.random((config.repeats, members)) < norm.cdf(shift / 2**0.5)
        scores[:, :members] = np.where(is_above, 100, -100)
    member = np.arange(members + others) < members
    return np.array([tj.audit.Ranking(row, member).points(seed=i)["auc"][1:] for i, row in enumerate(scores)]).T


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

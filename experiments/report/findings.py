"""The paper's claims, comparisons of figures, and verdicts by RULE."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

Result = dict[str, Any]
Results = Mapping[str, Result]  # by the name of the job
Tests = Mapping[str, int]  # the number of test images, by the name of the data set
Rows = list[list[object]]

RULE = (
    "A comparison of two accuracies holds where their difference is above the noise: the largest of both spreads over "
    'seeds and of the standard error over the test images; "A not below B" holds where A > B - noise. A bound holds '
    "where the figure is within it; a count or a trend where it is met throughout. "
    "All comparisons hold: **holds**; some: **holds in part**; none: **does not hold**."
)


@dataclasses.dataclass
class Finding:
    """Our figures as a table, and the comparisons: (in words, True if it holds)."""

    columns: list[str]
    rows: Rows
    checks: list[tuple[str, bool]]

    @property
    def verdict(self) -> str:
        held = [holds for _, holds in self.checks]
        return "holds" if all(held) else "holds in part" if any(held) else "does not hold"


Read = Callable[[Results, Tests], Finding | None]


@dataclasses.dataclass(frozen=True)
class Claim:
    """One table or figure of the paper.

    Its name and title, the claim in words, the prefixes of the jobs' names whose results it reads, the function that
    reads them, the jobs' pictures, and the flags that it needs.
    """

    name: str
    title: str
    says: str
    jobs: tuple[str, ...]
    read: Read
    pictures: tuple[str, ...] = ()
    needs: str = ""

    def reads(self, job: str) -> bool:
        return job.startswith(self.jobs)


def better(what: str, a: Any, b: Any, n: int, strictly: bool = True) -> tuple[str, bool]:
    """Returns (the comparison in words, True if accuracy a is above b); cells or numbers; n: test images."""
    (ma, sa), (mb, sb) = (value(x) for x in (a, b))
    noise = max(sa, sb, math.sqrt(mb * (1 - mb) / n))
    holds = ma - mb > noise if strictly else ma - mb >= -noise
    words = f"above {100 * mb:.1f} by more than" if strictly else f"not below {100 * mb:.1f} by more than"
    return f"{what}: {100 * ma:.1f}, {words} the noise of {100 * noise:.1f}", holds


def bound(what: str, figure: float, most: float) -> tuple[str, bool]:
    return f"{what}: {figure:.3g}, at most {most:g}", figure <= most


def value(cell: Any) -> tuple[float, float]:
    return (cell["mean"], cell["spread"]) if isinstance(cell, dict) else (cell, 0.0)


def percent(cell: Any) -> str:
    """An accuracy in percent, with its spread over seeds if there is one."""
    mean, spread = value(cell)
    return f"{100 * mean:.1f} ± {100 * spread:.1f}" if isinstance(cell, dict) else f"{100 * mean:.1f}"


def settings(cell: Mapping[str, Any]) -> str:
    """The settings chosen on held-out images, in words."""
    chosen = cell["chosen"]
    words = [f"LR {chosen['learning_rate']:g}"] if "learning_rate" in chosen else ["as given"]
    words += [f"PT={'F' if chosen['reset'] else 'T'}"] if "reset" in chosen else []
    words += [f"CLS={'T' if chosen['new_class_token'] else 'F'}"] if "new_class_token" in chosen else []
    words += [f"rank {chosen['rank']}"] if "rank" in chosen else []
    return f"{', '.join(words)} (of {cell['searched']})"


def by_set(results: Results, job: str) -> dict[str, Result]:
    """The results of a job that runs once per data set: JOB-DATASET."""
    return {name.partition("-")[2]: result for name, result in results.items() if name.partition("-")[0] == job}

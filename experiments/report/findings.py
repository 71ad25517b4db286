"""The paper's claims, comparisons of figures, and verdicts by RULE."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Result = dict[str, Any]
Results = Mapping[str, Result]  # by the name of the job
Tests = Mapping[str, int]  # the number of test images, by the name of the data set
Rows = list[list[object]]

RULE = (
    "A comparison of two accuracies holds where their difference is above its noise: the larger of sqrt(s1^2 + s2^2), "
    "of both spreads over seeds, and sqrt((p1 (1 - p1) + p2 (1 - p2)) / n), the standard error over n test images. "
    "That is an upper bound, since both are tested on the same images. "
    '"A is as good as B", in a list "A not below B", holds where A >= B - noise: A may have the lower mean. A bound '
    "holds where the figure is within it; a count or a trend where it is met throughout. "
    "All comparisons hold: **holds**; some: **holds in part**; none: **does not hold**. A comparison whose subject was "
    "not tried (a setting that no search held, data of another kind) is **not run**, and counts for nothing."
)


class Check(NamedTuple):
    """A comparison: in words, and True if it holds; None: not run."""

    what: str
    holds: bool | None


@dataclasses.dataclass
class Finding:
    """Our figures as a table, and the comparisons."""

    columns: list[str]
    rows: Rows
    checks: list[Check]

    @property
    def verdict(self) -> str:
        held = [holds for _, holds in self.checks if holds is not None]
        if not held:
            return "not run"
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


def better(what: str, a: Any, b: Any, n: int, strictly: bool = True) -> Check:
    """Returns (the comparison in words, True if accuracy a is above b); cells or numbers; n: test images."""
    return better_on_average(what, [(a, b, n)], strictly)


def better_on_average(what: str, pairs: Sequence[tuple[Any, Any, int]], strictly: bool = True) -> Check:
    """As `better`, of the means over data sets: pairs of (a, b, number of test images)."""
    spreads = 0.0
    errors = 0.0
    count = len(pairs)
    for a, b, n in pairs:
        (p1, s1), (p2, s2) = value(a), value(b)
        spreads += s1**2 + s2**2
        errors += (p1 * (1 - p1) + p2 * (1 - p2)) / n
    noise = math.sqrt(max(spreads, errors)) / count
    first, second = (sum(value(pair[side])[0] for pair in pairs) / count for side in (0, 1))
    holds = first - second > noise if strictly else first - second >= -noise
    words = "above" if strictly else "not below"
    text = f"{what}: {100 * first:.1f}, {words} {100 * second:.1f} by more than the noise of {100 * noise:.1f}"
    return Check(text, holds)


def usual(what: str, cell: Mapping[str, Any], field: str, expected: object) -> Check:
    """The choice of a search against the paper's usual value; not run where the search did not hold both."""
    chosen = cell["chosen"].get(field)
    tried = cell.get("tried", {}).get(field, [])
    text = f"{what}, {field}: {chosen}, usual in the paper {expected}"
    if expected in tried and len(tried) > 1:
        return Check(text, chosen == expected)
    return Check(f"{text}, which was not searched", None)


def bound(what: str, figure: float, most: float) -> Check:
    return Check(f"{what}: {figure:.3g}, at most {most:g}", figure <= most)


def value(cell: Any) -> tuple[float, float]:
    return (cell["mean"], cell["spread"]) if isinstance(cell, dict) else (cell, 0.0)


def percent(cell: Any) -> str:
    """An accuracy in percent, with its spread over seeds if there are several."""
    mean, spread = value(cell)
    several = isinstance(cell, dict) and len(cell.get("accuracies", (0, 0))) > 1
    return f"{100 * mean:.1f} ± {100 * spread:.1f}" if several else f"{100 * mean:.1f}"


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

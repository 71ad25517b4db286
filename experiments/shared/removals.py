"""Models of random halves of a pool before and after a removal in each way, as an attacker's signals.

    nothing       the model as it was                     composed     the mean of models of shards, as it was
    subtracted    less a model of the removed images      dropped      the mean of the shards that held none of them
    exact         its optimum without them, warm          retrained    the mean, those shards trained without them
    never         an optimum that never saw them

Retraining gives a composed model that never saw them: the same shards, trained from zero on the same images.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import tangent_jax as tj
from experiments.shared.parts import Arrays, saved
from experiments.shared.pool import Pool, at_zero
from experiments.shared.relative import relative_test
from tangent_jax.core import trees
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree

Signals = Arrays
"""By "way" or "way/request": signals "k n", NaN without a remaining shard."""

WAYS = ("nothing", "subtracted", "exact", "never", "composed", "dropped", "retrained")


@dataclasses.dataclass(frozen=True)
class Removals:
    """The models: `member`, "k n"; each of `requests`, rows by name, is removed from the first `attacked` ones.

    Finished parts are saved in `folder`, named by `key`, the identity of all that decides them.
    """

    pool: Pool
    base: tj.Fitted
    member: np.ndarray
    requests: Mapping[str, np.ndarray]
    attacked: int
    shards: int
    folder: Path
    key: str

    def run(self) -> Signals:
        """All signals; parts that an earlier run finished are read."""
        attacked = np.arange(self.attacked)
        rest = np.arange(self.attacked, len(self.member))
        signals = self.parts("one model", self.whole, attacked) | self.part("shards", self.sharded, attacked)
        if len(rest):
            more = self.parts("shadows", self.shadows, rest) | self.part("shards of shadows", self.sharded, rest)
            signals |= {way: np.concatenate([signals[way], values]) for way, values in more.items()}
        for name in self.requests:
            signals[f"never/{name}"] = self.part(f"never {name}", self.never, name, self.attacked)["never"]
        return signals

    def parts(self, title: str, compute: Callable[[np.ndarray], Signals], models: np.ndarray) -> Signals:
        """The signals of the models, computed in batches."""
        parts = [
            self.part(f"{title} {first}", compute, models[first : first + self.pool.at_once])
            for first in range(0, len(models), self.pool.at_once)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def part(self, title: str, compute: Callable[..., Signals], *arguments: object) -> Signals:
        """The signals of `compute` for the arguments, or an earlier run's."""
        return saved(self.folder, identity(self.key, title, *arguments), title, compute, *arguments)

    def shadows(self, models: np.ndarray) -> Signals:
        """Signals of models without a removal."""
        return {"nothing": self.pool.signals(self.pool.solve(at_zero(self.base), self.member[models]))}

    def whole(self, models: np.ndarray) -> Signals:
        """Signals of models before a removal, and after each request by subtraction and exactly."""
        pool = self.pool
        member = self.member[models]
        before = [*pool.solve(at_zero(self.base), member)]  # so that no other image leaves a trace
        signals = {"nothing": pool.signals(before)}
        for name, rows in self.requests.items():
            signals[f"exact/{name}"] = pool.signals(pool.solve(before, without(member, rows)))
            alone = pool.solve(at_zero(self.base), member[:, rows], rows=rows)
            shares = member[:, rows].sum(1) / member.sum(1)
            signals[f"subtracted/{name}"] = pool.signals(
                dataclasses.replace(model, dw=trees.plus(model.dw, trees.scale(-share, gone.dw)))
                for model, gone, share in zip(before, alone, shares, strict=True)
            )
        return signals

    def never(self, request: str, attacked: int) -> Signals:
        """Signals of the attacked models' optima that never saw the request's images."""
        left = without(self.member[:attacked], self.requests[request])
        return {"never": self.pool.signals(self.pool.solve(self.unseen(request), left))}

    def unseen(self, request: str) -> tj.Fitted:
        """The optimum of half of each image's loss, from zero, without the request's images."""
        present = without(np.ones(len(self.pool), bool), self.requests[request])
        return self.pool.first(0.5 * present, at_zero(self.base).dw)

    def sharded(self, models: np.ndarray) -> Signals:
        """Signals of composed models, and of the attacked ones after each request by dropping and by retraining.

        A shard holds the same images of the pool in every model, so one call solves that shard for all models, to
        sqrt(shards) times the certificate, as errors of different images average out in the mean.
        """
        pool = self.pool
        sums = Sums()
        size = -(-len(self.pool) // self.shards)
        requests = self.requests if models[0] < self.attacked else {}
        start = at_zero(self.base)
        certificate = self.shards**0.5 * pool.certificate
        for rows in tj.shards.uniform(len(pool), self.shards, seed=0):
            rows = np.resize(rows, size)  # one shape for all: repeated rows have no weight
            again = np.arange(size) >= len(np.unique(rows))
            uses: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
            for k, present in zip(models, self.member[np.ix_(models, rows)] & ~again, strict=True):
                uses[present.tobytes()].append(("composed", k))
                for name, gone in requests.items():
                    left = present & ~np.isin(rows, gone)
                    uses[left.tobytes()].append((f"retrained/{name}", k))
                    if (left == present).all():
                        uses[left.tobytes()].append((f"dropped/{name}", k))
            uses.pop(bytes(size), None)  # nothing trains on no image
            present = np.stack([np.frombuffer(key, bool) for key in uses])
            for used, solved in zip(uses.values(), pool.solve(start, present, certificate, rows), strict=True):
                for use in used:
                    sums.add(use, solved.dw)
        ways = ["composed", *(f"{way}/{name}" for way in ("dropped", "retrained") for name in requests)]
        return {way: np.stack([self.of_mean(sums.mean((way, k))) for k in models]) for way in ways}

    def of_mean(self, dw: Tree | None) -> np.ndarray:
        """The signals of a composed model, "n", NaN without one."""
        if dw is None:
            return np.full(len(self.pool), np.nan)
        return self.pool.signals([dataclasses.replace(self.base, dw=dw)])[0]

    def certified(self, request: str, attacked: int, certificates: tuple[float, ...]) -> Signals:
        """The signals after an exact removal minus those of the optimum that never saw the images, by certificate.

        This is the view of an attacker who knows all other images, and solves for their optimum to a tenth of the
        finest certificate. The removal continues from one certificate to the next.
        """
        pool = self.pool
        member = self.member[:attacked]
        left = without(member, self.requests[request])
        never = pool.signals(pool.solve(self.unseen(request), left, min(certificates) / 10))
        models = [*pool.solve(at_zero(self.base), member)]
        gaps = {}
        for certificate in sorted(certificates, reverse=True):
            models = [*pool.solve(models, left, certificate)]
            gaps[f"{certificate:g}"] = pool.signals(models) - never
        return gaps


class Sums:
    """Sums of dw by their use, with the number of terms."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, int], tuple[Tree, int]] = {}

    def add(self, use: tuple[str, int], dw: Tree) -> None:
        """Adds dw."""
        total, count = self.sums.get(use, (None, 0))
        self.sums[use] = dw if total is None else trees.plus(total, dw), count + 1

    def mean(self, use: tuple[str, int]) -> Tree | None:
        """The mean, or None without terms."""
        total, count = self.sums.get(use, (None, 0))
        return None if total is None else trees.scale(1 / count, total)


def without(member: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Membership "... n" without the rows."""
    left = member.copy()
    left[..., rows] = False
    return left


REFERENCES = {
    "subtracted": ("never", "nothing"),
    "exact": ("never", "nothing"),
    "dropped": ("retrained", "composed"),
    "retrained": ("retrained", "composed"),
}
"""The ways of removal, each with its models that never saw the images, and those before; retraining is its own."""


def relative(signals: Signals, member: np.ndarray, asked: dict[str, np.ndarray]) -> dict[str, dict]:
    """{way: {request: the relative three-sample test}} on the removed members of the attacked models."""
    tests: dict[str, dict] = {way: {} for way in REFERENCES}
    for way, (never, before) in REFERENCES.items():
        for request, rows in asked.items():
            after, without = (signals[f"{name}/{request}"][:, rows] for name in (way, never))
            pairs = np.isfinite(after) & np.isfinite(without) & member[: len(after), rows]
            images = np.broadcast_to(rows, pairs.shape)[pairs]
            if len(np.unique(images)) > 2:
                untouched = signals[before][: len(after), rows]
                test = relative_test(after[pairs], without[pairs], untouched[pairs], images)
                tests[way][request] = test._asdict()
    return tests

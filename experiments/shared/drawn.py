"""Pictures of results of the library's commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles

NAMES = {"greedy": "greedy soup", "exact": "exact (tangent features)", "ranpac": "RanPAC (random features)"}
NAMES |= {"lda": "LDA (frozen features)", "ridge": "ridge (frozen features)"}


def composed(path: Path, dataset: str, result: Mapping[str, Any]) -> None:
    """Plots each way's accuracy by the number of composed models (one of all data: 1), of a result of `compose`.

    Nothing is drawn of a single number.
    """
    table = result["shards"]
    full = result["full"]
    rows = {"1": full, **table} if full else table
    if len(rows) == 1:
        return
    names = [name for name in next(iter(table.values())) if not name.endswith("_single")]
    counts = [int(count) for count in rows]
    lines = {NAMES.get(name, name): [row.get(name, np.nan) for row in rows.values()] for name in names}
    panel = {"x": counts, "lines": lines, "xlabel": "models added, each of its own shard (1: one model of all data)"}
    title = titles.composed(dataset, counts[-1], table[f"{counts[-1]}"], full) if full else f"{dataset}: models added"
    plots.curves(path, [{**panel, "ylabel": "test accuracy", "ticks": counts}], title)


def audited(path: Path, audit: tj.audit.Audit, claimed: tj.privacy.Mechanism, bounds: dict[str, Any]) -> None:
    """Plots mean and standard deviation of the scores of canaries in and out, beside those of the claimed mechanism."""
    mu = claimed.steps**0.5 / float(claimed.noise_multiplier)
    groups = {}
    for side, is_in, at in (("in the run", True, mu / 2), ("left out", False, -mu / 2)):
        scores = audit.scores[audit.coins == is_in]
        rows = {"measured": (float(scores.mean()), float(scores.std()))}
        if claimed.sampling_rate == 1:
            rows["as claimed"] = (at, 1.0)
        groups[f"canaries {side}"] = rows
    proofs = bounds["epsilon_lower"], bounds["gaussian_epsilon_lower"]
    title = titles.proved(f"One run with {bounds['canaries']} canaries", *proofs, claimed.compute_epsilon())
    plots.dots(path, groups, title, "score: mean and standard deviation")

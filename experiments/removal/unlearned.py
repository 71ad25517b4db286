"""Membership inference attacks on models after each way of removal, example by example.

Every model trains on a random half of all images, so membership is a coin flip. Each request is removed from the first
--attacked models in each way (experiments/shared/removals.py). An attack scores every pair of such a model and an image
of the request: removed members against images that were never in, with all other models as shadows. "U-" marks attacks
whose shadows had the same removal (Hayes et al. 2024). "stay": images that were not requested, after the removal of the
vulnerable ones.

The last line of stdout: {"ways": {WAY: {REQUEST: {"auc", "tpr_0.1%", "tpr_1%"}}}} of U-LiRA online. result.json has
every attack with 95 % intervals (`attacks`), the `pairs` of each request, [members, others], `certified`: the success
of an attacker who knows all other images, after an exact removal, by its certificate, and `relative`: whether signals
on removed members are nearer to those of a model that never saw them or of the one before.
"""

import dataclasses
import time

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.parts import saved
from experiments.shared.pool import Pooled, coins, read_pool, requests, vulnerable
from experiments.shared.removals import WAYS, Removals, Signals, relative
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Compute, Model, Results
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.io.progress import progress_bar
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Pooled, Model, Compute, Results):
    """The flags."""

    attacked: int = 24
    blocks: int = Recipe.blocks
    certificate: float = 0.1
    certificates: tuple[str, ...] = ("1", "0.3", "0.1", "0.03")
    known: int = 8
    out: str = "out/unlearned"
    output: str = "tangent"
    passes: int = 200
    penalty: float = 0.1
    removed: float = 100.0
    shadows: int = 64
    shards: int = 50


MAIN = "U-LiRA online"
MOST = 0.1  # the largest false-positive rate in the picture
KNOWN = ("random", "canaries")
"""The requests for --certificates."""


def requested(config: Config) -> int:
    """The number of images in each request: random, most vulnerable, and wrongly labelled ones."""
    if config.removed < 10:
        raise InputError(f"--removed must be 10 images at least; got {config.removed:g}")
    return round(config.removed)


def main(config: Config) -> None:
    began = time.perf_counter()
    certificates = tuple(config.positive("certificates"))
    if config.shadows < max(6, config.attacked, config.known):
        raise InputError(
            f"--shadows must be at least 6, --attacked={config.attacked} and --known={config.known}; got "
            f"{config.shadows}"
        )
    recipe = setup.recipe(config, solver="optimum")
    dataset = setup.open_dataset(config.dataset)
    count = sum(map(len, dataset.splits.values()))
    if config.shards > count:
        raise InputError(f"--shards must be at most {count}, the number of images; got {config.shards}")
    asked_for = requested(config)
    pool = read_pool(config, recipe, asked_for)
    asked = requests(config, pool, dataset.classes, asked_for)
    folder = command.out_folder(config) / "parts"
    with tj.show_progress("the optimum of half weights"):
        base = pool.first(np.full(len(pool), 0.5))
    key = identity(setup.run_key(config, config.dataset, config), recipe, pool.data.targets, config.at_once)
    most = saved(folder, identity(key, asked_for), "the most vulnerable", vulnerable, pool, base, asked_for)
    asked = {"random": asked["random"], **most, **asked}
    member = coins(config.seed, config.shadows, len(pool))
    key = identity(key, config.shards, member, asked)
    removals = Removals(pool, base, member, asked, config.attacked, config.shards, folder, key)
    signals = removals.run()
    gaps = {
        name: removals.part(f"certified {name}", removals.certified, name, config.known, certificates) for name in KNOWN
    }
    attacks, curves = exposures(config, signals, member, asked)
    certified = {
        name: {c: ranking(values, member, asked[name]).points() for c, values in by_certificate.items()}
        for name, by_certificate in gaps.items()
    }
    draw(config, attacks, curves, dataset.name)
    tests = relative(signals, member, asked)
    ways = {w: {r: {p: v[0] for p, v in row[MAIN].items()} for r, row in rows.items()} for w, rows in attacks.items()}
    sizes = {name: len(rows) for name, rows in asked.items()}
    of_members = {name: int(member[: config.attacked, rows].sum()) for name, rows in asked.items()}
    pairs = {name: [count, config.attacked * sizes[name] - count] for name, count in of_members.items()}
    command.finish(
        config,
        {"ways": ways},
        images=len(pool),
        requested=sizes,
        shadows=config.shadows,
        attacked=config.attacked,
        pairs=pairs,
        attacks=attacks,
        certified=certified,
        relative=tests,
        seconds=time.perf_counter() - began,
    )


def exposures(config: Config, signals: Signals, member: np.ndarray, asked: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """({way: {request: {attack: points}}}, {request: {way: curve of MAIN}}), for the ways that keep a model."""
    n = member.shape[1]
    rest = np.setdiff1d(np.arange(n), np.concatenate([*asked.values()]))
    stay = np.random.default_rng([config.seed, 15]).choice(rest, min(len(rest), 4 * requested(config)), replace=False)
    judged = {name: (name, rows) for name, rows in asked.items()} | {"stay": ("vulnerable", stay)}
    attacks: dict[str, dict] = {way: {} for way in WAYS}
    curves: dict[str, dict] = {name: {} for name in judged}
    with tj.show_progress("attacks"), progress_bar(len(WAYS) * len(judged), "group") as bar:
        for way in WAYS:
            untouched = signals["nothing" if way in WAYS[:4] else "composed"]
            scored: dict[str, dict] = {}
            for name, (request, rows) in judged.items():
                after = signals.get(way, signals.get(f"{way}/{request}"))
                assert after is not None
                if np.isfinite(after[: config.attacked, 0]).sum() > 4:  # each has four others as shadows
                    at = "" if way in signals else request
                    if at not in scored:
                        scored[at] = scores(after[: config.attacked], untouched, member)
                    ranked = {attack: ranking(values, member, rows) for attack, values in scored[at].items()}
                    attacks[way][name] = {attack: pairs.points() for attack, pairs in ranked.items()}
                    curves[name][way] = ranked[MAIN].curve()
                bar.update()
    return attacks, curves


def scores(after: np.ndarray, untouched: np.ndarray, member: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of each attack, "k n", from the models' signals after a removal; NaN where a model has none.

    Args:
        untouched: Signals before any removal, of these and more models; "U-" attacks use those of `after` instead.
    """
    result = {"confidence": after}
    for prefix, shadows in (("", untouched), ("U-", after)):
        for name, attack in tj.audit.ATTACKS.items():
            result[prefix + name] = np.full(after.shape, np.nan)
            for k in np.flatnonzero(np.isfinite(after[:, 0])):
                others = np.isfinite(shadows[:, 0]) & (np.arange(len(shadows)) != k)
                result[prefix + name][k] = attack(after[k], shadows[others], member[: len(shadows)][others])
    return result


def ranking(values: np.ndarray, member: np.ndarray, rows: np.ndarray) -> tj.audit.Ranking:
    """The pairs of one of the first models and an image at `rows`, by scores "k n"; NaN is no pair."""
    pairs = values[:, rows]
    is_member = member[: len(values), rows]
    scored = np.isfinite(pairs)
    return tj.audit.Ranking(pairs[scored], is_member[scored], np.broadcast_to(rows, pairs.shape)[scored])


def draw(config: Config, attacks: dict, curves: dict, name: str) -> None:
    """Plots the curves of MAIN by request, on log axes, and its AUC by way."""
    x = np.geomspace(1e-3, MOST, 200)
    folder = command.out_folder(config)
    axes = {"x": x, "ylabel": "true positives", "log": "xy", "dashed": ["chance"]}
    panels = []
    for request, ways in curves.items():
        lines = {way: true[np.searchsorted(false, x, "right") - 1] for way, (false, true) in ways.items()}
        lines = {way: np.where(line > 0, line, np.nan) for way, line in lines.items()}
        panels.append({**axes, "lines": {**lines, "chance": x}, "xlabel": "false positives", "title": request})
    for file, some in (("images", panels[:3]), ("sets", panels[3:])):
        plots.curves(folder / f"roc_{file}.png", some, f"{MAIN} on {name}: the rate of removed images that it finds")
    for file, ways in (("one_model", WAYS[:4]), ("shards", WAYS[4:])):
        points = {way: {r: row[MAIN]["auc"] for r, row in attacks[way].items()} for way in ways if attacks[way]}
        both = [request for request in curves if all(request in row for row in points.values())]
        groups = {r: {w: (row[r][0], (row[r][2] - row[r][1]) / 2) for w, row in points.items()} for r in both}
        label = f"AUC of {MAIN}, with its 95 % interval"
        plots.dots(folder / f"auc_{file}.png", groups, titles.seen(name, groups), label, (0.5, "chance"))


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)

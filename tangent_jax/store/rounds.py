"""Rounds: components train apart at one anchor, are merged, and the merge moves the anchor.

    FOLDER/round 01, round 02, ...    one store for each round: its components, their composition, receipts

The provenance of a component lists the moves of its anchor (moves.py), and so all images that it depends on. Images
also live on in later anchors, so `remove_rounds` repeats the rounds from the first one that saw them.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tangent_jax.core import Tree, require
from tangent_jax.core.boundary import public
from tangent_jax.core.files import expand_path
from tangent_jax.data.registry import open_dataset
from tangent_jax.models.features import Cache, Features
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.rounds import Round, fit_rounds
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.disk import is_store
from tangent_jax.store.merge import WEIGHTED
from tangent_jax.store.moves import Move, total_of
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import anchor_of
from tangent_jax.store.receipts import Receipt
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import read_remaining
from tangent_jax.store.store import Store


@public
def fill_rounds(
    folder: str | os.PathLike,
    shards: Shards,
    rounds: int = 8,
    *,
    merge: str = "inputs",
    penalty: float | None = None,
    owners: Mapping[str, str] | None = None,
    on_round: Callable[[Round], object] | None = None,
) -> list[Round]:
    """Trains rounds of components, one component of each shard, into stores below a folder; completed ones stay.

    Args:       shards: with a predictor at the recipe's anchor before its moves (`recipe.first_predictor`): a tangent
                with output total, or a non-linear one, whose rounds merged by mean are federated averaging; merge,
                penalty: as `tj.merge`; None: the recipe's penalty, with which square losses merge to joint training;
                owners: as `fill`; on_round: called after each round.
    Returns:    the rounds, as `tj.solver.fit_rounds`.
    Guarantees: a killed call resumes with the same bits; a round of one shard is `recipe.fit` itself.
    Raises:     InputError for a named head, whose components have different classes, and as `fill`, `fit_rounds`.

    >>> shards = tj.store.Shards(demo.predict, demo.train, tj.Recipe(solver="optimum", penalty=0.1), demo.halves)
    >>> rounds = tj.store.fill_rounds(demo.folder(), shards, 2)
    >>> rounds[1].loss < rounds[0].loss
    True
    """
    predict, recipe, do = shards.predict, shards.recipe, "Take head=drawn"
    require(not recipe.is_by_class, "fill_rounds", "one head for all shards", "a named head, or statistics", do)
    require(jax.process_count() == 1, "fill_rounds", "one process", f"a job of {jax.process_count()}")
    root, merge = expand_path("fill_rounds", folder).absolute(), "mean" if len(shards.rows) == 1 else merge
    if merge not in WEIGHTED:
        penalty = 0.0
    penalty = recipe.penalty if penalty is None else penalty
    done: list[tuple[Store, dict[str, Any], Tree]] = []

    def fit(here: Predictor, before: list[Round]) -> Tree:
        moves = list(recipe.moves)
        for (store, entry, _), past in zip(done, before, strict=True):
            moves.append(move_of(store, entry, past.size, merge, penalty, moves))
        store = Store(root / f"round {len(before) + 1:02}")
        own = dataclasses.replace(shards, predict=here, recipe=dataclasses.replace(recipe, moves=tuple(moves)))
        fill(store, own, merge in WEIGHTED, owners)
        done.append((store, *composition_of(store, merge, penalty)))
        return done[-1][-1]

    start = total_of(predict.zeros(), recipe.moves)
    return fit_rounds(predict, shards.features, recipe.objective(), fit, rounds, start=start, on_round=on_round)


def composition_of(store: Store, how: str, penalty: float) -> tuple[dict[str, Any], Tree]:
    """(entry, dw) of the composition of all components: read if it exists, else made now."""
    settings = {"merge": None if how == "mean" else how, "penalty": penalty if how in WEIGHTED else None}
    for attempt in range(2):
        for line in store.journal.entries[::-1]:
            same = line["op"] == "compose" and line["names"] == [*store] and line["weighted"] is None
            if same and line["id"] in store.state.composed and all(line.get(k) == v for k, v in settings.items()):
                entry = store.state.composed[line["id"]]
                return entry, store.read_checked(store.file("composed", entry), entry)
        require(attempt == 0, "fill_rounds", "a store that nothing else changes", "one that changed", "Try again")
        store.compose(how=how, penalty=penalty)
    raise AssertionError


def move_of(
    store: Store, entry: Mapping[str, Any], size: float, merge: str, penalty: float, before: Sequence[Move],
    public: bool = False,
) -> Move:  # fmt: skip
    """The anchor's move by the composition of a store's components, after the moves `before`."""
    known = {pair for move in before for pair in move.examples}
    seen = dict.fromkeys(pair for name in store for pair in store.provenance(name).examples)
    components = {name: store.state.components[name]["weights"] for name in store}
    new = tuple(pair for pair in seen if pair not in known)
    file = str(store.file("composed", entry).absolute())
    return Move(file, entry["weights"], size, merge, penalty, components, new, public)


@public
def public_move(
    folder: str | os.PathLike, predict: Predictor, features: Features, recipe: Recipe, classes: Sequence[str] = ()
) -> Move:
    """The move of an anchor by a network fine-tuned on public images, which need no removal.

    Args:    folder: of a store that keeps it; predict, recipe: non-linear, as `fill` takes them; features: of the
             public images. `dataclasses.replace(recipe, moves=(move,))` makes components at the moved anchor.

    >>> tuned, recipe = tj.nonlinear(demo.model), tj.Recipe(method="nlft", epochs=5)
    >>> tj.store.public_move(demo.folder() / "public", tuned, demo.test, recipe).public
    True
    """
    store = Store(folder)
    fill(store, Shards(predict, features, recipe, {"public": np.arange(len(features))}, classes))
    return move_of(store, composition_of(store, "mean", 0.0)[0], 1.0, "mean", 0.0, (), public=True)


@public
def round_stores(folder: str | os.PathLike) -> list[Store]:
    """The stores of the rounds below a folder, in order; none if it holds no rounds.

    >>> tj.store.round_stores(demo.folder())
    []
    """
    root = expand_path("round_stores", folder).absolute()
    return [Store(path) for path in sorted(root.glob("round [0-9][0-9]*")) if is_store(path)]


@public
def remove_rounds(
    folder: str | os.PathLike,
    *,
    examples: Iterable[str] = (),
    owner: str | None = None,
    owners: Mapping[str, str] | None = None,
    how: str = "retrain",
    cache: Cache | None = None,
    weights: str | None = None,
) -> list[Receipt]:
    """Removes images, or all data of an owner, from rounds of components, and repeats the rounds without them.

    Rounds whose anchors the images moved lose all components, the last round first. In the first round that saw the
    images, the affected components are removed and retrained in one commit; then the later rounds are trained again.
    Args:       examples, owner, owners: as `plan_removal`; how, cache, weights: as `remove`, for that first round. With
                "exact" its solves start at the removed components, and the receipt has their certificates.
    Returns:    the receipts, one for each store that held the images.
    Guarantees: no remaining component or anchor saw the images: by "retrain" they enter nothing, by "exact" only the
                points where the solves of one round start. A killed call, or one with nothing to remove, completes the
                rounds that an earlier call took out.
    Raises:     InputError if rounds are missing, and as `plan_removal` and `remove`.

    >>> recipe = tj.Recipe(solver="optimum", penalty=0.1)
    >>> shards, folder = tj.store.Shards(demo.predict, demo.train, recipe, {"all": np.arange(24)}), demo.folder()
    >>> _ = tj.store.fill_rounds(folder, shards, 1)
    >>> [[*receipt.removed] for receipt in tj.store.remove_rounds(folder, examples=["0-13"], how="drop")]
    [['all']]
    """
    stores, asked = round_stores(folder), tuple(examples)
    require(stores, "remove_rounds", "a folder of rounds", f"{folder}, which holds none")
    plans = [plan_removal(store, examples=asked, owner=owner, owners=owners) for store in stores]
    holding = [i for i, plan in enumerate(plans) if plan.components]
    if holding:
        plans[holding[0]].check_possible(how)
    receipts = [remove(stores[i], plans[i], cache=cache, weights=weights) for i in reversed(holding[1:])]
    receipts += [remove(stores[i], plans[i], how, cache=cache, weights=weights) for i in holding[:1]]
    repeat(Path(stores[0].root.parent), stores, cache, weights)
    return receipts


def repeat(root: Path, stores: Sequence[Store], cache: Cache | None, weights: str | None) -> list[Round]:
    """Trains the missing rounds of a folder, with the settings of the first round."""
    first, names = stores[0], [*stores[0]]
    if not names:
        return []  # no examples remain
    origins = {name: first.provenance(name) for name in names}
    origin = origins[names[0]]
    recipe = origin.recipe
    require(recipe is not None, "remove_rounds", f"a recipe of {names[0]}", "none", "Train the rounds again")
    assert recipe is not None
    anchor = anchor_of("remove_rounds", origin, weights)
    predict = recipe.first_predictor(origin.classes or origin.config["classes"], anchor)
    wanted, dataset = (
        [pair for name in names for pair in origins[name].examples],
        open_dataset(origin.dataset("remove")),
    )
    removed = set().union(*(store.state.forgotten for store in stores))
    features = read_remaining(origin, predict, wanted, first.root.name, dataset, cache, removed)
    at, shards = 0, {}
    for name in names:
        shards[name] = np.arange(at, at + len(origins[name].examples))
        at += len(shards[name])
    lines = [line for line in first.journal.entries if line["op"] == "compose"]
    how = {"merge": lines[-1].get("merge", "mean"), "penalty": lines[-1].get("penalty")} if lines else {}
    owners = {image: owner for each in origins.values() for image, owner in each.owners.items()}
    whole = Shards(predict, features, recipe, shards, origin.classes)
    return fill_rounds(root, whole, len(stores), **how, owners=owners)

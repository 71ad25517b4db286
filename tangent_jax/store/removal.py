"""Machine unlearning (removal): a plan lists what a removal deletes and costs; `remove` carries it out.

    plan = plan_removal(store, examples=...)     or names=..., or owner=...
    receipt = remove(store, plan, how="drop")    or "retrain", or "exact"

It is four steps, whose values are passed on:

    retrain_all   train replacements from the remaining data; with `sum_without` under the shared lock
    write         under the exclusive lock, if the plan still fits: their files
    erase         cached rows of the images, in the cache that the caller names
    commit        the receipt of all this, and the line that removes the components; then their files go

So a plan that no longer fits erases nothing. A kill leaves the store as before or as after; the same plan, repeated,
then does the whole of it, and its receipt lists what that call erased: cached rows that a killed call erased are gone
already, and computed again where a run needs them.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from tangent_jax.composition.compose import sum_components
from tangent_jax.composition.kinds import check_component
from tangent_jax.composition.origin import check_one_body
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache
from tangent_jax.io.files import fingerprint, write_whole
from tangent_jax.store import erasure
from tangent_jax.store.accounts import accounts_shown
from tangent_jax.store.factors import check_factors
from tangent_jax.store.lines import Entry, Remove, timestamp
from tangent_jax.store.plans import RemovalPlan, contents
from tangent_jax.store.receipts import Receipt, Traces, receipt_text, survivors_of
from tangent_jax.store.retraining import Retrained, receipt_fields, retrain
from tangent_jax.store.store import Store


def remove(
    store: Store, plan: RemovalPlan, how: str = "drop", *, cache: Cache | None = None, weights: str | None = None
) -> Receipt:
    """Carries out a plan: removes the affected components from the store, and erases the images from a cache.

    Args:
        how: "drop" removes only; "retrain" then trains each component again by its recipe on the remaining rows;
            "exact" moves each to the optimum of its remaining examples, with Lambda unchanged.
        cache: Where features are read and kept for training, and rows of removed images are erased (None: `Cache()`);
            other folders are listed as not reached.
        weights: The present path of the network's weights.

    Returns:
        The Receipt, a file in the store.

    Guarantees:
        The new sum is bitwise that of a store with the survivors and the retrained components alone. Removed content
        enters nothing, except, by "exact", the point where a solve starts. It cannot come back. A kill leaves the store
        as before or as after.

    Raises:
        InputError: An impossible way, an empty plan, or a store that changed since the plan: then nothing is erased.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, examples=["0-13"]))
    >>> [*store], tj.store.verify_receipt(store, receipt.path)
    (['ann'], [])
    """
    if not plan.identifiers and not plan.components:
        raise InputError("plan must name something that the store holds; it names nothing")
    retrained = retrain_all(store, plan, how, cache=cache, weights=weights)
    summed = sum_without(store, plan, retrained)
    with store.using(change=True):
        check_fits(store, plan)
        added = write(store, retrained)
        traces = erase(store, plan, cache or Cache())
        return commit(store, plan, how, retrained, added, summed, traces)


def retrain_all(
    store: Store, plan: RemovalPlan, how: str, *, cache: Cache | None = None, weights: str | None = None
) -> dict[str, Retrained]:
    """The components that `remove` puts back, by name, trained without changing the store; none for how="drop".

    Raises:
        InputError: As `remove`.
    """
    with store.using():
        check_fits(store, plan)
    plan.check_possible(how)
    data, held = functools.cache(open_dataset), {} if how == "drop" else plan.components
    return {
        name: retrain(store, name, {*plan.identifiers}, data, how == "exact", cache, weights)
        for name, holding in held.items()
        if holding.left
    }


def sum_without(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained]) -> str | None:
    """The fingerprint of the composition of the survivors and the retrained components, None if there are none.

    Raises:
        InputError: A plan that no longer fits, and a retrained component that does not fit the store, or still depends
            on removed content.
    """
    with store.using():
        check_fits(store, plan)
        check_retrained(store, plan, retrained)
        names = [name for name in store if name not in plan.components] + [*retrained]
        if not names:
            return None
        new = {name: jax.tree.map(np.asarray, component.dw) for name, component in retrained.items()}
        origins = {name: retrained[name].provenance if name in new else store.provenance(name) for name in names}
        summed = sum_components(names, lambda name: new[name] if name in new else store.read_tree(name), origins)
        return trees.fingerprint(summed)


def write(store: Store, retrained: Mapping[str, Retrained]) -> dict[str, Entry]:
    """Writes the retrained components; no line of the journal names their files yet."""
    added = {}
    for name, new in retrained.items():
        entry = store.write("components", new.dw, new.provenance)
        added[name] = dataclasses.replace(entry, factors=store.write_factors(new.factors))
    return added


def erase(store: Store, plan: RemovalPlan, cache: Cache, only_look: bool = False) -> Traces:
    """Erases cached rows at once; says which files of the store `commit` deletes, and what a removal does not reach.

    With only_look nothing is erased.
    """
    files = erasure.files_of(store, [*plan.components])
    beyond = outside(store, plan, cache, only_look)
    return beyond._replace(deleted=files + beyond.deleted)


def commit(
    store: Store, plan: RemovalPlan, how: str, retrained: Mapping[str, Retrained], added: dict[str, Entry],
    summed: str | None, traces: Traces,
) -> Receipt:  # fmt: skip
    """Writes the receipt, and commits the line of the journal that removes the components: then their files go.

    Args:
        added: The files of the retrained components.
        summed: The fingerprint of the composition of all that stay.
    """
    state, key = store.state, store.key
    before = {name: store.provenance(name) for name in plan.components}
    removed = {name: state.components[name] for name in before}
    now = {name: entry for name, entry in state.components.items() if name not in removed} | added
    composed = state.composed.get(tuple(store))
    receipt = Receipt(
        removed={name: key.hide(entry.weights) for name, entry in removed.items()},
        retrained={name: key.hide(entry.weights) for name, entry in added.items()},
        survivors=survivors_of({name: entry.weights for name, entry in now.items()}, key),
        composed_before=None if composed is None else key.hide(composed),
        composed_after=summed,
        asked=key.hide_all(map(normal_name, plan.asked)),
        owner=None if plan.owner is None else key.hide(plan.owner),
        unseen=key.hide_all(plan.unseen),
        deleted=traces.deleted,
        not_reached=traces.not_reached,
        anchors=plan.anchors,
        **receipt_fields(how, retrained),
        store=store.identity,
        journal=store.journal.last(),
        time=timestamp(),
    )
    content = receipt_text(receipt)
    digest = fingerprint(content.encode())
    path = store.root / "receipts" / f"{digest[:16]}.json"
    write_whole(path, content)
    line = Remove(
        removed=tuple(sorted(removed)),
        added=added,
        names=tuple(sorted(now)),
        composed=summed,
        receipt=path.stem,
        receipt_hash=digest,
        forgotten=key.hide_all(plan.identifiers),
        released=accounts_shown(before, state, key),
    )
    store.commit(line)
    return dataclasses.replace(receipt, path=path)


def preview_removal(store: Store, plan: RemovalPlan, cache: Cache | None = None) -> Traces:
    """The Traces of `remove`: each file and row that it would delete, and each known place that it would not reach.

    Changes nothing.

    Args:
        cache: As `remove`.

    Raises:
        InputError: A plan of another store, or of other components than it holds now.

    >>> store = demo.store()
    >>> len(tj.store.preview_removal(store, tj.store.plan_removal(store, names=["bob"])).deleted)
    1
    """
    with store.using():
        check_fits(store, plan)
        return erase(store, plan, cache or Cache(), only_look=True)


def erase_cached(store: Store, plan: RemovalPlan, cache: Cache | None = None) -> Traces:
    """Erases the cached rows of a plan's images, and of all images that were removed before; `remove` does it, too.

    After a removal it erases rows that another run has computed since, or in another cache.

    Args:
        cache: As `remove`.

    Returns:
        The Traces of what was deleted, and of what was not reached.

    Raises:
        InputError: A plan of another store, or of other components than it holds now: nothing is erased then.

    >>> store = demo.store()
    >>> tj.store.erase_cached(store, tj.store.plan_removal(store, names=["bob"])).deleted
    ()
    """
    with store.using():
        check_fits(store, plan)
        return outside(store, plan, cache or Cache())


def outside(store: Store, plan: RemovalPlan, cache: Cache, only_look: bool = False) -> Traces:
    """The rows in a cache of a plan's images, and of those removed before, and all that a removal does not reach.

    The rows are erased; with only_look they are listed alone.
    """
    gone = {*plan.identifiers}
    origins = store.origins.values()
    names = {name for origin in origins for i, name in origin.data.seen + origin.anchor_images if i in gone}

    def is_removed(identifier: str) -> bool:
        return identifier in gone or store.has_forgotten(identifier)

    unreached = erasure.unreached(store, [*plan.components], plan.unseen, cache.path)
    cached = erasure.erase_cached(cache.path, is_removed, names, only_look)
    return cached._replace(not_reached=cached.not_reached + unreached)


def check_fits(store: Store, plan: RemovalPlan) -> None:
    """Raises InputError for a plan of another store, or of other components than it holds now."""
    if (plan.store, plan.contents) != (store.identity, contents(store)):
        raise InputError(
            f"plan must be of {store.root} as it is now; got one of another store, or an older one. Plan again"
        )


def check_retrained(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained]) -> None:
    """Raises InputError for a component that does not fit the store, or still depends on removed content."""
    for name, new in retrained.items():
        check_one_body(store.provenance(name), new.provenance)
        check_component(new.dw, new.provenance, is_new=False)
        check_factors(new.dw, new.factors, new.provenance)
        left = {*plan.identifiers} & new.provenance.data.identifiers
        if left:
            raise InputError(f"{name} must be retrained without what is removed; it saw {min(left)}")
        store.check_forgotten(new.provenance)

"""Machine unlearning (removal): a plan lists what a removal deletes and costs; `remove` carries it out.

    plan = plan_removal(store, examples=...)     or names=..., or owner=...
    receipt = remove(store, plan, how="drop")    or "retrain", or "exact"

The order: train and check replacements, and sum them with the survivors, under the shared lock; then, under the
exclusive one,

    intend   check that the plan fits the store, and append a journal line that names all traces outside the store
    erase    write new files, erase these traces, and note each in the journal
    commit   append the line that removes the components, with a receipt of all that was erased

So a plan that no longer fits erases nothing, and nothing is erased that no line names. A kill leaves the store as
before or as after; the same plan then completes the rest, and its receipt lists what the killed call erased too. The
receipt of another removal does not: until the same one is repeated, its intent stays open.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from tangent_jax.composition.component import View
from tangent_jax.composition.kinds import composition, kind_of
from tangent_jax.composition.origin import check_one_body
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name
from tangent_jax.core.notation import Tree
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache
from tangent_jax.io import machine
from tangent_jax.io.files import expand_path, fingerprint, write_whole
from tangent_jax.store import erasure
from tangent_jax.store.lines import Entry, Erase, Erased, Intend, Remove, removal_text, timestamp
from tangent_jax.store.plans import RemovalPlan, contents
from tangent_jax.store.receipts import Receipt, Traces, receipt_text, survivors_of
from tangent_jax.store.retraining import Retrained, retrain, said_of
from tangent_jax.store.store import Store

STOPPED = "by an earlier call, which was stopped"
UNKNOWN = "not found now; an earlier call, which was stopped, may have erased it"


def remove(
    store: Store, plan: RemovalPlan, how: str = "drop", *, cache: Cache | None = None, weights: str | None = None
) -> Receipt:
    """Carries out a plan: removes the affected components from the store, and erases all their traces.

    Args:       how: "drop" removes only; "retrain" then trains each component again by its recipe on the remaining
                rows; "exact" moves each to the optimum of its remaining examples, with Lambda unchanged. cache: where
                features are read and kept for training (None: `Cache()`); it and all folders that the provenance names
                are searched for traces; weights: the present path of the network's weights.
    Returns:    the Receipt, a file in the store.
    Guarantees: the new sum is bitwise that of a store with the survivors and the retrained components alone. Removed
                content enters nothing, except, by "exact", the point where a solve starts. It cannot come back. A kill
                leaves the store as before or as after.
    Raises:     InputError for an impossible way, an empty plan, or a store that changed since the plan: then nothing is
                erased.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, examples=["0-13"]))
    >>> [*store], store.verify_receipt(receipt.path)
    (['ann'], [])
    """
    if not plan.identifiers and not plan.components:
        raise InputError("plan must name something that the store holds; it names nothing")
    retrained = rehearse(store, plan, how, cache=cache, weights=weights)
    with store.using():
        check_fits(store, plan)
        check_retrained(store, plan, retrained)
        composed = sum_without(store, plan, retrained)
    elsewhere = Traces(erasure.files_of(store, [*plan.components]), erasure.others(store, {*plan.identifiers}))
    return commit(store, plan, how, retrained, composed, elsewhere, cache)


def rehearse(
    store: Store, plan: RemovalPlan, how: str, *, cache: Cache | None = None, weights: str | None = None
) -> dict[str, Retrained]:
    """Trains the components that `remove` would put back, without changing the store.

    Args:    as `remove`.
    Returns: by name, each component with remaining examples; none for how="drop".
    Raises:  InputError as `remove`.

    >>> store = demo.store()
    >>> tj.store.rehearse(store, tj.store.plan_removal(store, names=["bob"]), "drop")
    {}
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


def preview_removal(store: Store, plan: RemovalPlan, cache: Cache | None = None) -> Traces:
    """The Traces of `remove`: a line for each file that it would delete, and for each copy that it would not reach.

    Changes nothing.
    Args:    cache: as `remove`.
    Raises:  InputError for a plan of another store, or of other components than it holds now.

    >>> store = demo.store()
    >>> len(tj.store.preview_removal(store, tj.store.plan_removal(store, names=["bob"])).deleted)
    1
    """
    names, identifiers = [*plan.components], {*plan.identifiers}
    elsewhere = erasure.others(store, identifiers)
    with store.using():
        check_fits(store, plan)
        traces = erasure.find_traces(store, names, identifiers, folders_of(cache), plan.unseen, plan.removed.values())
        files = erasure.files_of(store, names)
    left = [trace.line for trace in traces if trace.erase is None]
    deleted = files + [trace.line for trace in traces if trace.erase is not None]
    return Traces([*dict.fromkeys(deleted)], [*dict.fromkeys(left + elsewhere)])


def erase_traces(store: Store, plan: RemovalPlan, cache: Cache | None = None) -> Traces:
    """Erases the data of a plan's images outside the store, and again that of all images removed before.

    `remove` does it. After a removal it erases rows that another run has computed since.
    Args:    cache: as `remove`.
    Returns: the Traces: what was deleted, and what was not reached.
    Raises:  InputError for a plan of another store, or of other components than it holds now: nothing is erased then.

    >>> store = demo.store()
    >>> tj.store.erase_traces(store, tj.store.plan_removal(store, examples=["nobody"])).deleted
    []
    """
    elsewhere = erasure.others(store, {*plan.identifiers})
    with store.using(change=True):
        check_fits(store, plan)
        traces = erasure.erase_found(intend(store, plan, cache, Erase))
    return traces._replace(not_reached=traces.not_reached + elsewhere)


def intend(store: Store, plan: RemovalPlan, cache: Cache | None, kind: type[Intend]) -> Sequence[erasure.Trace]:
    """The traces of a plan; the journal names those that can be erased when this returns.

    For a caller that has held the plan against the store under the exclusive lock; before it writes any file, as the
    commit deletes those that no line names.
    """
    names, identifiers, before = [*plan.components], {*plan.identifiers}, plan.removed.values()
    found = erasure.find_traces(store, names, identifiers, folders_of(cache), plan.unseen, before)
    erases = tuple(dict.fromkeys(trace.line for trace in found if trace.erase is not None))
    if erases:
        store.commit(
            kind(
                removed=tuple(sorted(plan.components)),
                erases=erases,
                forgotten=store.ring.own.hide_all(plan.identifiers),
            )
        )
    return found


def stopped_before(intended: Sequence[Intend], found: Sequence[erasure.Trace], erased: set[str]) -> Traces:
    """The traces that earlier calls of a removal, which were stopped, were to erase, and that are not found now.

    `erased`: those that the journal notes as erased. Others may still be there: their folder may have another name, or
    this call searches other caches.
    """
    present = {trace.line for trace in found}
    missing = dict.fromkeys(trace for line in intended for trace in line.erases if trace not in present)
    return Traces(
        [f"{trace} ({STOPPED})" for trace in missing if trace in erased],
        [f"{trace} ({UNKNOWN})" for trace in missing if trace not in erased],
    )


def folders_of(cache: Cache | None) -> Sequence[Path]:
    """The folders in which a removal searches: that of a cache that a caller gives, and the others that it names."""
    if cache is None:
        return []
    return [*dict.fromkeys([cache.path, *(expand_path(folder).absolute() for folder in cache.also)])]


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
        kind_of([new.provenance]).check(new.dw, new.provenance)
        left = {*plan.identifiers} & new.provenance.identifiers
        if left:
            raise InputError(f"{name} must be retrained without what is removed; it saw {min(left)}")
        store.check_forgotten(new.provenance)


def sum_without(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained]) -> Tree | None:
    """The composition of the survivors and the retrained components, None if there are none; nothing is written."""
    names = [name for name in store if name not in plan.components] + [*retrained]
    if not names:
        return None
    new = {name: jax.tree.map(np.asarray, component.dw) for name, component in retrained.items()}
    components = View(names, lambda name: new[name] if name in new else store.read_tree(name))
    origins = {name: retrained[name].provenance if name in new else store.provenance(name) for name in names}
    return composition(components, origins)


def commit(
    store: Store,
    plan: RemovalPlan,
    how: str,
    retrained: Mapping[str, Retrained],
    summed: Tree | None,
    elsewhere: Traces,
    cache: Cache | None,
) -> Receipt:
    """Removes a plan's components, adds the retrained ones and their sum, erases traces, and writes the receipt.

    summed, elsewhere: the new sum, and lines for the receipt, from before the lock is held: under it nothing is
    summed, and no other store is opened.
    """
    with store.using(change=True):
        check_fits(store, plan)
        key = store.ring.own
        files = erasure.files_of(store, [*plan.components])
        found = intend(store, plan, cache, Intend)
        forgotten = key.hide_all(plan.identifiers)
        sealed = sealed_of(store, plan)
        intended = [line for line in store.state.intended if line.is_part_of(plan.components, forgotten)]
        before = {name: store.provenance(name) for name in plan.components}
        removed = {name: store.state.components[name] for name in before}
        added: dict[str, Entry] = {}
        for name, new in retrained.items():
            entry = store.write("components", new.dw, new.provenance)
            added[name] = dataclasses.replace(entry, factors=store.write_factors(new.factors, new.provenance))
        now = {name: entry for name, entry in store.state.components.items() if name not in removed} | added
        composed = None if summed is None else store.write("composed", summed)
        traces = erasure.erase_found(found, lambda line: store.note(Erased(trace=line)))
        stopped = stopped_before(intended, found, store.state.erased)
        files = [*dict.fromkeys([*elsewhere.deleted, *files, *stopped.deleted])]
        of_all = [c.entry for c in store.state.composed.values() if c.is_plain and c.names == tuple(store)]
        receipt = Receipt(
            removed={name: key.hide(entry.weights) for name, entry in removed.items()},
            retrained={name: key.hide(entry.weights) for name, entry in added.items()},
            survivors=survivors_of({name: entry.weights for name, entry in now.items()}, key),
            composed_before=key.hide(of_all[-1].weights) if of_all else None,
            composed_after=None if composed is None else composed.weights,
            asked=key.hide_all(map(normal_name, plan.asked)),
            owner=None if plan.owner is None else key.hide(plan.owner),
            unseen=key.hide_all(identifier for identifier, _ in plan.unseen),
            deleted=tuple(files + traces.deleted),
            not_reached=tuple(traces.not_reached + stopped.not_reached + elsewhere.not_reached),
            anchors=plan.anchors,
            **said_of(how, retrained),
            store=store.identity,
            journal=store.journal.last(),
            time=timestamp(),
        )
        text_fingerprint = fingerprint(receipt_text(receipt).encode())
        path = store.root / "receipts" / f"{text_fingerprint[:16]}.json"
        write_whole(path, receipt_text(receipt))
        store.commit(
            Remove(
                removed=tuple(sorted(removed)),
                added=added,
                names=tuple(sorted(now)),
                composed=composed,
                receipt=path.stem,
                receipt_hash=text_fingerprint,
                forgotten=forgotten,
                sealed=None if sealed == forgotten else sealed,
                seal=machine.seal(removal_text(store.identity, sealed)),
                released=store.state.accounts_shown(before, key),
            )
        )
    return dataclasses.replace(receipt, path=path)


def sealed_of(store: Store, plan: RemovalPlan) -> tuple[str, ...]:
    """The hidden identifiers of those images of a plan whose traces this machine may erase, now and again."""
    made_here = erasure.own_components(store, plan.components)
    own = {identifier for identifier, _ in erasure.own_images(store, made_here, plan.unseen)}
    return store.ring.own.hide_all(own.intersection(plan.identifiers))

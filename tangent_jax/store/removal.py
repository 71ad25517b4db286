"""Machine unlearning (removal): a plan lists what a removal deletes and costs; `remove` carries it out.

    plan = plan_removal(store, examples=...)     or names=..., or owner=...
    receipt = remove(store, plan, how="drop")    or "retrain", or "exact"

The order: train and check replacements, erase traces outside the store, then append one line to the journal (the
commit). A kill leaves the store as before or as after; the same plan then completes the rest.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tangent_jax.core import expect, one_of, require
from tangent_jax.core.boundary import public, public_class
from tangent_jax.core.files import fingerprint, write_whole
from tangent_jax.data.identifiers import hidden
from tangent_jax.data.owners import Owner
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of
from tangent_jax.models.features import Cache
from tangent_jax.store.erasure import erase_traces, files_of, find_traces
from tangent_jax.store.kinds import composition, kind_of
from tangent_jax.store.moves import anchors_that_saw, images_of
from tangent_jax.store.provenance import Provenance, check_one_body
from tangent_jax.store.receipts import Receipt, Traces, receipt_text
from tangent_jax.store.retraining import Retrained, retrain, said_of
from tangent_jax.store.store import Store
from tangent_jax.store.sums import Mapped

WAYS = ("drop", "retrain", "exact")
"""The ways to treat a component that saw removed examples: see `remove`."""


@dataclasses.dataclass(frozen=True)
class Holding:
    """The effect of a removal on one component.

    `rows`: (content identifier, name) of each lost row, and of removed public images that whitened its training;
    `left`: the number of remaining rows; `seconds`: for each possible way, roughly the training time; `impossible`: for
    each other way, the reason.
    """

    rows: tuple[tuple[str, str], ...]
    left: int
    seconds: dict[str, float]
    impossible: dict[str, str]


@public_class
@dataclasses.dataclass(frozen=True)
class RemovalPlan:
    """The effect that a removal would have on a store in its present state.

    `components`: the affected ones, by name; `identifiers`: of the content that may not return; `copies`: the places of
    content that lies in several rows; `asked`, `owner`: the request; `unknown`: the part of the request that no
    component saw; `store`, `contents`: the store's identity, and the fingerprint of its components.

    >>> plan = tj.store.plan_removal(demo.store(), examples=["0-13"])
    >>> [*plan.components], plan.components["bob"].left, plan.unknown
    (['bob'], 11, ())
    """

    components: dict[str, Holding]
    identifiers: tuple[str, ...]
    copies: dict[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    asked: tuple[str, ...]
    owner: str | None
    store: str
    contents: str

    def check_possible(self, how: str) -> None:
        """Raises InputError naming a component that cannot be treated this way, and the reason."""
        one_of("how", how, WAYS, by="remove")
        for name, holding in self.components.items():
            reason, do = holding.impossible.get(how), "Drop it; train anew"
            require(reason is None, "remove", f"components that allow {how}", f"{name}: {reason}", do)


@public
def plan_removal(
    store: Store,
    *,
    examples: Iterable[str] = (),
    names: Sequence[str] = (),
    owner: str | None = None,
    owners: Mapping[str, str] | None = None,
) -> RemovalPlan:
    """Plans the removal of examples, of whole components, or of all data of an owner; changes nothing.

    Args:    examples: content identifiers or names of images; names: of components; owner: the contributor whose images
             go; owners: image name -> owner, which overrides what the components say (`shards.read_owners` reads a
             CSV).
    Returns: RemovalPlan. Copies are found by content, under any name and in any component.
    Raises:  InputError unless exactly one of the three is given, and for an image without a known owner.

    >>> plan = tj.store.plan_removal(demo.store(), names=["bob"])
    >>> len(plan.identifiers), plan.unknown
    (12, ())
    """
    expect(not isinstance(examples, str) and not isinstance(names, str), "lists", "one text")
    asked, whole = tuple(dict.fromkeys(examples)), tuple(dict.fromkeys(names))
    given = bool(asked) + bool(whole) + (owner is not None)
    expect(given == 1, "examples, names or an owner, one of them", f"{given} of them")
    expect(owner is not None or not owners, "an owner, of those in owners", "none")
    owner = None if owner is None else Owner(owner)
    with store.using():
        origins = {name: store.provenance(name) for name in store}
        missing, do = [name for name in whole if name not in origins], "list says them"
        expect(not missing, "names of components", f"{missing[:1]}", do)
        state = store.identity, contents(store)
    unknown: tuple[str, ...] = ()
    if whole:
        left = {i for name, origin in origins.items() if name not in whole for i, _ in origin.images_seen}
        gone = {i for name in whole for i in origins[name].identifiers} - left
    elif owner is not None:
        gone = rows_of_owner(origins, owner, owners or {})
        asked, unknown = tuple(sorted(gone)), () if gone else (owner,)
    else:
        gone, unknown = identifiers_of(origins, asked)
    held = {name: origins[name] for name in whole}
    held = held or {name: origin for name, origin in origins.items() if gone & {i for i, _ in origin.images_seen}}
    components = {name: holding_of(origin, gone, bool(whole)) for name, origin in sorted(held.items())}
    copies = {} if whole else copies_in(components)
    return RemovalPlan(components, tuple(sorted(gone)), copies, unknown, asked, owner, *state)


def identifiers_of(origins: Mapping[str, Provenance], asked: Sequence[str]) -> tuple[set[str], tuple[str, ...]]:
    """(the identifiers of the request, given by identifier or name; the part that no component saw)."""
    known, wanted = dict[str, set[str]](), {*asked}
    for pair in (pair for origin in origins.values() for pair in origin.images_seen):
        for word in wanted.intersection(pair):
            known.setdefault(word, set()).add(pair[0])
    return set().union(*(known.get(word, ()) for word in asked)), tuple(word for word in asked if word not in known)


def copies_in(components: Mapping[str, Holding]) -> dict[str, tuple[str, ...]]:
    """The places of each removed content that lies in more than one row."""
    places: dict[str, list[str]] = {}
    for name, holding in components.items():
        for identifier, image in holding.rows:
            places.setdefault(identifier, []).append(f"{image} in {name}")
    return {identifier: tuple(where) for identifier, where in places.items() if len(where) > 1}


def rows_of_owner(origins: Mapping[str, Provenance], owner: Owner, owners: Mapping[str, str]) -> set[str]:
    """The identifiers of an owner's rows; InputError for a row without a known owner."""
    gone = set()
    for component, origin in origins.items():
        said = owners_of([name for _, name in origin.examples], owners)
        for (identifier, name), other in zip(origin.examples, said, strict=True):
            whose, do = other or origin.owners.get(name), "Pass owners=, image name -> owner"
            expect(whose is not None, f"an owner of {name} in {component}", "none", do)
            gone |= {identifier} if whose == owner else set()
        said = owners_of([name for _, name in origin.public], owners)
        gone |= {i for (i, _), whose in zip(origin.public, said, strict=True) if whose == owner}
    return gone


def holding_of(origin: Provenance, gone: set[str], whole: bool) -> Holding:
    """The effect on a component of removing these identifiers, or the whole component."""
    rows = origin.examples if whole else tuple(pair for pair in origin.images_seen if pair[0] in gone)
    left = 0 if whole else sum(identifier not in gone for identifier, _ in origin.examples)
    seconds, impossible = {"drop": 0.0}, {}
    for how in WAYS[1:]:
        reason = "it was asked for by its name, and nothing of it is left" if whole else obstacle(origin, how, gone)
        if reason is not None and (left or whole):
            impossible[how] = reason
        else:
            seconds[how] = origin.seconds * left / max(len(origin.examples), 1)
    return Holding(rows, left, seconds, impossible)


def obstacle(origin: Provenance, how: str, gone: set[str]) -> str | None:
    """The reason why a component cannot be treated this way without these identifiers; None if it can."""
    if gone & {i for i, _ in origin.public}:
        return "public images went into its anchor or its training, and must go"
    if gone & {i for i, _ in images_of(origin.moves, False)}:
        return "they moved its anchor: repeat the rounds from there (`tj.store.repeat_rounds`)"
    if origin.privacy is not None:
        return "only components without privacy are trained again"
    if origin.recipe is None:
        return "no recipe says how it was trained"
    is_optimum = origin.recipe.solver == "optimum" and origin.total_penalty
    unsolved = "only a component that was solved to its optimum, with a penalty above 0, can be moved"
    return None if how == "retrain" or is_optimum else unsolved


@public
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
    Raises:     InputError for an impossible way, an empty plan, or a store that changed since the plan.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, examples=["0-13"]))
    >>> [*store], store.verify_receipt(receipt.path)
    (['ann'], [])
    """
    plan.check_possible(how)
    expect(plan.components, "a plan of something that the store holds", "nothing")
    with store.using():
        check_fits(store, plan)
    retrained = rehearse(store, plan, how, cache=cache, weights=weights)
    check_retrained(store, plan, retrained)
    traces = erase_traces(store, [*plan.components], {*plan.identifiers}, [] if cache is None else cache.folders)
    return commit(store, plan, how, retrained, traces)


@public
def rehearse(
    store: Store, plan: RemovalPlan, how: str, *, cache: Cache | None = None, weights: str | None = None
) -> dict[str, Retrained]:
    """Trains the components that `remove` would put back, without changing the store.

    Args:    as `remove`.
    Returns: by name, each component with remaining examples; none for how="drop".

    >>> store = demo.store()
    >>> tj.store.rehearse(store, tj.store.plan_removal(store, names=["bob"]), "drop")
    {}
    """
    plan.check_possible(how)
    data, held = functools.cache(open_dataset), {} if how == "drop" else plan.components
    return {
        name: retrain(store, name, {*plan.identifiers}, data, how == "exact", cache, weights)
        for name, holding in held.items()
        if holding.left
    }


@public
def preview_removal(store: Store, plan: RemovalPlan, cache: Cache | None = None) -> tuple[list[str], Traces]:
    """(a line for each file of the store that `remove` would delete, its Traces outside the store); changes nothing.

    Args:    cache: as `remove`.

    >>> store = demo.store()
    >>> files, traces = tj.store.preview_removal(store, tj.store.plan_removal(store, names=["bob"]))
    >>> len(files), traces.deleted
    (1, [])
    """
    names, caches = [*plan.components], () if cache is None else cache.folders
    traces, left = find_traces(store, names, {*plan.identifiers}, caches)
    return files_of(store, names), Traces([trace.line for trace in traces], left)


def contents(store: Store) -> str:
    """The fingerprint of the names and files of a store's components."""
    return fingerprint(
        json.dumps(sorted((name, entry["id"]) for name, entry in store.state.components.items())).encode()
    )


def check_fits(store: Store, plan: RemovalPlan) -> None:
    """Raises InputError for a plan of another store, or of other components than it holds now."""
    fits = (plan.store, plan.contents) == (store.identity, contents(store))
    expect(fits, f"a plan of {store.root} as it is now", "one of another store, or older", "Plan again")


def check_retrained(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained]) -> None:
    """Raises InputError for a component that does not fit the store, or still depends on removed content."""
    for name, new in retrained.items():
        check_one_body("remove", store.provenance(name), new.provenance)
        kind_of([new.provenance]).check(new.dw, new.provenance)
        left = {*plan.identifiers} & new.provenance.identifiers
        expect(not left, f"{name} retrained without what is removed", sorted(left)[:1])
        store.check_forgotten("remove", new.provenance)


def commit(store: Store, plan: RemovalPlan, how: str, retrained: Mapping[str, Retrained], traces: Traces) -> Receipt:
    """Removes a plan's components, adds the retrained ones, recomposes, and writes the receipt."""
    with store.using(change=True):
        check_fits(store, plan)
        before = {name: store.provenance(name) for name in plan.components}
        removed = {name: store.state.components[name] for name in before}
        added: dict[str, Any] = {}
        for name, new in retrained.items():
            added[name] = store.write("components", new.dw, new.provenance)
            added[name] |= store.write_factors(new.factors, new.provenance)
        now = {n: e for n, e in store.state.components.items() if n not in removed} | added
        origins = {n: retrained[n].provenance if n in added else store.provenance(n) for n in now}
        left = Mapped(now, lambda _, entry: store.read_checked(store.file("components", entry), entry))
        composed = store.write("composed", composition(left, origins)) if now else {}
        whole = [e["weights"] for e in store.state.composed.values() if e["names"] == sorted(store)]
        receipt = Receipt(
            removed={name: entry["weights"] for name, entry in removed.items()},
            retrained={name: entry["weights"] for name, entry in added.items()},
            survivors={name: entry["weights"] for name, entry in sorted(now.items())},
            composed_before=whole[-1] if whole else None,
            composed_after=composed.get("weights"),
            exported_before=tuple(e.path for e in store.state.exports if {*e.names} & {*removed}),
            asked=plan.asked,
            owner=plan.owner,
            deleted=tuple(traces.deleted),
            not_reached=tuple(traces.not_reached),
            anchors=anchors_that_saw(origins, [pair for own in plan.components.values() for pair in own.rows]),
            **said_of(how, retrained),
            store=store.identity,
            journal=store.journal.last(),
        )
        text_fingerprint = fingerprint(receipt_text(receipt).encode())
        path = store.root / "receipts" / f"{text_fingerprint[:16]}.json"
        write_whole(path, receipt_text(receipt))
        line: dict[str, Any] = {"op": "remove", "removed": sorted(removed), "added": added, "names": sorted(now)}
        line |= {"composed": composed, "receipt": path.stem, "receipt_hash": text_fingerprint}
        line |= {"forgotten": sorted(hidden(plan.identifiers)), "released": store.state.accounts_shown(before)}
        store.commit(line)
    return dataclasses.replace(receipt, path=path)

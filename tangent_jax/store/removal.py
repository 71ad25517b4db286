"""Removal: a plan says what must go, where it lies and what that costs; one call carries it out and returns a receipt.

    plan = plan_removal(store, examples=...)     or names=..., or owner=...
    receipt = remove(store, plan, how="drop")    or "retrain", or "exact"

What takes a component's place is trained and checked first; then traces outside the store are erased; then the journal
gets one line, the commit. A kill leaves the store as it was, or as it will be; the same plan then does the rest.
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
from tangent_jax.store.provenance import Provenance, check_one_body
from tangent_jax.store.receipts import Receipt, Traces, receipt_text
from tangent_jax.store.retraining import Retrained, retrain
from tangent_jax.store.store import Store
from tangent_jax.store.sums import Mapped

WAYS = ("drop", "retrain", "exact")
"""What a removal does with a component: see `remove`."""


@dataclasses.dataclass(frozen=True)
class Holding:
    """The effect of a removal on one component.

    `rows`: (content identifier, name) of each of its rows that go, and of public images that whitened its training and
    must; `left`: how many rows stay; `seconds`: of each way that is possible, about what the training costs;
    `impossible`: of each other way, why.
    """

    rows: tuple[tuple[str, str], ...]
    left: int
    seconds: dict[str, float]
    impossible: dict[str, str]


@public_class
@dataclasses.dataclass(frozen=True)
class RemovalPlan:
    """The effect that a removal would have on a store, as it is now.

    `store`: of each that holds what must go; `identifiers`: of the content that may not come back; `copies`: the
    places of each of them that lies in several rows; `asked`, `owner`: what was asked for; `unknown`: what of it no
    component saw; `store`, `contents`: the store of this plan, and the fingerprint of the components that it held.
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
        """Raises InputError naming a component for which the way is not possible, and why."""
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
    """The plan to remove examples, whole components, or all that is an owner's; nothing is changed.

    Args:    examples: content identifiers or names of images; names: of components; owner: whose images must go, where
             they were said when the components were made or are in `owners`, image name -> owner, which comes first
             (`shards.read_owners` reads a CSV).
    Returns: RemovalPlan. Content is found under every name, in every component: a copy goes too.
    Raises:  InputError unless one of the three is given, and for an image whose owner nobody says.
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
    """(the identifiers of what was asked for, by identifier or name; what of it no component saw)."""
    known: dict[str, set[str]] = {}
    for identifier, name in (pair for origin in origins.values() for pair in origin.images_seen):
        known.setdefault(name, set()).add(identifier)
        known.setdefault(identifier, set()).add(identifier)
    return set().union(*(known.get(word, ()) for word in asked)), tuple(word for word in asked if word not in known)


def copies_in(components: Mapping[str, Holding]) -> dict[str, tuple[str, ...]]:
    """The places of each content that goes from more than one row."""
    places: dict[str, list[str]] = {}
    for name, holding in components.items():
        for identifier, image in holding.rows:
            places.setdefault(identifier, []).append(f"{image} in {name}")
    return {identifier: tuple(where) for identifier, where in places.items() if len(where) > 1}


def rows_of_owner(origins: Mapping[str, Provenance], owner: Owner, owners: Mapping[str, str]) -> set[str]:
    """The identifiers of the rows that are an owner's; InputError for a row whose owner nobody says."""
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
    """The effect of a removal of these identifiers, or of the whole component, on it."""
    rows = origin.examples if whole else tuple(pair for pair in origin.images_seen if pair[0] in gone)
    left = 0 if whole else sum(identifier not in gone for identifier, _ in origin.examples)
    seconds, impossible = {"drop": 0.0}, {}
    for how in WAYS[1:]:
        reason = "it was asked for by its name, and nothing of it is left" if whole else obstacle(origin, how)
        if reason is not None and (left or whole):
            impossible[how] = reason
        else:
            seconds[how] = origin.seconds * left / max(len(origin.examples), 1)
    return Holding(rows, left, seconds, impossible)


def obstacle(origin: Provenance, how: str) -> str | None:
    """Why a component cannot be trained again this way; None where it can."""
    if origin.privacy is not None:
        return "only components without privacy are trained again"
    if origin.recipe is None:
        return "no recipe says how it was trained"
    is_optimum = origin.recipe.solver == "optimum" and origin.total_penalty
    return None if how == "retrain" or is_optimum else "it was not solved to its optimum, with a penalty above 0"


@public
def remove(
    store: Store, plan: RemovalPlan, how: str = "drop", *, cache: Cache | None = None, weights: str | None = None
) -> Receipt:
    """Carries out a plan: the components that hold what must go leave the store, and with them all traces of it.

    Args:       how: "drop"; "retrain" puts each component back, trained again from its recipe on the rows that are
                left; "exact" moves each from where it is to the optimum of its remaining examples, Lambda as it was.
                cache: where features are read and kept for that (None: `Cache()`), and searched for traces, as are all
                folders that the provenance names; weights: the file of the network's weights, where it is now.
    Returns:    the Receipt, which lies in the store.
    Guarantees: the recomposed sum is bitwise that of a store of the survivors and the retrained alone, into which
                nothing of the removed entered, but by "exact" as the point from which a solve began; content that went
                cannot come back into the store; a kill leaves the store as before or as after.
    Raises:     InputError for a way that is not possible, a plan of nothing, and a store that changed since the plan.
    """
    plan.check_possible(how)
    expect(plan.components, "a plan of something that the store holds", "nothing")
    with store.using():
        check_fits(store, plan)
    retrained = rehearse(store, plan, how, cache=cache, weights=weights)
    check_retrained(store, plan, retrained)
    traces = erase_traces(store, [*plan.components], {*plan.identifiers}, [] if cache is None else cache.folders)
    return commit(store, plan, retrained, traces)


@public
def rehearse(
    store: Store, plan: RemovalPlan, how: str, *, cache: Cache | None = None, weights: str | None = None
) -> dict[str, Retrained]:
    """Trains what `remove` would put in the places of the components that go; the store stays as it is.

    Args:    as `remove`.
    Returns: by name, of each component of which examples are left; none for how="drop".
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
    """(a line for each file of the store that `remove` would delete, its Traces outside the store); nothing changes.

    Args:    cache: as `remove`.
    """
    names, caches = [*plan.components], () if cache is None else cache.folders
    traces, left = find_traces(store, names, {*plan.identifiers}, caches)
    return files_of(store, names), Traces([trace.line for trace in traces], left)


def contents(store: Store) -> str:
    """The fingerprint of the names and files of all components in a store."""
    return fingerprint(
        json.dumps(sorted((name, entry["id"]) for name, entry in store.state.components.items())).encode()
    )


def check_fits(store: Store, plan: RemovalPlan) -> None:
    """Raises InputError for a plan of another store, or of other components than it holds now."""
    fits = (plan.store, plan.contents) == (store.identity, contents(store))
    expect(fits, f"a plan of {store.root} as it is now", "one of another store, or older", "Plan again")


def check_retrained(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained]) -> None:
    """Raises InputError for what cannot take a component's place, or would leave what must go."""
    for name, new in retrained.items():
        check_one_body("remove", store.provenance(name), new.provenance)
        kind_of([new.provenance]).check(new.dw, new.provenance)
        left = {*plan.identifiers} & new.provenance.identifiers
        expect(not left, f"{name} retrained without what is removed", sorted(left)[:1])
        store.check_forgotten("remove", new.provenance)


def commit(store: Store, plan: RemovalPlan, retrained: Mapping[str, Retrained], traces: Traces) -> Receipt:
    """Takes a plan's components out of the store, puts the retrained in, recomposes, and writes the receipt."""
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
            distance_bounds={n: new.distance_bound for n, new in retrained.items() if new.distance_bound is not None},
            deleted=tuple(traces.deleted),
            not_reached=tuple(traces.not_reached),
            optima={name: new.optimum for name, new in retrained.items() if new.optimum is not None},
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

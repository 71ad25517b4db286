"""Adds the components of one store to another, with their accounts and exports."""

from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.store.lines import Merge
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.store import Store, warn_lists


def add_all(store: Store, other: Store) -> list[str]:
    """Adds the components of another store that a store lacks, one at a time; returns their names.

    Guarantees:
        Numbers, provenance and factors keep their bits; a killed call resumes. The other store's privacy cost counts
        here too: its released components count as released, and so do its exports.

    Raises:
        InputError: Before any is added, if a name has other numbers here, or equal numbers with another account or
            other examples; if the other store has removed something, which this store would not know, or replaced a
            private component that was composed or exported, whose images this store could not compare with its own; and
            as `add`.

    >>> store = tj.Store(demo.folder() / "store")
    >>> tj.store.add_all(store, demo.store())
    ['ann', 'bob']
    """
    store.reload()
    other.reload()
    theirs = other.state.components
    if other.state.receipts:
        raise InputError(
            f"{other.root} has removed something, which this store would not know. "
            "Keep that one apart, or train its components here"
        )
    if any(account.privacy is not None for account in other.state.released):
        raise InputError(
            f"{other.root} has replaced a private component that was composed or exported, and its key hides the "
            "images of that one: costs cannot be compared here. Keep that store apart"
        )
    for name in (name for name in other if name in store):
        if store.state.components[name].weights != theirs[name].weights:
            raise InputError(
                f"{name} of {other.root} has other numbers in {store.root}: two contributors of one name, or one "
                "trained again. Give each contributor a name of their own, keep that store apart, or delete it"
            )
        if account_of(store.provenance(name)) != account_of(other.provenance(name)):
            raise InputError(f"{name} must have one account and one list of examples; got two. Discard one of them")
    missing = [name for name in other if name not in store]
    take_account(store, other)  # first: a kill overstates the cost, never understates it
    for name in missing:
        factors = other.factors(name) if other.has_factors(name) else None
        shown = theirs[name].id in other.state.shown
        store.put(name, other.read_tree(name), other.provenance(name), factors, shown, is_made_here=False)
    warn_lists(store, missing)
    return missing


def account_of(origin: Provenance) -> tuple[Any, ...]:
    """The fields that decide a component's privacy cost, and its units."""
    return origin.training.privacy, origin.data.examples, origin.data.owners, origin.data.public


def take_account(store: Store, other: Store) -> None:
    """Journals the other store's releases and exports, except those journaled before."""
    state = other.state
    shown = sorted(name for name, entry in state.components.items() if entry.id in state.shown)
    lacks = [account for account in state.released[:1] if account not in store.state.released]  # without an account
    exports = [own for own in state.exports if own not in store.state.exports]
    hidden_here = {store.state.components[name].id for name in shown if name in store} - store.state.shown
    if lacks or exports or hidden_here:
        with store.using(change=True):
            store.commit(
                Merge(
                    of=other.identity,
                    released=tuple(lacks),
                    exports=tuple(exports),
                    showed=tuple(shown),
                )
            )

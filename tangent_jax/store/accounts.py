"""The privacy accounts of a store: what its components spend together, and which may come in.

Components that were composed or exported and then removed still count: their release cannot be undone. Their units
are kept in hidden form (keys.py).
"""

from collections.abc import Collection, Mapping

from tangent_jax.core.checks import InputError
from tangent_jax.privacy.mechanism import PrivacyCost, spent_together
from tangent_jax.store.keys import Key
from tangent_jax.store.lines import Released
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.state import State


def spent_by(origins: Collection[Provenance], state: State, key: Key) -> PrivacyCost | None:
    """The privacy cost of components together (`spent_together`), or None if one has no account."""
    parts = [(origin.training.privacy, frozenset(key.hide_all(origin.protected_units()))) for origin in origins]
    parts += [(account.privacy, frozenset(account.examples)) for account in state.released]
    accounts = [(spent, units) for spent, units in parts if spent is not None]
    return spent_together(accounts) if accounts and len(accounts) == len(parts) else None


def check_account(new: Provenance, origins: Collection[Provenance], state: State, key: Key) -> None:
    """Raises InputError for an account that cannot be combined with those of a store's components, `origins`.

    That is an account of another unit, or one that protects an image which another component treats as public, or on
    which its anchor was fine-tuned.
    """
    account = new.training.privacy
    if account is None:
        return
    in_anchor = new.data.identifiers & {identifier for identifier, _ in new.anchor_images}
    if in_anchor:
        raise InputError(
            f"images of a private component must not be in its anchor, which its account does not cover; "
            f"{len(in_anchor)} are. Train it without them"
        )
    here = [origin for origin in origins if origin.training.privacy is not None]
    accounts = [origin.training.privacy for origin in here] + [released.privacy for released in state.released]
    units = {spent.mechanism.unit for spent in accounts if spent}
    if units - {account.mechanism.unit}:
        raise InputError(
            f"accounts must be of the unit {', '.join(units)}; got {account.mechanism.unit}. "
            "Keep components that protect another unit in a store of their own"
        )
    from tangent_jax.privacy.public import check_public  # loads models and a solver

    new.protected_units()  # raises if an owner is unknown
    private = set().union(*(origin.data.identifiers for origin in here))
    released = set().union(*(account.examples for account in state.released))
    public_here = {identifier for origin in here for identifier, _ in origin.data.public}
    public = {identifier for identifier, _ in new.data.public}
    check_public(public, private | new.data.identifiers)
    check_public({*key.hide_all(public)}, released)
    check_public(public_here, new.data.identifiers)
    check_public(state.public, {*key.hide_all(new.data.identifiers)})


def accounts_shown(before: Mapping[str, Provenance], state: State, key: Key) -> tuple[Released, ...]:
    """The accounts of components that are to be removed and were composed or exported: their cost still counts."""
    shown = [origin for name, origin in before.items() if state.components[name].id in state.shown]
    accounts = []
    for origin in shown:
        if origin.training.privacy is not None:
            examples = key.hide_all(origin.protected_units())
            public = key.hide_all(identifier for identifier, _ in origin.data.public)
            accounts.append(Released(privacy=origin.training.privacy, examples=examples, public=public))
    if len(accounts) < len(shown):
        accounts.append(Released())  # some have no account
    return tuple(accounts)

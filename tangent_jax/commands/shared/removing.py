"""The removal that the flags of `store remove` ask for, and its description before it happens."""

import sys
from collections.abc import Sequence
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import normal_name, other_spellings
from tangent_jax.io.paths import passing_copy
from tangent_jax.io.records import read_lines


def planned(store: tj.Store) -> tj.store.RemovalPlan:
    """The removal plan of the flags."""
    requests = [flag for flag in ("name", "examples", "owner") if F[flag].value]
    if len(requests) != 1:
        raise InputError("one of --name, --examples and --owner must be given; got several or none")
    if F.name and (F.retrain or F.exact):
        raise InputError(
            "--retrain and --exact need --examples or --owner; got --name, which drops the components. Name the images "
            "in a file"
        )
    if F.retrain and F.exact:
        raise InputError("--retrain or --exact must be given; got both")
    if F.owner:
        owners = tj.shards.read_owners(F.owners) if F.owners else None
        return tj.store.plan_removal(store, owner=F.owner, owners=owners)
    if F.name:
        return tj.store.plan_removal(store, names=F.name)
    return tj.store.plan_removal(store, examples=read_asked("examples", F.examples))


def searched_cache() -> tj.Cache:
    """The cache of --cache_dir; a removal searches the default one, too, where runs without the flag have made it."""
    default = tj.Cache()
    return tj.Cache(F.cache_dir, also=(default.folder,) if default.path.is_dir() else ())


def read_asked(flag: str, file: str) -> list[str]:
    """The identifiers or names in the file of a flag."""
    with passing_copy(file) as path:
        if not path.exists():
            raise InputError(f"--{flag} must be a file of identifiers or names; {path} does not exist")
        asked = read_lines(path)
    if not asked:
        raise InputError(f"--{flag} must be a file of identifiers or names, one a line; {path} has none")
    return asked


def describe(store: tj.Store, plan: tj.store.RemovalPlan, how: str) -> list[dict[str, Any]]:
    """Describes plan, cost and copies of examples on stderr; with --dry_run also why other ways fail."""
    described = []
    for name, holding in plan.components.items():
        asked = len(holding.rows)
        others = holding.left
        seconds = holding.seconds.get(how, 0.0)
        way = how if others else "drop"
        described.append({"component": name, "how": way, "asked": asked, "left": others, "seconds": round(seconds, 1)})
        after = {
            "drop": f"dropped, the {others} others with them (--retrain keeps those)" if others else "dropped",
            "retrain": f"trained again on the {others} left, about {seconds:.1f} s of training",
            "exact": f"moved to the optimum of the {others} left, about {seconds:.1f} s of training",
        }
        share = "" if F.name else f"{asked} of its {asked + others} examples asked for; "
        print(f"{name}: {share}{after[way]}", file=sys.stderr)
        if F.dry_run and not F.name:
            for other, reason in holding.impossible.items():
                print(f"{name}: not --{other}: {reason}", file=sys.stderr)
    for identifier, places in plan.copies.items():
        print(f"copies of {identifier[:12]}: {', '.join(places)}", file=sys.stderr)
    for line in plan.anchors:
        print(f"NOT removed: {line}", file=sys.stderr)
    if plan.unseen:
        print(f"{len(plan.unseen)} images that no component saw: their cached rows go, if any", file=sys.stderr)
    unseen = {word for pair in plan.unseen for word in pair}
    unseen |= {normal_name(word) for word in unseen}
    for word in plan.unknown:
        before = removed_on(store, word, plan.removed.get(word, ""))
        if before is not None:
            print(f"{word}: removed before, on {before}; its traces are searched again", file=sys.stderr)
        elif unseen.isdisjoint((word, normal_name(word), *other_spellings(word))):
            print(f"{word}: no component saw it{alike(store, word)}", file=sys.stderr)
    return described


def removed_on(store: tj.Store, word: str, identifier: str = "") -> str | None:
    """The day on which the store last removed an image, by identifier or requested name, or an owner; else None."""
    names = store.forms([word, normal_name(word), identifier])
    for line in reversed(store.state.removals):
        receipt = tj.store.read_receipt(store.root / "receipts" / f"{line.receipt}.json")[0]
        if not names.isdisjoint({receipt.owner, *receipt.asked, *line.forgotten}):
            return line.time[:10]
    return None


def alike(store: tj.Store, example: str) -> str:
    """A phrase with the store's images that have this last part of the name, in any case; "" if there are none."""
    names = {name for component in store for _, name in store.provenance(component).images_seen}
    written = (normal_name(example), *other_spellings(example))
    lasts = {form.rpartition("/")[2].casefold() for form in written}
    others = sorted(name for name in names if normal_name(name).rpartition("/")[2].casefold() in lasts)
    ending = [name for name in others if any(normal_name(name).endswith(f"/{form}") for form in written)]
    nearest = ending or others
    more = f" and {len(nearest) - 3} more" if len(nearest) > 3 else ""
    return f" under this name; the store holds {', '.join(nearest[:3])}{more}" if nearest else ""


def check_known(store: tj.Store, plan: tj.store.RemovalPlan, deleted: Sequence[str]) -> None:
    """Raises InputError for a request that no component saw, no removal answered, and no cache holds."""
    new = [word for word in plan.unknown if removed_on(store, word, plan.removed.get(word, "")) is None]
    if new and not (plan.components or plan.is_in_data or (plan.unseen and deleted)):
        raise InputError(
            f"the images or the owner must be of {store.root}, its data sets or caches; none of them knows "
            f"{len(new)} of those asked for. Name images as the components do, by identifiers, or an owner's in "
            "--owners"
        )

"""The removal that the flags of `store remove` ask for, and its description before it happens."""

import sys
from collections.abc import Sequence
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F
from tangent_jax.core.checks import require
from tangent_jax.core.names import normal_name, other_spellings
from tangent_jax.data import hidden
from tangent_jax.io.records import read_lines
from tangent_jax.remote import urls


def planned(store: tj.Store) -> tj.store.RemovalPlan:
    """The removal plan of the flags."""
    is_single = bool(F.name) + bool(F.examples) + bool(F.owner) == 1
    require(is_single, "store remove", "--name, --examples or --owner, one of them", "several or none")
    do = "Name the images in a file, --examples; else the components are dropped"
    named_alone = not (F.name and (F.retrain or F.exact))
    require(named_alone, "store remove", "--examples with --retrain or --exact", "--name", do)
    require(not (F.retrain and F.exact), "store remove", "--retrain or --exact", "both")
    if F.owner:
        owners = tj.shards.read_owners(F.owners) if F.owners else None
        return tj.store.plan_removal(store, owner=F.owner, owners=owners)
    if F.name:
        return tj.store.plan_removal(store, names=F.name)
    return tj.store.plan_removal(store, examples=read_asked("examples", F.examples))


def read_asked(flag: str, file: str) -> list[str]:
    """The identifiers or names in the file of a flag."""
    with urls.passing_copy(file) as path:
        require(path.exists(), f"flags, --{flag}", "a file of identifiers or names", f"{path}, which does not exist")
        asked = read_lines(path)
    require(asked, f"flags, --{flag}", f"identifiers or names in {path}, one a line", "none")
    return asked


def describe(store: tj.Store, plan: tj.store.RemovalPlan, how: str) -> list[dict[str, Any]]:
    """Describes plan, cost and copies of examples on stderr; with --dry_run also why other ways fail."""
    described = []
    for name, holding in plan.components.items():
        gone, left, seconds = len(holding.rows), holding.left, holding.seconds.get(how, 0.0)
        own = how if left else "drop"
        described.append({"component": name, "how": own, "asked": gone, "left": left, "seconds": round(seconds, 1)})
        after = {
            "drop": "dropped" + f", the {left} others with them (--retrain keeps those)" * (left > 0),
            "retrain": f"trained again on the {left} left, about {seconds:.1f} s of training",
            "exact": f"moved to the optimum of the {left} left, about {seconds:.1f} s of training",
        }
        of = "" if F.name else f"{gone} of its {gone + left} examples asked for; "
        print(f"{name}: {of}{after[own]}", file=sys.stderr)
        for other, reason in holding.impossible.items() if F.dry_run and not F.name else ():
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
    hashes = hidden([word, identifier])
    for line in reversed([line for line in store.journal.entries if "receipt" in line]):
        receipt = tj.store.read_receipt(store.root / "receipts" / f"{line['receipt']}.json")[0]
        asked = {receipt.owner, *map(normal_name, receipt.asked)}
        if normal_name(word) in asked or not hashes.isdisjoint(line.get("forgotten", ())):
            return line["time"][:10]
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
    """Raises InputError for a request that no component saw, no earlier removal answered, and no cache holds."""
    new = [word for word in plan.unknown if removed_on(store, word, plan.removed.get(word, "")) is None]
    known = plan.components or not new or plan.is_in_data or (plan.unseen and deleted)
    expected = f"images or an owner that {store.root}, its data sets or caches know"
    do = "Name images as the components do, by identifiers, or an owner's in --owners"
    require(known, "store remove", expected, f"{len(new)} that no component saw, without cached rows", do)

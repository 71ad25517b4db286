"""The removal that the flags of `store remove` ask for, and its description before it happens."""

import dataclasses
import sys
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared.settings import Settings
from tangent_jax.core.checks import InputError, visible
from tangent_jax.io.paths import passing_copy
from tangent_jax.io.records import read_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removing(Settings):
    """The images or components to remove, and how."""

    name: tuple[str, ...] = ()
    examples: str | None = None
    owner: str | None = None
    retrain: bool = False
    exact: bool = False
    dry_run: bool = False


def planned(config: Removing, store: tj.Store) -> tj.store.RemovalPlan:
    """The removal plan of the flags."""
    requests = [flag for flag in ("name", "examples", "owner") if getattr(config, flag)]
    if len(requests) != 1:
        raise InputError("one of --name, --examples and --owner must be given; got several or none")
    if config.name and (config.retrain or config.exact):
        raise InputError(
            "--retrain and --exact need --examples or --owner; got --name, which drops the components. Name the images "
            "in a file"
        )
    if config.retrain and config.exact:
        raise InputError("--retrain or --exact must be given; got both")
    if config.owner:
        return tj.store.plan_removal(store, owner=config.owner)
    if config.name:
        return tj.store.plan_removal(store, names=[*config.name])
    assert config.examples is not None
    return tj.store.plan_removal(store, examples=read_asked("examples", config.examples))


def read_asked(flag: str, file: str) -> list[str]:
    """The identifiers or names in the file of a flag."""
    with passing_copy(file) as path:
        if not path.exists():
            raise InputError(f"--{flag} must be a file of identifiers or names; {path} does not exist")
        asked = read_lines(path)
    if not asked:
        raise InputError(f"--{flag} must be a file of identifiers or names, one a line; {path} has none")
    return asked


def describe(config: Removing, plan: tj.store.RemovalPlan, how: str) -> list[dict[str, Any]]:
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
            "retrain": f"trained again on the {others} left, about {seconds:.1f} s of training without compiling",
            "exact": f"moved to the optimum of the {others} left, about {seconds:.1f} s of training",
        }
        share = "" if config.name else f"{asked} of its {asked + others} examples asked for; "
        print(f"{name}: {share}{after[way]}", file=sys.stderr)
        if config.dry_run and not config.name:
            for other, reason in holding.impossible.items():
                print(f"{name}: not --{other}: {reason}", file=sys.stderr)
    for identifier, places in plan.copies.items():
        print(f"copies of {identifier[:12]}: {', '.join(places)}", file=sys.stderr)
    for line in plan.anchors:
        print(f"NOT removed: {line}", file=sys.stderr)
    if plan.unseen:
        print(f"{len(plan.unseen)} images that no component saw: their cached rows go, if any", file=sys.stderr)
    for word, day in plan.removed.items():
        print(f"{visible(word)}: removed before, on {day}; its cached rows are searched again", file=sys.stderr)
    return described

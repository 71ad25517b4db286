"""The record of a removal request: one page in Markdown, for the file of the request.

It says who asked, what was found, what was erased, what is not reached and until when, what the model was before and
after, and how to check it. It names images as components and data sets do, and prints no identifier of an image.
"""

import datetime
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tangent_jax as tj
from tangent_jax.commands.report.backups import Backup, backups_file
from tangent_jax.commands.report.inspector import Inspection, Removal
from tangent_jax.commands.report.rendering import clock, count, day, short
from tangent_jax.commands.report.requests import Preview, Request, Unknown, Way, answers, unknown
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.names import normal_name
from tangent_jax.store.erasure import neighbours
from tangent_jax.store.lines import Erase, Intend, timestamp
from tangent_jax.store.plans import IDENTIFIER

NAMED = 20
"""The most names of images on the page."""
WORDS = {"drop": "dropped", "retrain": "trained again without the images", "exact": "moved without the images"}


def record_page(
    seen: Inspection,
    request: Request,
    plan: tj.store.RemovalPlan,
    ways: Sequence[Way],
    preview: Preview,
    backups: Sequence[Backup] | None,
    again: Sequence[str],
) -> str:
    """The page.

    Args: ways: of removal, with their commands; preview: of a removal that is still to do; backups: the operator's
          list, None if there is none; again: the words of the command that wrote this page.
    """
    entries = unknown(seen, request, plan)
    removals = removals_of(seen, request, entries)
    elsewhere = other_stores(seen, plan, removals)
    now = timestamp()
    sections = {
        "Who asked": who_asked(request),
        "What was found": [*found(seen, request, plan, entries, removals), *not_searched(request, again)],
        "What was erased": erased(seen, plan, removals, ways, preview),
        "What is not reached, and until when": [
            *not_reached(plan, removals, preview),
            *stores_to_ask(elsewhere, again),
            "",
            *backup_lines(seen.store.root, backups, datetime.date.fromisoformat(now[:10])),
        ],
        "The model before and after": before_and_after(seen, plan, removals),
        "How to check it": checks(seen, removals, again),
        "To complete by hand": [
            "- Request received on, and by which way: ____________________",
            "- Identity of the person checked by: ____________________",
            "- Copies under 4 dealt with on: ____________________",
            "- Answered on, and by whom: ____________________",
        ],
    }
    lines = [
        "# Record of a removal request",
        "",
        f"Store {code(str(seen.store.root))} (identity {code(seen.store.identity)}), "
        f"read on {day(now)}, {clock(now)}, by tangent_jax {tj.__version__}.",
        "",
        f"**{state(seen, plan, removals, elsewhere)}**",
    ]
    if seen.wrong:
        lines += ["", "**The store does not verify; do not rely on this page until it does:**", ""]
        lines += [f"- {code(line)}" for line in seen.wrong]
    for number, (title, body) in enumerate(sections.items(), 1):
        lines += ["", f"## {number}. {title}", "", *body]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Foreign text as Markdown code, which no reader of Markdown changes; on one line."""
    text = visible(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def removals_of(seen: Inspection, request: Request, entries: Sequence[Unknown]) -> list[Removal]:
    """The earlier removals that this request concerns, oldest first."""
    words = request.asked if request.owner is None else (request.owner,)
    found = {removal.page for entry in entries for removal in (*entry.removals, *entry.requests)}
    forms = seen.store.forms(words)
    found |= {removal.page for removal in seen.removals if answers(removal, forms)}
    return [removal for removal in reversed(seen.removals) if removal.page in found]


def other_stores(seen: Inspection, plan: tj.store.RemovalPlan, removals: Sequence[Removal]) -> dict[Path, int | None]:
    """The stores beside this one that hold images of the request now, with their number; None if one is unreadable."""
    store = seen.store
    forgotten = {form for removal in removals for form in removal.line.forgotten}
    held: dict[Path, int | None] = {}
    for folder, seen_there in neighbours(store):
        if isinstance(seen_there, Exception):
            held[folder] = None
            continue
        images = set[str]().union(*seen_there.values())
        asked = [i for i in images if i in plan.identifiers or not forgotten.isdisjoint(store.forms([i]))]
        if asked:
            held[folder] = len(asked)
    return held


def stores_to_ask(elsewhere: Mapping[Path, int | None], again: Sequence[str]) -> Iterator[str]:
    """The stores beside this one that hold images of the request now, with the command for each."""
    for folder, images in elsewhere.items():
        yield ""
        if images is None:
            yield f"{code(str(folder))}: a store that cannot be read now."
            continue
        yield f"**{code(str(folder))} holds {count(images, 'image')} of this request now. Ask there, too:**"
        yield ""
        words = [f"--store={folder}" if word.startswith("--store=") else word for word in again]
        out = f"-{folder.name}"
        yield from fence([[f"{word}{out}" if word.startswith("--out=") else word for word in words]])


def not_searched(request: Request, again: Sequence[str]) -> Iterator[str]:
    """A line if test images of an owner were not looked for."""
    if request.owner is not None and not any(word.startswith("--owners=") for word in again):
        yield ""
        yield "Not looked up: test and validation images of this owner, as no `--owners` was given."


def state(
    seen: Inspection,
    plan: tj.store.RemovalPlan,
    removals: Sequence[Removal],
    elsewhere: Mapping[Path, int | None],
) -> str:
    """The state of the request in one sentence."""
    held = plan.components
    images = len({identifier for holding in held.values() for identifier, _ in holding.rows})
    if stopped(seen, plan):
        return "STOPPED: a removal of this request began and has no receipt. Repeat it; see 3."
    if held:
        verb = "holds" if len(held) == 1 else "hold"
        return f"OPEN: {count(len(held), 'component')} {verb} {count(images, 'image')} of this request."
    if plan.unseen and not removals:
        return "OPEN: no component saw these images. Their cached rows go by a removal, if there are any."
    if removals and elsewhere:
        return "REMOVED HERE: no component of this store holds an image of this request now. Other stores do: see 4."
    if removals:
        return "REMOVED: no component of this store holds an image of this request now."
    return "NOTHING FOUND: no component, data set or removal that was searched knows this request; see 2."


def who_asked(request: Request) -> Iterator[str]:
    """The request as it was given."""
    if request.owner is not None:
        yield f"All images of the owner {code(request.spelling)}, as given. This page does not know who asked: see 7."
        return
    words = [request.spelled(word) for word in request.asked]
    names = [word for word in words if not IDENTIFIER.fullmatch(word)]
    kind = "image" if request.files else "word"
    what = "passed as files" if request.files else "each the name or the identifier of an image"
    yield f"{count(len(words), kind)}, {what}, as given. This page does not know who asked: see 7."
    yield ""
    yield from name_list(names, len(words) - len(names))


def name_list(names: Sequence[str], identifiers: int = 0) -> Iterator[str]:
    """Names of images as a list; identifiers, and names beyond the first ones, are counted."""
    yield from (f"- {code(name)}" for name in names[:NAMED])
    if len(names) > NAMED:
        yield f"- and {count(len(names) - NAMED, 'more name')}; `images.txt` beside this page has all"
    if identifiers:
        yield f"- {count(identifiers, 'identifier')}, not printed: an identifier can be traced to its image"


def found(
    seen: Inspection,
    request: Request,
    plan: tj.store.RemovalPlan,
    entries: Sequence[Unknown],
    removals: Sequence[Removal],
) -> Iterator[str]:
    """The images of the request in components and data sets, and what the store knows of the rest."""
    if plan.components:
        yield "| component | images of the request | other images | private |"
        yield "|---|---|---|---|"
        for name, holding in plan.components.items():
            origin = seen.origins.get(name)
            is_private = "not known: damaged" if origin is None else "no" if origin.privacy is None else "yes"
            yield f"| {code(name)} | {len(holding.rows)} | {holding.left} | {is_private} |"
        yield ""
        names = {normal_name(image): image for holding in plan.components.values() for _, image in holding.rows}
        yield "Their names in the components:"
        yield ""
        yield from name_list(sorted(names.values()))
    else:
        yield "No component holds an image of the request now."
    if plan.unseen:
        names = sorted(name for identifier, name in plan.unseen if name != identifier)
        yield ""
        yield f"{count(len(plan.unseen), 'image')} that no component saw, such as test images:"
        yield ""
        yield from name_list(names, len(plan.unseen) - len(names))
    if removals:
        yield ""
        yield f"{count(len(removals), 'earlier removal')} of images of this request: see 3."
    unexplained = [entry for entry in entries if not entry.removals]
    in_data = {normal_name(name) for pair in plan.unseen for name in pair}
    for entry in unexplained if request.owner is None else ():
        if normal_name(entry.word) in in_data:
            continue
        word = "An identifier" if IDENTIFIER.fullmatch(entry.word) else code(entry.word)
        yield ""
        if entry.requests:
            yield f"{word}: a removal was asked for by this word before; no image has this name now."
        elif entry.alike:
            yield f"{word}: no component saw these bytes. Images of this name with other bytes: {listing(entry.alike)}."
        else:
            yield f"{word}: not found in components, data sets or removals."
    for line in unopened(seen):
        yield ""
        yield line
    if request.owner is not None and not removals:
        yield ""
        yield "A removal that named images or components, and not this owner, is not found by the owner's name."


def unopened(seen: Inspection) -> Iterator[str]:
    """A line for each data set of the components in which no name was looked up, with the reason."""
    specs = {origin.recipe.dataset: origin.is_own for origin in seen.origins.values() if origin.recipe is not None}
    for spec, is_own in sorted(specs.items()):
        if not is_own and spec != "digits":
            yield f"Not looked up: the data set {code(spec)}, which a component of another machine names (`--trust`)."
            continue
        try:
            tj.open_dataset(spec)
        except (InputError, OSError) as error:
            yield f"Not looked up: the data set {code(spec)}, which cannot be opened now ({visible(str(error))})."


def listing(names: Sequence[str]) -> str:
    """Names in one line."""
    return ", ".join(map(code, names))


def erased(
    seen: Inspection,
    plan: tj.store.RemovalPlan,
    removals: Sequence[Removal],
    ways: Sequence[Way],
    preview: Preview,
) -> Iterator[str]:
    """What each removal deleted, what a stopped one said that it would, and the commands where images are left."""
    for removal in removals:
        receipt = removal.receipt
        yield from heading_of(removal)
        if receipt is None:
            yield "The receipt cannot be read: what was deleted is not known here."
        else:
            yield from (f"- {code(line)}" for line in receipt.deleted)
            if receipt.unseen:
                yield f"- cached rows, if any, of {count(len(receipt.unseen), 'image')} that no component saw"
        yield ""
    for line in stopped(seen, plan):
        yield f"**{day(line.time)}, {clock(line.time)}: a removal began, and has no receipt.** The store keeps"
        yield f"{listing(line.removed) if line.removed else 'its components'}. These traces may be erased already:"
        yield ""
        yield from (f"- {code(text)}{' (erased)' * (text in seen.store.state.erased)}" for text in line.erases)
        yield ""
        yield "Repeat the removal. Its receipt then lists these traces, too."
        yield ""
    later = [line for line in seen.store.state.lines if isinstance(line, Erase)]
    if removals and later:
        yield f"Traces of removed images were searched and erased again on {', '.join(day(x.time) for x in later)}."
        yield ""
    if not plan.components and not plan.unseen:
        if not removals:
            yield "Nothing: there was nothing to erase."
        return
    possible = [way.command for way in ways if not way.impossible]
    is_drop = not any(holding.left for holding in plan.components.values())  # whatever the way
    if is_drop and plan.components:
        yield "Every image of these components is asked for: nothing is left to train, so a removal drops them."
        yield ""
    yield "Still to erase. A command does it; with `--dry_run` it only says what it would do:"
    yield ""
    yield from fence(possible[:1] if is_drop else possible)
    for way in ways[:1] if is_drop else ways:
        if any(accuracy is not None for accuracy in way.accuracies):
            figures = ", ".join("none" if accuracy is None else f"{accuracy:.4f}" for accuracy in way.accuracies)
            name = "a drop" if way.how == "drop" else f"`--{way.how}`"
            yield f"- test accuracy after {name}, measured apart from the store: {figures}"
    for way in () if is_drop else ways:
        for name, reason in way.impossible.items():
            yield f"- not `--{way.how}`: {code(name)}: {visible(reason)}"
    yield ""
    yield from to_erase(preview)


def to_erase(preview: Preview) -> Iterator[str]:
    """The caches that a removal searches, with their rows of the images, and the lines that its receipt will have."""
    yield "A removal searches these caches:"
    yield ""
    yield "| cache | rows of the images |"
    yield "|---|---|"
    for cache, rows in preview.caches.items():
        yield f"| {cell(cache)} | {'not there now' if rows is None else rows} |"
    if not preview.caches:
        yield "| none | |"
    yield ""
    yield "It will delete:" if preview.deleted else "It will delete nothing: no trace was found."
    yield ""
    yield from (f"- {code(line)}" for line in preview.deleted)
    yield ""


def heading_of(removal: Removal) -> Iterator[str]:
    """A removal's day, its way, its images, components and receipt."""
    line = removal.line
    how = removal.receipt.how if removal.receipt else ""
    verdict = "it does NOT verify" if removal.wrong else "it verifies"
    yield f"**{day(line.time)}, {clock(line.time)}: {count(len(line.forgotten), 'image')} removed.**"
    yield f"Receipt {code(f'receipts/{line.receipt}.json')}: {verdict}."
    if removal.dropped:
        yield f"Dropped: {listing(removal.dropped)}."
    if removal.retrained:
        yield f"{WORDS.get(how, 'put back').capitalize()}: {listing(removal.retrained)}."
    if how == "exact" and removal.retrained:
        yield "A moved component began at the removed one. Its certificate bounds a distance; it is no privacy."
    yield "Deleted:"
    yield ""


def stopped(seen: Inspection, plan: tj.store.RemovalPlan) -> list[Intend]:
    """The removals of components or images of this request that began, and have no receipt."""
    forms = seen.store.forms(plan.identifiers)
    lines = seen.store.state.intended
    return [line for line in lines if {*line.removed} & {*plan.components} or forms.intersection(line.forgotten)]


def not_reached(plan: tj.store.RemovalPlan, removals: Sequence[Removal], preview: Preview) -> Iterator[str]:
    """The places that the removals did not reach, or a removal would not."""
    places = [line for removal in removals if removal.receipt for line in removal.receipt.not_reached]
    anchors = [line for removal in removals if removal.receipt for line in removal.receipt.anchors]
    if plan.components or plan.unseen:
        places += preview.not_reached
    yield "Known to the library, from the day of the removal on: look whether they are still there. No day ends these:"
    yield "delete them yourself."
    yield ""
    lines = [*dict.fromkeys([*places, *anchors, *plan.anchors])]
    yield from (f"- {code(line)}" for line in lines)
    if not lines:
        yield "- none"
    yield "- always: the pre-trained weights, settings that were chosen with the images, and copies of other programs"
    yield "- always: this store's journal, which keeps the names of all components (with `--sharding=owner` of owners)"
    yield "- a copy that `tangent-jax store push` wrote: until the next push, and versions that a bucket keeps"


def backup_lines(root: Path, backups: Sequence[Backup] | None, today: datetime.date) -> Iterator[str]:
    """The operator's list, with the days that are left."""
    path = code(str(backups_file(root)))
    if backups is None:
        yield f"**Backups and copies: no list.** There is no {path}, so this page does not know them."
        return
    if not backups:
        yield f"Backups and copies: {path} says that there is none."
        return
    yield f"Backups and copies, as {path} lists them:"
    yield ""
    yield "| what | where | until | |"
    yield "|---|---|---|---|"
    for backup in sorted(backups, key=lambda backup: backup.until or datetime.date.max):
        cells = [cell(backup.what), cell(backup.where), str(backup.until or "no day"), remaining(backup.until, today)]
        yield f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Foreign text in a cell of a table, where code spans do not protect a bar."""
    return code(text).replace("|", "\\|")


def remaining(until: datetime.date | None, today: datetime.date) -> str:
    """The time until the end of a copy, in words."""
    if until is None:
        return "has no end: delete it by hand"
    days = (until - today).days
    if days < 0:
        return f"the day passed {count(-days, 'day')} ago: check that it is gone"
    return f"{count(days, 'day')} left" if days else "ends today"


def before_and_after(seen: Inspection, plan: tj.store.RemovalPlan, removals: Sequence[Removal]) -> Iterator[str]:
    """The fingerprints of the model and of each component, before and after each removal."""
    receipts = [(removal, removal.receipt) for removal in removals if removal.receipt]
    if receipts:
        yield "| | before | after | |"
        yield "|---|---|---|---|"
    for removal, receipt in receipts:
        composed = (receipt.composed_before, "none was kept"), (receipt.composed_after, "nothing left to compose")
        before, after = (code(short(weights)) if weights else reason for weights, reason in composed)
        yield f"| model, {day(removal.line.time)} | {before} | {after} | |"
        for name, weights in receipt.removed.items():
            after = code(short(receipt.retrained[name])) if name in receipt.retrained else "gone"
            optimum = receipt.optima.get(name)
            bound = f"at most {optimum.certificate:.3g} from its optimum" if optimum else ""
            yield f"| {cell(name)} | {code(short(weights))} | {after} | {bound} |"
    if receipts:
        yield ""
        yield "Fingerprints are cut here. The store's key hides them, as in receipts, but for the model's afterwards."
    if plan.components:
        yield "" if receipts else "Before a removal:"
        yield ""
        entries = seen.store.state.components
        yield from (f"- {code(name)}: {code(short(entries[name].weights))}, unchanged" for name in plan.components)
    elif not receipts:
        yield "The model did not change."


def checks(seen: Inspection, removals: Sequence[Removal], again: Sequence[str]) -> Iterator[str]:
    """The commands that check the store and its receipts, and write this page again."""
    verify = ["tangent-jax", "store", "verify", f"--store={seen.store.root}"]
    receipts = [f"--receipt={seen.store.root}/receipts/{removal.line.receipt}.json" for removal in removals]
    yield 'Each command ends with exit code 0 and `"verified": true`; anything else is a finding.'
    yield ""
    yield from fence([[*verify, receipt] for receipt in receipts] or [verify])
    yield "This page, as the store is then:"
    yield ""
    yield from fence([again])


def fence(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    """Commands for a shell, in a block."""
    yield "```"
    yield from (visible(shlex.join(command)) for command in commands)
    yield "```"
    yield ""

"""Claims: the group of shards that each process is training. The shards of a group train as one program.

    claims/groups.json     in the store's folder: the names of each group's shards, in order
    claims/7.lock          locked (flock) while a process trains group 7; holds that process's name
    claims/run.json        the settings and images of the run whose processes hold claims/run.lock together

The system releases the locks of a process that ends, so claims need no expiry. A lock file that names a process but is
not locked belonged to a process that was killed. The store is complete without this folder. A shard may be named by its
owner, so a removal deletes groups.json; the next claim writes it again, without shards that have no image left.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import hold_lock, holder_of, inside, write_whole
from tangent_jax.io.records import convert, parse_json
from tangent_jax.store.disk import CLAIMS, Disk


@dataclasses.dataclass(frozen=True)
class Groups:
    """The shards of each group, by name."""

    groups: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run fills a store with: its settings by name, and the hidden form (keys.py) of its shards' images."""

    settings: dict[str, Any]
    images: str


class Claims:
    """The claims on the groups of a store's shards.

    >>> tj.store.Claims(demo.store()).states()["ann"]
    {'state': 'done'}
    """

    STATES = ("done", "running", "lost", "waiting")

    def __init__(self, store: Disk) -> None:
        self.store, self.folder = store, inside(store.root, CLAIMS)
        self.path = inside(self.folder, "groups.json")
        self.run = inside(self.folder, "run.json")

    def write_groups(self, groups: Sequence[Sequence[str]]) -> None:
        """Writes the shards of each group; all processes that fill the store write the same."""
        content = json.dumps({"groups": groups}).encode()
        if not self.path.exists() or self.path.read_bytes() != content:
            write_whole(self.path, content)

    def forget(self) -> None:
        """Deletes the shards' names, also those of a write that was killed."""
        for path in (self.path, self.path.with_name(f"{self.path.name}.partial")):
            path.unlink(missing_ok=True)

    def lock(self, group: int | str) -> Path:
        """The lock file of a group, or of other work for one process at a time."""
        return self.folder / f"{group}.lock"

    @contextmanager
    def hold(self, group: int | str) -> Iterator[None]:
        """Holds a group's claim, once it is free, and reads the store's state again."""
        with hold_lock(self.lock(group)):
            self.store.reload()
            yield

    @contextmanager
    def one_run(self, run: Run) -> Iterator[None]:
        """Keeps other runs out of the store; the processes of one run hold it together.

        Raises: InputError if a run of other settings or images holds it.
        """
        with ExitStack() as held:
            with hold_lock(self.lock("start"), quiet=True):  # one process at a time looks, and begins
                try:
                    with hold_lock(self.lock("run"), wait=False):
                        write_whole(self.run, json.dumps(dataclasses.asdict(run)).encode())
                except InputError:  # held
                    self.check_run(run)
                held.enter_context(hold_lock(self.lock("run"), shared=True))
            yield

    def check_run(self, run: Run) -> None:
        """Raises InputError naming the first setting in which the run that holds the store differs from this one.

        A run whose settings cannot be read is another one.
        """
        try:
            other = convert(Run, parse_json(self.run.read_bytes(), self.run), self.run)
        except (OSError, InputError) as error:
            raise InputError(self.refusal("settings that cannot be read")) from error
        if other != Run(json.loads(json.dumps(run.settings)), run.images):
            raise InputError(self.refusal(first_difference(other.settings, run.settings)))

    def refusal(self, difference: str) -> str:
        """The message to a run that differs from the one that holds the store."""
        return (
            f"{self.store.root} must be filled by one run at a time; another one fills it now, with {difference}. Wait "
            "until it ends, or choose another folder for the stores"
        )

    def states(self) -> dict[str, dict[str, str]]:
        """For each component and shard, by name: {"state": one of STATES, "process": its holder, "since": when}.

        done      the store holds its component
        running   a process holds its group
        lost      the process that held its group was killed; the next process that wants it trains it
        waiting   no process has its group

        Edge cases: a file system whose locks do not reach other hosts shows their running groups as lost.
        """
        states = {name: {"state": "done"} for name in self.store.state.components}
        if self.path.exists():
            table = convert(Groups, parse_json(self.path.read_bytes(), self.path), self.path)
            for group, names in enumerate(table.groups):
                states |= self.of(group, names)
        return states

    def of(self, group: int, names: Sequence[str]) -> Mapping[str, dict[str, str]]:
        """The states of the shards of one group."""
        held, process = holder_of(self.lock(group))
        began = {"process": process, "since": stamp(self.lock(group))} if process else {}
        pending = "running" if held else "lost" if process else "waiting"
        return {
            name: {"state": "done"} if name in self.store.state.components else {"state": pending, **began}
            for name in names
        }


def first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first setting in which another run differs, as JSON has both; "other images or shards" if none does."""
    for name in dict.fromkeys([*ours, *theirs]):
        other, own = (json.dumps(settings.get(name)) for settings in (theirs, ours))
        if other != own:
            return f"{name} {other}, here {own}"
    return "other images or shards"


def stamp(path: Path) -> str:
    """The modification time of a file, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime))

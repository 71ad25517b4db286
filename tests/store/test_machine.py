"""Any sequence of changes, by two processes that share a store, some of them killed: the store is that of the journal.

At each moment its sum is the sum of its components alone, to the bit, and all its receipts hold. Rows of removed images
are in no cache that their removal named. Nothing else outside the store changes.
"""

import contextlib
import multiprocessing
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers import Killed, composed, ending, origin, part
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data import identifiers
from tangent_jax.features.extract import Cache, fill
from tangent_jax.features.row_store import RowStore, identifiers_of
from tangent_jax.store.files import write_component
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import contents, plan_removal
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt

SEEDS = range(4)
KILLED = "killed"
DONE = "done"


def made(folder, seed):
    """The provenance of a component that was trained in a folder of its own."""
    return origin(seed, folders=(str(folder / f"runs/{seed}"),))


def component_of(folder, seed):
    """The file of a component where it was trained."""
    return folder / f"runs/{seed}/dw.safetensors"


def add(store, folder, seed):
    store.add(f"shard {seed}", part(seed), made(folder, seed))


def carry_out(store, folder, plan, with_cache):
    remove(store, plan, cache=Cache(folder / ("cache" if with_cache else "no cache")))


CHANGES = {
    "add": add,
    "merge": lambda store, folder, other: add_all(store, Store(folder / other)),
    "compose": lambda store, folder, how: store.compose(how=how),
    "discard": lambda store, folder, seed: store.discard([f"shard {seed}"]),
    "remove": carry_out,
}


def change(stores, folder, name, arguments, moment):
    """Runs a change on the store that this process has open, killed at a write or not; DONE, KILLED or a refusal."""
    store = stores.get(folder) or Store(folder / "store")
    stores.clear()  # of an earlier sequence
    try:
        with contextlib.nullcontext() if moment is None else ending(moment, Killed):
            CHANGES[name](store, folder, *arguments)
    except Killed:
        return KILLED
    except InputError as error:
        return str(error)
    stores[folder] = store
    return DONE


def serve(connection):
    """The second process: runs changes until there are no more."""
    identifiers.INDEX = "/dev/null/index.sqlite"
    stores = {}
    while (asked := connection.recv()) is not None:
        connection.send(change(stores, *asked))


@pytest.fixture(scope="module", autouse=True)
def second():
    """The second process."""
    context = multiprocessing.get_context("spawn")
    Changes.second, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process ends a wait for its answer
    yield
    Changes.second.send(None)
    process.join()


class Changes(RuleBasedStateMachine):
    """A store, and what it must hold: the seeds of its components, and those that saw a removed image."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder / "store")
        self.own = {}
        self.held = set()
        self.gone = set()
        self.receipts = 0
        self.merges = 0
        self.plans = []
        self.asked = set()  # the images of removals that named the cache, killed ones too
        cached = [identifier for seed in SEEDS for identifier, _ in origin(seed).data.examples]
        rows = RowStore(self.folder / "cache/key", cached, (2,), np.dtype("float32"))
        fill(rows, lambda spans: ((np.ones((len(span), 2), np.float32), []) for span in spans))

    def teardown(self):
        shutil.rmtree(self.folder)

    def run(self, number, name, *arguments, moment=None):
        """The outcome of a change in this process or in the second one."""
        if number:
            self.second.send((self.folder, name, arguments, moment))
            return self.second.recv()
        return change(self.own, self.folder, name, arguments, moment)

    def change(self, number, moment, outcomes, name, *arguments):
        """Runs a change in a process; the store is then in one of the states `outcomes`.

        Each is (held, gone, number of receipts): first the state without the change, last the one with it.
        """
        outcome = self.run(number, name, *arguments, moment=moment)
        assert outcome in (DONE, KILLED)
        store = self.store
        store.settle()
        found = {seed for seed in SEEDS if f"shard {seed}" in store}
        gone = {seed for seed in SEEDS if any(map(store.has_forgotten, origin(seed).data.identifiers))}
        assert (found, gone, len(store.state.receipts)) in (outcomes if outcome == KILLED else outcomes[-1:])
        self.held, self.gone, self.receipts = found, gone, len(store.state.receipts)

    handles = st.integers(0, 1)
    moments = st.none() | st.integers(0, 40)

    @property
    def now(self):
        return self.held, self.gone, self.receipts

    @rule(number=handles, seed=st.sampled_from(SEEDS), moment=moments)
    def add(self, number, seed, moment):
        if seed in self.held | self.gone:
            refusal = "must be new" if seed in self.held else "must not be removed ones"
            assert refusal in self.run(number, "add", seed)
            return
        path = component_of(self.folder, seed)  # trained before it is added
        path.parent.mkdir(parents=True, exist_ok=True)
        write_component(path, part(seed), {"provenance": made(self.folder, seed).to_json()})
        self.change(number, moment, (self.now, (self.held | {seed}, self.gone, self.receipts)), "add", seed)

    @rule(number=handles, seeds=st.sets(st.sampled_from(SEEDS), min_size=1), moment=moments)
    def merge(self, number, seeds, moment):
        new = sorted(seeds - self.gone)
        self.merges += 1
        other = Store(self.folder / f"others/{self.merges}")
        for seed in new:
            add(other, self.folder, seed)
        steps = [(self.held | {*new[:count]}, self.gone, self.receipts) for count in range(len(new) + 1)]
        self.change(number, moment, steps, "merge", f"others/{self.merges}")

    @rule(number=handles, how=st.sampled_from(("mean", "ties")), moment=moments)
    def compose(self, number, how, moment):
        if self.held:
            self.change(number, moment, (self.now,), "compose", how)
        else:
            assert "must hold at least one component; got none" in self.run(number, "compose", how)

    def planned(self, data, by_image):
        """(a seed, the plan of a removal of its component, or of an image that it saw)."""
        seed = data.draw(st.sampled_from(sorted(self.held)))
        asked = {"examples": [origin(seed).data.examples[0][0]]} if by_image else {"names": [f"shard {seed}"]}
        self.store.reload()
        return seed, plan_removal(self.store, **asked)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), by_image=st.booleans())
    def plan(self, data, by_image):
        """A plan that is carried out later, or never."""
        self.plans.append(self.planned(data, by_image))

    @precondition(lambda self: self.held)
    @rule(number=handles, data=st.data(), by_image=st.booleans(), with_cache=st.booleans(), moment=moments)
    def remove_now(self, number, data, by_image, with_cache, moment):
        self.carry_out(number, *self.planned(data, by_image), with_cache, moment)

    @precondition(lambda self: self.plans)
    @rule(number=handles, data=st.data(), with_cache=st.booleans(), moment=moments)
    def remove_later(self, number, data, with_cache, moment):
        self.carry_out(number, *data.draw(st.sampled_from(self.plans)), with_cache, moment)

    def carry_out(self, number, seed, plan, with_cache, moment):
        """Carries a plan out, if it fits the store; one that is stale is refused, and erases nothing."""
        self.store.reload()
        if plan.contents != contents(self.store):
            before = self.traces()
            assert "Plan again" in self.run(number, "remove", plan, with_cache)
            assert (self.traces(), verify(self.store)) == (before, [])
            return
        if with_cache:
            forgotten = {i for seed in SEEDS for i, _ in origin(seed).data.examples if self.store.has_forgotten(i)}
            self.asked |= {*plan.identifiers} | forgotten
        outcomes = (self.now, (self.held - {seed}, self.gone | {seed}, self.receipts + 1))
        self.change(number, moment, outcomes, "remove", plan, with_cache)
        if self.receipts == outcomes[1][2]:
            (name,) = self.store.state.removals[-1:]
            receipt, _ = read_receipt(self.store.root / f"receipts/{name.receipt}.json")
            assert receipt.composed_after == (self.fresh_sum(self.held) if self.held else None)

    @precondition(lambda self: self.held)
    @rule(number=handles, data=st.data(), moment=moments)
    def discard(self, number, data, moment):
        seed = data.draw(st.sampled_from(sorted(self.held)))
        outcomes = (self.now, (self.held - {seed}, self.gone, self.receipts))
        self.change(number, moment, outcomes, "discard", seed)

    @staticmethod
    def fresh_sum(seeds):
        return trees.fingerprint(composed({f"shard {seed}": part(seed) for seed in seeds}))

    def traces(self):
        """What is there of the components outside the store: the files where they were trained, and cached rows."""
        files = {seed for seed in SEEDS if component_of(self.folder, seed).exists()}
        return files, {*identifiers_of(self.folder / "cache/key")}

    @invariant()
    def the_sum_is_that_of_the_components_and_all_receipts_hold(self):
        store = Store(self.folder / "store")
        assert [*store] == [f"shard {seed}" for seed in sorted(self.held)]
        if self.held:
            assert trees.fingerprint(store.sum()) == self.fresh_sum(self.held)
        assert verify(store) == []
        for receipt in (store.root / "receipts").glob("*"):
            assert verify_receipt(store, receipt) == []

    @invariant()
    def what_receipts_say_is_erased_and_nothing_else_goes(self):
        store = Store(self.folder / "store")
        trained, rows = self.traces()
        assert trained == {seed for seed in SEEDS if component_of(self.folder, seed).parent.exists()}
        erased: set[str] = set()  # a removal erases the rows of all images that were removed before it, too
        before: set[str] = set()
        for line in store.state.removals:
            before |= {*line.forgotten}
            receipt = read_receipt(store.root / f"receipts/{line.receipt}.json")[0]
            if any(str(self.folder / "cache") in trace.path for trace in receipt.deleted):
                erased |= before
        assert erased.isdisjoint(store.key.hide_all(rows))
        gone = {identifier for seed in SEEDS for identifier, _ in origin(seed).data.examples} - rows
        assert gone <= self.asked

    @invariant()
    def no_list_names_a_removed_image(self):
        store = Store(self.folder / "store")
        lists = [store.journal.path, *(store.root / "receipts").glob("*")]
        text = "".join(path.read_text() for path in lists if path.exists())
        text = text.replace("0" * 64, "")  # the hash before the first line, and the identifier of photo 0
        for seed in SEEDS:
            for identifier, name in origin(seed).data.examples:
                assert identifier not in text
                assert name not in text


class TestChanges(Changes.TestCase):
    settings = settings(max_examples=12, stateful_step_count=14, deadline=None)

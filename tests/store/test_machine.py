"""Any sequence of changes, by two handles of one store, some of them killed: the store is that of the journal's lines.

At each moment its sum is the sum of its components alone, to the bit, and all its receipts hold.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from helpers import Killed, ending, origin, part
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tangent_jax.composition.sums import sum_trees
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.records import seal_fields
from tangent_jax.store.disk import KEYS, WITHOUT_KEY
from tangent_jax.store.keys import form_of_04
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

SEEDS = range(4)


class Changes(RuleBasedStateMachine):
    """A store, and what it must hold: the seeds of its components, and those that saw a removed image."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = [Store(self.folder / "store") for _ in range(2)]
        self.held = set()
        self.gone = set()
        self.receipts = 0
        self.merges = 0

    @initialize(is_of_04=st.booleans())
    def begin(self, is_of_04):
        """A store of version 0.4, which has no key, gets one at its first change."""
        if is_of_04:
            store = self.stores[0]
            store.marker.write_text(seal_fields({"format": WITHOUT_KEY, "store": store.identity}))
            (store.root / KEYS).unlink()
            for store in self.stores:
                store.reload()

    def teardown(self):
        shutil.rmtree(self.folder)

    def change(self, number, run, moment, *outcomes):
        """Runs a change on a handle, killed at a write or not; the store is then in one of the states `outcomes`.

        Each is (held, gone, number of receipts): first the state without the change, last the one with it.
        """
        try:
            if moment is None:
                run(self.stores[number])
            else:
                with ending(moment, Killed):
                    run(self.stores[number])
            outcomes = outcomes[-1:]
        except Killed:
            self.stores[number] = Store(self.folder / "store")
        store = self.stores[number]
        store.settle()
        found = {seed for seed in SEEDS if f"shard {seed}" in store}
        gone = {seed for seed in SEEDS if any(map(store.has_forgotten, origin(seed).identifiers))}
        assert (found, gone, len(store.state.receipts)) in outcomes
        self.held, self.gone, self.receipts = found, gone, len(store.state.receipts)

    handles = st.integers(0, 1)
    moments = st.none() | st.integers(0, 30)

    @property
    def now(self):
        return self.held, self.gone, self.receipts

    @rule(number=handles, seed=st.sampled_from(SEEDS), moment=moments)
    def add(self, number, seed, moment):
        def run(store):
            store.add(f"shard {seed}", part(seed), origin(seed))

        if seed in self.held | self.gone:
            with pytest.raises(InputError, match="must be new" if seed in self.held else "must not be removed ones"):
                run(self.stores[number])
        else:
            self.change(number, run, moment, self.now, (self.held | {seed}, self.gone, self.receipts))

    @rule(number=handles, seeds=st.sets(st.sampled_from(SEEDS), min_size=1), moment=moments)
    def merge(self, number, seeds, moment):
        new = sorted(seeds - self.gone)
        self.merges += 1
        other = Store(self.folder / f"other {self.merges}")
        for seed in new:
            other.add(f"shard {seed}", part(seed), origin(seed))
        steps = [(self.held | {*new[:count]}, self.gone, self.receipts) for count in range(len(new) + 1)]
        self.change(number, lambda store: store.add_all(other), moment, *steps)

    @rule(number=handles, how=st.sampled_from(("mean", "ties")), moment=moments)
    def compose(self, number, how, moment):
        if self.held:
            self.change(number, lambda store: store.compose(how=how), moment, self.now)
        else:
            with pytest.raises(InputError, match="must hold at least one component; got none"):
                self.stores[number].compose(how=how)

    @precondition(lambda self: self.held)
    @rule(number=handles, data=st.data(), by_image=st.booleans(), moment=moments)
    def remove(self, number, data, by_image, moment):
        seed = data.draw(st.sampled_from(sorted(self.held)))
        asked = {"examples": [origin(seed).examples[0][0]]} if by_image else {"names": [f"shard {seed}"]}
        after = (self.held - {seed}, self.gone | {seed}, self.receipts + 1)

        def run(store):
            receipt = remove(store, plan_removal(store, **asked))
            assert receipt.composed_after == (self.fresh_sum(after[0]) if after[0] else None)

        self.change(number, run, moment, self.now, after)

    @precondition(lambda self: self.held)
    @rule(number=handles, data=st.data(), moment=moments)
    def discard(self, number, data, moment):
        seed = data.draw(st.sampled_from(sorted(self.held)))
        after = (self.held - {seed}, self.gone, self.receipts)
        self.change(number, lambda store: store.discard([f"shard {seed}"]), moment, self.now, after)

    @staticmethod
    def fresh_sum(seeds):
        return trees.fingerprint(sum_trees({f"shard {seed}": part(seed) for seed in seeds}))

    @invariant()
    def the_sum_is_that_of_the_components_and_all_receipts_hold(self):
        store = Store(self.folder / "store")
        assert [*store] == [f"shard {seed}" for seed in sorted(self.held)]
        if self.held:
            assert trees.fingerprint(store.sum()) == self.fresh_sum(self.held)
        assert store.verify() == []
        for receipt in (store.root / "receipts").glob("*"):
            assert store.verify_receipt(receipt) == []

    @invariant()
    def no_list_names_a_removed_image(self):
        store = Store(self.folder / "store")
        lists = [store.journal.path, *(store.root / "receipts").glob("*")]
        text = "".join(path.read_text() for path in lists if path.exists())
        text = text.replace("0" * 64, "")  # the hash before the first line, and the identifier of photo 0
        for seed in SEEDS:
            for identifier, name in origin(seed).examples:
                assert identifier not in text
                assert name not in text
                assert form_of_04(identifier) not in text


class TestChanges(Changes.TestCase):
    settings = settings(max_examples=12, stateful_step_count=12, deadline=None)

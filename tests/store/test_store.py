"""The store: provenance, composition, removal with receipts; kills, other processes, altered bytes."""

import contextlib
import dataclasses
import multiprocessing
import os
import random
import shutil
import time
import unicodedata
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError

import jax
import numpy as np
import pytest
from helpers import Killed, composed, drop, ending, filled, origin, origin_of_sums, part, predictor, sums
from run_binary import start, wait_until
from safetensors.numpy import load_file

import tangent_jax as tj
from tangent_jax.composition import compose as compose_module
from tangent_jax.composition.sums import weighted_sum
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import hold_lock
from tangent_jax.store.files import read_component
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Data, Provenance, make_provenance
from tangent_jax.store.receipts import receipt_text
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import Retrained
from tangent_jax.store.state import State
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt


def test_adding_reads_each_line_once(tmp_path, monkeypatch):
    """So the thousandth component costs what the tenth does."""
    read, applied = [], []
    from_json, apply = Provenance.from_json.__func__, State.apply
    monkeypatch.setattr(Provenance, "from_json", classmethod(lambda *a: read.append(a[-1]) or from_json(*a)))
    monkeypatch.setattr(State, "apply", lambda *a: applied.append(a[-1]) or apply(*a))
    store = Store(tmp_path / "store")
    paths = []
    file = Store.file
    monkeypatch.setattr(Store, "file", lambda *a: paths.append(a[-1]) or file(*a))
    for s in range(8):
        before = len(paths)
        store.add(f"{s}", part(s), origin(s))
    assert (len(read), len(applied)) == (8, 8)
    assert len(paths) - before <= 4  # the files of itself and of one other
    other = Store(tmp_path / "store")
    other.add("8", part(8), origin(8))
    store.reload()
    assert len(applied) == 8 + 9 + 1
    assert [*store] == [*other]


def test_adding_lists_images_of_the_new_one(tmp_path, monkeypatch):
    """And not those of all others again."""
    store, listed, images = filled(tmp_path, 8), [], vars(Data)["seen"].fget
    monkeypatch.setattr(Data, "seen", property(lambda data: listed.append(data.examples) or images(data)))
    store.add("new", part(8), origin(8))
    assert {*listed} == {origin(8).data.examples}


def test_component_returns_with_bits(tmp_path):
    filled(tmp_path)
    again = Store(tmp_path)
    assert [*again] == ["shard 0", "shard 1", "shard 2"]
    assert trees.fingerprint(again["shard 1"].dw) == trees.fingerprint(part(1))
    assert again.provenance("shard 1") == origin(1)
    assert again.provenance("shard 1").training.versions["jax"] == jax.__version__
    assert verify(again) == []


def test_uninstalled_library_has_its_version(monkeypatch):
    def version(name):
        if name == "tangent-jax":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("tangent_jax.store.provenance.version", version)
    assert origin(1).training.versions["tangent-jax"] == tj.__version__


@pytest.mark.parametrize("name", ["\u0905\u0928\u0940\u0924\u093e", "caf\u00e9", "ali.ce@example.org"])
def test_component_name_is_any_persons(tmp_path, name):
    store = Store(tmp_path)
    store.add(name, part(0), origin(0))
    assert [*Store(tmp_path)] == [name]
    remove(store, plan_removal(store, names=[unicodedata.normalize("NFD", name)]))
    assert not store


def test_doubtful_image_list_is_said_on_adding(tmp_path, capsys):
    store = filled(tmp_path / "store")
    assert capsys.readouterr().err == ""
    store.add("none", part(3), origin(3, examples=()))
    nothing = "none lists no images: no request for an image or an owner finds it; remove it by its name\n"
    assert capsys.readouterr().err == nothing
    store.add("liar", part(4), origin(4, examples=origin(0).data.examples[:2] + origin(1).data.examples[:1]))
    others = "liar lists images of other components, 2 of shard 0, 1 of shard 1: a removal of one of them concerns each"
    assert others in capsys.readouterr().err
    remove(store, plan_removal(store, names=["none"]))
    assert "none" not in store


def test_removing_is_never_having_added(tmp_path):
    store, never = filled(tmp_path / "a"), Store(tmp_path / "b")
    for s in (2, 0):
        never.add(f"shard {s}", part(s), origin(s))
    whole = store.compose()
    assert trees.fingerprint(whole) == trees.fingerprint(composed({f"shard {s}": part(s) for s in range(3)}))
    file = store.path("shard 1")
    receipt = remove(store, plan_removal(store, examples=["photo 4.jpg"]))
    assert receipt.composed_before == store.key.hide(trees.fingerprint(whole))
    assert receipt.composed_after == trees.fingerprint(never.compose())
    assert not file.exists()
    assert [*store.state.composed] == [("shard 0", "shard 2")]  # the one that held the component is forgotten
    assert receipt.path.parent == tmp_path / "a/receipts"
    assert receipt.path.read_text() == receipt_text(receipt)
    assert verify(store) == []
    assert verify_receipt(Store(tmp_path / "a"), receipt.path) == []


def times(factor, s=3):
    return jax.tree.map(lambda leaf: factor * leaf, part(s))


REFUSED = {
    "NaN": (lambda s: s.add("a", times(np.nan), origin(3)), "finite; got NaN"),
    "no leaf": (lambda s: s.add("a", {}, origin(3)), "names; got none"),
    "few leaves": (lambda s: s.add("a", {"head": part(3)["head"]}, origin(3)), "the leaves that its provenance names"),
    "shapes": (lambda s: s.add("a", jax.tree.map(lambda x: x[..., :1], part(3)), origin(3)), "must have shape"),
    "equal numbers": (lambda s: s.add("a", part(0), origin(3)), "a must have numbers of its own; got those of shard 0"),
    "known name": (lambda s: s.add("shard 0", part(0), origin(0)), "name must be new; got shard 0"),
    "anchor": (lambda s: s.add("a", part(1), origin(1, anchor="0")), "anchor must be"),
    "head": (lambda s: s.add("a", part(1), origin(1, head="0")), "head must be"),
    "method": (lambda s: s.add("a", part(1), origin(1, method="nlft")), "method must be"),
    "configuration": (
        lambda s: s.add("a", part(1), origin(1, config={**origin(0).config, "heads": 2})), "config.heads must be"),
    "statistics": (lambda s: s.add("a", sums(1), origin_of_sums(1)), "method must be taft; got statistics"),
    "no component": (lambda s: s["nobody"], "holds no component nobody"),
    "tangents as statistics": (lambda s: s.statistics(), "components must be statistics; got tangent weights"),
    "an export's path": (
        lambda s: s.release("/\x1bx", s.sum()), r"an export must have only characters that show; got '/\\x1bx'"),
    **{
        f"name {name!r}": (lambda s, name=name: s.add(name, part(3), origin(3)), "name must be of letters")
        for name in ("../x", " ", "a,b", "", "cafe\u0301", "..\u0301/b", "a\u202eb", " a", "\u0301")
    },
}  # fmt: skip


@pytest.mark.parametrize(("call", "match"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_changes_nothing(tmp_path, call, match):
    store = filled(tmp_path, 1)
    before = store.journal.path.read_bytes()
    with pytest.raises(InputError, match=match):
        call(store)
    assert store.journal.path.read_bytes() == before
    assert verify(Store(tmp_path)) == []


def test_changed_byte_names_its_file(tmp_path):
    store = filled(tmp_path / "store", 2)
    store.compose()
    drop(store, "shard 0")
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.name != "lock"]
    assert len(files) == 6  # component, receipt, journal, HEAD, the store's mark and keys
    rng = random.Random(0)
    for path in files:
        content = path.read_bytes()
        for at in {0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(4))}:
            altered = bytearray(content)
            altered[at] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(altered))
            try:
                told = verify(Store(tmp_path / "store"))
            except InputError as error:
                told = [str(error)]
            assert any(path.name in line for line in told), (path, at)
        path.write_bytes(content)
    assert verify(Store(tmp_path / "store")) == []
    (tmp_path / "store/components/stray").write_text("x")
    assert "stray: not the store's" in verify(Store(tmp_path / "store"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["add", "remove", "retrain", "remove statistics"])
def test_stopped_store_is_before_or_after(tmp_path, monkeypatch, operation):
    """Every fsync, rename, deletion and commit of ours in turn raises what nothing catches, as a kill would."""
    run = {
        "add": lambda s: s.add("shard 2", part(2), origin(2)),
        "remove": lambda s: drop(s, "shard 0"),
        "remove statistics": lambda s: drop(s, "shard 0"),
        "retrain": lambda s: remove(s, plan_removal(s, examples=["photo 1.jpg"]), "retrain"),
    }[operation]
    survivors = origin(0, examples=(origin(0).data.examples[0], origin(0).data.examples[2]))
    monkeypatch.setattr("tangent_jax.store.removal.retrain", lambda *_: Retrained(part(7), survivors, 0.5))
    if "statistics" in operation:
        for s in range(2):
            Store(tmp_path / "whole").add(f"shard {s}", sums(s), origin_of_sums(s))
        Store(tmp_path / "whole").compose()
    else:
        filled(tmp_path / "whole", 2).compose()

    def state(store):
        fingerprints = tuple(trees.fingerprint(store[name].dw) for name in store)
        return tuple([*store]), fingerprints, len(store.state.composed), len(store.state.receipts)

    before = state(Store(tmp_path / "whole"))
    outcomes = []
    for moment in range(200):
        root = tmp_path / "trial"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", root)
        store = Store(root)
        with ending(moment, Killed) as left, contextlib.suppress(Killed):
            run(store)
        finished = left[0] >= 0
        again = Store(root)
        outcomes.append(state(again))
        with again.using(change=True):
            pass  # the next writer sweeps
        assert verify(again) == []
        if finished:
            break
    assert finished
    assert outcomes == sorted(outcomes, key=lambda state: state != before)  # before, then after
    assert set(outcomes) == {before, outcomes[-1]} != {before}


SUMMING = {
    "compose": lambda store: store.compose(),
    "remove": lambda store: drop(store, "shard 1"),
}


@pytest.mark.parametrize("run", SUMMING.values(), ids=SUMMING)
def test_others_read_while_a_sum_is_computed(tmp_path, monkeypatch, run):
    store, summed = filled(tmp_path), []

    def watched(*arguments):
        with hold_lock(tmp_path / "lock", shared=True, wait=False):  # refused beside an exclusive lock
            summed.append(arguments)
        return weighted_sum(*arguments)

    monkeypatch.setattr(compose_module, "weighted_sum", watched)
    run(store)
    assert len(summed) == 1
    assert verify(store) == []


def test_changed_store_is_summed_again(tmp_path, monkeypatch):
    store, using = filled(tmp_path, 2), Store.using

    @contextmanager
    def interrupted(self, change=False):
        if self is store and change and "late" not in self:
            Store(tmp_path).add("late", part(5), origin(5))
        with using(self, change):
            yield

    monkeypatch.setattr(Store, "using", interrupted)
    whole = composed({"shard 0": part(0), "shard 1": part(1), "late": part(5)})
    assert trees.fingerprint(store.compose()) == trees.fingerprint(whole)
    assert [entry["names"] for entry in store.journal.entries[3:]] == [["late", "shard 0", "shard 1"]]


CHILD = """
import sys
from helpers import drop, origin, part
from tangent_jax.store.store import Store
store = Store(sys.argv[1])
while True:
    for s in range(3):  # shard 2 saw what shard 1 did: they may come back
        if f"shard {s}" not in store:
            store.add(f"shard {s}", part(s), origin(s, examples=origin(min(s, 1)).data.examples))
    store.compose()
    drop(store, "shard 1")
"""


@pytest.mark.slow
def test_random_kills_lose_nothing(tmp_path):
    """TANGENT_JAX_KILLS=200 for the long form."""
    root, rng, lines, operations = tmp_path / "store", random.Random(1), 0, set()
    for _ in range(int(os.environ.get("TANGENT_JAX_KILLS", "3"))):
        process = start(CHILD, root)
        size = size_of(root / "journal.jsonl")
        wait_until(process, lambda size=size: size_of(root / "journal.jsonl") > size)
        time.sleep(rng.uniform(0, 1.0))
        process.kill()
        process.join()
        store = Store(root)
        count = len(store.journal.entries)
        assert count >= lines
        lines = count
        operations |= {entry["op"] for entry in store.journal.entries}
        store.settle()
        assert verify(store) == []
        for name in store:
            assert trees.fingerprint(store[name].dw) == trees.fingerprint(part(int(name[-1])))
    assert operations >= {"add", "compose"}


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def test_component_is_one_safetensors_file(tmp_path):
    store = filled(tmp_path, 1)
    flat = load_file(store.path("shard 0"))
    assert flat.keys() == trees.leaves(part(0)).keys()
    dw, metadata = read_component(str(store.path("shard 0")))
    assert Provenance.from_json(metadata["provenance"]) == origin(0)
    leaf = dw["head"]["kernel"]
    assert not leaf.flags.writeable  # a memory map
    assert (leaf == flat["head/kernel"]).all()
    store.path("shard 0").write_bytes(store.path("shard 0").read_bytes()[:-4])
    with pytest.raises(InputError, match="must be a whole safetensors file"):
        read_component(store.path("shard 0"))


def test_composing_holds_one_component_at_a_time(tmp_path):
    filled(tmp_path)
    reads = []

    class Spy(Store):
        def read_tree(self, name):
            reads.append(name)
            return super().read_tree(name)

    Spy(tmp_path).compose()
    assert reads == ["shard 0", "shard 1", "shard 2"]


def adder(root, s):
    Store(root).add(f"shard {s}", part(s), origin(s))


def test_two_processes_take_turns(tmp_path):
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.starmap(adder, [(tmp_path, s) for s in range(6)])
    store = Store(tmp_path)
    assert [*store] == [f"shard {s}" for s in range(6)]
    assert verify(store) == []


def test_who_waits_is_told_for_whom(tmp_path, capfd):
    store = filled(tmp_path, 1)
    context = multiprocessing.get_context("spawn")
    with store.using(change=True):
        process = context.Process(target=adder, args=(tmp_path, 1))
        process.start()
        for _ in range(600):
            time.sleep(0.05)
            told = capfd.readouterr().err
            if "waiting for" in told:
                break
        assert f"waiting for process {os.getpid()}" in told
    process.join()
    assert [*Store(tmp_path)] == ["shard 0", "shard 1"]


def test_anchor_is_known_by_body_leaves():
    predict, _ = predictor(depth=1)
    here = make_provenance(predict)
    for path, leaf in trees.leaves(predict.w).items():
        moved = dataclasses.replace(predict, w=trees.replace(predict.w, trees.nest({path: leaf + 1})))
        there = make_provenance(moved)
        in_head = path.startswith("head/")
        assert (there.anchor != here.anchor, there.head != here.head) == (not in_head, in_head), path

"""A request is a set of identifiers, however images and owners are named; a plan that no longer fits erases nothing."""

import codecs
import contextlib
import errno
import itertools
import json
import shutil
import threading
import unicodedata
from functools import partial

import numpy as np
import pytest
from helpers import ending, origin, part, stopping
from photos import write
from run_binary import refused, run

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of, read_owners
from tangent_jax.features import extract as extraction
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.row_store import RowStore
from tangent_jax.store import removal
from tangent_jax.store.apart import Shards
from tangent_jax.store.erasure import delete_checkpoints, erase_found
from tangent_jax.store.files import write_component
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.recipe import recipe_of
from tangent_jax.store.removal import erase_traces, preview_removal, rehearse, remove
from tangent_jax.store.store import Store
from tangent_jax.train.features import Features

JOINED = "train/a/fam\u200dily.png"
ACCENTED = "train/b/caf\u00e9.png"
FILES = ("train/a/0.png", "train/a/1.png", "train/b/0.png", "train/b/1.png", JOINED, ACCENTED, "test/a/x.png")


def form(kind, text):
    return unicodedata.normalize(kind, text)


@pytest.fixture
def photographs(tmp_path):
    write(tmp_path / "photographs", *FILES, "test/b/y.png")
    return tmp_path / "photographs"


def add(store, name, photographs, *files, number=0, **changes):
    """Adds a component that names these training images of the photographs."""
    recipe = recipe_of(dataset=f"folder:{photographs}")
    train = open_dataset(recipe.dataset).train
    pairs = zip(train.identifiers(), train.names, strict=True)
    examples = tuple((i, image) for i, image in pairs if form("NFC", image) in files)
    assert len(examples) == len(files)
    store.add(name, part(number), origin(number, recipe=recipe, examples=examples, **changes))
    return examples


@pytest.fixture
def store(photographs, tmp_path):
    """A store of two components, of the images of class a and of class b."""
    store = Store(tmp_path / "store")
    owners = {"train/a/0.png": "ann", "train/a/1.png": "bob", JOINED: "bob"}
    add(store, "a", photographs, "train/a/0.png", "train/a/1.png", JOINED, owners=owners)
    owners = {"train/b/0.png": "bob", "train/b/1.png": "cy", ACCENTED: "cy"}
    add(store, "b", photographs, "train/b/0.png", "train/b/1.png", ACCENTED, number=1, owners=owners)
    return store


# What a name means


def check_removed(store, plan, component):
    """The image was seen by the component, which goes; the receipt does not say that no component saw it."""
    assert ({*plan.components}, plan.unseen, plan.unknown) == ({component}, (), ())
    receipt = remove(store, plan)
    assert ({*receipt.removed}, receipt.unseen) == ({component}, ())
    assert component not in Store(store.root)
    assert store.verify() + store.verify_receipt(receipt.path) == []


def test_a_renamed_file_is_the_image_that_a_component_saw(store, photographs):
    (photographs / "train/a/0.png").rename(photographs / "train/a/renamed.png")
    check_removed(store, plan_removal(store, examples=["train/a/renamed.png"]), "a")


def test_a_copy_in_test_is_the_image_that_a_component_saw(store, photographs):
    shutil.copy(photographs / "train/b/1.png", photographs / "test/b/copy.png")
    check_removed(store, plan_removal(store, examples=["test/b/copy.png"]), "b")


def test_an_owners_copy_in_test_is_the_image_that_a_component_saw(store, photographs):
    shutil.copy(photographs / "train/b/1.png", photographs / "test/b/copy.png")
    plan = plan_removal(store, owner="dee", owners={"test/b/copy.png": "dee"})
    assert plan.owner == "dee"
    check_removed(store, plan, "b")


def test_a_name_with_an_invisible_letter_is_found_as_the_folder_has_it(store):
    check_removed(store, plan_removal(store, examples=[JOINED]), "a")


def test_a_name_that_means_another_image_now_asks_for_both_and_says_so(store, photographs, capsys):
    first, second = photographs / "train/a/0.png", photographs / "train/b/0.png"
    aside = first.rename(photographs / "aside")
    second.rename(first)
    aside.rename(second)
    plan = plan_removal(store, examples=["train/a/0.png"])
    assert {name: holding.left for name, holding in plan.components.items()} == {"a": 2, "b": 2}
    said = "train/a/0.png names 2 images, in a, b, the data sets as they are now; all are asked for"
    assert said in capsys.readouterr().err


def test_an_image_that_no_component_saw_leaves_the_components(store):
    plan = plan_removal(store, examples=["test/a/x.png", "train/b/0.png"])
    assert ({*plan.components}, [name for _, name in plan.unseen]) == ({"b"}, ["test/a/x.png"])
    assert plan.unknown == ("test/a/x.png",)


def test_the_same_image_under_two_owners_leaves_with_either(store, photographs, tmp_path):
    """A removed image must not come back: rows of its content go from all components, whoever gave them."""
    shutil.copy(photographs / "train/a/0.png", photographs / "train/b/twin.png")
    add(store, "dee", photographs, "train/b/twin.png", number=2, owners={"train/b/twin.png": "dee"})
    for owner in ("ann", "dee"):
        assert {*plan_removal(store, owner=owner).components} == {"a", "dee"}


@pytest.mark.parametrize(
    ("word", "component"),
    [
        ("./train/a/0.png", "a"),
        ("train\\a\\0.png", "a"),
        ('"train/a/0.png"', "a"),
        ("'.\\train\\a\\0.png'", "a"),
        ("train/b/caf%C3%A9.png", "b"),
        (form("NFD", ACCENTED), "b"),
        (f" {ACCENTED} ", "b"),
    ],
)
def test_a_name_is_found_in_the_spellings_of_other_systems(store, word, component):
    plan = plan_removal(store, examples=[word])
    assert ([*plan.components], len(plan.identifiers), plan.unknown) == ([component], 1, ())


def test_an_identifier_in_capitals_is_that_identifier(store):
    identifier = store.provenance("a").examples[0][0]
    assert plan_removal(store, examples=[identifier.upper()]).identifiers == (identifier,)
    assert plan_removal(store, examples=[identifier[:12]]).identifiers == ()  # a part of one means nothing


def test_another_spelling_counts_only_where_nothing_has_the_first(tmp_path):
    store = Store(tmp_path)
    store.add("one", part(0), origin(0, examples=((f"{1:064x}", "a%20b.jpg"), (f"{2:064x}", "a b.jpg"))))
    assert plan_removal(store, examples=["a%20b.jpg"]).identifiers == (f"{1:064x}",)
    assert plan_removal(store, examples=["'a b.jpg'"]).identifiers == (f"{2:064x}",)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE])
def test_a_file_of_names_is_read_as_other_systems_write_it(store, tmp_path, mark):
    text = f"train\\a\\0.png  \r\n{form('NFD', ACCENTED)}\r\n"
    content = text.encode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-8")
    (tmp_path / "ids.txt").write_bytes(mark + content)
    text, _ = run("store", "remove", f"--store={store.root}", f"--examples={tmp_path / 'ids.txt'}", "--dry_run")
    line = json.loads(text)
    assert [row["component"] for row in line["plan"]] == ["a", "b"]
    assert line["unknown"] == []


def test_store_remove_takes_the_component_that_saw_a_renamed_file(store, photographs, tmp_path):
    (photographs / "train/a/0.png").rename(photographs / "train/a/renamed.png")
    (tmp_path / "ids.txt").write_text("train/a/renamed.png\n")
    flags = (f"--store={store.root}", f"--cache_dir={tmp_path / 'cache'}")
    text, err = run("store", "remove", *flags, f"--examples={tmp_path / 'ids.txt'}")
    assert json.loads(text)["removed"] == ["a"]
    assert "no component saw" not in err


def test_a_removed_image_is_known_by_the_name_that_the_data_set_still_has(store, tmp_path):
    """It was asked for by its identifier, and its file was never deleted."""
    identifier = store.provenance("a").examples[0][0]
    remove(store, plan_removal(store, examples=[identifier]))
    plan = plan_removal(store, examples=["train/a/0.png"])
    assert (plan.components, plan.unseen, plan.removed) == ({}, (), {"train/a/0.png": identifier})
    (tmp_path / "ids.txt").write_text("train/a/0.png\n")
    flags = (f"--store={store.root}", f"--cache_dir={tmp_path / 'cache'}")
    text, err = run("store", "remove", *flags, f"--examples={tmp_path / 'ids.txt'}")
    assert json.loads(text)["removed"] == []
    assert "train/a/0.png: removed before, on " in err


def test_a_name_that_differs_by_letter_case_is_refused_with_the_stores_name(store, tmp_path):
    (tmp_path / "ids.txt").write_text("train/a/0.PNG\n")
    err = refused("store", "remove", f"--store={store.root}", f"--examples={tmp_path / 'ids.txt'}")
    assert "train/a/0.PNG: no component saw it under this name; the store holds train/a/0.png" in err


# Names in two forms, and owners


@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("whole", [True, False])
def test_owners_are_found_whatever_system_wrote_the_names(written, stored, whole, tmp_path):
    table = tmp_path / "who.csv"
    name = ACCENTED if whole else ACCENTED.rpartition("/")[2]
    table.write_text(f"file,owner\n{form(written, name)},ann\n", "utf-8")
    assert owners_of([form(stored, ACCENTED)], read_owners(table)) == ["ann"]
    assert owners_of([form(stored, ACCENTED)], {form(written, name): "ann"}) == ["ann"]
    table.write_text(f"{form(written, name)},ann\n{form(stored, name)},bob\n", "utf-8")
    with pytest.raises(InputError, match=r"one owner of (caf|train)"):
        read_owners(table)


def test_a_table_of_windows_paths_names_owners():
    owners = {"train\\a\\0.png": "ann", ".\\1.png": "bob"}
    assert owners_of(["train/a/0.png", "train/a/1.png"], owners) == ["ann", "bob"]


@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_an_owners_removal_finds_accented_images_of_components_and_of_test(written, stored, tmp_path):
    photographs, table = tmp_path / "photographs", tmp_path / "who.csv"
    test = "test/a/\u00e9t\u00e9.png"
    write(photographs, *FILES[:4], "test/b/y.png", form(stored, ACCENTED), form(stored, test))
    store = Store(tmp_path / "store")
    owners = {"train/b/0.png": "bob", form(stored, ACCENTED): "bob"}
    add(store, "b", photographs, "train/b/0.png", ACCENTED, owners=owners)
    table.write_text(f"{form(written, ACCENTED)},ann\n{form(written, test)},ann\ntrain/b/0.png,bob\n", "utf-8")
    plan = plan_removal(store, owner="ann", owners=read_owners(table))
    assert [form("NFC", name) for _, name in plan.components["b"].rows] == [ACCENTED]
    assert [form("NFC", name) for _, name in plan.unseen] == [test]


def test_a_component_keeps_owners_that_are_named_in_another_form(tmp_path):
    """A table names an image with a hidden letter, or in NFD, and the examples do not."""
    names = (JOINED, ACCENTED)
    made = origin(0, owners={JOINED: "ann", form("NFD", ACCENTED): "bob"})
    examples = tuple(zip(("0" * 64, "1" * 64), names, strict=True))
    kept = made.trained_on(Features(np.zeros((2, 3)), np.array([0, 1]), examples), 1.0)
    assert sorted(kept.owners.values()) == ["ann", "bob"]
    assert {*kept.owners} == {name for _, name in kept.examples}


def test_lines_of_owners_that_match_no_image_are_counted_aloud(store, capsys):
    plan_removal(store, owner="ann", owners={"train/a/0.png": "ann", "train/a/0.PNG": "ann", "lost.png": "bob"})
    assert "1 of 2 lines of ann in the owners match no image" in capsys.readouterr().err
    plan_removal(store, owner="ann", owners={"train/a/0.png": "ann"})
    assert capsys.readouterr().err == ""


def test_images_without_an_owner_are_counted_aloud_when_components_are_filled(photographs, tmp_path, capsys):
    recipe = recipe_of(dataset=f"folder:{photographs}", kind="head", epochs=1)
    predict = recipe.predictor(2)
    train = extract(predict, open_dataset(recipe.dataset).train, Cache(tmp_path / "cache"))
    shards = Shards(predict, train, recipe, {"all": np.arange(len(train))})
    shards.provenance({"train/a/0.png": "ann"})
    assert "the owners name no owner of 5 of 6 images, such as train/a/1.png" in capsys.readouterr().err
    shards.provenance({})
    assert capsys.readouterr().err == ""


# Whose a bare name is


def test_a_bare_name_that_is_ambiguous_in_the_store_leaves_an_image_to_its_owner(store):
    """0.png is ann's train/a/0.png and bob's train/b/0.png."""
    ann = plan_removal(store, owner="ann", owners={"0.png": "ann"})
    bob = plan_removal(store, owner="bob", owners={"0.png": "ann"})
    assert {name: [image for _, image in holding.rows] for name, holding in ann.components.items()} == {
        "a": ["train/a/0.png"]
    }
    assert "train/b/0.png" in [image for _, image in bob.components["b"].rows]


def test_a_bare_name_that_is_ambiguous_in_the_data_set_alone_leaves_an_image_to_its_owner(store):
    """The component of the other image of this name has left the store."""
    store.discard(["a"])
    assert plan_removal(store, owner="ann", owners={"0.png": "ann"}).components == {}
    assert {*plan_removal(store, owner="bob", owners={"0.png": "ann"}).components} == {"b"}


def test_a_bare_name_that_means_one_image_corrects_its_owner(store):
    plan = plan_removal(store, owner="dee", owners={"caf\u00e9.png": "dee"})
    assert [image for _, image in plan.components["b"].rows] == [ACCENTED]
    assert {*plan_removal(store, owner="cy", owners={"caf\u00e9.png": "dee"}).components} == {"b"}


@pytest.fixture
def of_two(tmp_path):
    """A store of two contributors, each with a folder of their own whose images have the same names."""
    store = Store(tmp_path / "of two")
    for number, who in enumerate(("ann", "bob")):
        write(tmp_path / "unlike", *(f"{who}/{file}" for file in (*FILES[:4], *FILES[6:], "test/b/y.png")))
        add(store, who, tmp_path / "unlike" / who, *FILES[:4], number=number, owners=dict.fromkeys(FILES[:4], who))
    return store


def test_a_name_of_two_contributors_asks_for_both_and_says_so(of_two, capsys):
    assert {*plan_removal(of_two, examples=["train/a/0.png"]).components} == {"ann", "bob"}
    assert "train/a/0.png names 2 images, in ann, bob; all are asked for" in capsys.readouterr().err
    (identifier,) = [i for i, name in of_two.provenance("ann").examples if name == "train/a/0.png"]
    assert {*plan_removal(of_two, examples=[identifier]).components} == {"ann"}
    assert capsys.readouterr().err == ""


def test_an_owners_lines_do_not_take_the_images_of_another_that_have_the_same_names(of_two, capsys):
    """who.csv of ann has her names alone; bob's component names bob."""
    lines: dict[str, str] = dict.fromkeys(FILES[:4], "ann")
    plan = plan_removal(of_two, owner="ann", owners=lines)
    assert ({*plan.components}, plan.components["ann"].left) == ({"ann"}, 0)
    assert "4 names in the owners mean several images, such as train/a/0.png" in capsys.readouterr().err
    assert {*plan_removal(of_two, owner="bob", owners=lines).components} == {"bob"}


def test_two_owners_of_a_test_image_are_an_error_and_hide_no_test_image(store):
    with pytest.raises(InputError, match=r"test/a/x\.png must have one owner; the owners give it ann and bob"):
        plan_removal(store, owner="ann", owners={"test/a/x.png": "ann", "x.png": "bob"})


# A plan that no longer fits


@pytest.fixture
def kept(tmp_path):
    """(a store of two components, the folder in which each was trained)."""
    store = Store(tmp_path / "stores/one")
    folders = {}
    for number, name in enumerate("ab"):
        folder = folders[name] = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        made = origin(number, folders=(str(folder),))
        write_component(folder / "dw.safetensors", part(number), made.metadata(trees.fingerprint(part(number))))
        store.add(name, part(number), made)
    return store, folders


def is_there(folder):
    return (folder / "dw.safetensors").exists()


def test_a_store_that_changes_before_the_commit_keeps_all_traces(kept, monkeypatch):
    store, folders = kept
    plan, check = plan_removal(store, names=["a"]), removal.check_retrained

    def meanwhile(*arguments):
        check(*arguments)
        thread = threading.Thread(target=Store(store.root).add, args=("c", part(2), origin(2)))
        threads.append(thread)
        thread.start()

    threads = []
    monkeypatch.setattr(removal, "check_retrained", meanwhile)
    monkeypatch.setattr(removal.erasure, "others", lambda *_: [thread.join() for thread in threads] and [])
    with pytest.raises(InputError, match="Plan again"):
        remove(store, plan)
    assert is_there(folders["a"])
    assert [*Store(store.root)] == ["a", "b", "c"]
    assert Store(store.root).state.receipts == {}


def test_of_two_removals_at_once_one_is_whole_and_the_other_erases_nothing(kept, monkeypatch):
    store, folders = kept
    stores = {name: Store(store.root) for name in folders}
    plans = {name: plan_removal(own, names=[name]) for name, own in stores.items()}
    both, done = threading.Barrier(2), {}

    def others(*_):
        both.wait(10)  # both have held their plans against the store
        return []

    def removing(name):
        try:
            done[name] = remove(stores[name], plans[name])
        except InputError as error:
            done[name] = error

    monkeypatch.setattr(removal.erasure, "others", others)
    threads = [threading.Thread(target=removing, args=(name,)) for name in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (refused,) = [name for name, result in done.items() if isinstance(result, InputError)]
    (removed,) = folders.keys() - {refused}
    assert "Plan again" in str(done[refused])
    assert (is_there(folders[refused]), is_there(folders[removed])) == (True, False)
    store.reload()
    assert [*store] == [refused]
    assert any("the removed component" in line for line in done[removed].deleted)
    assert store.verify() + store.verify_receipt(done[removed].path) == []


def test_a_removal_that_is_retrained_meets_a_store_without_its_component(kept, monkeypatch):
    """Another removal took the component while it was trained again."""
    store, folders = kept
    plan = plan_removal(store, examples=["photo 0.jpg"])

    def meanwhile(*arguments):
        other = Store(store.root)
        remove(other, plan_removal(other, names=["a"]))
        return removal.Retrained(part(7), origin(0, examples=origin(0).examples[1:]), 0.5)

    monkeypatch.setattr(removal, "retrain", meanwhile)
    with pytest.raises(InputError, match="Plan again"):
        remove(store, plan, "retrain")
    assert is_there(folders["b"])
    assert len(Store(store.root).state.receipts) == 1


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_a_removal_that_ends_at_any_write_erases_nothing_that_no_journal_line_names(kept, fault):
    store, folders = kept
    path = folders["a"] / "dw.safetensors"
    trace = f"{path}: the removed component"
    content = path.read_bytes()
    plan = plan_removal(store, names=["a"])
    shutil.copytree(store.root, store.root.with_name("kept"))
    for moment in itertools.count():
        shutil.rmtree(store.root)
        shutil.copytree(store.root.with_name("kept"), store.root)
        path.write_bytes(content)
        with ending(moment, fault) as left, contextlib.suppress(KeyboardInterrupt, OSError):
            remove(Store(store.root), plan)
        again = Store(store.root)
        named = [line for entry in again.journal.entries for line in entry.get("erases", ())]
        assert is_there(folders["a"]) or trace in named
        if "a" in again:
            remove(again, plan)
        (receipt,) = (again.root / "receipts").iterdir()
        again.settle()
        assert again.verify() + again.verify_receipt(receipt) == []
        wrote = read_receipt(receipt)[0]
        not_reached = [line for line in wrote.not_reached if trace in line]
        erased = [line for line in wrote.deleted if trace in line]
        if is_there(folders["a"]):
            assert (len(not_reached), erased) == (1, [])
        else:  # erased, or, between its erasure and its note, not known
            assert len(not_reached) + len(erased) == 1
            assert all(removal.UNKNOWN in line for line in not_reached)
        if left[0] >= 0:
            assert moment > 8
            return


def stop(store, plan, cache=None):
    """A removal that is killed after its intent, before it erases anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal.erasure, "erase_found", stopping(erase_found, lambda: True))
        with pytest.raises(KeyboardInterrupt):
            remove(store, plan, cache=cache)
    return Store(store.root)


def test_the_receipt_of_another_removal_says_nothing_of_one_that_was_stopped(kept):
    store, folders = kept
    again = stop(store, plan_removal(store, names=["a"]))
    other = remove(again, plan_removal(again, names=["b"]))
    assert is_there(folders["a"])
    assert not [line for line in other.deleted if str(folders["a"]) in line]
    (folders["a"] / "dw.safetensors").unlink()  # not by the library
    receipt = remove(again, plan_removal(again, names=["a"]))
    assert not [line for line in receipt.deleted if str(folders["a"]) in line]
    assert [removal.UNKNOWN in line for line in receipt.not_reached if str(folders["a"]) in line] == [True]
    assert again.state.intended == []


def test_the_receipt_lists_what_a_call_erased_that_was_stopped_after_it(kept):
    store, folders = kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "stopped_before", stopping(removal.stopped_before, lambda: True))
        with pytest.raises(KeyboardInterrupt):
            remove(store, plan_removal(store, names=["a"]))
    assert not is_there(folders["a"])
    again = Store(store.root)
    receipt = remove(again, plan_removal(again, names=["a"]))
    assert [removal.STOPPED in line for line in receipt.deleted if str(folders["a"]) in line] == [True]
    assert again.state.erased == set()


def test_a_store_from_which_a_removal_was_stopped_gives_no_component_to_another(kept, tmp_path):
    again = stop(kept[0], plan_removal(kept[0], names=["a"]))
    with pytest.raises(InputError, match="must have no removal that was stopped"):
        Store(tmp_path / "third").add_all(again)
    assert not Store(tmp_path / "third")


def test_a_cache_that_is_not_searched_again_is_not_said_to_be_erased(kept, tmp_path):
    store, folders = kept
    cache = Cache(tmp_path / "rows")
    (folders["a"] / "dw.safetensors").rename(tmp_path / "aside")
    identifiers = [identifier for identifier, _ in store.provenance("a").examples]
    rows = RowStore(cache.path / "key", identifiers, (2,), np.dtype("float32"))
    extraction.fill(rows, lambda spans: ((np.ones((len(span), 2), np.float32), []) for span in spans))
    again = stop(store, plan_removal(store, names=["a"]), cache)
    receipt = remove(again, plan_removal(again, names=["a"]))
    assert not [line for line in receipt.deleted if str(cache.path) in line]
    assert [line for line in receipt.not_reached if str(cache.path) in line and removal.UNKNOWN in line]


def test_a_run_folder_that_has_another_name_now_is_not_said_to_be_erased(kept):
    store, folders = kept
    again = stop(store, plan_removal(store, names=["a"]))
    folders["a"].rename(folders["a"].with_name("renamed"))
    receipt = remove(again, plan_removal(again, names=["a"]))
    assert not [line for line in receipt.deleted if str(folders["a"]) in line]
    assert [line for line in receipt.not_reached if str(folders["a"]) in line and removal.UNKNOWN in line]


def test_checkpoints_of_which_a_kill_left_some_are_still_known(tmp_path):
    (tmp_path / "run/step").mkdir(parents=True)
    for name in ("a", "checkpoint.json", "step/b", "z"):
        (tmp_path / "run" / name).write_bytes(b"")
    for moment in itertools.count():
        try:
            with ending(moment, KeyboardInterrupt):
                delete_checkpoints(tmp_path / "run")
        except KeyboardInterrupt:
            left = {path.name for path in (tmp_path / "run").rglob("*")}
            assert not left or "checkpoint.json" in left
            continue
        break
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("moment", range(40))
def test_a_removal_that_is_killed_erases_the_rest_of_its_run_when_it_is_repeated(kept, moment):
    store, folders = kept
    run = folders["a"]
    (run / "factors.safetensors").write_bytes(b"second moments")
    (run / "steps").mkdir()
    for step in range(2):
        (run / "steps" / f"{step}.dw").write_bytes(b"released")
    with ending(moment, KeyboardInterrupt), contextlib.suppress(KeyboardInterrupt):
        remove(store, plan_removal(store, names=["a"]))
    again = Store(store.root)
    if "a" in again:
        remove(again, plan_removal(again, names=["a"]))
    assert [*run.rglob("*")] == []


def test_a_run_that_replaces_a_removed_one_before_it_is_deleted_stays(kept, monkeypatch):
    store, folders = kept
    path = folders["a"] / "dw.safetensors"

    def meanwhile(*arguments):
        path.write_bytes((folders["b"] / "dw.safetensors").read_bytes())
        return erase_found(*arguments)

    monkeypatch.setattr(removal.erasure, "erase_found", meanwhile)
    receipt = remove(store, plan_removal(store, names=["a"]))
    assert path.is_file()
    assert [line for line in receipt.not_reached if str(path) in line and "another component was written" in line]
    assert not [line for line in receipt.deleted if str(path) in line]


@pytest.mark.parametrize("call", [erase_traces, preview_removal, remove, partial(rehearse, how="drop")])
def test_a_plan_is_of_one_store(kept, tmp_path, call):
    store, folders = kept
    other = Store(tmp_path / "stores/two")
    other.add("a", part(5), origin(5))
    plan = plan_removal(other, names=["a"])
    with pytest.raises(InputError, match="got one of another store"):
        call(store, plan)
    assert is_there(folders["a"])


def test_an_older_plan_erases_nothing(kept):
    store, folders = kept
    plan = plan_removal(store, names=["a"])
    store.discard(["b"])
    with pytest.raises(InputError, match="Plan again"):
        erase_traces(store, plan)
    assert is_there(folders["a"])


def test_cached_rows_that_lost_their_list_of_images_are_named(kept, tmp_path):
    store, _ = kept
    rows = tmp_path / "rows" / "key-images"
    rows.mkdir(parents=True)
    (rows / "inputs.bin").write_bytes(b"1")
    traces = preview_removal(store, plan_removal(store, names=["a"]), Cache(rows.parent))
    assert (
        f"{rows}: cached rows without examples.txt, which says whose they are; delete the folder" in traces.not_reached
    )
    assert (rows / "inputs.bin").exists()

"""An export of what has left its store is refused, offline, by a list that the store signed."""

import base64
import dataclasses
import json
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
from exports.test_released import IDENTIFIERS, PAIRS, PEOPLE, filled, tangent
from helpers import Killed, ending, origin, part
from run_binary import run

from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.features.extract import Cache
from tangent_jax.io.signing import make_key, make_statement, sign
from tangent_jax.store import copies
from tangent_jax.store.disk import SIGNING
from tangent_jax.store.lines import Add, Discard, Entry, Export, Exported, Held, Merge, Remove
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.revocation import revoked_exports, write_revoked
from tangent_jax.store.state import State
from tangent_jax.store.store import Store

pytest.importorskip("cryptography")


def leave(store, folder, format="safetensors"):
    """Exports the store's sum, as `store export` does."""
    predict, _ = tangent()
    dw = store.sum()
    export(folder, predict, dw, store.release(folder, dw), format)
    return json.loads((folder / "provenance.json").read_text())


@pytest.fixture(scope="module")
def revoked(tmp_path_factory):
    """A store that exported two folders, removed a component, and exported a third; its list; and its receipt."""
    root = tmp_path_factory.mktemp("revoked")
    store = filled(root / "store", *tangent())
    leave(store, root / "before")
    leave(store, root / "served", "stablehlo")
    receipt = remove(store, plan_removal(store, names=[PEOPLE[0]]))
    leave(store, root / "after")
    leave(store, root / "served after", "stablehlo")
    write_revoked(store, root / "revoked.json")
    return root, store, store.state.receipts[receipt.path.stem]


def test_every_export_has_an_identity_that_its_store_knows(revoked):
    root, store, _ = revoked
    said = [json.loads((root / name / "provenance.json").read_text()) for name in ("before", "served", "after")]
    assert [own["export"] for own in said] == [own.identity for own in store.state.exports][:3]
    assert len({own["export"] for own in said}) == 3
    assert stat.S_IMODE((store.root / SIGNING).stat().st_mode) == 0o600
    assert store.verify() == []
    private = (store.root / SIGNING).read_bytes().splitlines()[1]
    assert not any(private in path.read_bytes() for path in (root / "served").iterdir())


def test_load_export_refuses_what_is_on_the_list_with_its_receipt_and_day(revoked):
    root, store, receipt = revoked
    day = store.state.removals[0].time[:10]
    match = (
        rf"before must not be used: its store revoked it on {day}, by the removal whose receipt .* SHA-256 {receipt}"
    )
    with pytest.raises(InputError, match=match):
        load_export(root / "before", revoked=root / "revoked.json")
    load_export(root / "before")
    load_export(root / "after", revoked=root / "revoked.json")


def test_the_list_tells_no_image_component_or_folder(revoked):
    root, store, _ = revoked
    envelope = json.loads((root / "revoked.json").read_text())
    text = (root / "revoked.json").read_text() + base64.b64decode(envelope["payload"]).decode()
    told = [*PEOPLE, *IDENTIFIERS, *(name for _, name in PAIRS), *map(store.ring.own.hide, IDENTIFIERS)]
    told += [str(root), "before", "served", store.identity]
    assert not [word for word in told if word in text]
    assert envelope["signatures"]


WITHOUT = """
import runpy, socket, sys
sys.modules["tangent_jax"] = None  # as if it were not installed
for name in sys.argv[1].split(","):
    sys.modules[name] = None
socket.getaddrinfo = socket.create_connection = None  # offline
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def served(folder, *flags, lacks="no_such_package"):
    """(exit code, stderr) of run.py for one input, without the library, the network, and these packages."""
    np.save(folder.parent / "input.npy", np.zeros((1, 8, 8, 3), np.uint8))
    command = [sys.executable, "-c", WITHOUT, lacks, folder / "run.py", folder.parent / "input.npy", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return done.returncode, done.stderr


def test_run_py_refuses_a_revoked_export_without_the_library(revoked):
    root, _, receipt = revoked
    flag = f"--revoked={root / 'revoked.json'}"
    code, error = served(root / "served", flag)
    assert (code, len(error.splitlines())) == (1, 1)
    assert "must not be used: its store revoked it on" in error
    assert receipt in error
    assert served(root / "served after", flag) == (0, "")
    code, error = served(root / "served after", flag, lacks="cryptography")
    assert (code, error) == (
        1,
        "run.py: signatures need the package cryptography, which is not installed; run pip install cryptography\n",
    )


def test_run_py_takes_one_list_and_refuses_the_provenance_of_another_export(revoked, tmp_path):
    root, _, _ = revoked
    listed = f"--revoked={root / 'revoked.json'}"
    assert "one --revoked=LIST" in served(root / "served", listed, listed)[1]
    mixed = shutil.copytree(root / "served", tmp_path / "mixed")
    shutil.copy(root / "served after/provenance.json", mixed)
    assert "provenance.json must be the export's own; its" in served(mixed, listed)[1]


def test_run_py_says_what_a_folder_in_the_place_of_a_file_must_be(revoked):
    root, _, _ = revoked
    code, error = served(root / "served after", f"--revoked={root}")
    assert code == 1
    assert error == f"run.py: revoked must be a file that `tangent-jax store revoked` wrote; got the folder {root}\n"
    code, error = served(root / "served after", root)
    assert (code, error) == (1, f"run.py: FILE must be an image, or arrays in a .npy file; got the folder {root}\n")
    code, error = served(root / "served after", "--revoked", root / "revoked.json")
    assert (code, "--revoked=LIST" in error) == (1, True)


def other_signer(root, path):
    make_key(path.with_name("other.key"))
    statement = make_statement({"x": "0" * 64}, "urn:tangent-jax:revoked-exports:v1", {"exports": []})
    path.write_text(json.dumps(sign(statement, path.with_name("other.key"))))


def altered(root, path):
    envelope = json.loads((root / "revoked.json").read_text())
    path.write_text(json.dumps({**envelope, "payload": envelope["payload"][:-8] + "AAAAAAAA"}))


def of_another_kind(root, path):
    path.write_text(json.dumps(sign(make_statement({"x": "0" * 64}, "urn:other", {}), root / "store" / SIGNING)))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (other_signer, "must be signed by the store that made the export; it is signed by another key, or was changed"),
        (altered, "must be signed by the store that made the export; it is signed by another key, or was changed"),
        (of_another_kind, "must be a list of revoked exports; got 'urn:other'"),
        (lambda _, path: path.write_text("{}"), "must be a signed statement"),
        (lambda _, path: path.write_text("[" * 100000), "must be a signed statement"),
        (lambda _, path: path.mkdir(), "revoked must be a file that `tangent-jax store revoked` wrote; got the folder"),
        (lambda _, path: None, "cannot be read: No such file"),
    ],
)
def test_a_list_that_is_not_the_stores_is_refused_as_such(revoked, tmp_path, write, message):
    root, path = revoked[0], tmp_path / "list.json"
    write(root, path)
    with pytest.raises(InputError, match=message):
        load_export(root / "after", revoked=path)


@pytest.mark.parametrize("field", ["revocation_key", "export"])
def test_an_export_that_no_list_can_revoke_is_refused_beside_one(revoked, tmp_path, field):
    root, _, _ = revoked
    shutil.copytree(root / "after", tmp_path / "out")
    path = tmp_path / "out/provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: None}))
    with pytest.raises(
        InputError, match=r"must hold a revocation_key, .* Export it again by `tangent-jax store export`"
    ):
        load_export(tmp_path / "out", revoked=root / "revoked.json")


def test_without_cryptography_an_export_is_made_and_one_line_says_what_is_lost(tmp_path, monkeypatch, capsys):
    store = filled(tmp_path / "store", *tangent())
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = leave(store, tmp_path / "out")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "this export cannot be revoked by a signed list, as the package cryptography is not installed; run pip install "
        "'tangent-jax[sign]', and export again"
    )
    assert (len(said["export"]), said["revocation_key"]) == (32, None)
    assert not (store.root / SIGNING).exists()
    load_export(tmp_path / "out")
    monkeypatch.undo()
    remove(store, plan_removal(store, names=[PEOPLE[0]]))
    with pytest.raises(
        InputError, match=r"must have signing.key, .* it has none. Run pip install 'tangent-jax\[sign\]'"
    ):
        write_revoked(store, tmp_path / "revoked.json")
    leave(store, tmp_path / "again")
    listed, others = write_revoked(store, tmp_path / "revoked.json")
    assert ([own.export.path for own in listed], [own.export.path for own in others]) == ([], [str(tmp_path / "out")])


# Which exports


def adding(name, weights=""):
    return Add(name=name, id="0" * 16, weights=weights or f"numbers of {name}", file="f", origin="o", crc="0" * 8)


def exported(*names):
    return {"names": names, "path": f"/{''.join(names)}", "result": "r", "identity": "".join(names)}


def leaving(*names):
    """A line for each component, and one for their export."""
    return [*map(adding, names), Export(**exported(*names))]


def removing(*names, images=(), **fields):
    return Remove(
        removed=names,
        forgotten=images,
        receipt="0" * 16,
        receipt_hash=f"hash of {''.join(names)}",
        time="2026-11-27T00:00:00Z",
        **fields,
    )


def replacing(name, image):
    return Discard(removed=(name,), seen={name: (image,)})


def merging(**held):
    """A merge of a store that exported a; `held`: what the export holds, nothing in an old journal."""
    holds = (Held(**held),) if held else ()
    return Merge(of="o", released=(), exports=(Exported(**exported("a")),), showed=(), held=holds)


def part_of(line):
    return Entry(**{field.name: getattr(line, field.name) for field in dataclasses.fields(Entry)})


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([*leaving("a", "b"), removing("a")], [("ab", "hash of a")]),
        ([*leaving("a", "b"), removing("b"), removing("a")], [("ab", "hash of b")]),  # the first
        ([adding("a"), removing("a"), *leaving("b")], []),
        ([*leaving("a"), removing("a"), *leaving("a")], [("a", "hash of a")]),  # trained again
        ([*leaving("a"), Discard(removed=("a",))], []),
        ([*leaving("a"), adding("b"), removing("b")], []),
        # replaced: the images that it saw decide, under any name
        ([*leaving("a"), replacing("a", "i"), adding("b"), removing("b", images=("i",))], [("a", "hash of b")]),
        ([*leaving("a"), replacing("a", "i"), adding("a", "others"), removing("a", images=("j",))], []),
        ([*leaving("b"), adding("a"), replacing("a", "i"), removing("b", images=("i",))], [("b", "hash of b")]),
        ([*leaving("b"), adding("a"), replacing("a", "i"), adding("c"), removing("c", images=("i",))], []),
        # the same numbers, under another name
        ([*leaving("a"), replacing("a", "i"), adding("b", "numbers of a"), removing("b")], [("a", "hash of b")]),
        # a merged store says by numbers what its export holds, and by images, under its own key; an old one by names
        ([merging(), removing("a")], [("a", "hash of a")]),
        ([adding("a"), merging(weights=("others",)), removing("a")], []),
        ([adding("b"), merging(weights=("numbers of b",)), removing("b")], [("a", "hash of b")]),
        ([merging(replaced=("i",)), adding("b"), removing("b", replaced=("i",))], [("a", "hash of b")]),
        ([merging(), merging(weights=("w",)), adding("a"), removing("a")], []),  # said again, by numbers
        ([merging(weights=("w",)), merging(replaced=("i",)), removing("b", images=("i",))], [("a", "hash of b")]),
    ],
)
def test_an_export_is_revoked_from_the_first_removal_of_a_component_in_it(lines, want):
    assert [(own.export.identity, own.receipt) for own in revoked_exports(lines)] == want


def test_an_export_of_a_component_that_was_trained_again_since_is_one_of_the_next_removals_too():
    again = part_of(adding("a", "trained again"))
    lines = [*leaving("a"), removing("a", added={"a": again}), adding("b"), removing("b"), removing("a")]
    for count, want in ((3, 1), (5, 0), (6, 1)):
        state = State()
        for line in lines[: count - 1]:
            state.apply(line)
        assert len(state.exports_of(lines[count - 1].removed, ())) == want


def test_removals_that_do_not_count_still_change_what_the_store_holds():
    again = part_of(adding("a", "trained again"))
    other = dataclasses.replace(removing("a", added={"a": again}), receipt_hash="another")
    lines = [*leaving("a"), other, Export(**{**exported("a"), "identity": "later"}), removing("a")]
    found = revoked_exports(lines, {"hash of a"})
    assert [(own.export.identity, own.receipt) for own in found] == [("a", "hash of a"), ("later", "hash of a")]
    assert [own.export.identity for own in revoked_exports(lines, {"another"})] == ["a"]


def test_an_export_of_a_component_that_came_again_under_another_name_is_revoked_and_in_the_receipt(tmp_path):
    store = filled(tmp_path / "store", *tangent())
    leave(store, tmp_path / "out")
    dw, provenance = store.read_tree(PEOPLE[0]), store.provenance(PEOPLE[0])
    store.discard(PEOPLE[:1])
    store.add("again", dw, provenance)
    receipt = remove(store, plan_removal(store, names=["again"]))
    assert f"{tmp_path / 'out'}: an export of a removed component" in receipt.not_reached
    listed, others = write_revoked(store, tmp_path / "revoked.json")
    assert ([own.export.path for own in listed], others) == ([str(tmp_path / "out")], [])


def store_of(root, **seeds):
    """A store of components of these seeds: numbers and images differ."""
    store = Store(root)
    for name, seed in seeds.items():
        store.add(name, part(seed), origin(seed))
    return store


def revoked_by(store, name):
    """The names of the folders of exports that a removal of a component revokes; its receipt names as many."""
    receipt = remove(store, plan_removal(store, names=[name]), cache=Cache(store.root.parent / "cache"))
    folders = [os.path.basename(own.export.path) for own in revoked_exports(store.state.lines)]
    assert sum("an export of a removed component" in line for line in receipt.not_reached) == len(folders)
    return folders


def test_an_export_of_a_merged_store_is_revoked_if_its_component_came_again_under_another_name(tmp_path):
    second = store_of(tmp_path / "second", ann=1)
    second.release(tmp_path / "out", second.sum())
    first = store_of(tmp_path / "first", bob=3)
    first.add_all(second)  # before it was replaced: the merge is repeated
    first.discard(["ann"])
    second.discard(["ann"])
    second.add("again", part(2), origin(1))  # of the same images
    assert first.add_all(second) == ["again"]
    third = store_of(tmp_path / "third", cid=4)
    third.add_all(first)
    lines = len(third.state.lines)
    third.add_all(first)
    assert len(third.state.lines) == lines  # nothing more to say
    for store in (first, third, second):
        assert revoked_by(Store(store.root), "again") == ["out"]
        assert store.verify() == []


def test_only_the_store_that_was_merged_knows_the_images_of_its_replaced_components(tmp_path):
    second = store_of(tmp_path / "second", ann=1)
    second.release(tmp_path / "out", second.sum())
    second.discard(["ann"])
    second.add("again", part(2), origin(1))
    first = store_of(tmp_path / "first", bob=3)
    first.add_all(second)
    assert revoked_by(first, "again") == ["out"]
    (line,) = first.state.removals
    hidden = second.ring.own.hide_all(identifier for identifier, _ in origin(1).images_seen)
    assert line.replaced == hidden
    assert line.forgotten == first.ring.own.hide_all(identifier for identifier, _ in origin(1).images_seen)


def test_an_export_of_a_merged_store_stays_if_another_component_of_the_name_is_removed(tmp_path):
    second = store_of(tmp_path / "second", ann=1)
    second.release(tmp_path / "out", second.sum())
    second.discard(["ann"])
    second.add("again", part(2), origin(1))
    first = store_of(tmp_path / "first", ann=3)
    first.add_all(second)
    assert revoked_by(first, "ann") == []
    assert revoked_by(first, "again") == ["out"]


@pytest.mark.parametrize("images", [(), origin(2).examples])
def test_numbers_tell_that_a_component_came_again_where_images_cannot(tmp_path, images):
    """It lists none, or another component saw all of them."""
    store, made = store_of(tmp_path / "store", bob=2), origin(1, examples=images)
    store.add("ann", part(1), made)
    store.release(tmp_path / "out", store.sum())
    store.discard(["ann"])
    store.add("again", part(1), made)
    assert revoked_by(store, "again") == ["out"]


def test_exports_of_a_store_that_was_merged_are_revoked_by_its_key(tmp_path):
    first, second = (filled(tmp_path / name, *tangent()) for name in ("first", "second"))
    second.discard(PEOPLE[1:])
    leave(second, tmp_path / "out")
    first.discard(PEOPLE[:1])
    leave(first, tmp_path / "own")
    assert first.add_all(second) == [PEOPLE[0]]
    leave(first, tmp_path / "both")
    remove(first, plan_removal(first, names=[PEOPLE[0]]))
    listed, others = write_revoked(first, tmp_path / "revoked.json")
    assert ([own.export.path for own in listed], others) == ([str(tmp_path / "out"), str(tmp_path / "both")], [])
    for name in ("out", "both"):
        with pytest.raises(InputError, match="its store revoked it on"):
            load_export(tmp_path / name, revoked=tmp_path / "revoked.json")
    load_export(tmp_path / "own", revoked=tmp_path / "revoked.json")


def test_a_copy_at_a_url_brings_the_signing_key_which_its_user_alone_reads(tmp_path):
    url, store = "memory://revoked/0", filled(tmp_path / "store", *tangent())
    copies.push(store, url)
    copies.pull(tmp_path / "copy", url)
    leave(store, tmp_path / "out")  # makes the key
    copies.push(store, url)
    for folder in ("copy", "new"):  # that goes on, and that begins
        copies.pull(tmp_path / folder, url)
        key = tmp_path / folder / SIGNING
        assert key.read_bytes() == (store.root / SIGNING).read_bytes()
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert Store(tmp_path / folder).verify() == []


def test_a_pull_adds_the_signing_key_of_the_copy_and_loses_none(tmp_path):
    url, store = "memory://revoked/1", filled(tmp_path / "store", *tangent())
    copies.push(store, url)
    copies.pull(tmp_path / "copy", url)
    make_key(tmp_path / "copy" / SIGNING)  # by an export that was killed before its line
    own = (tmp_path / "copy" / SIGNING).read_bytes()
    leave(store, tmp_path / "out")
    copies.push(store, url)
    copies.pull(tmp_path / "copy", url)
    assert (tmp_path / "copy" / SIGNING).read_bytes() == own + (store.root / SIGNING).read_bytes()
    copy = Store(tmp_path / "copy")
    remove(copy, plan_removal(copy, names=[PEOPLE[0]]))
    write_revoked(copy, tmp_path / "revoked.json")
    with pytest.raises(InputError, match="its store revoked it on"):
        load_export(tmp_path / "out", revoked=tmp_path / "revoked.json")


@pytest.mark.parametrize("moment", range(12))
def test_a_store_that_is_killed_at_its_first_export_is_whole_and_exports_again(tmp_path, moment):
    store = filled(tmp_path / "store", *tangent())
    try:
        with ending(moment, Killed):
            store.release(tmp_path / "out", store.sum())
    except Killed:
        pass
    again = Store(store.root)
    again.release(tmp_path / "out", again.sum())
    assert again.verify() == []
    assert len({own.key for own in again.state.exports}) == 1


def test_store_revoked_writes_the_list_and_names_folders_on_stdout_alone(tmp_path):
    store = filled(tmp_path / "store", *tangent())
    leave(store, tmp_path / "out")
    receipt = remove(store, plan_removal(store, names=[PEOPLE[0]]))
    to = tmp_path / "revoked.json"
    line, _ = run("store", "revoked", f"--store={store.root}", f"--to={to}")
    assert json.loads(line) == {"revoked": [str(tmp_path / "out")], "not_listed": [], "to": str(to)}
    assert store.verify_receipt(receipt.path) == []
    _, error = run("store", "revoked", f"--store={store.root}", f"--to={tmp_path}", code=1)
    assert "the list of revoked exports must be a file; got the folder" in error


def test_store_remove_takes_the_identifier_of_an_image_that_an_export_alone_holds(tmp_path):
    store = store_of(tmp_path / "store", ann=1, bob=2)
    store.release(tmp_path / "out", store.sum())
    store.discard(["ann"])
    asked, cache = tmp_path / "asked.txt", f"--cache_dir={tmp_path / 'cache'}"
    asked.write_text(origin(1).examples[0][0] + "\n")
    command = ("store", "remove", f"--store={store.root}", f"--examples={asked}", cache)
    line, _ = run(*command, "--dry_run")
    (export,) = [trace for trace in json.loads(line)["not_reached"] if "an export of a removed component" in trace]
    line, _ = run(*command)
    assert export in json.loads(line)["not_reached"]
    again = Store(store.root)
    assert [own.export.path for own in revoked_exports(again.state.lines)] == [str(tmp_path / "out")]
    assert ([*again], again.has_forgotten(origin(1).examples[0][0])) == (["bob"], True)
    asked.write_text("0" * 64 + "\n")
    _, error = run(*command, code=1)
    assert "its data sets, caches or exports; none of them knows 1 of those asked for" in error

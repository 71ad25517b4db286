"""What another party gives can only be read: its files name folders, links, code and names, and decide nothing here."""

import contextlib
import copy
import dataclasses
import fcntl
import itertools
import json
import os
import stat
import unicodedata
from threading import Timer

import jax
import numpy as np
import pytest
from helpers import filled, in_long, origin, part, pictures

from tangent_jax.commands.report.inspector import Inspection
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.owners import Owner
from tangent_jax.data.identifiers import keep
from tangent_jax.data.tfds import check_features
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.row_store import line_of, padded
from tangent_jax.io.checkpoints import Checkpoint
from tangent_jax.io.files import expand_path, fingerprint, inside, open_plain, write_whole
from tangent_jax.io.journal import START
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.records import plain, seal_fields
from tangent_jax.pretrained.load import load
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.privacy.units import as_units
from tangent_jax.store.disk import KINDS, MARKS
from tangent_jax.store.files import write_component
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.receipts import Trace
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import preview_removal, remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt
from tangent_jax.train.batches import Batches

RUN = "0123456789abcdef" * 2
HOSTILE = (
    "../x", "/", "..", "\x1b[2J\r", "a\u202eb", "\x00", "a/b", "", "x" * 300, -1, 0, 1e308, 1 << 70, True, None, [], {},
    ["../x"], {"..": "/"},
)  # fmt: skip


def snapshot(folder):
    """Every name below a folder with its kind, bytes, and the time of its last write."""
    state = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(at.st_mode) else os.readlink(path) if path.is_symlink() else ""
        state[str(path.relative_to(folder))] = stat.S_IFMT(at.st_mode), content, at.st_mtime_ns
    return state


def test_foreign_component_opens_nothing(tmp_path):
    """The folder, run, weights and data that it names are this machine's own: they are listed."""
    canary = tmp_path / "home"
    saved = Checkpoint(RUN, "state", "", ())
    (canary / "checkpoints" / RUN / "state").mkdir(parents=True)
    write_whole(canary / "checkpoints" / RUN / "checkpoint.json", seal_fields(dataclasses.asdict(saved)))
    recipe = Recipe(weights="hf-hub:owner/name", dataset=f"folder:{canary}")
    theirs = origin(0, folders=(str(canary),), run=RUN, recipe=recipe)
    write_component(canary / "dw.safetensors", part(0), {"provenance": theirs.to_json()})
    before = snapshot(canary)
    store = Store(tmp_path / "stores/one")
    store.add("theirs", part(0), theirs)
    receipt = remove(store, plan_removal(store, names=["theirs"]))
    assert receipt.not_reached == (Trace("run", str(canary)), Trace("data set", f"folder:{canary}"))
    assert all(trace.path.startswith(f"{store.root}/") for trace in receipt.deleted)
    assert snapshot(canary) == before


@pytest.mark.parametrize("attack", ["rows", "folder"])
def test_a_foreign_cache_leads_to_no_other_folder(tmp_path, attack):
    """Rows that are a link, and a cache that is a link itself."""
    gone, cache, canary = f"{1:064x}", tmp_path / "cache", tmp_path / "canary"
    rows, lines = cache / "rows", b"".join(line_of(padded(text)) for text in ("9 bytes a row", gone))
    canary.mkdir()
    cache.mkdir()
    (canary / "rows.bin").write_bytes(b"the user's own file")
    (canary / "examples.txt").write_bytes(lines)
    if attack == "folder":
        rows.symlink_to(canary)
    else:
        rows.mkdir()
        (rows / "examples.txt").write_bytes(lines)
        (rows / "rows.bin").symlink_to(canary / "rows.bin")
    before = snapshot(canary)
    store = Store(tmp_path / "store")
    store.add("one", part(0), origin(0, examples=((gone, "a.jpg"),), folders=(str(cache),)))
    receipt = remove(store, plan_removal(store, examples=[gone]), cache=Cache(cache))
    assert snapshot(canary) == before
    assert any(trace.kind == "rows" for trace in receipt.not_reached)


# Stores of others


def foreign(root):
    """A store with all that a store can have, as another party would give it."""
    store = filled(root)
    store.compose()
    store.release(root.parent / "sent", store.sum())
    remove(store, plan_removal(store, names=["shard 1"]))
    return store


def use(root):
    """All that is done with a store of others, changes too; what it refuses is one line of characters that show."""
    refused = []

    def attempt(function):
        try:
            return function()
        except (InputError, OSError) as error:
            refused.append(str(error))
            return None

    store = attempt(lambda: Store(root))
    if store is None:
        return refused
    said = [*store, *(export.path for export in store.state.exports)]
    for name in store:
        made = attempt(lambda name=name: store.provenance(name))
        said += [] if made is None else [*made.classes, *(n for _, n in made.data.examples), *made.data.owners.values()]
        attempt(lambda name=name: store[name])
    for look in (lambda: verify(store), lambda: store.spent(), lambda: store.sum("mean")):
        attempt(look)
    for receipt in root.glob("receipts/*"):
        attempt(lambda receipt=receipt: verify_receipt(store, receipt))
    plan = attempt(lambda: plan_removal(store, names=[*store][:1]))
    if plan is not None:
        attempt(lambda: remove(store, plan))
    attempt(lambda: store.add("mine", part(7), origin(7)))
    assert all(text.isprintable() for text in said), said
    return refused


def chained(root, lines):
    """Writes a journal whose hashes an adversary computed."""
    previous, text = START, b""
    for line in lines:
        content = json.dumps({**line, "previous": previous}).encode()
        previous, text = fingerprint(content), text + content + b"\n"
    (root / "journal.jsonl").write_bytes(text)
    (root / "HEAD").write_text(json.dumps({"lines": len(lines), "hash": previous}) + "\n")


def mutations(value):
    """The value with each of its fields, however deep, replaced by each hostile one."""
    places = [((), value)]
    for place, inner in places:
        items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        places += [((*place, key), entry) for key, entry in items]
    each = 4 if "TANGENT_JAX_FUZZ" not in os.environ else len(HOSTILE)
    for number, (place, _) in enumerate(places[1:]):
        for hostile in (HOSTILE[(each * number + i) % len(HOSTILE)] for i in range(each)):
            mutant = copy.deepcopy(value)
            inner = mutant
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = hostile
            yield mutant


PARTIAL = [f"{mark}.partial" for mark in MARKS]
LINKS = [("soft", link) for link in (*KINDS, "lock", *MARKS)]
LINKS += [("hard", link) for link in ("components", "lock", MARKS[0], PARTIAL[0])]
MORE = [(kind, link) for kind in ("soft", "hard") for link in (*KINDS, "lock", *MARKS, *PARTIAL)]


@pytest.mark.parametrize(("kind", "link"), [*LINKS, *in_long(*(case for case in MORE if case not in LINKS))])
def test_links_in_store_are_not_followed(tmp_path, link, kind):
    canary, root = tmp_path / "canary", tmp_path / "store"
    for each in (canary, root):
        foreign(each)
        (each / "factors").mkdir()
    for name in (*PARTIAL, "lock"):
        (canary / name).write_text("mine")
    target, path = canary / link, root / link
    if kind == "hard" and target.is_dir():
        target = canary / link / "mine"
        target.write_text("mine")
        os.link(target, path / f"{'0' * 16}.safetensors")
    else:
        path.rename(tmp_path / "away") if path.exists() else None
        (os.link if kind == "hard" else os.symlink)(target, path)
    before = snapshot(canary)
    refused = use(root)
    assert snapshot(canary) == before
    is_read = link.endswith(".partial") or kind == "hard"
    assert is_read or refused


def test_reading_a_store_writes_nothing(tmp_path):
    """Nor with a lock that is missing, a killed writer's leftovers, and bytes after the last line."""
    root = tmp_path / "store"
    foreign(root)
    (root / "lock").unlink()
    (root / "components" / f"{'a' * 16}.safetensors").write_bytes(b"left by a kill")
    (root / "HEAD.partial").write_bytes(b"left by a kill")
    with (root / "journal.jsonl").open("ab") as file:
        file.write(b'{"torn')
    before = snapshot(tmp_path)
    store = Store(root)
    assert [*store] == ["shard 0", "shard 2"]
    assert len(verify(store)) == 3
    store.sum("mean")
    store.spent()
    for name in store:
        store.provenance(name)
    plan = plan_removal(store, names=["shard 0"])
    preview_removal(store, plan)
    assert snapshot(tmp_path) == before
    store.settle()
    assert verify(store) == []


def test_no_field_reaches_outside_store(tmp_path):
    """Every field of every line, by an adversary who computes the hashes anew."""
    canary, root, at = tmp_path / "x", tmp_path / "pristine", tmp_path / "stores" / "store"
    (canary / "components").mkdir(parents=True)
    (canary / "mine.safetensors").write_text("mine")
    foreign(root)
    at.parent.mkdir()
    lines = [json.loads(line) for line in (root / "journal.jsonl").read_bytes().splitlines()]
    before, files, refused = snapshot(canary), snapshot(root), 0
    marks = [{**json.loads((root / "store.json").read_bytes())}]
    for place, line in enumerate([*lines, *marks]):
        for mutant in mutations({k: v for k, v in line.items() if k not in ("previous", "sha256")}):
            restore(at, files)
            if place < len(lines):
                chained(at, [*lines[:place], mutant, *lines[place + 1 :]])
            else:
                (at / "store.json").write_text(seal_fields(mutant))
            messages = use(at)
            refused += bool(messages)
            assert all("\n" not in text and text.isprintable() for text in messages), messages
    assert snapshot(canary) == before
    assert [path.name for path in sorted(at.parent.iterdir())] == ["store"]
    assert refused > 100


def restore(root, files):
    """Makes a folder what a snapshot says."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    for name, (kind, content, _) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(kind):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)


# Owners, and what left other stores


def private(owners, **changes):
    """The provenance of a private component that saw one image of each owner."""
    names = [f"{i} of {owner}" for i, owner in enumerate(owners)]
    examples = tuple((fingerprint(name.encode()), name) for name in names)
    account = Spent(make_mechanism(3.0, 1e-5, unit="owner"), 50, True)
    said = dict(zip(names, owners, strict=True))
    return origin(0, examples=examples, privacy=account, owners=said, recipe=None, **changes)


@pytest.mark.parametrize("spelling", ["Alice", "ali\u200bce", *in_long(" alice ", "ALICE", "\uff41lice", "a\u006cice")])
def test_one_owner_spelled_two_ways_is_one_owner(tmp_path, spelling):
    """To what was spent, to a removal, and to the groups of a private run."""
    store = Store(tmp_path / "store")
    store.add("one", part(0), private(["alice"]))
    store.add("two", part(1), private([spelling]))
    same = Store(tmp_path / "same")
    same.add("one", part(0), private(["alice"]))
    same.add("two", part(1), private(["alice"]))
    assert store.spent() == same.spent()
    assert store.spent().epsilon > 4
    for word in ("alice", spelling):
        assert {*plan_removal(store, owner=word).components} == {"one", "two"}
    batches = Batches(np.zeros((2, 3)), np.zeros(2, int), owners=["alice", spelling])
    assert len({*batches.owners}) == 1
    _, units = as_units(batches, make_mechanism(3.0, 1e-5, unit="owner"))
    assert len(units) == 1


def test_an_owner_in_their_own_spelling_stays_it():
    """Over capitals, letters, marks that combine, and characters that do not show (and are dropped first)."""
    some = "eEi\u0131\u0130\u00df\u1e9es\u017f\u03c3\u03c2A\u00c5\u212b"
    some += "\ufb01\u01c5\u1fb3K\u212a \u0301\u0307\u0308\u0345\u0323\u200b\u00ad\u034f"
    for name in ("".join(letters) for count in (1, 2, 3) for letters in itertools.product(some, repeat=count)):
        with contextlib.suppress(InputError):
            owner = Owner(f"a{name}b")
            assert Owner(owner) == owner
            assert Owner(unicodedata.normalize("NFD", f"a{name}b")) == owner, ascii(name)
    for hidden in "\u034f\ufe0f\u115f\u1160\u3164\uffa0\u2800\u180b\U000e0100\u17b4\u200b\u2061\u00ad":
        assert Owner(f"ali{hidden}ce") == "alice"
    assert Owner("e\u200b\u0301va") == Owner("\u00c9va") == "\u00e9va"
    assert Owner("al\u0131ce") == Owner("ALICE") == "alice"
    assert Owner("Ma\u0308rz  STRASSE") == "m\u00e4rz strasse"
    assert len({Owner(name) for name in ("alice", "alice b", "al ice", "\u0430lice")}) == 4
    for nothing in ("", " ", "\u200b"):
        with pytest.raises(InputError, match="owner must be the name of a contributor"):
            Owner(nothing)
    assert Owner(Owner("\u00a8")) == Owner("\u00a8") == "\u0308"  # a space before it comes and goes


def test_merged_store_keeps_exports(tmp_path):
    """Merged again nothing is counted twice, and what leaves here is counted, as the other store showed it."""
    other, here = Store(tmp_path / "other"), Store(tmp_path / "here")
    for s, name in enumerate(("goes", "stays")):
        other.add(name, part(s), private(["alice", f"only {s}"]))
    other.release(tmp_path / "first", other.sum())
    alone = other.spent()
    assert alone.epsilon > 4  # alice saw both
    add_all(here, other)
    assert here.spent() == alone
    lines = len(here.journal.entries)
    add_all(here, other)
    assert (here.spent(), len(here.journal.entries)) == (alone, lines)
    here.discard(["goes"])  # shown by the other store alone
    assert here.spent() == alone
    here.add("new", part(2), private(["alice"]))
    assert here.spent().epsilon > alone.epsilon
    receipt = remove(here, plan_removal(here, names=["stays"]))
    assert Trace("export", str(tmp_path / "first")) in receipt.not_reached


def test_component_of_two_accounts_is_refused(tmp_path):
    """Equal numbers under one name are no word on what they spent."""
    here, other = Store(tmp_path / "here"), Store(tmp_path / "other")
    here.add("one", part(0), private(["alice"]).with_training(privacy=None))
    other.add("one", part(0), private(["alice"]))
    for first, second in ((here, other), (other, here)):
        with pytest.raises(InputError, match="one must have one account and one list of examples; got two"):
            add_all(first, second)


# Names, paths and secrets


def test_file_names_move_no_cursor(tmp_path, capsys):
    """Of a store that another holds, and of files, links and pipes that are not the store's."""
    store = Store(tmp_path / "store")
    store.add("one", part(0), origin(0))
    lock = store.root / "lock"
    for said in (b"\x1b[2J\x1b]0;owned\x07", b"\xff\xfe"):
        lock.write_bytes(said)
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            Timer(0.2, lambda file=file: fcntl.flock(file, fcntl.LOCK_UN)).start()
            store.settle()
        assert capsys.readouterr().err.strip().isprintable()
    (store.root / "\x1b[2Jx").write_text("")
    os.mkfifo(store.root / "pipe")
    (store.root / "components" / "away").symlink_to("/etc")
    (store.root / "nowhere").symlink_to("/nonexistent")
    wrong = verify(store)
    assert [line.partition(":")[0] for line in wrong] == ["\\x1b[2Jx", "components/away", "nowhere", "pipe"]


def test_misshapen_component_hides_no_other(tmp_path):
    store = filled(tmp_path / "store", 2)
    lines = [json.loads(line) for line in store.journal.path.read_bytes().splitlines()]
    for wrong in ({"c": {"d": np.ones(3, np.float32)}}, jax.tree.map(lambda leaf: leaf[..., :1], part(1))):
        with store.using(change=True):
            entry = store.write("components", wrong, origin(1, subset=(*trees.leaves(wrong),)))
            chained(store.root, [lines[0], {**lines[1], "entry": dataclasses.asdict(entry)}])
        seen = Inspection(Store(store.root))
        assert seen.components[0].damage == ""
        assert "must have" in seen.components[1].damage


def test_names_of_others_move_no_cursor():
    """Text of a provenance is shown as it is spelled."""
    made = origin(0, examples=((f"{1:064x}", "\x1b]0;title\x07.jpg"),), classes=("a\u202eb",))
    read = Provenance.from_json(json.dumps({**plain(made), "classes": ["\x1b[2J"]}))
    assert [*read.classes, read.data.examples[0][1]] == ["\\x1b[2J", "\\x1b]0;title\\x07.jpg"]
    assert visible("plain caf\u00e9 \u65e5\u672c") == "plain caf\u00e9 \u65e5\u672c"
    with pytest.raises(InputError, match="characters that show"):
        Recipe(dataset="folder:\x1b[2J")


@pytest.mark.parametrize(
    ("field", "value"),
    [("certificate", float("nan")), ("certificate", -1.0), ("total_penalty", -1.0), ("total_penalty", float("inf")),
     ("seconds", float("nan")), ("run", "Documents"), ("run", "../" + RUN), ("run", RUN + "\n"), ("folders", ("out",)),
     ("folders", ("/home/../etc",)), ("folders", ("/a\nb",)), ("examples", (("no hash", "a.jpg"),)),
     ("public", (("A" * 64, "a.jpg"),))],
)  # fmt: skip
def test_impossible_provenance_is_refused(field, value):
    with pytest.raises(InputError, match=f"{field} must be"):
        origin(0, **{field: value})


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3://bucket", "hf://a/b", "memory://x", "https://example.org/x"])
def test_a_store_and_a_ledger_are_no_url(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    account = Spent(make_mechanism(epsilon=3.0, delta=1e-5), 0, True)
    for use in (lambda: expand_path(url), lambda: Store(url), Ledger(url).open("0" * 32, account).__enter__):
        with pytest.raises(InputError, match=r"a path must be one of this machine; got .* need a file system"):
            use()
    assert [*tmp_path.iterdir()] == []


def test_a_tfds_set_names_no_class_but_tfdss_own(tmp_path):
    """TFDS would import the module of any class that features.json names."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    own = {"pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict", "featuresDict": {}}
    for field in ("pythonClassName", "python_class_name", "type"):
        inner = {"featuresDict": {"features": {"label": {field: "evil.Label", "content": {}}}}}
        (tmp_path / "features.json").write_text(json.dumps({**own, **inner}))
        with pytest.raises(InputError, match=r"evil\.Label"):
            check_features(tmp_path / "features.json")
    (tmp_path / "features.json").write_text(json.dumps(own))
    check_features(tmp_path / "features.json")


def test_paths_of_a_folder_of_others_stay_in_it(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    for name in ("..", "a/b", "", "link", "pipe"):
        with pytest.raises(InputError, match="must be"):
            inside(tmp_path, name)
    (tmp_path / "file").write_text("x")
    os.link(tmp_path / "file", tmp_path / "twin")
    for name, mode in (("link", "r"), ("pipe", "r"), ("twin", "ab"), ("twin", "r+b"), ("link", "a+")):
        with pytest.raises(InputError, match="must be a plain file"):
            open_plain(tmp_path / name, mode)
    (tmp_path / "new.partial").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "new", "content")
    assert (tmp_path / "file").read_text() == "x"
    assert (tmp_path / "new").read_text() == "content"


def test_private_rows_forget_removed(tmp_path, monkeypatch):
    """The names and identifiers of removed images are in no file of the cache or of the index."""
    monkeypatch.setattr("tangent_jax.data.identifiers.INDEX", str(tmp_path / "index" / "index.sqlite"))
    recipe, examples = Recipe(kind="head"), pictures(6)
    predict = recipe.predictor(3, load("builtin"))
    named = dataclasses.replace(examples, names=tuple(f"shard.tar/patient_{i:02}" for i in range(6)))
    cached = extract(predict, named, Cache(tmp_path / "cache"))
    gone, kept = cached.examples[4][0], cached.examples[0][0]
    keep({b"a": gone, b"b": kept, b"c": json.dumps([["patient_04", {}, {}]]), b"d": json.dumps([["patient_05"]])})
    for path in (*(tmp_path / "cache").glob("*/*.bin"), *(tmp_path / "cache").glob("*/examples.txt")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    store = Store(tmp_path / "store")
    step = jax.tree.map(np.asarray, predict.subset.part(predict.w))
    store.add("all", step, make_provenance(predict, recipe).trained_on(cached, 1.0))
    remove(store, plan_removal(store, examples=[gone]), cache=Cache(tmp_path / "cache"))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and store.root not in path.parents]
    texts = b"".join(path.read_bytes() for path in files)
    assert gone.encode() not in texts
    assert b"patient_04" not in texts
    assert kept.encode() in texts
    assert b"patient_05" in texts

"""The record of a removal request says what was found, erased and not reached, and prints no identifier of an image."""

import datetime
import json
import re
import shutil
import stat

import numpy as np
import pytest
from helpers import origin, part
from photos import photographs, solved_heads
from run_binary import output, run

from tangent_jax.commands.report.backups import backups_file, read_backups
from tangent_jax.commands.report.record import backup_lines, code
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.pretrained.load import load
from tangent_jax.store import erasure
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.recipe import recipe_of
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

TODAY = datetime.date(2026, 11, 26)


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """A store of two solved heads on photographs, and the cache of their features."""
    root = tmp_path_factory.mktemp("solved")
    photos = photographs(root / "set", count=4)
    solved_heads(root, photos, {"a": np.arange(4), "b": np.arange(4, 8)})
    return root


@pytest.fixture
def store(solved, tmp_path):
    shutil.copytree(solved / "store", tmp_path / "store")
    return Store(tmp_path / "store")


def record_of(store, *flags, exit_code=0):
    """The record that `inspect` prints on stdout and writes, and stderr."""
    out = store.root.parent / "out"
    said, _ = output("inspect", f"--store={store.root}", *flags, f"--out={out}", code=exit_code)
    text = (out / "record.md").read_text()
    assert (out / "record.md").stat().st_mode & 0o777 == 0o600
    assert text in said
    if exit_code == 0:
        assert json.loads(said.strip().splitlines()[-1])["record"] == str(out / "record.md")
    identifiers = {i for name in store for i, _ in store.provenance(name).images_seen}
    assert not [i for i in identifiers if i[:12] in text]
    assert text.count("\n## ") == 7
    return text


def section(text, number):
    return text.partition(f"\n## {number}. ")[2].partition("\n## ")[0]


def asked(store, *words):
    path = store.root.parent / "ids.txt"
    path.write_text("".join(f"{word}\n" for word in words))
    return f"--examples={path}"


def test_an_open_request_is_open_with_its_images_components_and_commands(store):
    identifier, name = store.provenance("a").examples[0]
    _, other = store.provenance("b").examples[1]
    text = record_of(store, asked(store, identifier, other, "nobody.png"))
    assert "**OPEN: 2 components hold 2 images of this request.**" in text
    assert "1 identifier, not printed" in section(text, 1)
    assert f"`{other}`" in section(text, 1)
    for said in ("| `a` | 1 | 3 | no |", "| `b` | 1 | 3 | no |", f"- `{name}`", "`nobody.png`: not found"):
        assert said in section(text, 2), said
    commands = [line for line in section(text, 3).splitlines() if line.startswith("tangent-jax store remove")]
    assert [command.split()[-1] for command in commands] == [asked(store, identifier, other), "--retrain", "--exact"]
    assert "the data set itself" in section(text, 4)
    assert section(text, 5).count("unchanged") == 2
    assert "store verify" in section(text, 6)


def test_a_request_of_which_nothing_matches_has_a_record_that_says_so_and_ends_as_a_failure(store):
    _, err = run("inspect", f"--store={store.root}", asked(store, "x.jpg"), f"--out={store.root}-out", code=1)
    assert "holds or has removed; got 1 that no component saw, such as x.jpg." in err
    text = record_of(store, asked(store, "x.jpg"), exit_code=1)
    assert "**NOTHING FOUND" in text
    assert "`x.jpg`: not found in components, data sets or removals." in section(text, 2)
    assert "Nothing: there was nothing to erase." in section(text, 3)
    assert "The model did not change." in section(text, 5)


def test_a_data_set_that_cannot_be_opened_is_said(tmp_path):
    store = Store(tmp_path / "store")
    photos = photographs(tmp_path / "set", count=2)
    store.add("a", part(0), origin(0, recipe=recipe_of(dataset=f"folder:{photos}")))
    shutil.rmtree(photos)
    text = record_of(store, asked(store, "x.jpg"), exit_code=1)
    assert f"Not looked up: the data set `folder:{photos}`, which cannot be opened now" in section(text, 2)


@pytest.mark.parametrize(
    ("how", "said", "after"),
    [
        ("drop", "Dropped: `a`.", "| gone |"),
        ("retrain", "Trained again without the images: `a`.", "from its optimum |"),
        ("exact", "Its certificate bounds a distance; it is no privacy.", "from its optimum |"),
    ],
)
def test_after_a_removal_the_record_says_what_was_deleted_and_how_to_check_it(solved, store, how, said, after):
    identifier, name = store.provenance("a").examples[0]
    composed = trees.fingerprint(store.compose())
    receipt = remove(store, plan_removal(store, examples=[identifier]), how, cache=Cache(solved / "cache"))
    text = record_of(store, asked(store, name, identifier))
    assert "**REMOVED: no component of this store holds an image of this request now.**" in text
    erased = section(text, 3)
    assert said in erased
    assert f"`receipts/{receipt.path.name}`: it verifies." in erased
    assert all(line in erased for line in receipt.deleted)
    assert "Still to erase" not in erased
    assert all(line in section(text, 4) for line in receipt.not_reached)
    assert f"`{store.ring.own.hide(composed)[:12]}` | `{receipt.composed_after[:12]}`" in section(text, 5)
    assert after in section(text, 5)
    assert f"--receipt={store.root}/receipts/{receipt.path.name}" in section(text, 6)


def test_an_open_record_lists_the_caches_that_a_removal_searches_and_what_it_will_delete(solved, store):
    identifier, _ = store.provenance("b").examples[2]  # whose row no other test erases
    gone = store.root.parent / "no cache"
    text = section(record_of(store, asked(store, identifier), f"--cache_dir={gone}"), 3)
    assert f"| `{solved / 'cache'}` | 1 |" in text  # that the component names
    assert f"| `{gone}` | not there now |" in text
    receipt = remove(store, plan_removal(store, examples=[identifier]), cache=Cache(gone))
    assert any("rows of removed images" in line for line in receipt.deleted)
    assert all(f"- `{line}`" in text for line in receipt.deleted)


def test_a_record_names_the_other_stores_that_still_hold_images_of_the_request(store):
    other = store.root.parent / "other"
    shutil.copytree(store.root, other)
    identifier, _ = store.provenance("a").examples[0]
    request = asked(store, identifier)
    remove(store, plan_removal(store, examples=[identifier]))
    text = record_of(store, request)
    assert (
        "**REMOVED HERE: no component of this store holds an image of this request now. Other stores do: see 4.**"
        in text
    )
    assert f"`{other}` holds 1 image of this request now." in section(text, 4)
    assert f"tangent-jax inspect --store={other} " in section(text, 4)
    shutil.rmtree(other)
    (other / "HEAD").mkdir(parents=True)  # as a git repository beside the store has one
    assert "**REMOVED: " in record_of(store, request)


def test_all_names_of_a_request_are_in_a_file_that_its_user_alone_reads(store):
    names = [name for _, name in store.provenance("b").examples]
    record_of(store, asked(store, *(identifier for identifier, _ in store.provenance("b").examples)))
    listed = store.root.parent / "out/images.txt"
    assert listed.read_text().splitlines() == sorted(names)
    for page in ("images.txt", "record.md", "request.html", "index.html"):
        assert stat.S_IMODE((listed.parent / page).stat().st_mode) == 0o600


def test_a_component_that_is_wholly_asked_for_has_one_command_as_nothing_is_left_to_train(store):
    request = asked(store, *(identifier for identifier, _ in store.provenance("a").examples))
    text = section(record_of(store, request), 3)
    assert "nothing is left to train, so a removal drops them" in text
    assert text.count("tangent-jax store remove") == 1
    page = (store.root.parent / "out/request.html").read_text()
    assert "nothing is left to train, so a\nremoval drops it" in page
    assert page.count("tangent-jax store remove") == 1
    assert "--retrain" not in page
    assert "<b>Delete this page once the request is answered</b>" in page
    some = record_of(store, asked(store, store.provenance("a").examples[0][0]))
    assert "nothing is left to train" not in some
    assert "--retrain" in (store.root.parent / "out/request.html").read_text()


def test_a_receipts_page_says_that_its_owner_is_a_hash(store):
    names = [name for component in store for _, name in store.provenance(component).examples]
    owners = dict.fromkeys(names[:4], "ann") | dict.fromkeys(names[4:], "bob")
    receipt = remove(store, plan_removal(store, owner="ann", owners=owners))
    who = store.root.parent / "who.csv"
    who.write_text("file,owner\n" + "".join(f"{name},{owner}\n" for name, owner in owners.items()))
    record_of(store, "--owner=ann", f"--owners={who}")
    said = f"hash under the store's key <code>{receipt.owner[:12]}…</code>"
    pages = store.root.parent / "out"
    assert f"<b>all images of one owner</b> ({said})" in (pages / f"receipt-{receipt.path.stem}.html").read_text()
    assert f"all images of one owner ({said})" in (pages / "index.html").read_text()


def test_a_removal_that_was_killed_is_stopped_until_it_is_repeated(store, monkeypatch):
    identifier, _ = store.provenance("a").examples[0]
    cache = Cache(store.root.parent / "cache")
    extract_rows(store, cache)

    def killed(*_):
        raise SystemExit

    plan = plan_removal(store, examples=[identifier])
    with monkeypatch.context() as patch:
        patch.setattr(erasure, "erase_found", killed)
        with pytest.raises(SystemExit):
            remove(store, plan, cache=cache)
    text = record_of(store, asked(store, identifier), f"--cache_dir={cache.path}", exit_code=1)
    assert "a killed writer's leftover goes with the next change" in text.partition("## 1.")[0]
    assert "**STOPPED: a removal of this request began and has no receipt. Repeat it; see 3.**" in text
    assert "a removal began, and has no receipt.** The store keeps\n`a`." in section(text, 3)
    assert "rows of removed images" in section(text, 3)
    assert "Still to erase" in section(text, 3)
    other, _ = store.provenance("b").examples[0]
    remove(store, plan_removal(store, examples=[other]), cache=cache)
    text = record_of(store, asked(store, other), f"--cache_dir={cache.path}")
    assert "**REMOVED" in text  # the request that was stopped is another person's
    assert "has no receipt" not in text
    text = record_of(store, asked(store, identifier), f"--cache_dir={cache.path}")
    assert "**STOPPED" in text
    remove(store, plan_removal(store, examples=[identifier]), cache=cache)
    text = record_of(store, asked(store, identifier), f"--cache_dir={cache.path}")
    assert "**REMOVED" in text
    assert "has no receipt" not in text


def extract_rows(store, cache):
    recipe = store.provenance("a").recipe
    dataset = open_dataset(recipe.dataset)
    extract(recipe.predictor(dataset.classes, load(recipe.anchor.weights)), dataset.train, cache)


def test_a_store_or_receipt_that_was_altered_is_said_above_all(store):
    identifier, _ = store.provenance("a").examples[0]
    path = remove(store, plan_removal(store, examples=[identifier])).path
    path.write_text(path.read_text().replace('"how": "drop"', '"how": "exact"'))
    text = record_of(store, asked(store, identifier), exit_code=1)
    assert "**The store does not verify;" in text.partition("## 1.")[0]
    assert "it does NOT verify" in section(text, 3)


def test_an_owner_is_printed_as_given(store):
    names = [name for component in store for _, name in store.provenance(component).examples]
    who = store.root.parent / "who.csv"
    who.write_text("file,owner\n" + "".join(f"{name},{'Ann' if i < 2 else 'bob'}\n" for i, name in enumerate(names)))
    flags = ("--owner= ANN", f"--owners={who}")
    text = record_of(store, *flags)
    assert "the owner ` ANN`, as given" in section(text, 1)
    assert "is not found by the owner's name" in section(text, 2)


# Backups


def listed(tmp_path, text):
    root = tmp_path / "store"
    root.mkdir(exist_ok=True)
    backups_file(root).write_text(text)
    return root


def test_backups_are_printed_with_the_days_that_are_left(tmp_path):
    copies = [("night | ly", "2027-01-31"), ("old", "2026-11-20"), ("tape", None), ("last", "2026-11-26")]
    text = "".join(
        f'[[copy]]\nwhat = "{what}"\nwhere = "s3://b"\n' + (f"until = {until}\n" if until else "")
        for what, until in copies
    )
    root = listed(tmp_path, text)
    lines = [*backup_lines(root, read_backups(root), TODAY)]
    assert lines[4:] == [
        "| `old` | `s3://b` | 2026-11-20 | the day passed 6 days ago: check that it is gone |",
        "| `last` | `s3://b` | 2026-11-26 | ends today |",
        "| `night \\| ly` | `s3://b` | 2027-01-31 | 66 days left |",
        "| `tape` | `s3://b` | no day | has no end: delete it by hand |",
    ]


def test_an_absent_list_is_said_and_an_empty_one_says_that_there_is_none(tmp_path):
    root = tmp_path / "store"
    assert "no list" in "".join(backup_lines(root, read_backups(root), TODAY))
    root = listed(tmp_path, "copy = []\n")
    assert "says that there is none" in "".join(backup_lines(root, read_backups(root), TODAY))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what = 1 2", "must be TOML; "),
        ("", "must hold the field copy; it is missing"),
        ("[[copies]]", "must hold the fields of a Backups alone; got 'copies'"),
        ("[copy]\nwhat='a'", "must be a list; got "),
        ("[[copy]]\nwhat='a'", "must hold the field where; it is missing"),
        ("[[copy]]\nwhat='a'\nwhere='b'\nuntill=2027-01-01", "must hold the fields of a Backup alone; got 'untill'"),
        ("[[copy]]\nwhat=1\nwhere='b'", "must be text; got 1"),
        ("[[copy]]\nwhat=' '\nwhere='b'", "what of a copy must be a text; got an empty one"),
        ("[[copy]]\nwhat='a'\nwhere='b'\nuntil='2027-01-31'", "until of a must be a day without quotes"),
        ("[[copy]]\nwhat='a'\nwhere='b'\nuntil=2027-01-31T10:00:00", "until of a must be a day without quotes"),
        ("[[copy]]\nwhat='a'\nwhere='b'\nuntil=7", "until of a must be a day without quotes"),
    ],
)
def test_a_wrong_list_is_one_sentence_with_its_file(tmp_path, text, message):
    root = listed(tmp_path, text)
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        read_backups(root)
    assert str(backups_file(root)) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_foreign_text_is_code_on_one_line():
    assert code("a`b``c") == "```a`b``c```"
    assert code("`x`") == "`` `x` ``"
    assert "\n" not in code("a\nb")

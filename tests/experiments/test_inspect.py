"""Pages of a store say what it holds, escape what others wrote, fetch nothing, and fit a phone, in a real browser."""

import dataclasses
import html
import json
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from helpers import origin, part
from photos import photographs, solved_heads
from run_binary import run

from tangent_jax.commands.inspect import Config
from tangent_jax.commands.report import inspector
from tangent_jax.commands.report.rendering import write_page
from tangent_jax.commands.shared import setup
from tangent_jax.composition.compose import compose
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import extract
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import predictor_of
from tangent_jax.store.store import Store
from tangent_jax.train.evaluate import evaluate

EVIL = "<script>document.title='taken'</script><img src=http://remote.example/x.png>\"'&"
PRIVATE = Spent(Mechanism(1.0, 9.833, 50, 1e-5), 50, True)
CHROMIUM = shutil.which("chromium")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET += ("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000")


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text as a reader sees it."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], [], ""
        self.feed(page)
        self.text = " ".join("".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.open = tag
        self.texts.append("" if tag in ("a", "b", "code", "small") else " ")
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.open != "style":
            self.texts.append(data)

    def handle_endtag(self, tag):
        self.open = ""


def read(path):
    return Reader(path.read_text())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return photographs(tmp_path_factory.mktemp("photos") / "set", count=8)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, photos):
    """A store of random components of two tasks, one of them private, of which one was removed; its pages."""
    root, train = tmp_path_factory.mktemp("drawn"), open_dataset(f"folder:{photos}").train
    examples = [*zip(train.identifiers(), train.names, strict=True)]
    store, coats, digits = Store(root / "store"), ("coat", EVIL, *"cdefg"), tuple("0123456")
    for s in range(5):
        seen = tuple(examples[3 * s : 3 * s + 3])
        own = {"examples": seen, "owners": {seen[0][1]: f"ann {EVIL}"}, "privacy": PRIVATE if s == 1 else None}
        own |= {"recipe": Recipe(dataset=f"folder:{photos}"), "classes": coats if s < 3 else digits}
        made = origin(s, **own)
        store.add(f"shard {s}", part(s), made if s < 3 else dataclasses.replace(made, head="f" * 64))
    store.compose()
    remove(store, plan_removal(store, examples=[examples[0][0]]))
    line, _ = run("inspect", f"--store={store.root}", f"--out={root}/out")
    return store, root / "out", json.loads(line)


def test_the_page_says_what_the_store_holds(drawn):
    _, out, result = drawn
    assert (result["components"], result["removals"], result["verified"], result["wrong"]) == (4, 1, True, [])
    assert result["page"] == f"{out}/index.html"
    assert 0 < result["seconds"] < 60
    text = read(out / "index.html").text
    for said in (
        "4 components, trained on 12 images; 1 removal.",
        "Every file is as the journal says",
        "ann <script>document.title='taken'</script>",
        "nobody says whose 8",
        "No bound holds for all components together: 3 of 4 components have no account.",
        "taft ε = 3 at δ = 1e-05, of one image",
        "1 image shard 0 \N{EN DASH}",
        "✓ verifies",
    ):
        assert said in text, said


def test_foreign_text_is_escaped(drawn):
    _, out, _ = drawn
    for path in out.glob("*.html"):
        page = path.read_text()
        reader = Reader(page)
        assert {tag for tag, _ in reader.tags} & {"script", "link", "iframe", "object"} == set()
        assert "url(" not in page
        assert "@import" not in page
        for tag, attributes in reader.tags:
            assert not [name for name in attributes if name.startswith("on")], tag
            for name in {"src", "href"} & {*attributes}:
                assert attributes[name].startswith("#"), attributes
        policy = [a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "&lt;script&gt;" in (out / "index.html").read_text()


@pytest.fixture(scope="module")
def solved(tmp_path_factory, photos):
    """A store of three heads that were solved, and where it was trained."""
    root = tmp_path_factory.mktemp("solved")
    rows = np.arange(16)
    return root, *solved_heads(root, photos, {"even": rows[:12:2], "none": rows[12:], "odd": rows[1:12:2]})


def test_accuracies_are_those_of_the_sums(solved, tmp_path):
    root, recipe, cache = solved
    store, before = Store(root / "store"), (root / "store/journal.jsonl").read_bytes()
    flags = [f"--store={store.root}", f"--dataset={recipe.dataset}", f"--cache_dir={root}/cache"]
    line, _ = run("inspect", *flags, f"--out={tmp_path}/out")
    assert json.loads(line)["verified"]
    figures = json.loads(line)["accuracy"]
    assert (store.root / "journal.jsonl").read_bytes() == before
    predict = predictor_of(store.provenance("even"), "even")
    test = extract(predict, open_dataset(recipe.dataset).test, cache)
    index = read(tmp_path / "out/index.html").text
    left = {"all 3": ("even", "none", "odd"), "without even": ("none", "odd"), "without odd": ("even", "none")}
    for words, names in left.items():
        accuracy = evaluate(predict, compose({name: store[name] for name in names}), test)
        assert f"{words} {100 * accuracy:.1f} %" in index
        assert figures["without"].get(words.removeprefix("without "), figures["whole"]) == pytest.approx(accuracy)


def test_damaged_file_is_named(drawn, tmp_path):
    shutil.copytree(drawn[0].root, tmp_path / "store")
    store = Store(tmp_path / "store")
    path = store.path("shard 2")
    path.write_bytes(path.read_bytes().replace(b"photo", b"phOto").replace(b'"taft', b'"tAft'))
    flags = (f"--store={store.root}", f"--out={tmp_path}/out")
    line, err = run("inspect", *flags, code=1)
    result = json.loads(line)
    assert (result["verified"], result["components"]) == (False, 4)
    assert f"components/{path.name}: altered" in err
    text = read(tmp_path / "out/index.html").text
    assert "Not as the journal says." in text
    assert f"shard 2 ✗ components/{path.name}: altered" in text
    (store.root / "journal.jsonl").write_bytes(b"{}\n")
    line, err = run("inspect", *flags, code=1)
    assert "altered at line 1" in err
    assert len(err.splitlines()) == 2  # the first names the devices


def test_a_store_that_is_empty_has_a_page(tmp_path):
    Store(tmp_path / "store")
    line, _ = run("inspect", f"--store={tmp_path}/store", f"--out={tmp_path}/out", "--dataset=digits")
    assert json.loads(line)["components"] == 0
    assert "No component is in the store." in read(tmp_path / "out/index.html").text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--store=/nowhere"], "inspect: --store must be a store; /nowhere is not"),
        (["--dataset=folder:{photos}"], "--dataset needs tangent weights with one head; "),
    ],
)
def test_wrong_uses_are_one_clear_line(drawn, photos, tmp_path, flags, message):
    flags = [f"--store={drawn[0].root}", f"--out={tmp_path}/out", *(f.format(photos=photos) for f in flags)]
    _, err = run("inspect", *flags, code=1)
    assert message in err
    assert len(err.strip().splitlines()) == 2  # the first names the devices
    assert not (tmp_path / "out").exists()


def test_store_without_marker_is_to_be_restored(tmp_path):
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(InputError, match=r"is not\. It lacks store\.json: restore that file"):
        setup.check_store(tmp_path, "add a component first")


def test_model_without_class_names_says_so(photos):
    unread: Any = None
    with pytest.raises(InputError, match=r"has no names of classes, and set has cat, dog. Leave it out"):
        setup.test_features(Config(), f"folder:{photos}", unread, ())


@pytest.mark.parametrize(
    ("account", "said"),
    [
        (PRIVATE, "All components together cost one image at most ε = 3 at δ = 1e-05 (add-or-remove-one)."),
        (dataclasses.replace(PRIVATE, private=False), "Not private: a fixed seed drew the noise"),
    ],
)
def test_privacy_is_stated_where_bounded(tmp_path, account, said):
    store = Store(tmp_path / "store")
    for s in range(2):
        store.add(f"shard {s}", part(s), origin(s, privacy=account))
    seen = inspector.Inspection(store)
    write_page(tmp_path / "index.html", "index.html", seen=seen, version="", accuracy=None)
    text = read(tmp_path / "index.html").text
    assert said in text
    assert text.count("not private") == (0 if account.private else 2)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_browser_fits_400_pixels(drawn, tmp_path):
    """Each page in a frame of 400 pixels, light and dark; a script beside the frames writes down what is in them."""
    pages = sorted(drawn[1].glob("*.html"))
    frame = '<iframe width=400 height=900 style="color-scheme: {}" srcdoc="{}"></iframe>'
    texts = [html.escape(path.read_text()) for path in pages]
    frames = "".join(frame.format(scheme, text) for scheme in ("light", "dark") for text in texts)
    script = """<script>onload = () => { for (const frame of document.querySelectorAll("iframe")) {
      const inner = frame.contentDocument, root = inner.documentElement, pre = document.createElement("pre")
      pre.textContent = JSON.stringify({width: root.scrollWidth, room: root.clientWidth, title: inner.title,
        page: getComputedStyle(inner.body).backgroundColor, h1: inner.querySelector("h1").innerText,
        foreign: inner.querySelectorAll("script, [src^=http]").length})
      document.body.append(pre) } }</script>"""
    (tmp_path / "frames.html").write_text(f"<!doctype html><body>{frames}{script}")
    command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path}/profile", f"--log-net-log={tmp_path}/log.json"]
    command += ["--dump-dom", f"file://{tmp_path}/frames.html"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    shown = [json.loads(text) for text in Reader(dom).texts if text.startswith('{"width"')]
    assert [page["h1"] for page in shown] == ["store", "store"]
    assert [page["width"] for page in shown] == [page["room"] for page in shown]  # 400, less a scroll bar
    assert max(page["room"] for page in shown) <= 400
    assert [page["foreign"] for page in shown] == [0] * 2
    assert [page["page"] for page in shown] == ["rgb(246, 247, 249)", "rgb(16, 20, 26)"]
    assert "taken" not in [page["title"] for page in shown]
    assert "remote.example" not in (tmp_path / "log.json").read_text()

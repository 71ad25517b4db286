"""A store at a URL: pushed and pulled whole, after kills too; a copy that moved on, or is another's, is refused."""

import itertools

import pytest
from helpers import origin, part, stopping

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import Remote
from tangent_jax.store import copies
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store

NUMBERS = itertools.count()


@pytest.fixture
def url():
    return f"memory://stores/{next(NUMBERS)}"


def filled(root, count):
    store = Store(root)
    for s in range(count):
        store.add(f"shard {s}", part(s), origin(s))
    return store


def holds(root, store):
    """True where the store in `root` has the components, the lines and the identity of another, and verifies."""
    other = Store(root)
    same = {name: trees.fingerprint(other[name].dw) for name in other} == {
        n: trees.fingerprint(store[n].dw) for n in store
    }
    return same and other.journal.hashes == store.journal.hashes and other.identity == store.identity


def refused(match, call, *arguments):
    with pytest.raises(InputError, match=match) as error:
        call(*arguments)
    assert "\n" not in str(error.value)


def test_a_store_comes_back_and_follows(url, tmp_path):
    store, root = filled(tmp_path / "a", 2), tmp_path / "b"
    store.compose()
    assert copies.push(store, url) == {"lines": 3, "files": 7, "copied": 7}
    assert copies.push(store, url)["copied"] == 0
    assert copies.pull(root, url)["copied"] == 7
    assert holds(root, store)
    store.add("late", part(7), origin(7))
    assert copies.push(store, url)["copied"] == 3  # the component, the journal, its count
    assert copies.pull(root, url)["copied"] == 3
    assert holds(root, store)
    remove(store, plan_removal(store, names=["late"]))
    gone = store.root.with_name("b") / "components" / f"{Store(root).state.components['late'].id}.safetensors"
    assert gone.exists()
    copies.push(store, url)
    copies.pull(root, url)
    assert holds(root, store)
    assert not gone.exists()
    names = {*Remote(url).places.values()}
    assert {*urls.list_files(f"{url}/objects")} == names, "what was removed is not at the URL either"


@pytest.fixture
def parted(url, tmp_path):
    """(a store, its copy in another folder): each has a component that the other lacks; the copy is at the URL."""
    store = filled(tmp_path / "a", 1)
    copies.push(store, url)
    copies.pull(tmp_path / "b", url)
    other = Store(tmp_path / "b")
    store.add("mine", part(2), origin(2))
    other.add("theirs", part(3), origin(3))
    copies.push(other, url)
    return store, other


def test_copies_that_parted_and_other_stores_are_refused(parted, url, tmp_path):
    store, _ = parted
    refused("got a copy that has diverged: each has lines that the other lacks", copies.push, store, url)
    refused("it has diverged: each has lines that the other lacks", copies.pull, tmp_path / "a", url)
    assert [*Store(tmp_path / "a")] == ["mine", "shard 0"]
    assert [*Store(tmp_path / "b")] == ["shard 0", "theirs"]
    refused("must hold a copy of this store; got another store", copies.push, filled(tmp_path / "c", 1), url)
    refused("must hold a copy of this store; got another store", copies.pull, tmp_path / "c", url)
    refused(
        "memory://stores/nothing must hold a store; it holds none",
        copies.pull,
        tmp_path / "d",
        "memory://stores/nothing",
    )
    (tmp_path / "e").mkdir()
    (tmp_path / "e/x").write_text("")
    refused("must be a store, or an empty folder", copies.pull, tmp_path / "e", url)
    assert not (tmp_path / "d").exists()


def test_a_copy_that_is_behind_is_told_to_pull_or_to_push(url, tmp_path):
    store = filled(tmp_path / "a", 1)
    copies.push(store, url)
    copies.pull(tmp_path / "b", url)
    other = Store(tmp_path / "b")
    other.add("theirs", part(3), origin(3))
    refused(r"it moved on\. Push it, or pull to another folder", copies.pull, other.root, url)
    copies.push(other, url)
    refused(r"got a copy that moved on\. Pull it first", copies.push, store, url)


def test_copies_that_parted_are_joined_as_the_refusal_says(parted, url, tmp_path):
    store, _ = parted
    copies.pull(tmp_path / "joined", url)
    joined = Store(tmp_path / "joined")
    assert joined.add_all(store) == ["mine"]
    copies.push(joined, url)
    assert [*joined] == ["mine", "shard 0", "theirs"]
    assert joined.verify() == []


def test_an_altered_file_is_neither_pushed_nor_pulled(url, tmp_path):
    store = filled(tmp_path / "a", 1)
    path = next((store.root / "components").iterdir())
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    refused("it was altered", copies.push, store, url)
    path.write_bytes(content)
    copies.push(store, url)
    urls.write(Remote(url).object_url(copies.file_fingerprint(path)), content[:-1] + b"x")
    refused("must have SHA-256", copies.pull, tmp_path / "b", url)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("new", [True, False])
def test_a_pull_that_is_stopped_anywhere_ends_as_the_store_before_or_after(new, url, tmp_path, monkeypatch):
    root, calls, stop = tmp_path / "b", itertools.count(), [10**9]
    store = filled(tmp_path / "a", 1)
    copies.push(store, url)
    before = [] if new else [*store]
    if not new:
        copies.pull(root, url)
    store.add("late", part(7), origin(7))
    copies.push(store, url)
    for module, name in ((urls, "download"), (copies, "place"), (copies.Journal, "append"), (Store, "sweep")):
        monkeypatch.setattr(module, name, stopping(getattr(module, name), lambda: next(calls) == stop[0]))
    stopped = 0
    while True:
        calls, stop[0] = itertools.count(), stopped
        try:
            copies.pull(root, url)
            break
        except KeyboardInterrupt:
            stopped += 1
        stop[0] = 10**9
        assert [*Store(root)] in (before, [*store]) if root.exists() else new
        assert not root.exists() or not Store(root).verify() or not new
    assert stopped >= 3
    assert holds(root, store)

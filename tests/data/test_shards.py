"""Shards are disjoint and cover; which of them move when an example comes or goes."""

import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.data import shards

LABELS = np.random.default_rng(0).integers(0, 6, 60)
NAMES = [f"{i % 3}/photo {i}.jpg" for i in range(60)]
IDENTIFIERS = [f"{i * 2654435761 % 2**64:064x}"[::-1] for i in range(60)]


@pytest.mark.parametrize(
    "made",
    [
        shards.uniform(60, 7, seed=1),
        shards.by_identifier(IDENTIFIERS, 7),
        shards.by_class(LABELS, 4),
        shards.dirichlet(LABELS, 7, 0.3, seed=1),
    ],
)
def test_every_example_is_in_exactly_one_shard(made):
    shards.check_disjoint(made, 60)
    assert all((np.diff(rows) > 0).all() for rows in made)


@pytest.mark.parametrize(
    "lines",
    [
        ["hat/0.png,ben", "hat/1.png,ann"],
        ["./hat/0.png,ben", "./hat/1.png,ann"],
        ["path,owner", "hat/0.png,ben", "hat/1.png,ann"],
        ["owner,path", "ben,hat/0.png", "ann,hat/1.png"],
        ["Owner,photo", "ben,hat/0.png", "ann,hat/1.png"],
        ["shop,image", "ben,hat/0.png", "ann,hat/1.png"],
        ["id,owner,file_name", "1,ben,hat/0.png", "2,ann,hat/1.png"],
        ["file;owner", "hat/0.png;ben", " ", "hat/1.png;ann"],
        ["owner\tfile", "ben\that/0.png", "ann\that/1.png"],
        ['"file", "owner"', '"hat/0.png", "ben"', '"hat/1.png", "ann"'],
    ],
)
@pytest.mark.parametrize("names", [("hat/0.png", "hat/1.png"), ("./hat/0.png", "./hat/1.png")])
def test_the_header_says_which_column_is_which(tmp_path, names, lines):
    (tmp_path / "who.csv").write_text("\n".join(lines))
    assert shards.every_owner(names, tmp_path / "who.csv") == ["ben", "ann"]


@pytest.mark.parametrize(
    ("text", "query", "match"),
    [
        ("a.png,ann\n./a.png,bob", "", "must name one owner of ./a.png; got two"),
        ("path,image,owner\na.png,b.png,ann", "", "must have two columns, file and owner"),
        ("path,shop,kind\na.png,x,y", "", "must have two columns, file and owner"),
        ("path,owner\na.png,ann", "?owner=shop", "must have two columns, file and owner"),
    ],
)
def test_unclear_owners_are_refused(tmp_path, text, query, match):
    (tmp_path / "who.csv").write_text(text)
    with pytest.raises(InputError, match=match):
        shards.read_owners(f"{tmp_path}/who.csv{query}")


def test_uniform_shards_cover_equally():
    found = shards.uniform(23, 5, seed=1)
    assert sorted(np.concatenate(found)) == list(range(23))
    assert {len(rows) for rows in found} == {4, 5}
    assert all((a == b).all() for a, b in zip(found, shards.uniform(23, 5, seed=1), strict=True))
    with pytest.raises(InputError, match=r"shards must be a whole number in 1\.\.3"):
        shards.uniform(3, 4, seed=0)


def test_by_identifier_moves_no_other_example():
    before = shards.by_identifier(IDENTIFIERS, 7)
    after = shards.by_identifier([*IDENTIFIERS[:10], *IDENTIFIERS[11:]], 7)
    old = {IDENTIFIERS[i]: s for s, rows in enumerate(before) for i in rows}
    left = [*IDENTIFIERS[:10], *IDENTIFIERS[11:]]
    assert {left[i]: s for s, rows in enumerate(after) for i in rows}.items() <= old.items()


def test_by_class_keeps_classes_whole():
    for rows in shards.by_class(LABELS, 4):
        others = np.setdiff1d(np.arange(60), rows)
        assert not {*LABELS[rows]} & {*LABELS[others]}


def test_dirichlet_is_seeded_and_uneven():
    def unevenness(concentration):
        made = shards.dirichlet(np.repeat(np.arange(6), 200), 5, concentration, seed=3)
        return np.std([len(rows) for rows in made])

    assert unevenness(0.05) > 4 * unevenness(50.0)
    for one, two in zip(shards.dirichlet(LABELS, 5, 1.0, 3), shards.dirichlet(LABELS, 5, 1.0, 3), strict=True):
        assert (one == two).all()


def test_owners_come_from_a_table(tmp_path):
    table = tmp_path / "owners.csv"
    table.write_text("file,owner\n" + "".join(f"photo {i}.jpg,{'ann' if i % 4 else 'bob'}\n" for i in range(60)))
    made = shards.by_owner(NAMES, table)
    shards.check_disjoint(list(made.values()), 60)
    assert list(made) == ["ann", "bob"]
    assert (made["bob"] == np.arange(0, 60, 4)).all()
    table.write_text("".join(f"{name},ann\n" for name in NAMES[1:]))
    with pytest.raises(InputError, match=r"must name an owner of every example; it names none of 0/photo 0.jpg"):
        shards.by_owner(NAMES, table)
    table.write_text("a.jpg,ann\na.jpg,bob\n")
    with pytest.raises(InputError, match=r"one owner of a.jpg; got two"):
        shards.by_owner(["a.jpg"], table)
    table.write_text(f"{NAMES[0]},ann\nphoto 0.jpg,bob\n")
    with pytest.raises(InputError, match=r"0/photo 0.jpg must have one owner; the owners give it ann and bob"):
        shards.by_owner(NAMES, table)
    for text in ("a.jpg\n", "a.jpg, \n"):
        table.write_text(text)
        with pytest.raises(InputError, match="file,owner in every line"):
            shards.by_owner(["a.jpg"], table)
    table.write_text("a.jpg,ann\nb.jpg, ann\n")  # one owner, whatever spaces there are
    assert [*shards.by_owner(["a.jpg", "b.jpg"], table)] == ["ann"]
    table.write_text("a.jpg,Ann\nb.jpg,ann\n")
    with pytest.raises(InputError, match="Ann must have one spelling; got ann"):
        shards.by_owner(["a.jpg", "b.jpg"], table)


def test_a_label_is_never_taken_for_an_owner(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("image,label,shop\na.jpg,hat,Harbour\nb.jpg,dress,Harbour\n")
    with pytest.raises(InputError, match=r"two columns, file and owner; its first line is 'image,label,shop'"):
        shards.read_owners(table)
    assert shards.read_owners(f"{table}?file=image&owner=shop") == {"a.jpg": "harbour", "b.jpg": "harbour"}
    assert shards.read_owners(f"{table}?owner=shop") == {"a.jpg": "harbour", "b.jpg": "harbour"}
    table.write_text("owner,label,file\nann,hat,a.jpg\n")
    assert shards.read_owners(table) == {"a.jpg": "ann"}
    table.write_text("a.jpg,ann\nb.jpg,hat,bob\n")
    with pytest.raises(InputError, match="two columns, file and owner"):
        shards.read_owners(table)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: shards.by_class(LABELS, 7), "shards must be a whole number in 1..6"),
        (lambda: shards.dirichlet(LABELS, 3, 0.0, 0), "concentration must be a finite number > 0"),
        (lambda: shards.check_disjoint([np.arange(3), np.arange(2, 5)], 5), r"row \[2\] is in \[2\]"),
        (lambda: shards.check_disjoint([np.arange(3)], 4), r"row \[3\] is in \[0\]"),
    ],
)
def test_bad_input_is_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()

"""Commitments to sets of images: RFC 9162's trees, and proofs that an image is in the set or not."""

import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangent_jax.core.checks import InputError
from tangent_jax.store.commitment import Commitment, commit, is_in, prove

IDENTIFIERS = st.integers(0, 40).map(lambda number: hashlib.sha256(bytes([number])).hexdigest())


def test_commitment_to_three_identifiers_is_the_tree_of_rfc_9162():
    def h(content):
        return hashlib.sha256(content).digest()

    a, b, c = (h(b"\0" + letter) for letter in (b"a", b"b", b"c"))
    root = h(b"\1" + h(b"\1" + a + b) + c).hex()
    assert commit(["c", "a", "b", "a"]) == Commitment(3, root)


def test_commitment_to_nothing_is_the_hash_of_nothing():
    assert commit([]) == Commitment(0, hashlib.sha256(b"").hexdigest())


@given(st.sets(IDENTIFIERS, max_size=20), IDENTIFIERS)
def test_proof_shows_whether_an_identifier_is_in_the_set(identifiers, identifier):
    proof = prove(identifiers, identifier)
    assert is_in(commit(identifiers), identifier, proof) == (identifier in identifiers)


@given(st.sets(IDENTIFIERS, min_size=3, max_size=20), st.data())
def test_no_proof_shows_the_contrary(identifiers, data):
    """An image of the set cannot be shown to be absent, by any paths of other images."""
    identifier = data.draw(st.sampled_from(sorted(identifiers)))
    others = data.draw(st.lists(st.sampled_from(sorted(identifiers - {identifier})), max_size=2, unique=True))
    proof = tuple(path for other in sorted(others) for path in prove(identifiers, other))
    with pytest.raises(InputError):
        is_in(commit(identifiers), identifier, proof)


@given(st.sets(IDENTIFIERS, min_size=1, max_size=20), st.data())
def test_changed_proof_is_refused(identifiers, data):
    identifier = data.draw(st.sampled_from(sorted(identifiers)))
    (path,) = prove(identifiers, identifier)
    other = data.draw(IDENTIFIERS.filter(lambda other: other not in identifiers))
    with pytest.raises(InputError, match="must lead to the root"):
        is_in(commit(identifiers), other, (dataclasses.replace(path, identifier=other),))
    with pytest.raises(InputError, match="must lead to the root"):
        is_in(commit(identifiers), identifier, (dataclasses.replace(path, place=len(identifiers)),))
    with pytest.raises(InputError, match="must lead to the root"):
        is_in(commit(identifiers), identifier, (dataclasses.replace(path, beside=(*path.beside, "00" * 32)),))


def test_a_count_of_0_proves_nothing_beside_another_root():
    with pytest.raises(InputError, match="must have the root of no image"):
        is_in(dataclasses.replace(commit(["a"]), count=0), "a", ())


def test_path_with_a_hash_that_is_no_hash_is_refused():
    path = dataclasses.replace(prove(["a", "b"], "a")[0], beside=("not hex",))
    with pytest.raises(InputError, match="must lead to the root"):
        is_in(commit(["a", "b"]), "a", (path,))


def test_the_root_of_five_and_of_seven_leaves_is_that_of_rfc_9162():
    """Each inner node splits at the largest power of two below its number of leaves."""
    leaf = [hashlib.sha256(b"\0" + name.encode()).digest() for name in "abcdefg"]

    def pair(left, right):
        return hashlib.sha256(b"\1" + left + right).digest()

    four = pair(pair(leaf[0], leaf[1]), pair(leaf[2], leaf[3]))
    assert commit("abcde").root == pair(four, leaf[4]).hex()
    assert commit("abcdefg").root == pair(four, pair(pair(leaf[4], leaf[5]), leaf[6])).hex()

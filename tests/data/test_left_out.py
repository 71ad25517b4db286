"""Things left out of a data set: a refusal says them, and so do the remarks of a data set that opens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangent_jax.core.checks import InputError
from tangent_jax.data.left_out import MOST_SAID, LeftOut, NoImagesOfClass, leave_out, note, opening


def leave_out_and_refuse(entries, error):
    """Leaves entries out in an opening that an error ends."""
    with opening():
        for entry in entries:
            leave_out(entry)
        raise error


ENTRIES = st.builds(
    LeftOut,
    things=st.sampled_from(["files", "rows"]),
    why=st.sampled_from(["HEIC", "hidden"]),
    count=st.integers(1, 9),
    first=st.sampled_from(["", "a/1.png"]),
    class_name=st.sampled_from([None, "a", "hat"]),
)


@given(st.lists(ENTRIES, max_size=6))
def test_any_refusal_of_an_opening_says_what_was_left_out(entries):
    with pytest.raises(InputError) as error:
        leave_out_and_refuse(entries, InputError("no train split"))
    assert str(error.value).startswith("no train split")
    assert all(str(entry) in str(error.value) for entry in entries[:MOST_SAID])
    assert (f"and {len(entries) - MOST_SAID} more kinds" in str(error.value)) == (len(entries) > MOST_SAID)


def test_a_refusal_about_a_class_says_first_what_was_left_out_of_that_class():
    entries = [LeftOut("files", "HEIC", 2, f"{name}/1.heic", 2, class_name=name) for name in ("a", "b", "c", "hat")]
    with pytest.raises(InputError) as error:
        leave_out_and_refuse(entries, NoImagesOfClass("none of hat", "hat"))
    assert str(error.value).startswith("none of hat; left out 2 of 2 files of hat: HEIC, such as hat/1.heic; ")


def test_notes_and_things_left_out_are_remarks():
    with opening() as record:
        note("one split")
        leave_out(LeftOut("rows", "without a label", 0))
        leave_out(LeftOut("rows", "without a label", 2, "7", of="test"))
    assert record.remarks() == ("left out 2 rows of test: without a label, such as 7", "one split")

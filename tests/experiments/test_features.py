"""bench features: the picture names only what differs."""

from experiments.shared.titles import differing


def test_picture_names_what_differs():
    assert differing(["h+ntk 8x1 4096", "h+ntk 1x1 4096"]) == {
        "h+ntk 8x1 4096": "8 blocks",
        "h+ntk 1x1 4096": "1 block",
    }
    assert differing(["h 0x1 64", "h+ntk 0x2 64"])["h+ntk 0x2 64"] == "h + psi, 2 directions"
    assert [*differing(["h+ntk 8x1 4096"]).values()] == ["8 blocks"]

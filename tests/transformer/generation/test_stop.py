"""Stop strings: whatever the cutting into pieces, what is shown is the text before the first of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headcount.transformer.generation.stop import StopStrings

LETTERS = st.text("abc", max_size=24)


def before_the_first(text: str, strings: list[str]) -> tuple[str, bool]:
    """Letter by letter: the first prefix that ends in a stop string, less the longest that it ends in."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in strings if stop and text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=500)
@given(
    text=LETTERS,
    strings=st.lists(st.text("abc", max_size=4), max_size=4),
    places=st.lists(st.integers(0, 100), max_size=24),
)
# One begins first, the other is complete first.
@example(text="cabcc", strings=["ab", "cabcc"], places=[])
@example(text="cabcc", strings=["ab", "cabcc"], places=[1, 2, 3, 4])
@example(text="aab", strings=["ab", "aab"], places=[1])
def test_any_cutting(text: str, strings: list[str], places: list[int]) -> None:
    stops = StopStrings(strings)
    shown = [stops.feed(piece) for piece in cut(text, places)]
    held = stops.finish() if stops.found is None else ""
    expected, stopped = before_the_first(text, strings)
    assert "".join(shown) + held == expected
    assert (stops.found is not None) == stopped


@given(text=LETTERS, strings=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_no_more_is_held_back_than_could_begin_one(text: str, strings: list[str]) -> None:
    stops = StopStrings(strings)
    shown = "".join(stops.feed(letter) for letter in text)
    if stops.found is None:
        held = text[len(shown) :]
        longest = max(
            (n for stop in strings for n in range(len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
        assert len(held) == longest


def test_the_pieces_of_the_description() -> None:
    stops = StopStrings(["END"])
    assert [stops.feed(piece) for piece in ("the E", "N", "emy")] == ["the ", "", "ENemy"]
    assert [stops.feed(piece) for piece in (" E", "ND", "more")] == [" ", "", ""]
    assert stops.found == "END"

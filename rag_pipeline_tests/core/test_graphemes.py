"""Cuts between user-perceived characters."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.graphemes import MAX_CLUSTER, ceil_boundary, floor_boundary, is_boundary

CHARACTERS = "ab \r\n中é각क्षि\u0301\u200d\ufe0f👨👩🏽🇩🇪\u0600"


@given(st.text(alphabet=CHARACTERS, max_size=40), st.integers(min_value=0, max_value=40))
def test_boundaries_are_those_of_the_unicode_rules(text: str, position: int) -> None:
    position = min(position, len(text))
    boundaries = [0, *(match.end() for match in regex.finditer(r"\X", text))]
    assert is_boundary(text, position) == (position in boundaries)
    assert floor_boundary(text, position) == max(each for each in boundaries if each <= position)
    assert ceil_boundary(text, position) == min(each for each in boundaries if each >= position)


def test_a_pile_of_marks_is_cut() -> None:
    text = "e" + "\u0301" * 10_000
    assert 0 < floor_boundary(text, 5_000) <= 5_000
    assert ceil_boundary(text, 5_000) - 5_000 <= MAX_CLUSTER


@pytest.mark.parametrize("lowest", [0, 3])
def test_nothing_below_the_lowest_boundary_is_returned(lowest: int) -> None:
    assert floor_boundary("abc\u0301\u0301", 5, lowest=lowest) >= lowest

"""Which chunks are read together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.sections import number_sections


@pytest.mark.parametrize(
    ("paths", "tokens", "expected"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([(), ()], [10, 10], [0, 0], id="no-headings"),
        pytest.param([("A",), ("A", "b"), ("A", "c")], [10, 10, 10], [0, 0, 0], id="small-subtree-is-one"),
        pytest.param([("A",), ("B",)], [10, 10], [0, 1], id="top-headings-stay-apart"),
        pytest.param([("A",), ("A", "b"), ("A", "b"), ("A", "c")], [50, 40, 40, 60], [0, 1, 1, 2], id="too-large"),
        pytest.param([(), (), (), ()], [60, 60, 60, 60], [0, 1, 2, 3], id="too-large-without-headings"),
        pytest.param([("A",)] * 6, [30] * 6, [0, 0, 0, 1, 1, 1], id="evenly"),
        pytest.param([("A",), ("B",), ("A",)], [1, 1, 1], [0, 1, 2], id="same-title-again"),
        pytest.param([("A",)], [500], [0], id="one-chunk-over-the-limit"),
    ],
)
def test_sections(paths: list[tuple[str, ...]], tokens: list[int], expected: list[int]) -> None:
    assert number_sections(paths, tokens, limit=100) == expected


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("AB"), max_size=3).map(tuple), st.integers(min_value=1, max_value=90)),
        max_size=30,
    )
)
def test_numbers_rise_by_one_and_sections_keep_the_limit(chunks: list[tuple[tuple[str, ...], int]]) -> None:
    numbers = number_sections([path for path, _ in chunks], [tokens for _, tokens in chunks], limit=100)
    assert sorted(set(numbers)) == list(range(len(set(numbers))))
    assert numbers == sorted(numbers)
    for number in set(numbers):
        assert sum(tokens for (_, tokens), found in zip(chunks, numbers, strict=True) if found == number) <= 100

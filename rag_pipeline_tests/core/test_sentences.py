"""Sentence boundaries, and the division of what is too long."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.sentences import sentence_spans, split_long
from rag_pipeline.core.tokens import estimate_tokens


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text, 0, len(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("One is here. Two is there! Three?", ["One is here.", "Two is there!", "Three?"], id="english"),
        pytest.param(
            "先说这个。再说那个！还有吗？对；完", ["先说这个。", "再说那个！", "还有吗？", "对；", "完"], id="chinese"
        ),
        pytest.param("他说：“你好。”然后走了。", ["他说：“你好。”", "然后走了。"], id="chinese-quote"),
        pytest.param("（见附录。）下一句。", ["（见附录。）", "下一句。"], id="chinese-bracket"),
        pytest.param('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."], id="english-quote"),
        pytest.param("It ended (at last.) Next one.", ["It ended (at last.)", "Next one."], id="english-bracket"),
        pytest.param("Version 3.11 costs 4.50 now. Fine.", ["Version 3.11 costs 4.50 now.", "Fine."], id="decimals"),
        pytest.param("Ask Dr. Who or Mr. Bean. Yes.", ["Ask Dr. Who or Mr. Bean.", "Yes."], id="titles"),
        pytest.param("See Fig. 3 and No. 7. Done.", ["See Fig. 3 and No. 7.", "Done."], id="before-a-number"),
        pytest.param("He said no. Then he left.", ["He said no.", "Then he left."], id="no-as-a-word"),
        pytest.param(
            "J. R. Smith et al. (2019) agree. So.", ["J. R. Smith et al. (2019) agree.", "So."], id="initials"
        ),
        pytest.param("Use tools, e.g. Hammers. Ok.", ["Use tools, e.g. Hammers.", "Ok."], id="latin-abbreviation"),
        pytest.param("it was approx. five. and so on", ["it was approx. five. and so on"], id="small-letter-follows"),
        pytest.param("1. First item. 2 parts.", ["1. First item.", "2 parts."], id="enumeration"),
        pytest.param("In 2020. The year.", ["In 2020.", "The year."], id="year-ends-sentence"),
        pytest.param("line one\nline two\n\nnext", ["line one\nline two", "next"], id="blank-line"),
        pytest.param("What?! Really... Yes.", ["What?!", "Really...", "Yes."], id="several-marks"),
        pytest.param("  \n ", [], id="blank"),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB1.!?。！；”\"') \n中e\u0301", max_size=120))
def test_spans_are_in_order_and_hold_every_visible_character(text: str) -> None:
    spans = sentence_spans(text, 0, len(text))
    assert all(start < end for start, end in spans)
    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    covered = {position for start, end in spans for position in range(start, end)}
    assert [position for position, mark in enumerate(text) if not mark.isspace() and position not in covered] == []


@pytest.mark.parametrize(
    ("text", "budget", "expected"),
    [
        pytest.param("aaaa aaaa\nbbbb bbbb", 14, ["aaaa aaaa", "bbbb bbbb"], id="line-end-first"),
        pytest.param("aaaa aaaa, bbbb bb", 14, ["aaaa aaaa,", "bbbb bb"], id="then-comma"),
        pytest.param("aaaa aaaa bbbb bbbb", 12, ["aaaa aaaa", "bbbb bbbb"], id="then-space"),
        pytest.param("e\u0301" * 4, 3, ["e\u0301"] * 4, id="then-cluster"),
        pytest.param("1,000,000,000", 20, ["1,000,000,000"], id="whole-if-it-fits"),
    ],
)
def test_long_text_is_divided_at_the_best_place(text: str, budget: int, expected: list[str]) -> None:
    parts = split_long(text, (0, len(text)), budget=budget, count_tokens=len)
    assert [text[start:end] for start, end in parts] == expected


@given(st.text(alphabet="ab ,\n中。👋🏽", min_size=1, max_size=300), st.integers(min_value=2, max_value=40))
def test_parts_keep_the_budget_and_all_visible_characters(text: str, budget: int) -> None:
    parts = list(split_long(text, (0, len(text)), budget=budget, count_tokens=estimate_tokens))
    assert all(estimate_tokens(text[start:end]) <= budget for start, end in parts)
    assert "".join(text[start:end] for start, end in parts).replace(" ", "").replace("\n", "") == text.replace(
        " ", ""
    ).replace("\n", "")

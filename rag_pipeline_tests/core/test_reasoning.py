from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.reasoning import ReasoningFilter

ANSWERS = {
    "no thoughts": ("Four hundred euro.", "Four hundred euro."),
    "thoughts before the answer": ("<think>\nLet me see: 400?\n</think>\n\nIt is 400.", "It is 400."),
    "empty thoughts": ("<think>\n\n</think>\n\nIt is 400.", "It is 400."),
    "thinking": ("<thinking>Hm.</thinking>It is 400.", "It is 400."),
    "capitals and white space": ("<THINK >Hm.</Think\n>It is 400.", "It is 400."),
    "several thoughts": ("<think>a</think>One. <think>b</think>Two.", "One. Two."),
    "thoughts that are not closed": ("It is <think>400, or is it", "It is "),
    "nothing but thoughts": ("<think>I do not know", ""),
    "thoughts with marks in them": ("<think>a < b <x> </b> `</think>It is 400.", "It is 400."),
    "an opening within thoughts": ("<think>a <think> b</think>It is 400.", "It is 400."),
    "the tag in code": ("Write `<think>x</think>` or `</think>`.", "Write `<think>x</think>` or `</think>`."),
    "another tag": ("a <thinker> b <b>c</b>", "a <thinker> b <b>c</b>"),
    "an unfinished tag at the end": ("It is < 400 <thi", "It is < 400 <thi"),
    "an unfinished code at the end": ("It is `400", "It is `400"),
    "white space without thoughts": ("\n  400", "\n  400"),
    "an end too many": ("<think>a</think>One.</think> Two.", "One. Two."),
}


def filtered(pieces: Sequence[str]) -> str:
    thoughts = ReasoningFilter()
    return "".join([*map(thoughts.feed, pieces), thoughts.finish()])


@pytest.mark.parametrize(("answer", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
def test_thoughts_are_left_out_however_the_answer_is_cut(answer: str, expected: str) -> None:
    assert filtered([answer]) == expected
    for size in (1, 2, 3, 5, 7):
        assert filtered([answer[at : at + size] for at in range(0, len(answer), size)]) == expected


def test_thoughts_that_were_opened_in_the_prompt() -> None:
    assert filtered(["Hm, 400?\n</think>\n\nIt is 400."]) == "It is 400."
    # What was let through before cannot be taken back; the tag itself never shows.
    assert filtered(["Hm, ", "400?</th", "ink>", "\nIt is 400."]) == "Hm, 400?\nIt is 400."


def test_text_is_let_through_as_soon_as_it_is_certain() -> None:
    thoughts = ReasoningFilter()
    assert thoughts.feed("It is 400") == "It is 400"
    assert thoughts.feed(" euro <b") == " euro "
    assert thoughts.feed("> a year") == "<b> a year"


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "`", "a", " ", "\n", "th", "think>", ">"]), max_size=12))
def test_no_tag_outside_code_gets_through_and_pieces_make_no_difference_to_what_is_thought(parts: list[str]) -> None:
    whole = "".join(parts)
    for pieces in ([whole], parts, list(whole)):
        found = filtered(pieces)
        if "`" not in whole:
            assert "<think>" not in found
            assert "</think>" not in found
    if whole.startswith("<think>"):
        assert filtered([whole]) == filtered(parts) == filtered(list(whole))

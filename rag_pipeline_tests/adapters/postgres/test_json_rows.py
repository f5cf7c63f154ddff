import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.adapters.postgres.json_rows import to_json

texts = st.text(st.sampled_from("ab\\u0\"'\n\0\ud800\udfff\u2028😀年") | st.characters(exclude_categories=[]))


def expected(text: str) -> str:
    return "".join(
        "\ufffd" if character == "\0" or "\ud800" <= character <= "\udfff" else character for character in text
    )


@given(st.lists(texts, max_size=5))
def test_any_text_comes_back_with_what_postgres_refuses_replaced(found: list[str]) -> None:
    rows = [{"text": text} for text in found]
    assert json.loads(to_json(rows)) == [{"text": expected(text)} for text in found]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_numbers_that_json_does_not_have_become_null(value: float) -> None:
    assert json.loads(to_json([{"bbox": [1.5, value], "deep": {"also": (value, "a\0")}}])) == [
        {"bbox": [1.5, None], "deep": {"also": [None, "a\ufffd"]}}
    ]


def test_what_is_no_json_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError):
        to_json([{"value": object()}])

"""The token estimate against counts of the e5 tokenizer (XLM-R unigram pieces), written down once."""

import pytest

from rag_pipeline.core.tokens import estimate_tokens


@pytest.mark.parametrize(
    ("text", "true_tokens"),
    [
        pytest.param("Hello world, this is a test.", 8, id="english"),
        pytest.param("请勿惊慌，这只是演习。", 11, id="chinese"),
        pytest.param("| site-003 | V9 | 103 |", 14, id="table-row"),
        pytest.param("def foo(x):\n    return x+1", 10, id="code"),
        pytest.param("https://github.com/infiniflow/ragflow/issues/6510", 19, id="address"),
        pytest.param("👨‍👩‍👧‍👦🇩🇪👋🏽", 12, id="emoji"),
        pytest.param("a" * 100, 21, id="unbroken"),
        pytest.param("internationalization", 2, id="long-word"),
    ],
)
def test_estimate_is_near_the_tokenizer_and_not_much_below(text: str, true_tokens: int) -> None:
    assert 0.9 * true_tokens <= estimate_tokens(text) <= 2.5 * true_tokens + 1


@pytest.mark.parametrize("text", ["", " \n\t ", "\u3000"], ids=["empty", "white-space", "ideographic-space"])
def test_nothing_visible_counts_at_most_one_token(text: str) -> None:
    assert estimate_tokens(text) <= 1


def test_chinese_characters_count_about_one_token_each() -> None:
    assert 0.7 * 1000 <= estimate_tokens("一丁七万" * 250) <= 1000

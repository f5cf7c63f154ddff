import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.analysis import ANALYZER, WORD_CHARACTERS, words
from rag_pipeline_tests.conftest import clean_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("The pumps were leaking", ["pump", "leak"], id="English stems without function words"),
        pytest.param("WHO guidelines, and who wrote them", ["who", "guidelin", "wrote"], id="a name in capitals"),
        pytest.param("什么是人工智能？", ["人工", "智能", "人工智能"], id="Chinese words and the words in them"),
        pytest.param("iPhone15手机", ["iphon", "15", "手机"], id="scripts side by side"),
        pytest.param("E-4711", ["e", "4711", "e4711"], id="identifier"),
        pytest.param("v1.2.3", ["v1", "2", "3", "v1d2d3"], id="version number"),
        pytest.param("10,000", ["10", "000", "10000"], id="thousands"),
        pytest.param("C++ and C#", ["c", "cplusplus", "c", "csharp"], id="signs that are part of a name"),
        pytest.param("R&D", ["r", "d", "rd"], id="letters joined by a sign"),
        pytest.param("well-known", ["well", "known"], id="an ordinary compound"),
        pytest.param("Ｅ４７１１ ﬁle", ["e4711", "file"], id="width and compatibility forms"),
        pytest.param("co\u00adoperate", ["cooper"], id="soft hyphen"),
        pytest.param("café résumé", ["cafe", "resum"], id="accents"),
        pytest.param("東京タワー", ["東", "京", "タワ", "ワー"], id="kana as pairs"),
        pytest.param("Какие условия договора", ["услов", "договор"], id="Russian"),
        pytest.param("don't the pump's", ["don", "pump"], id="contractions"),
        pytest.param("?! -- ++", [], id="no words"),
        pytest.param("", [], id="empty"),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_query_whose_language_is_not_told_meets_the_row() -> None:
    row = words("Die Vertragsbedingungen und die Lieferzeiten sind in der Anlage.")
    for query in ("Lieferzeiten", "Vertragsbedingungen", "wie ist die Lieferzeit"):
        assert set(words(query)) & set(row)


def test_one_word_of_another_language_does_not_tell_it() -> None:
    assert words("war crimes") == ["war", "crime"]


@given(st.text())
def test_a_tokenizer_that_splits_at_signs_gives_back_the_words(text: str) -> None:
    found = words(text)
    assert re.findall(r"[^\W_]+", " ".join(found)) == found
    assert all(len(word) <= WORD_CHARACTERS * 6 for word in found)


@given(st.text(alphabet="aBé1-长江 .ー", max_size=40))
def test_case_and_width_make_no_difference_to_letters_and_digits(text: str) -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if c in "aB1" else c for c in text)
    assert words(wide) == words(text)


def test_threads_share_the_stemmers() -> None:
    text = "connections connecting connected relational databases of several organisations " * 20
    expected = words(text)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(words, [text] * 40))


def test_the_default_setting_is_the_analysis_of_this_release() -> None:
    assert clean_settings().analyzer == ANALYZER

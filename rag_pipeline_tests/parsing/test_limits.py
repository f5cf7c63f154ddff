from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.limits import limits_of
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.parsing.documents import parse_bytes


def test_every_limit_of_a_file_is_a_setting() -> None:
    assert limits_of(clean_settings()) == ParseLimits(memory_bytes=1_500_000_000)
    settings = clean_settings(
        parse_timeout_seconds=1.0,
        parse_memory_bytes=2,
        parse_max_pages=3,
        parse_max_expanded_bytes=4,
        parse_max_text_characters=5,
    )
    assert limits_of(settings) == ParseLimits(
        seconds=1.0, memory_bytes=2, max_pages=3, max_expanded_bytes=4, max_text_characters=5
    )


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.csv"])
def test_a_text_over_the_limit_names_the_setting(tmp_path: Path, name: str) -> None:
    limits = limits_of(clean_settings(parse_max_text_characters=100))
    for length in (101, 500):  # the second one is refused by its size alone
        with pytest.raises(DocumentTooLargeError, match="RAG_PARSE_MAX_TEXT_CHARACTERS"):
            parse_bytes(tmp_path, "x" * length, name, limits=limits)

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.encoding import clean_controls
from rag_pipeline_tests.parsing.documents import headings, outline, parse_bytes, texts


def test_text_stays_exactly_as_it_is_and_paragraphs_are_blocks(tmp_path: Path) -> None:
    source = "\n\nFirst line\r\nsecond line\r\n \t\r\n\r\n  indented 段落\n\n\nlast\n\n"
    document = parse_bytes(tmp_path, source, "a.txt")
    assert document.text == source
    assert outline(document) == [
        ("paragraph", "First line\r\nsecond line"),
        ("paragraph", "  indented 段落"),
        ("paragraph", "last"),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("ab \n\r\t\u200b字😀#"), min_size=1, max_size=60))
@pytest.mark.parametrize("name", ["a.txt", "a.rst", "a.py", "a.md"])
def test_any_text_is_kept_character_for_character(tmp_path: Path, name: str, text: str) -> None:
    document = parse_bytes(tmp_path, text, name)
    assert document.text == clean_controls(text)
    covered = "\n".join(document.block_text(block) for block in document.blocks)
    if name == "a.txt":
        assert sorted(covered.replace("\u200b", "").split()) == sorted(text.replace("\u200b", "").split())


def test_code_blocks_carry_their_language(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "import x\n\n    def f(): pass\n", "tool.py")
    assert outline(document) == [("code", "import x"), ("code", "    def f(): pass")]
    assert document.blocks[0].metadata == {"language": "python"}


def test_restructured_text_has_headings_by_order_of_appearance(tmp_path: Path) -> None:
    source = "====\nBook\n====\n\nIntro.\n\nPart\n----\nText\nmore\n\nOther\n-----\n\n- no ---- title\n"
    document = parse_bytes(tmp_path, source, "a.rst")
    assert document.text == source
    assert headings(document) == ["Book", "Part", "Other"]
    assert [block.level for block in document.blocks if block.type is BlockType.HEADING] == [1, 2, 2]
    assert texts(document, BlockType.PARAGRAPH) == ["Intro.", "Text\nmore", "- no ---- title"]


@pytest.mark.parametrize("content", ["   \n\n\t", "\u200b\n\u200b\ufeff\u200d"], ids=["blanks", "zero-width"])
def test_invisible_text_has_no_content(tmp_path: Path, content: str) -> None:
    document = parse_bytes(tmp_path, content, "a.txt")
    assert not document.has_content
    assert document.blocks == ()
    assert document.warnings


def test_text_over_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentTooLargeError, match="limit is 10"):
        parse_bytes(tmp_path, "x" * 11, "a.txt", limits=ParseLimits(max_text_characters=10))


def test_charset_is_in_the_metadata(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "Привет, как дела? Это русский текст.".encode("cp1251"), "a.txt")
    assert document.metadata["encoding"] == "windows-1251"

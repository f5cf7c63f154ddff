from itertools import pairwise
from pathlib import Path

import pytest

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline_tests.parsing.documents import headings, only_block, outline, parse_bytes, texts


def test_text_is_the_source_and_marks_of_headings_are_no_blocks(tmp_path: Path) -> None:
    source = "# Title #\n\nSome *text*.\n\nSetext\n======\nmore\n"
    document = parse_bytes(tmp_path, source, "a.md")
    assert document.text == source
    assert outline(document) == [
        ("heading", "Title"),
        ("paragraph", "Some *text*."),
        ("heading", "Setext"),
        ("paragraph", "more"),
    ]
    assert document.metadata["title"] == "Title"


def test_heading_path_uses_titles_as_a_reader_sees_them(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "# The **big** `x` [link](u) &amp; more\n\n### Deep\n\nt\n\n## Two\n\nu\n", "a.md")
    assert headings(document) == ["The big x link & more", "Deep", "Two"]
    assert document.blocks[-1].heading_path == ("The big x link & more", "Two")


def test_hash_lines_inside_fences_are_code(tmp_path: Path) -> None:
    source = "# A\n\n```python\n# not one\n````\n\n~~~sh\n# nor this\n```\n~~~\n\n   ```\n# indented\n   ```\n\n# B\n"
    document = parse_bytes(tmp_path, source, "a.md")
    assert headings(document) == ["A", "B"]
    assert [block.metadata.get("language") for block in document.blocks if block.type is BlockType.CODE] == [
        "python",
        "sh",
        None,
    ]


def test_unclosed_fence_runs_to_the_end(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "# Only\n\n```\n# still code\nlast\n", "a.md")
    assert outline(document) == [("heading", "Only"), ("code", "```\n# still code\nlast")]


def test_table_rows_are_cells_as_a_reader_sees_them(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "| 参数 | **b** |\n|---|---|\n| x \\| y | `30` |\n| only |\n", "a.md")
    block = only_block(document, BlockType.TABLE)
    assert block.rows == (("参数", "b"), ("x | y", "30"), ("only", ""))
    assert document.block_text(block).startswith("| 参数")


def test_table_with_two_header_lines_is_one_table(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "| Group | Q1 |\n| | Jan |\n|---|---|\n| a | 1 |\n", "a.md")
    block = only_block(document, BlockType.TABLE)
    assert block.rows == (("Group", "Q1"), ("", "Jan"), ("a", "1"))
    assert block.metadata == {"header_rows": "2"}
    assert len(document.blocks) == 1


def test_list_items_have_levels_and_keep_their_marks(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "- a\n  - b\n\n    more b\n- c\n\n1. d\n", "a.md")
    assert [(block.type.value, block.level, document.block_text(block).strip()) for block in document.blocks] == [
        ("list_item", 1, "- a"),
        ("list_item", 2, "- b"),
        ("paragraph", None, "more b"),
        ("list_item", 1, "- c"),
        ("list_item", 1, "1. d"),
    ]


def test_headings_in_quotes_and_lists_are_no_sections(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "# Real\n\n> # quoted\n\n- # item\n", "a.md")
    assert headings(document) == ["Real"]
    assert [document.block_text(block) for block in document.blocks[1:]] == ["> # quoted", "- # item"]


def test_front_matter_becomes_metadata(tmp_path: Path) -> None:
    source = "---\ntitle: 报告\ndate: 2024-05-01\ntags: [a, 1, true, null]\n---\n# Head\n"
    document = parse_bytes(tmp_path, source, "a.md")
    assert document.text == source
    assert document.metadata["title"] == "报告"
    assert document.metadata["front_matter"] == {"title": "报告", "date": "2024-05-01", "tags": ["a", 1, True, None]}
    assert outline(document) == [("heading", "Head")]


ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]" for before, name in pairwise("abcdefghij")
)


@pytest.mark.parametrize("matter", ["a: [broken", ALIAS_BOMB], ids=["broken", "alias-bomb"])
def test_bad_front_matter_is_text_with_a_warning(tmp_path: Path, matter: str) -> None:
    document = parse_bytes(tmp_path, f"---\n{matter}\n---\n# Head\n", "a.md")
    assert "front matter" in document.warnings[0]
    assert "front_matter" not in document.metadata
    assert "Head" in headings(document)


def test_rule_at_the_start_is_no_front_matter(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "---\njust words\n---\n\nText\n", "a.md")
    assert "just words" in " ".join(document.block_text(block) for block in document.blocks)


def test_comments_are_gaps_and_other_html_is_kept(tmp_path: Path) -> None:
    source = "<!-- note -->\n\n<div>shown</div>\n\n<script>\nbad()\n</script>\n\nText <b>bold</b>\n"
    document = parse_bytes(tmp_path, source, "a.md")
    assert texts(document, BlockType.PARAGRAPH) == ["<div>shown</div>", "Text <b>bold</b>"]


def test_link_definitions_stay_searchable_and_rules_do_not(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "See [x].\n\n---\n\n[x]: https://example.org/y\n", "a.md")
    assert texts(document, BlockType.PARAGRAPH) == ["See [x].", "[x]: https://example.org/y"]


def test_byte_order_mark_does_not_hide_the_first_heading(tmp_path: Path) -> None:
    assert headings(parse_bytes(tmp_path, b"\xef\xbb\xbf# Titel\n", "a.md")) == ["Titel"]


def test_carriage_returns_do_not_shift_offsets(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "# A\r\n\r\ntext\r\nmore\r\n\r\n## B\rend", "a.md")
    assert outline(document) == [
        ("heading", "A"),
        ("paragraph", "text\r\nmore"),
        ("heading", "B"),
        ("paragraph", "end"),
    ]


def test_deep_nesting_ends(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, ">" * 20_000 + " deep\n\n" + "- " * 5_000 + "deeper\n", "a.md")
    assert "deep" in document.text
    assert "deeper" in document.block_text(document.blocks[-1])

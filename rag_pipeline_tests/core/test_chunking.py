"""Chunking rule by rule, on documents built by hand."""

from itertools import pairwise

import pytest
import regex

from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.chunking import ChunkingOptions, chunk
from rag_pipeline.core.parsed_document import (
    BlockType,
    BoundingBox,
    DocumentBuilder,
    PageRecord,
    PageState,
    ParsedDocument,
)
from rag_pipeline.core.tokens import estimate_tokens
from rag_pipeline.errors import ConfigurationError

OPTIONS = ChunkingOptions(target_tokens=320, max_tokens=480, overlap_tokens=48)


def words(text: str) -> int:
    return len(text.split())


def builder() -> DocumentBuilder:
    return DocumentBuilder(parser="test", parser_version="1")


def document_of(*blocks: tuple[BlockType, str]) -> ParsedDocument:
    """Blocks in order; headings are written `2 Title` (level, title)."""
    made = builder()
    for block_type, text in blocks:
        if block_type is BlockType.HEADING:
            level, title = text.split(" ", 1)
            made.add_block(block_type, title, level=int(level))
        else:
            made.add_block(block_type, text)
    return made.build()


def chunks_of(document: ParsedDocument, target: int, *, maximum: int | None = None, overlap: int = 0) -> list[Chunk]:
    options = ChunkingOptions(target_tokens=target, max_tokens=maximum or target, overlap_tokens=overlap)
    return chunk(document, options, words)


def sentences(count: int, *, length: int = 5, name: str = "w") -> str:
    return " ".join(" ".join(f"{name}{i}x{j}" for j in range(length)).capitalize() + "." for i in range(count))


H, P, L, T, C = BlockType.HEADING, BlockType.PARAGRAPH, BlockType.LIST_ITEM, BlockType.TABLE, BlockType.CODE


@pytest.mark.parametrize(
    ("target", "maximum", "overlap", "named"),
    [
        pytest.param(100, 100, 100, "chunk_overlap_tokens", id="overlap-equals-size"),
        pytest.param(100, 100, 150, "chunk_overlap_tokens", id="overlap-over-size"),
        pytest.param(0, 100, 0, "chunk_tokens", id="no-size"),
        pytest.param(100, 100, -1, "chunk_overlap_tokens", id="negative-overlap"),
        pytest.param(100, 99, 0, "chunk_max_tokens", id="maximum-under-size"),
    ],
)
def test_impossible_sizes_are_refused(target: int, maximum: int, overlap: int, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        ChunkingOptions(target_tokens=target, max_tokens=maximum, overlap_tokens=overlap)


@pytest.mark.parametrize("text", ["", " \n\u3000\n", "\u200b\u200c\ufeff\u2060" * 30], ids=["empty", "blank", "unseen"])
def test_nothing_visible_gives_no_chunk(text: str) -> None:
    made = builder()
    made.add_gap(text)
    assert chunk(made.build(), OPTIONS, estimate_tokens) == []


def test_text_without_blocks_is_chunked() -> None:
    made = builder()
    made.add_gap("Just text.")
    assert [each.text for each in chunk(made.build(), OPTIONS, estimate_tokens)] == ["Just text."]


def test_every_heading_begins_a_chunk_and_names_it() -> None:
    document = document_of((P, "Before."), (H, "1 A"), (P, "Of a."), (H, "2 B"), (P, "Of b."), (H, "1 C"), (P, "Of c."))
    chunks = chunks_of(document, 50)
    assert [(each.heading_path, each.text) for each in chunks] == [
        ((), "Before."),
        (("A",), "A\n\nOf a."),
        (("A", "B"), "B\n\nOf b."),
        (("C",), "C\n\nOf c."),
    ]


def test_headings_without_text_go_on_to_what_follows_and_at_the_end_stay_with_what_precedes() -> None:
    document = document_of((H, "1 A"), (H, "2 B"), (H, "2 C"), (P, "Only sentence."), (H, "2 D"))
    assert [(each.heading_path, each.text) for each in chunks_of(document, 50)] == [
        (("A", "C"), "A\n\nB\n\nC\n\nOnly sentence.\n\nD")
    ]


def test_a_document_of_headings_alone_is_still_found() -> None:
    document = document_of((H, "1 A"), (H, "1 B"))
    assert [each.text for each in chunks_of(document, 50)] == ["A\n\nB"]


def test_paragraphs_are_kept_whole_where_they_fit() -> None:
    document = document_of(*[(P, sentences(3, name=name)) for name in "abcd"])
    chunks = chunks_of(document, 30)
    assert [words(each.text) for each in chunks] == [30, 30]


def test_a_paragraph_between_target_and_maximum_is_not_cut() -> None:
    document = document_of((P, sentences(8, name="a")), (P, sentences(20, name="b")))
    assert words(chunks_of(document, 30, maximum=45)[0].text) == 40


def test_a_short_rest_joins_the_last_chunk() -> None:
    document = document_of((P, sentences(8)))
    assert len(chunks_of(document, 30, maximum=45)) == 1


def test_overlap_is_whole_sentences_within_its_size() -> None:
    document = document_of((P, sentences(20)))
    chunks = chunks_of(document, 30, overlap=12)
    assert len(chunks) > 2
    for left, right in pairwise(chunks):
        repeated = document.text[right.start : left.end]
        assert words(repeated) == 10
        assert repeated.startswith("W")
        assert repeated.endswith(".")


def test_no_overlap_over_a_heading() -> None:
    document = document_of((P, sentences(20)), (H, "1 A"), (P, sentences(20)))
    chunks = chunks_of(document, 30, overlap=12)
    first_of_a = next(each for each in chunks if each.heading_path)
    assert first_of_a.text.startswith("A\n")


def test_a_list_stays_with_its_lead_in() -> None:
    document = document_of((P, sentences(4) + " You need these:"), (L, "one " * 5), (L, "two " * 5), (L, "three " * 5))
    chunks = chunks_of(document, 24)
    assert any("You need these:\n\none" in each.text for each in chunks)


def test_heading_path_counts_towards_the_maximum() -> None:
    document = document_of((H, "1 " + "title " * 6), (P, sentences(30)))
    chunks = chunks_of(document, 40)
    assert len(chunks) > 3
    assert all(words(each.embedded_text) == each.tokens <= 40 for each in chunks)


def test_an_absurd_heading_path_is_shortened() -> None:
    made = builder()
    made.add_block(H, "Outer", level=1)
    made.add_block(H, "endless " * 500, level=2)
    made.add_block(P, sentences(40))
    chunks = chunks_of(made.build(), 40)
    assert all(each.tokens <= 40 for each in chunks)
    assert all(each.heading_path and each.heading_path[-1].startswith("endless") for each in chunks)
    assert chunks[0].heading_path[-1].endswith("…")


TABLE = "| Site | Valve |\n|---|---|\n" + "\n".join(f"| site-{i:03d} | V{i} |" for i in range(60))


def test_a_small_table_is_kept_whole() -> None:
    document = document_of((P, sentences(6)), (T, TABLE[:100]), (P, sentences(6)))
    assert sum("| Site | Valve |" in each.text for each in chunks_of(document, 60)) == 1


def test_a_long_table_is_cut_between_rows_with_its_header_in_front() -> None:
    document = document_of((H, "1 Valves"), (T, TABLE), (P, "After."))
    chunks = chunks_of(document, 50)
    assert len(chunks) > 5
    rows: list[str] = []
    for each in chunks:
        lines = [line for line in each.text.split("\n") if line.startswith("|")]
        assert lines[:2] == ["| Site | Valve |", "|---|---|"]
        assert each.text.endswith(document.text[each.start : each.end])
        rows += lines[2:]
    assert rows == TABLE.split("\n")[2:]


def test_all_header_rows_above_the_rule_are_repeated() -> None:
    table = "| Kind | Q1 |\n| | Jan |\n|---|---|\n" + "\n".join(f"| item {i} | {i} |" for i in range(40))
    chunks = chunks_of(document_of((T, table)), 50)
    assert len(chunks) > 2
    assert all(each.text.startswith("| Kind | Q1 |\n| | Jan |\n|---|---|\n| item") for each in chunks)


def test_a_row_that_is_too_long_is_divided_between_cells() -> None:
    row = "| " + " | ".join(f"cell {i} text" for i in range(40)) + " |"
    chunks = chunks_of(document_of((T, f"| a | b |\n|---|---|\n{row}")), 40)
    assert all(each.tokens <= 40 for each in chunks)
    assert all(each.text.endswith("|") for each in chunks)


def test_a_header_that_would_fill_the_chunk_is_not_repeated() -> None:
    header = "| " + " | ".join(f"column {i}" for i in range(30)) + " |"
    table = f"{header}\n|---|\n" + "\n".join(f"| value {i} |" for i in range(60))
    chunks = chunks_of(document_of((T, table)), 60)
    assert all(each.tokens <= 60 for each in chunks)
    assert sum("column 0" in each.text for each in chunks) == 1


def test_long_code_is_cut_between_lines_with_its_fence_in_front() -> None:
    lines = "\n".join(f"    call({i})" for i in range(60))
    chunks = chunks_of(document_of((C, f"```python\n{lines}\n```")), 20)
    assert len(chunks) > 2
    assert all(each.text.startswith("```python\n    call(") for each in chunks)
    assert chunks[-1].text.endswith("\n```")


def test_fences_outside_of_the_block_belong_to_the_code() -> None:
    made = builder()
    made.add_block(P, "Intro.")
    made.add_gap("\n\n```python\n")
    made.add_block(C, "\n".join(f"call({i})" for i in range(30)), separator="")
    made.add_gap("\n```\n\n# ")
    made.add_block(H, "Next", separator="", level=1)
    made.add_block(P, "Text.")
    chunks = chunks_of(made.build(), 20)
    assert chunks[-1].text == "# Next\n\nText."
    assert chunks[-2].text.startswith("```python\ncall(")
    assert chunks[-2].text.endswith("\n```")


def test_giant_strings_are_cut_and_nothing_is_lost() -> None:
    document = document_of((P, "a" * 5000))
    chunks = chunk(document, ChunkingOptions(target_tokens=1, max_tokens=1, overlap_tokens=0), len)
    assert len(chunks) == 5000
    chunks = chunk(document, ChunkingOptions(target_tokens=1000, max_tokens=1000, overlap_tokens=200), len)
    assert [(each.start, each.end) for each in chunks] == [(i, i + 1000) for i in range(0, 5000, 1000)]


@pytest.mark.parametrize("target", [8, 16, 40])
@pytest.mark.parametrize(
    "text", ["👨‍👩‍👧‍👦🇩🇪👋🏽❤️‍🔥🏳️‍🌈" * 120, "e\u0301a\u0300n\u0303क्षि각नि" * 300], ids=["emoji", "combining"]
)
def test_clusters_are_kept_whole(text: str, target: int) -> None:

    boundaries = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    options = ChunkingOptions(target_tokens=target, max_tokens=target, overlap_tokens=0)
    chunks = chunk(document_of((P, text)), options, estimate_tokens)
    assert {each.start for each in chunks} | {each.end for each in chunks} <= boundaries
    assert "".join(each.text for each in chunks) == text


@pytest.mark.parametrize(("target", "overlap"), [(30, 5), (64, 16), (320, 48)])
@pytest.mark.parametrize(
    "text",
    [
        "This is a drill, please do not be alarmed. " * 40,
        "请勿惊慌，这只是演习。" * 80,
        "Zug 🚆 nach 𠮷野 fährt. " * 60,
    ],
    ids=["english", "chinese", "astral"],
)
def test_offsets_of_repeated_text_are_exact(text: str, target: int, overlap: int) -> None:
    document = document_of((P, text))
    options = ChunkingOptions(target_tokens=target, max_tokens=target, overlap_tokens=overlap)
    chunks = chunk(document, options, estimate_tokens)
    assert len(chunks) > 1
    assert all(each.text == document.text[each.start : each.end] for each in chunks)
    assert all(left.start < right.start <= left.end + 1 for left, right in pairwise(chunks))


def test_page_headers_and_footers_are_left_out() -> None:
    made = builder()
    for page in range(2):
        start = made.length
        made.add_block(BlockType.PAGE_HEADER, "Acme Corp", page=page + 1)
        made.add_block(P, f"Body of page {page + 1}.", page=page + 1)
        made.add_block(BlockType.PAGE_FOOTER, f"{page + 1} / 2", page=page + 1)
        made.add_page(state=PageState.TEXT, start=start)
    assert [(each.text, each.page) for each in chunks_of(made.build(), 50)] == [
        ("Body of page 1.", 1),
        ("Body of page 2.", 2),
    ]


def test_a_heading_at_the_foot_of_a_page_keeps_its_text() -> None:
    document = document_of((P, "Before."), (H, "1 Results"), (BlockType.PAGE_FOOTER, "p. 3"), (P, "Text."))
    assert [each.text for each in chunks_of(document, 50)] == ["Before.", "Results\n\np. 3\n\nText."]


def test_long_white_space_is_not_carried_along() -> None:
    made = builder()
    made.add_block(P, "head words")
    made.add_gap("\n \t\n" * 4000)
    made.add_block(P, "tail words", separator="")
    assert [each.text for each in chunks_of(made.build(), 50)] == ["head words", "tail words"]


def test_pages_come_from_the_ledger_and_regions_from_the_boxes() -> None:
    made = builder()
    box = BoundingBox(left=1, top=2, right=3, bottom=4)
    made.add_block(P, sentences(4), page=1, bbox=box)
    made.add_page(state=PageState.TEXT, start=0)
    made.add_page(state=PageState.BLANK, start=made.length)
    start = made.length
    made.add_block(P, sentences(4), page=3)
    made.add_page(state=PageState.TEXT, start=start)
    chunks = chunks_of(made.build(), 10)
    assert [(each.page, each.page_end) for each in chunks] == [(1, 1), (1, 1), (3, 3), (3, 3)]
    assert [region.bbox for region in chunks[0].regions] == [box]
    both = chunks_of(made.build(), 100)[0]
    assert (both.page, both.page_end) == (1, 3)
    assert [(region.page, region.bbox) for region in both.regions] == [(1, box), (3, None)]


def test_a_block_over_a_page_break_is_cited_by_the_exact_page() -> None:
    made = builder()
    made.add_block(P, sentences(12), page=1, page_end=2)
    text = made.build().text
    middle = text.index("W6x0")
    document = ParsedDocument(
        text=text,
        blocks=made.build().blocks,
        parser="test",
        parser_version="1",
        pages=tuple(_pages(middle, len(text))),
    )
    assert [(each.page, each.page_end) for each in chunks_of(document, 20)] == [(1, 1), (1, 2), (2, 2)]


def test_without_a_ledger_pages_come_from_the_blocks_and_text_files_have_none() -> None:
    made = builder()
    made.add_block(P, "One.", page=4)
    made.add_block(P, "Two.", page=5, page_end=6)
    assert [(each.page, each.page_end) for each in chunks_of(made.build(), 50)] == [(4, 6)]
    assert [each.page for each in chunks_of(document_of((P, "One.")), 50)] == [None]


def test_metadata_that_the_blocks_share_is_kept_and_rows_become_a_range() -> None:
    made = builder()
    for row in range(2, 5):
        made.add_block(
            BlockType.RECORD, f"Record {row}.", metadata={"sheet": "Q1", "row": str(row), "json_path": f"$[{row}]"}
        )
    assert chunks_of(made.build(), 50)[0].metadata == {"sheet": "Q1", "row": "2-4"}


def test_small_sections_are_read_together_and_chunks_are_numbered() -> None:
    document = document_of((H, "1 A"), (P, "Of a."), (H, "2 B"), (P, "Of b."), (H, "1 C"), (P, "Of c."))
    assert [(each.index, each.section) for each in chunks_of(document, 50)] == [(0, 0), (1, 0), (2, 1)]


def _pages(*ends: int) -> list[PageRecord]:
    starts = (0, *ends)
    return [
        PageRecord(number=i + 1, state=PageState.TEXT, characters=1, start=starts[i], end=end)
        for i, end in enumerate(ends)
    ]

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_pipeline.core.parsed_document import (
    Block,
    BlockType,
    BoundingBox,
    PageRecord,
    PageState,
    ParsedDocument,
    ParsedImage,
)
from rag_pipeline.errors import MissingArtefactError
from rag_pipeline.parsing.serialization import (
    ROW_GROUP_ROWS,
    SCHEMA,
    document_from_bytes,
    document_to_bytes,
    read_document,
    write_document,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BOXES = st.builds(BoundingBox, left=NUMBERS, top=NUMBERS, right=NUMBERS, bottom=NUMBERS)
PAGES = st.integers(1, 2**31 - 1)
MAPPINGS = st.dictionaries(WORDS, WORDS, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | WORDS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(WORDS, children, max_size=3),
    max_leaves=5,
)


@st.composite
def documents(draw: st.DrawFn) -> ParsedDocument:
    """Any document whose blocks are spans in order."""
    blocks, text = [], ""
    for _ in range(draw(st.integers(0, 4))):
        text += draw(WORDS)
        start = len(text)
        text += draw(WORDS)
        blocks.append(
            Block(
                type=draw(st.sampled_from(BlockType)),
                start=start,
                end=len(text),
                heading_path=tuple(draw(st.lists(WORDS, max_size=3))),
                level=draw(st.none() | st.integers(1, 6)),
                page=draw(st.none() | PAGES),
                page_end=draw(st.none() | PAGES),
                bbox=draw(st.none() | BOXES),
                rows=tuple(map(tuple, draw(st.lists(st.lists(WORDS, max_size=3), max_size=3)))),
                metadata=draw(MAPPINGS),
            )
        )
    page = st.builds(
        PageRecord,
        number=PAGES,
        state=st.sampled_from(PageState),
        characters=st.integers(0, 9),
        start=st.integers(0, 9),
        end=st.integers(0, 9),
        label=st.none() | WORDS,
        reason=st.none() | WORDS,
        width=st.none() | NUMBERS,
        height=st.none() | NUMBERS,
    )
    image = st.builds(
        ParsedImage,
        position=st.integers(0, 9),
        media_type=WORDS,
        content=st.binary(max_size=4),
        width=PAGES,
        height=PAGES,
        page=st.none() | PAGES,
        bbox=st.none() | BOXES,
        description=WORDS,
    )
    return ParsedDocument(
        text=text + draw(WORDS),
        blocks=tuple(blocks),
        parser=draw(WORDS),
        parser_version=draw(WORDS),
        pages=tuple(draw(st.lists(page, max_size=3))),
        images=tuple(draw(st.lists(image, max_size=2))),
        metadata=draw(st.dictionaries(WORDS, JSON, max_size=3)),
        warnings=tuple(draw(st.lists(WORDS, max_size=2))),
    )


def without_bytes(document: ParsedDocument) -> ParsedDocument:
    return replace(document, images=tuple(replace(image, content=b"") for image in document.images))


@settings(max_examples=150)
@given(document=documents())
def test_round_trip_is_exact(document: ParsedDocument) -> None:
    assert document_from_bytes(document_to_bytes(document)) == without_bytes(document)


def paragraphs(count: int) -> ParsedDocument:
    block = Block(type=BlockType.PARAGRAPH, start=0, end=1)
    blocks = tuple(replace(block, start=2 * number, end=2 * number + 1) for number in range(count))
    return ParsedDocument(text="字\n" * count, blocks=blocks, parser="p", parser_version="1")


def test_file_and_bytes_are_the_same(tmp_path: Path) -> None:
    document = paragraphs(3)
    write_document(document, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == document_to_bytes(document)
    assert read_document(tmp_path / "a.parquet") == document


def test_large_document_has_several_row_groups(tmp_path: Path) -> None:
    document = paragraphs(ROW_GROUP_ROWS + 1)
    write_document(document, tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert file.num_row_groups == 2
        assert file.schema_arrow.names == SCHEMA.names
    assert read_document(tmp_path / "a.parquet") == document


@pytest.mark.parametrize(("start", "end"), [(1, 3), (5, 9), (4, 3)], ids=["overlap", "beyond-the-text", "backwards"])
def test_blocks_that_are_no_spans_in_order_are_refused(start: int, end: int) -> None:
    document = paragraphs(3)
    wrong = replace(document, blocks=(document.blocks[1], replace(document.blocks[2], start=start, end=end)))
    with pytest.raises(ValueError, match="overlaps"):
        document_to_bytes(wrong)


def test_missing_or_foreign_file_asks_for_a_new_one(tmp_path: Path) -> None:
    with pytest.raises(MissingArtefactError, match="materialize parsed_blocks"):
        read_document(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(MissingArtefactError, match="materialize parsed_blocks"):
        read_document(tmp_path / "text.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(MissingArtefactError, match="materialize parsed_blocks"):
        read_document(tmp_path / "other.parquet")

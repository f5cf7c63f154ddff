"""Helpers of the parser tests."""

from pathlib import Path

from rag_pipeline.core.parsed_document import Block, BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.parsing.registry import parse_file


def parse_bytes(folder: Path, content: bytes | str, name: str, *, limits: ParseLimits | None = None) -> ParsedDocument:
    """Parse content as a file of that name, by the public way."""
    path = folder / "original"
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    document = parse_file(ParseRequest(path=path, file_name=name, limits=limits or ParseLimits()))
    check_offsets(document)
    return document


def check_offsets(document: ParsedDocument) -> None:
    """Blocks follow each other inside the text and hold something."""
    position = 0
    for block in document.blocks:
        assert position <= block.start < block.end <= len(document.text)
        assert document.block_text(block).strip()
        position = block.end


def outline(document: ParsedDocument) -> list[tuple[str, str]]:
    """Type and text of every block."""
    return [(block.type.value, document.block_text(block)) for block in document.blocks]


def texts(document: ParsedDocument, type: BlockType) -> list[str]:
    """Texts of the blocks of one type."""
    return [document.block_text(block) for block in document.blocks if block.type is type]


def headings(document: ParsedDocument) -> list[str]:
    """Titles of the headings."""
    return [block.heading_path[-1] for block in document.blocks if block.type is BlockType.HEADING]


def only_block(document: ParsedDocument, type: BlockType) -> Block:
    """The one block of a type."""
    (block,) = (block for block in document.blocks if block.type is type)
    return block

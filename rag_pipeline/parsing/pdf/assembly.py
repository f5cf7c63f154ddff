"""Puts the pages together: headings and running text are known only when all pages have been read."""

import re
from collections.abc import Mapping, Sequence

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder
from rag_pipeline.parsing.pdf.characters import LINE_END_HYPHEN
from rag_pipeline.parsing.pdf.headings import find_headings
from rag_pipeline.parsing.pdf.pages import PageContent
from rag_pipeline.parsing.pdf.paragraphs import Piece
from rag_pipeline.parsing.pdf.running import find_running
from rag_pipeline.parsing.pdf.tables import markdown

_BROKEN_WORD = re.compile(f"(\\w+){LINE_END_HYPHEN}(\\w+)")
_HYPHENATED_WORD = re.compile(r"\b\w+-\w+\b")


def assemble(builder: DocumentBuilder, pages: Sequence[PageContent], outline: Mapping[int, Mapping[str, int]]) -> None:
    """Add all blocks and the page ledger."""
    running = find_running(pages)
    headings = find_headings(pages, running, outline)
    compounds = _compounds(pages)
    for number, page in enumerate(pages, start=1):
        start = builder.length
        for piece in page.pieces:
            _add(builder, piece, number, running.get(id(piece)), headings.get(id(piece)), compounds)
        builder.add_page(
            state=page.state, start=start, label=page.label, reason=page.reason, width=page.width, height=page.height
        )
        for warning in page.warnings:
            builder.warn(warning)


def _add(
    builder: DocumentBuilder,
    piece: Piece,
    page: int,
    running: BlockType | None,
    level: int | None,
    compounds: frozenset[str],
) -> None:
    metadata = {"href": "\n".join(piece.hrefs)} if piece.hrefs else {}
    if piece.rows:
        rows = [[resolve_hyphens(cell, compounds) for cell in row] for row in piece.rows]
        builder.add_block(BlockType.TABLE, markdown(rows), page=page, bbox=piece.box, rows=rows, metadata=metadata)
        return
    text = resolve_hyphens(piece.text, compounds)
    if running is not None:
        builder.add_block(running, text, page=page, bbox=piece.box, metadata=metadata)
    elif level is not None:
        text = " ".join(text.split())
        if text:
            if builder.length:
                builder.add_gap("\n\n")
            builder.add_gap("#" * level + " ")
        builder.add_block(
            BlockType.HEADING, text, separator="", level=level, page=page, bbox=piece.box, metadata=metadata
        )
    else:
        is_item = piece.type is BlockType.LIST_ITEM
        builder.add_block(
            piece.type,
            text,
            separator="\n" if is_item else "\n\n",
            level=1 if is_item else None,
            page=page,
            bbox=piece.box,
            metadata=metadata,
        )


def resolve_hyphens(text: str, compounds: frozenset[str]) -> str:
    """Join words that were broken at a line end; compounds that the document also writes with a hyphen keep it."""
    if LINE_END_HYPHEN not in text:
        return text

    def join(match: re.Match[str]) -> str:
        compound = f"{match[1]}-{match[2]}"
        return compound if compound.casefold() in compounds else match[1] + match[2]

    return _BROKEN_WORD.sub(join, text).replace(LINE_END_HYPHEN, "")


def _compounds(pages: Sequence[PageContent]) -> frozenset[str]:
    return frozenset(
        match.casefold()
        for page in pages
        for piece in page.pieces
        if "-" in piece.text
        for match in _HYPHENATED_WORD.findall(piece.text)
    )

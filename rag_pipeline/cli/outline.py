"""A parsed and chunked file as a person wants to see it: pages, headings, tables, warnings, chunks."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.parsed_document import BlockType, PageRecord, PageState, ParsedDocument
from rag_pipeline.parsing.pool import ParseOutcome

MAX_LINES = 50
"""Headings, tables and chunks beyond this many are only counted; `--json` has them all."""
_CELLS = 8
_STYLES = {PageState.TEXT: "green", PageState.OCR: "cyan", PageState.BLANK: "dim", PageState.FAILED: "red"}


def print_outline(path: Path, outcome: ParseOutcome, document: ParsedDocument | None, chunks: Sequence[Chunk]) -> None:
    """Print one file."""
    console = Console(highlight=False, emoji=False)
    console.print(f"[bold]{escape(str(path))}[/]")
    if outcome.error is not None:
        console.print(f"  [bold red]error {outcome.error.code}[/] {escape(str(outcome.error))}")
    if document is not None:
        console.print(Group(*_parts(document, chunks, outcome.seconds)))
    console.print()


def _parts(document: ParsedDocument, chunks: Sequence[Chunk], seconds: float) -> Iterable[RenderableType]:
    tokens = sum(chunk.tokens for chunk in chunks)
    facts = [
        f"parser {document.parser} {document.parser_version}",
        f"{len(document.text):,} characters",
        f"{len(document.blocks):,} blocks",
        f"{len(document.images):,} images",
        f"{len(chunks):,} chunks",
        f"{tokens:,} tokens",
        f"{seconds:.1f} s",
    ]
    yield Text("  " + ", ".join(facts), style="dim")
    for warning in document.warnings:
        yield Text.assemble(("  warning ", "yellow"), warning)
    if not chunks:
        yield Text("  no content: the file would be kept, but nothing in it could be found", style="yellow")
    if document.pages:
        yield from _pages(document.pages)
    if any(block.type is BlockType.HEADING for block in document.blocks):
        yield _headings(document)
    yield from _tables(document)
    if chunks:
        yield _chunks(chunks)


def _pages(pages: Sequence[PageRecord]) -> Iterable[RenderableType]:
    yield Text(f"  pages ({len(pages)})", style="bold")
    for (state, reason), group in groupby(pages, key=lambda page: (page.state, page.reason)):
        members = list(group)
        first, last = members[0].number, members[-1].number
        numbers = str(first) if first == last else f"{first}-{last}"
        characters = sum(page.characters for page in members)
        yield Text.assemble(
            f"    {numbers} ",
            (state.value, _STYLES[state]),
            f", {characters:,} characters",
            f" ({reason})" * bool(reason),
        )


def _headings(document: ParsedDocument) -> RenderableType:
    headings = [block for block in document.blocks if block.type is BlockType.HEADING]
    root = Tree(Text(f"headings ({len(headings)})", style="bold"), guide_style="dim")
    branches: list[tuple[tuple[str, ...], Tree]] = []
    for block in headings[:MAX_LINES]:
        while branches and block.heading_path[: len(branches[-1][0])] != branches[-1][0]:
            branches.pop()
        # Two headings of the same name and level follow each other as equals, not one below the other.
        if branches and len(block.heading_path) == len(branches[-1][0]):
            branches.pop()
        parent = branches[-1][1] if branches else root
        page = f"  p. {block.page}" if block.page is not None else ""
        branches.append((block.heading_path, parent.add(Text.assemble(block.heading_path[-1], (page, "dim")))))
    if len(headings) > MAX_LINES:
        root.add(Text(f"and {len(headings) - MAX_LINES:,} more", style="dim"))
    return Padding(root, (0, 0, 0, 2))


def _tables(document: ParsedDocument) -> Iterable[RenderableType]:
    tables = [block for block in document.blocks if block.type is BlockType.TABLE and block.rows]
    if tables:
        yield Text(f"  tables ({len(tables)})", style="bold")
    for block in tables[:MAX_LINES]:
        place = f"page {block.page}, " if block.page is not None else ""
        width = max(len(row) for row in block.rows)
        header = " | ".join(" ".join(cell.split()) for cell in block.rows[0][:_CELLS])
        more = " | ..." if len(block.rows[0]) > _CELLS else ""
        line = Text(f"    {place}{len(block.rows):,} rows x {width} columns: {header}{more}", no_wrap=True)
        line.overflow = "ellipsis"
        yield line
    if len(tables) > MAX_LINES:
        yield Text(f"    and {len(tables) - MAX_LINES:,} more", style="dim")


def _chunks(chunks: Sequence[Chunk]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=True, expand=True)
    table.add_column("chunk", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    if chunks[0].page is not None:
        table.add_column("page", no_wrap=True)
    table.add_column("heading", ratio=1, no_wrap=True, overflow="ellipsis", style="cyan")
    table.add_column("text", ratio=3, no_wrap=True, overflow="ellipsis")
    for chunk in chunks[:MAX_LINES]:
        pages = [] if chunks[0].page is None else [_page_range(chunk)]
        heading = Text(chunk.heading_path[-1] if chunk.heading_path else "")
        table.add_row(str(chunk.index), str(chunk.tokens), *pages, heading, Text(" ".join(chunk.text[:400].split())))
    if len(chunks) > MAX_LINES:
        table.caption = f"and {len(chunks) - MAX_LINES:,} more; --json has them all"
    return table


def _page_range(chunk: Chunk) -> str:
    last = chunk.page_end or chunk.page
    return str(chunk.page) if last == chunk.page else f"{chunk.page}-{last}"

"""From blocks to runs of pieces: what the chunker puts together. A piece is never cut again, a run never crossed.

A run ends at every heading, at running page headers and footers, and at very long white space. A heading without any
text below it goes on into the next run: it is the one case in which a chunk holds two headings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from rag_pipeline.core.graphemes import ceil_boundary, floor_boundary, is_boundary
from rag_pipeline.core.parsed_document import Block, BlockType, ParsedDocument, is_blank
from rag_pipeline.core.sentences import Span, sentence_spans, split_long, trimmed
from rag_pipeline.core.tables import Lines, code_lines, is_fence, table_lines
from rag_pipeline.core.tokens import TokenCounter

MAX_WHITE_SPACE = 400
"""Characters of white space that a chunk may hold between two blocks: a page of blank lines is not carried along."""

LEFT_OUT = frozenset({BlockType.PAGE_HEADER, BlockType.PAGE_FOOTER})
"""Blocks that repeat on every page and would only blur what a chunk is about."""
_ITEMS = frozenset({BlockType.LIST_ITEM, BlockType.RECORD, BlockType.FORM_FIELD})
_LONG = 32
"""Characters per token: what is longer is divided without counting the whole first."""
_LEAD_IN_MARKS = (":", "：")


class Cut(IntEnum):
    """How good a place before a piece is for ending a chunk; higher is better."""

    GLUED = 0
    """After a heading, between a lead-in and its list, a caption and its table, a header and its first row."""
    INSIDE = 1
    """Within a sentence, row or line that is too long for one chunk."""
    SENTENCE = 2
    """Between sentences, table rows, code lines."""
    ITEM = 3
    """Between list items, records, groups of code lines."""
    BLOCK = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, table row, code line, heading, or a part of one that is too long."""

    start: int
    end: int
    tokens: int
    cut: Cut
    """How good it is to begin a chunk here."""
    is_sentence: bool
    """Whether the piece may be repeated as overlap."""
    block: int
    """Index in `ParsedDocument.blocks`."""
    header: str = ""
    """Lines to put in front when a chunk begins here (table header, code fence), with a line end."""
    header_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpan:
    """A block with the marks around it that belong to no block (`# `, `- `, code fences)."""

    index: int
    block: Block
    start: int
    end: int


@dataclass(slots=True)
class Run:
    """Blocks that follow each other under one heading."""

    blocks: list[BlockSpan] = field(default_factory=list)

    @property
    def has_body(self) -> bool:
        """Whether there is more than headings."""
        return any(span.block.type is not BlockType.HEADING for span in self.blocks)

    @property
    def heading_path(self) -> tuple[str, ...]:
        """The path of the text below the last heading."""
        body = next((span.block for span in self.blocks if span.block.type is not BlockType.HEADING), None)
        return (body or self.blocks[0].block).heading_path


def runs_of(document: ParsedDocument) -> list[Run]:
    """The document's runs in order; every visible character outside page headers and footers is in one of them."""
    runs: list[Run] = []
    run = Run()
    barrier = False
    previous_end = 0
    for span in _block_spans(document):
        if span.block.type in LEFT_OUT:
            barrier = True
            continue
        far = span.start - previous_end > MAX_WHITE_SPACE and not document.text[previous_end : span.start].strip()
        if run.blocks and run.has_body and (barrier or far or span.block.type is BlockType.HEADING):
            runs.append(run)
            run = Run()
        run.blocks.append(span)
        barrier, previous_end = False, span.end
    if run.blocks and not run.has_body and runs and not barrier:
        runs[-1].blocks.extend(run.blocks)
    elif run.blocks:
        runs.append(run)
    return runs


@dataclass(slots=True, kw_only=True)
class PieceCutter:
    """Cuts runs into pieces, in document order."""

    text: str
    count_tokens: TokenCounter
    part_tokens: int
    """Size of the parts of a sentence that has to be divided."""
    _last_end: int = 0

    def cut(self, run: Run, *, budget: int) -> list[Piece]:
        """Pieces of one run, each with at most `budget` tokens together with its header."""
        pieces: list[Piece] = []
        previous: BlockSpan | None = None
        for span in run.blocks:
            first = _cut_before(self.text, previous, span)
            if span.block.type is BlockType.TABLE:
                lines = table_lines(self.text, span.start, span.end, rows=span.block.rows)
                pieces.extend(self._line_pieces(span, lines, first, budget))
            elif span.block.type is BlockType.CODE:
                pieces.extend(self._line_pieces(span, code_lines(self.text, span.start, span.end), first, budget))
            else:
                pieces.extend(self._sentence_pieces(span, first, budget))
            previous = span
        return pieces

    def _sentence_pieces(self, span: BlockSpan, first: Cut, budget: int) -> Iterator[Piece]:
        heading = span.block.type is BlockType.HEADING
        spans = (
            [trimmed(self.text, span.start, span.end)] if heading else sentence_spans(self.text, span.start, span.end)
        )
        cut = first
        for sentence in spans:
            for piece in self._fitting(sentence, span.index, cut, budget, is_sentence=not heading):
                yield piece
                cut = Cut.SENTENCE

    def _line_pieces(self, span: BlockSpan, lines: Lines, first: Cut, budget: int) -> Iterator[Piece]:
        header = "".join(self.text[slice(*line)] + "\n" for line in lines.spans[: lines.header])
        header_tokens = self.count_tokens(header) if header else 0
        if header_tokens * 2 > budget:
            header, header_tokens = "", 0
        for index, line in enumerate(lines.spans):
            closes = lines.closing and index == len(lines.spans) - 1
            if not index:
                cut = first
            elif index <= lines.header or closes:
                cut = Cut.GLUED
            else:
                cut = Cut.ITEM if index in lines.groups else Cut.SENTENCE
            repeated = (header, header_tokens) if index >= lines.header else ("", 0)
            yield from self._fitting(line, span.index, cut, budget, is_sentence=False, header=repeated)

    def _fitting(
        self, span: Span, block: int, cut: Cut, budget: int, *, is_sentence: bool, header: tuple[str, int] = ("", 0)
    ) -> Iterator[Piece]:
        span = self._aligned(span)
        if span[0] >= span[1]:
            return
        content = self.text[slice(*span)]
        room = max(budget - header[1], 1)
        if len(content) <= room * _LONG and (tokens := self.count_tokens(content)) <= room:
            if not is_blank(content):
                yield Piece(*span, tokens, cut, is_sentence, block, *header)
            return
        for start, end in split_long(
            self.text, span, budget=min(self.part_tokens, room), count_tokens=self.count_tokens
        ):
            content = self.text[start:end]
            if not is_blank(content):
                yield Piece(start, end, self.count_tokens(content), cut, False, block, *header)
                cut = Cut.INSIDE

    def _aligned(self, span: Span) -> Span:
        start, end = max(span[0], self._last_end), span[1]
        if not is_boundary(self.text, start, lowest=self._last_end):
            start = floor_boundary(self.text, start, lowest=self._last_end)
        if not is_boundary(self.text, end, lowest=start):
            end = ceil_boundary(self.text, end, lowest=start)
        self._last_end = max(end, self._last_end)
        return start, end


def _cut_before(text: str, previous: BlockSpan | None, span: BlockSpan) -> Cut:
    if previous is None:
        return Cut.BLOCK
    before, after = previous.block.type, span.block.type
    if before is BlockType.HEADING or (before, after) in {
        (BlockType.CAPTION, BlockType.TABLE),
        (BlockType.CAPTION, BlockType.IMAGE),
        (BlockType.IMAGE, BlockType.CAPTION),
    }:
        return Cut.GLUED
    if before is BlockType.PARAGRAPH and after in {BlockType.LIST_ITEM, BlockType.TABLE, BlockType.CODE}:
        return Cut.GLUED if text[previous.start : previous.end].rstrip().endswith(_LEAD_IN_MARKS) else Cut.ITEM
    if after in _ITEMS and before is after:
        return Cut.SENTENCE if (span.block.level or 1) > 1 else Cut.ITEM
    return Cut.BLOCK


def _block_spans(document: ParsedDocument) -> Iterator[BlockSpan]:
    """Blocks grown over the marks between them, so that together they hold all visible text."""
    text = document.text
    blocks = document.blocks
    if not blocks:
        if not is_blank(text):
            whole = Block(type=BlockType.PARAGRAPH, start=0, end=len(text))
            yield BlockSpan(index=0, block=whole, start=0, end=len(text))
        return
    start = 0
    for index, block in enumerate(blocks):
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        if following is None:
            end = next_start = len(text)
        else:
            gap = text[block.end : following.start]
            own, others = _shared_gap(gap, block.type, following.type) if gap.strip() else (0, 0)
            end, next_start = block.end + own, following.start - others
        yield BlockSpan(index=index, block=block, start=start, end=end)
        start = next_start


def _shared_gap(gap: str, before: BlockType, after: BlockType) -> tuple[int, int]:
    """How many characters at the beginning and at the end of a gap go with the block before and the block after.

    What stands on a block's own line is its own; whole lines go with the block they touch, and in doubt with the one
    before (setext underlines, closing fences), but opening fences go with the code.
    """
    lines = gap.split("\n")
    if len(lines) == 1:
        own = 0 if gap[0].isspace() else len(gap.split(maxsplit=1)[0])
        return own, len(gap) - own
    middle = lines[1:-1]
    taken = _lines_before(middle, before, after)
    own = len("\n".join(lines[: 1 + taken]))
    return own, len(gap) - own


def _lines_before(middle: Iterable[str], before: BlockType, after: BlockType) -> int:
    lines = list(middle)
    blank = [index for index, line in enumerate(lines) if not line.strip()]
    if blank:
        return blank[-1] + 1
    if after is not BlockType.CODE:
        return len(lines)
    return 1 if before is BlockType.CODE and lines and is_fence(lines[0]) else 0

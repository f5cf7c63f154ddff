"""Parsed blocks to chunks. Pure: no I/O, no clock, the same input gives the same chunks.

Rules, in order of weight:

1. `Chunk.embedded_text` never has more than `max_tokens` tokens (only a single character could exceed it).
2. `text[start:end]` is exact; starts rise strictly; no chunk is blank; cuts lie between grapheme clusters.
3. A chunk ends at every heading of the document. Only a heading without text below goes along with what follows it
   (or, at the very end, with what precedes), so small sections stay apart and a citation names the right heading.
4. Page headers and footers are in no chunk, except between a heading at the foot of a page and its text.
5. Tables are split between rows and code between lines, with the header or fence line repeated in front; lists stay
   with the line that introduces them; text is split between paragraphs, else between sentences.
6. A chunk has about `target_tokens`; to end with a paragraph it may have half to one and a half times as many.
7. A chunk begins with the last whole sentences of the one before, up to `overlap_tokens`, within one run of text.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from rag_pipeline.core.chunk import Chunk, with_heading_path
from rag_pipeline.core.graphemes import floor_boundary
from rag_pipeline.core.locators import PageFinder
from rag_pipeline.core.parsed_document import Block, ParsedDocument
from rag_pipeline.core.pieces import LEFT_OUT, Piece, PieceCutter, runs_of
from rag_pipeline.core.sections import number_sections
from rag_pipeline.core.sentences import split_long
from rag_pipeline.core.tokens import TokenCounter
from rag_pipeline.errors import ConfigurationError

VERSION = "1"
"""Code version of the stage: raised by hand whenever some document would get other chunks."""

_TITLE_CHARACTERS = 120
"""Titles in a heading path that is too long are cut to this length first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkingOptions:
    """Sizes in tokens, by the counter given to `chunk`."""

    target_tokens: int
    max_tokens: int
    overlap_tokens: int

    def __post_init__(self) -> None:
        if self.target_tokens < 1:
            raise ConfigurationError(f"chunk_tokens must be at least 1, not {self.target_tokens}")
        if self.max_tokens < self.target_tokens:
            raise ConfigurationError(
                f"chunk_max_tokens ({self.max_tokens}) must not be less than chunk_tokens ({self.target_tokens})"
            )
        if not 0 <= self.overlap_tokens < self.target_tokens:
            raise ConfigurationError(
                f"chunk_overlap_tokens ({self.overlap_tokens}) must be at least 0 and less than chunk_tokens "
                f"({self.target_tokens})"
            )


def chunk(document: ParsedDocument, options: ChunkingOptions, count_tokens: TokenCounter) -> list[Chunk]:
    """The chunks of a document in order; an empty list if it has no visible text.

    Time is linear in the length of the text; every character is counted three to five times.
    """
    cutter = PieceCutter(text=document.text, count_tokens=count_tokens, part_tokens=options.target_tokens)
    pages = PageFinder(document)
    chunks: list[Chunk] = []
    full_paths: list[tuple[str, ...]] = []
    fitted: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {}
    for run in runs_of(document):
        full_path = run.heading_path
        if full_path not in fitted:
            fitted[full_path] = _fit_path(full_path, options.max_tokens // 4, count_tokens)
        path, path_tokens = fitted[full_path]
        packer = _Packer(document.text, path, path_tokens, options, count_tokens)
        pieces = cutter.cut(run, budget=max(options.max_tokens - path_tokens, 1))
        for first, last, text, tokens in packer.pack(pieces):
            place = pages.place(first.start, last.end, _touched_blocks(document, first, last))
            chunks.append(
                Chunk(
                    index=len(chunks),
                    text=text,
                    start=first.start,
                    end=last.end,
                    tokens=tokens,
                    heading_path=path,
                    page=place.page,
                    page_end=place.page_end,
                    regions=place.regions,
                    block_types=place.block_types,
                    metadata=place.metadata,
                )
            )
            full_paths.append(full_path)
    sections = number_sections(full_paths, [item.tokens for item in chunks])
    return [replace(item, section=section) for item, section in zip(chunks, sections, strict=True)]


class _Packer:
    """Puts the pieces of one run together."""

    def __init__(
        self,
        text: str,
        path: tuple[str, ...],
        path_tokens: int,
        options: ChunkingOptions,
        count_tokens: TokenCounter,
    ) -> None:
        self._text = text
        self._path = path
        self._options = options
        self._room = max(options.max_tokens - path_tokens, 1)
        self._count_tokens = count_tokens

    def pack(self, pieces: list[Piece]) -> Iterator[tuple[Piece, Piece, str, int]]:
        """First piece, last piece, text and tokens of each chunk."""
        sums = _sums(pieces)
        first = fresh = 0
        while fresh < len(pieces):
            cut = self._choose_cut(pieces, sums, first, fresh)
            while True:
                text = pieces[first].header + self._text[pieces[first].start : pieces[cut - 1].end]
                tokens = self._count_tokens(with_heading_path(self._path, text))
                if tokens <= self._options.max_tokens:
                    break
                # The whole may count more than its pieces: white space between them, tokens that join differently.
                if first < fresh:
                    first += 1
                elif cut - first > 1:
                    cut = max(first + 1, min(cut - 1, first + (cut - first) * self._options.max_tokens // tokens))
                else:
                    parts = self._reduced(pieces[first], tokens)
                    if parts == [pieces[first]]:
                        break
                    pieces[first : first + 1] = parts
                    sums = _sums(pieces)
            yield pieces[first], pieces[cut - 1], text, tokens
            first, fresh = self._overlap_start(pieces, sums, first, cut), cut

    def _choose_cut(self, pieces: Sequence[Piece], sums: Sequence[int], first: int, fresh: int) -> int:
        """Index after the last piece of the chunk that begins with `first` and must hold `fresh`."""
        room = self._room - pieces[first].header_tokens
        target = min(self._options.target_tokens, room)
        reach = min(target + target // 2, room)
        base = sums[first]
        if sums[-1] - base <= reach:
            return len(pieces)
        if fresh + 1 == len(pieces):
            return len(pieces)
        # The sums rise slowly where pieces count nothing, so the last place within reach is found by bisection.
        last = max(bisect_right(sums, base + reach, lo=fresh + 1) - 1, fresh + 1)
        best, best_key = last, (-1, False, 0)
        for place in range(last, fresh, -1):
            size = sums[place] - base
            if size * 2 < target:
                break
            key = (int(pieces[place].cut), size <= target, size if size <= target else -size)
            if key > best_key:
                best, best_key = place, key
        return best

    def _overlap_start(self, pieces: Sequence[Piece], sums: Sequence[int], first: int, cut: int) -> int:
        if cut == len(pieces):
            return cut
        start = cut
        limit = min(self._options.overlap_tokens, self._room - pieces[cut].header_tokens - pieces[cut].tokens)
        while start - 1 > first and pieces[start - 1].is_sentence and sums[cut] - sums[start - 1] <= limit:
            start -= 1
        return start

    def _reduced(self, piece: Piece, tokens: int) -> list[Piece]:
        """What to put in place of a piece that alone makes a chunk of too many tokens."""
        if piece.header:
            return [replace(piece, header="", header_tokens=0)]
        budget = max(piece.tokens - (tokens - self._options.max_tokens), 1)
        spans = split_long(self._text, (piece.start, piece.end), budget=budget, count_tokens=self._count_tokens)
        return [
            replace(piece, start=start, end=end, tokens=self._count_tokens(self._text[start:end]), is_sentence=False)
            for start, end in spans
        ]


def _sums(pieces: Sequence[Piece]) -> list[int]:
    return [0, *accumulate(piece.tokens for piece in pieces)]


def _touched_blocks(document: ParsedDocument, first: Piece, last: Piece) -> list[Block]:
    return [block for block in document.blocks[first.block : last.block + 1] if block.type not in LEFT_OUT]


def _fit_path(path: tuple[str, ...], budget: int, count_tokens: TokenCounter) -> tuple[tuple[str, ...], int]:
    """The path, shortened to at most `budget` tokens if need be, and its tokens in front of a text.

    Long titles are cut first, then the outermost ones dropped, then the last one is cut further.
    """

    def size(titles: tuple[str, ...]) -> int:
        return count_tokens(with_heading_path(titles, "")) if titles else 0

    if size(path) <= budget:
        return path, size(path)
    path = tuple(_cut_title(title, _TITLE_CHARACTERS) for title in path)
    while len(path) > 1 and size(path) > budget:
        path = path[1:]
    characters = _TITLE_CHARACTERS
    while path and size(path) > budget:
        characters //= 2
        path = (_cut_title(path[0], characters),) if characters else ()
    return path, size(path)


def _cut_title(title: str, characters: int) -> str:
    if len(title) <= characters:
        return title
    return title[: floor_boundary(title, characters)].rstrip() + "…"

"""Small-to-big: passages grow from the found chunk to the section around it. Pure, no I/O.

Chunks are small so that they are found; a reader, man or model, understands a section better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rag_pipeline.core.passages import StoredChunk
from rag_pipeline.query.results import Candidate, Part, RetrievalResult, result_of

GAP = "\n\n"
"""Between chunks whose spans do not touch: the characters between them (white space, Markdown marks) are not stored."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """A run of neighbouring chunks of one section, grown around a hit."""

    hit: Candidate
    chunks: list[StoredChunk]
    matches: list[str] = field(default_factory=list)


def expand(
    candidates: Sequence[Candidate],
    sections: Mapping[str, Sequence[StoredChunk]],
    *,
    top_k: int,
    characters: int,
) -> tuple[RetrievalResult, ...]:
    """The best `top_k` passages, each as much of its section as fits; what two passages would share is given once.

    A candidate that lies in the passage of a better one becomes a match of that one. In a section that is longer than
    `characters` several passages may come about, without a chunk in common.

    Args:
        candidates: best first.
        sections: all chunks of a section in order, by section id; a candidate whose section is missing stays alone.
        top_k: passages wanted.
        characters: of the longest passage; a hit that is longer stays whole.
    """
    windows: list[_Window] = []
    taken: dict[str, _Window] = {}
    for candidate in candidates:
        chunk = candidate.chunk
        if chunk.chunk_id in taken:
            taken[chunk.chunk_id].matches.append(chunk.chunk_id)
            continue
        if len(windows) == top_k:
            continue
        members = _grow(chunk, sections.get(chunk.parent_id, ()), taken, characters)
        window = _Window(hit=candidate, chunks=members, matches=[chunk.chunk_id])
        windows.append(window)
        taken.update(dict.fromkeys((member.chunk_id for member in members), window))
    return tuple(_result(rank, window) for rank, window in enumerate(windows, start=1))


def joined(chunks: Sequence[StoredChunk]) -> tuple[str, tuple[Part, ...]]:
    """The text of neighbouring chunks, with what they overlap given once, and where it comes from.

    A chunk's text ends with its own span of the document; what stands before it there is a repeated table header.
    """
    text, end = "", None
    parts: list[Part] = []
    for chunk in chunks:
        start, given = chunk.start, chunk.text
        if end is not None and start > end:
            text += GAP
        elif end is not None:
            start = end
            given = chunk.text[len(chunk.text) - max(chunk.end - end, 0) :]
        if given:
            parts.append(
                Part(
                    begin=len(text),
                    until=len(text) + len(given),
                    start=start,
                    end=chunk.end,
                    page=chunk.page,
                    page_end=chunk.page_end,
                )
            )
        text += given
        end = max(chunk.end, end or 0)
    return text, tuple(parts)


def _grow(
    hit: StoredChunk, section: Sequence[StoredChunk], taken: Mapping[str, _Window], characters: int
) -> list[StoredChunk]:
    """Chunks around the hit, taken in turn after and before it while they fit and belong to no other passage."""
    place = next((place for place, chunk in enumerate(section) if chunk.chunk_id == hit.chunk_id), None)
    if place is None:
        return [hit]
    first = last = place
    length = len(hit.text)
    open_sides = {1, -1}
    while open_sides:
        for side in (1, -1):
            if side not in open_sides:
                continue
            neighbour = last + 1 if side == 1 else first - 1
            if not 0 <= neighbour < len(section) or section[neighbour].chunk_id in taken:
                open_sides.discard(side)
                continue
            added = len(section[neighbour].text) + len(GAP)
            if length + added > characters:
                open_sides.discard(side)
                continue
            length += added
            first, last = min(first, neighbour), max(last, neighbour)
    return list(section[first : last + 1])


def _result(rank: int, window: _Window) -> RetrievalResult:
    hit = result_of(rank, window.hit)
    chunks = window.chunks
    matches = tuple(window.matches)
    if len(chunks) == 1:
        return replace(hit, matches=matches)
    text, parts = joined(chunks)
    pages = [page for chunk in chunks for page in (chunk.page, chunk.page_end) if page is not None]
    return replace(
        hit,
        text=text,
        start=min(chunk.start for chunk in chunks),
        end=max(chunk.end for chunk in chunks),
        heading_path=_common_path([chunk.heading_path for chunk in chunks]),
        page=min(pages) if pages else None,
        page_end=max(pages) if pages else None,
        is_expanded=True,
        matches=matches,
        parts=parts,
    )


def _common_path(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The headings that all chunks stand under."""
    common = paths[0]
    for path in paths[1:]:
        shared = 0
        while shared < min(len(common), len(path)) and common[shared] == path[shared]:
            shared += 1
        common = common[:shared]
    return common

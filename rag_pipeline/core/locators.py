"""Where a chunk comes from: its pages, regions, block types and what its blocks have in common. Pure, no I/O."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_pipeline.core.chunk import PageRegion
from rag_pipeline.core.parsed_document import Block, PageRecord, ParsedDocument

_RANGES = frozenset({"row"})
"""Metadata that is joined into `first-last` when the blocks of a chunk differ; other differing values are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a chunk takes over from the blocks it touches."""

    page: int | None
    page_end: int | None
    regions: tuple[PageRegion, ...]
    block_types: tuple[str, ...]
    metadata: Mapping[str, str]


class PageFinder:
    """Pages of character spans: by the page ledger, or by the blocks where there is none."""

    def __init__(self, document: ParsedDocument) -> None:
        self._pages: Sequence[PageRecord] = [page for page in document.pages if page.end > page.start]
        self._starts = [page.start for page in self._pages]

    def place(self, start: int, end: int, blocks: Sequence[Block]) -> Place:
        """The place of the span `[start, end)`, which begins and ends with visible characters of `blocks`."""
        page, page_end = (self._page_at(start), self._page_at(end - 1)) if self._pages else _page_range(blocks)
        return Place(
            page=page,
            page_end=page_end,
            regions=self._regions(start, end, page, page_end, blocks),
            block_types=tuple(dict.fromkeys(block.type.value for block in blocks)),
            metadata=_common_metadata(blocks),
        )

    def _page_at(self, position: int) -> int:
        return self._pages[max(bisect_right(self._starts, position) - 1, 0)].number

    def _regions(
        self, start: int, end: int, page: int | None, page_end: int | None, blocks: Sequence[Block]
    ) -> tuple[PageRegion, ...]:
        if page is None or page_end is None:
            return ()
        found: dict[PageRegion, None] = {}
        for block in blocks:
            # A box says nothing about the other pages of a block that runs over a page break.
            if block.bbox is not None and block.page is not None and block.page_end in {None, block.page}:
                found[PageRegion(page=block.page, bbox=block.bbox)] = None
        boxed = {region.page for region in found}
        bare = [PageRegion(page=number) for number in self._touched(start, end, page, page_end) if number not in boxed]
        return tuple(sorted([*found, *bare], key=lambda region: region.page))

    def _touched(self, start: int, end: int, page: int, page_end: int) -> list[int]:
        if not self._pages:
            return list(range(page, page_end + 1))
        return [record.number for record in self._between(start, end)]

    def _between(self, start: int, end: int) -> Sequence[PageRecord]:
        first = max(bisect_right(self._starts, start) - 1, 0)
        return self._pages[first : max(bisect_right(self._starts, end - 1), first + 1)]


def _page_range(blocks: Sequence[Block]) -> tuple[int | None, int | None]:
    first = [block.page for block in blocks if block.page is not None]
    last = [block.page_end or block.page for block in blocks if block.page is not None]
    return (min(first), max(page for page in last if page is not None)) if first else (None, None)


def _common_metadata(blocks: Sequence[Block]) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for block in blocks:
        for key, value in block.metadata.items():
            values.setdefault(key, []).append(value)
    common = {}
    for key, found in values.items():
        if all(value == found[0] for value in found):
            common[key] = found[0]
        elif key in _RANGES:
            common[key] = f"{found[0]}-{found[-1]}"
    return common

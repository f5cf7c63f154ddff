"""Says in a few warnings which pages were not simply read."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rag_pipeline.core.parsed_document import PageState
from rag_pipeline.parsing.pdf.pages import PageContent

_OUTCOMES = {
    PageState.OCR: "read by OCR",
    PageState.FAILED: "could not be read",
    PageState.BLANK: "without text",
    PageState.TEXT: "text may be incomplete",
}
_EMPTY = "the page is empty"


def ledger_warnings(pages: Sequence[PageContent]) -> Iterator[str]:
    """One warning per outcome and reason, with the numbers of its pages; empty pages are none."""
    groups: dict[tuple[PageState, str], list[int]] = {}
    for number, page in enumerate(pages, start=1):
        if page.reason and page.reason != _EMPTY:
            groups.setdefault((page.state, page.reason), []).append(number)
    for (state, reason), numbers in groups.items():
        noun = "page" if len(numbers) == 1 else "pages"
        yield f"{noun} {_ranges(numbers)} {_OUTCOMES[state]}: {reason}"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))

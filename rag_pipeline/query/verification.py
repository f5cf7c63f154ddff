"""Checks the quotations of an answer against the parsed documents they are cited from."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from rag_pipeline.core.answers import Citation
from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.quotes import Quote, holds, locate, quotations
from rag_pipeline.errors import RagPipelineError

logger = logging.getLogger(__name__)

LoadDocument = Callable[[str, int], ParsedDocument | None]
"""The parsed document of a document id and version; None if it may not be used any more."""


def with_quotes(
    answer: str, citations: Sequence[Citation], load: LoadDocument
) -> tuple[tuple[Citation, ...], list[str]]:
    """The citations with the answer's quotations, and notes about those that are not in their source.

    A quotation belongs to the citation that follows it, or to the first cited source that holds it. It is verified when
    the passage that was sent holds it and the blocks on the cited pages do; when the parsed document cannot be read,
    the passage alone decides.
    """
    quotes: dict[int, list[Quote]] = {}
    notes: list[str] = []
    by_number = {citation.number: citation for citation in citations}
    cited = [citation for citation in citations if citation.is_cited]
    for text, number in quotations(answer):
        asked = [by_number[number]] if number in by_number else cited
        source = next((citation for citation in asked if holds(citation.text, text)), None)
        quote = None if source is None else _checked(text, source, load)
        if quote is None or not quote.is_verified:
            notes.append(f"not in the cited source, word for word: “{text}”")
        if quote is None and asked:
            quote = Quote(text=text, number=asked[0].number, is_verified=False)
        if quote is not None:
            quotes.setdefault(quote.number, []).append(quote)
    checked = (replace(citation, quotes=tuple(quotes.get(citation.number, ()))) for citation in citations)
    return tuple(checked), notes


def _checked(text: str, source: Citation, load: LoadDocument) -> Quote:
    """A quotation that the sent passage holds, looked up in the parsed document."""
    try:
        document = load(source.document_id, source.version)
    except RagPipelineError as error:
        logger.warning("a quotation is checked without the parsed document of %s: %s", source.source_path, error)
        document = None
    if document is None:
        page = source.page if source.page_end in {None, source.page} else None
        return Quote(text=text, number=source.number, is_verified=True, page=page)
    is_held, page, bbox = locate(document, text, first=source.page, last=source.page_end)
    return Quote(text=text, number=source.number, is_verified=is_held, page=page, bbox=bbox)

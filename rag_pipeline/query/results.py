"""What a search gives: passages with where they come from, and the trace of how they were found."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from rag_pipeline.core.passages import StoredChunk

Step = Literal["scope", "rewrite", "recall", "readiness", "rerank", "expansion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one chunk gives to the text of a passage."""

    begin: int
    """Position of its first character in the passage's text."""
    until: int
    """Behind its last."""
    start: int
    """Character offset in the document's text; a table header that is repeated before it has none."""
    end: int
    page: int | None
    page_end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalResult:
    """One passage."""

    rank: int
    """1-based."""
    score: float
    """Fused score; comparable within one run only. Reranked results are ordered by `rerank_score`."""
    chunk_id: str
    document_id: str
    kb_id: str
    version: int
    file_name: str
    source_path: str
    text: str
    """The chunk, or the section around it if `is_expanded`."""
    start: int
    """Character offset in the document's text."""
    end: int
    parent_id: str
    heading_path: tuple[str, ...]
    page: int | None
    page_end: int | None
    channels: Mapping[str, int]
    """1-based rank in each channel that found it."""
    metadata: Mapping[str, object]
    """Of the document, with the locators of the hit."""
    rerank_score: float | None = None
    """None: not reranked, or left out by the reranker and therefore behind those that have one."""
    is_expanded: bool = False
    matches: tuple[str, ...] = ()
    """Ids of the found chunks that the passage covers, best first; the first is `chunk_id`."""
    parts: tuple[Part, ...] = ()
    """Where its text comes from, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTrace:
    """What one recall channel did."""

    name: str
    milliseconds: float
    """Wall time over all its searches, with embedding the query."""
    hits: int
    """Of the last search, over all variants of the query."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step of the retrieval, in order."""

    name: Step
    milliseconds: float
    count: int
    """Passages after the step; for `scope` the documents pushed down, for `rewrite` the variants searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """A step that failed and was left out."""

    step: str
    """A step, or a recall channel."""
    code: str
    """Of the error, see `errors`."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How the results came about."""

    query: str
    """As it was searched."""
    variants: tuple[str, ...] = ()
    """What was searched: the query, and its rewritten form if there is one."""
    channels: tuple[ChannelTrace, ...] = ()
    steps: tuple[StepTrace, ...] = ()
    candidates: int = 0
    """Different chunks found."""
    dropped: int = 0
    """Candidates that may not be used: the version is not live, or the document is out of scope."""
    refills: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of BM25's rankings and of nearness in the fusion, where dense rankings count 1. BM25's is 0 where it heard
    nothing of the question, as in another language, 1.5 where its best hits have most of the question's words
    (`core.fusion.share_heard`); `nearness` ranks by how near together a passage has them (`core.nearness`)."""
    is_reranked: bool = False
    milliseconds: float = 0.0
    degradations: tuple[Degradation, ...] = ()
    """What failed; the results are those of the steps that worked."""
    notes: tuple[str, ...] = ()
    """What was cut or left out, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalRun:
    """Results, best first, and how they came about."""

    results: tuple[RetrievalResult, ...]
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A passage on its way through the steps after recall."""

    chunk: StoredChunk
    score: float
    """Fused."""
    channels: Mapping[str, int]
    rerank_score: float | None = None


def result_of(rank: int, candidate: Candidate) -> RetrievalResult:
    """The candidate as a result."""
    chunk = candidate.chunk
    return RetrievalResult(
        rank=rank,
        score=candidate.score,
        chunk_id=chunk.chunk_id,
        document_id=chunk.document_id,
        kb_id=chunk.kb_id,
        version=chunk.version,
        file_name=chunk.file_name,
        source_path=chunk.source_path,
        text=chunk.text,
        start=chunk.start,
        end=chunk.end,
        parent_id=chunk.parent_id,
        heading_path=chunk.heading_path,
        page=chunk.page,
        page_end=chunk.page_end,
        channels=candidate.channels,
        metadata=chunk.metadata,
        rerank_score=candidate.rerank_score,
        matches=(chunk.chunk_id,),
        parts=(
            Part(
                begin=0,
                until=len(chunk.text),
                start=chunk.start,
                end=chunk.end,
                page=chunk.page,
                page_end=chunk.page_end,
            ),
        ),
    )


def beginning_of(result: RetrievalResult, characters: int) -> RetrievalResult:
    """A passage of which only the beginning was read, as if there were no more: text, end and pages.

    Of a chunk that is cut on a later page than it begins, all pages count: where they part is not known here.
    """
    if characters >= len(result.text):
        return result
    seen = [part for part in result.parts if part.begin < characters]
    if not seen:
        return replace(result, text=result.text[:characters])
    last = seen[-1]
    if last.until > characters:
        end = max(last.end - (last.until - characters), last.start)
        last = seen[-1] = replace(last, until=characters, end=end)
    pages = [page for part in seen for page in (part.page, part.page_end) if page is not None]
    return replace(
        result,
        text=result.text[:characters],
        end=last.end,
        page=min(pages, default=None),
        page_end=max(pages, default=None),
        parts=tuple(seen),
    )


def rounded(milliseconds: float) -> float:
    """As a trace shows it: tenths."""
    return round(milliseconds, 1)

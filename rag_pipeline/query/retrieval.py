"""Finding the passages for a question: dense and BM25 recall, fused by rank, checked against the facts.

The order is scope, recall channels in parallel, reciprocal rank fusion, readiness. A channel that fails is left out and
noted in the trace. Vectors only find ids; what is shown comes from PostgreSQL, and only of versions that are live.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from rag_pipeline.core.fusion import Fused, reciprocal_rank_fusion
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import CollectionGeneration, Embedder, SearchScope, VectorHit, VectorIndex, Vectors
from rag_pipeline.errors import ConfigurationError, RagPipelineError

QUERY_CHARACTERS = 4_000
"""Longer questions are cut; embedders read about 512 tokens."""
MOST_RESULTS = 1_000
MOST_CANDIDATES = 4_000
REFILLS = 2
"""Searches again, each with four times the candidates, when too few hits were of live versions."""

Mode = Literal["hybrid", "dense", "bm25"]
CHANNELS: Mapping[Mode, tuple[str, ...]] = {"hybrid": ("dense", "bm25"), "dense": ("dense",), "bm25": ("bm25",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalOptions:
    """How to search. Raises `ConfigurationError` for numbers out of range."""

    top_k: int = 5
    """Results wanted, 1 to `MOST_RESULTS`."""
    candidates: int = 30
    """Hits asked of each channel, at least `top_k`."""
    document_ids: tuple[str, ...] | None = None
    """None: all documents of the knowledge base; empty: nothing."""
    mode: Mode = "hybrid"

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= MOST_RESULTS:
            raise ConfigurationError(f"top_k={self.top_k}: 1 to {MOST_RESULTS}")
        if not 1 <= self.candidates <= MOST_CANDIDATES:
            raise ConfigurationError(f"candidates={self.candidates}: 1 to {MOST_CANDIDATES}")
        if self.mode not in CHANNELS:
            raise ConfigurationError(f"mode={self.mode!r}: one of {', '.join(CHANNELS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """A chunk of a live version, as the facts have it."""

    chunk_id: str
    document_id: str
    kb_id: str
    version: int
    file_name: str
    source_path: str
    text: str
    start: int
    """Character offset in the document's text."""
    end: int
    parent_id: str
    """Id of the section."""
    heading_path: tuple[str, ...] = ()
    page: int | None = None
    page_end: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


LiveChunks = Callable[[Sequence[str]], Mapping[str, StoredChunk]]
"""The chunks among these ids whose version answers queries now; the others are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalResult:
    """One passage."""

    rank: int
    """1-based."""
    score: float
    """Fused score; comparable within one run only."""
    chunk_id: str
    document_id: str
    kb_id: str
    version: int
    file_name: str
    source_path: str
    text: str
    start: int
    end: int
    parent_id: str
    heading_path: tuple[str, ...]
    page: int | None
    page_end: int | None
    channels: Mapping[str, int]
    """1-based rank in each channel that found it."""
    metadata: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTrace:
    """What one recall channel did."""

    name: str
    milliseconds: float
    """Wall time over all its searches, with embedding the query."""
    hits: int
    """Of the last search."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How the results came about."""

    query: str
    """As it was searched."""
    channels: tuple[ChannelTrace, ...] = ()
    candidates: int = 0
    """Different chunks found."""
    dropped: int = 0
    """Candidates whose version is not live."""
    refills: int = 0
    milliseconds: float = 0.0
    notes: tuple[str, ...] = ()
    """What was left out or cut, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalRun:
    """Results, best first, and how they came about."""

    results: tuple[RetrievalResult, ...]
    trace: Trace


def retrieve(
    query: str,
    *,
    kb_id: str,
    index: VectorIndex,
    generation: CollectionGeneration,
    embedder: Embedder,
    live_chunks: LiveChunks,
    options: RetrievalOptions,
) -> RetrievalRun:
    """Search one knowledge base.

    Args:
        query: the question; white space is collapsed, and it is cut to `QUERY_CHARACTERS`.
        kb_id: the only knowledge base that is searched.
        index: vectors and BM25.
        generation: the collection that answers queries; `embedder` is the one it was filled by.
        embedder: for the dense channel.
        live_chunks: see `LiveChunks`; called once per search.
        options: how to search.

    Raises:
        RagPipelineError: every channel failed (the error of the first one), or `live_chunks` failed.
    """
    began = time.perf_counter()
    text, notes = _clean_query(query)
    if not text or options.document_ids == ():
        notes += ["no document to search" if text else "the query is empty"]
        return RetrievalRun(results=(), trace=Trace(query=text, notes=tuple(notes)))
    scope = SearchScope(kb_id=kb_id, document_ids=options.document_ids)
    recall = _Recall(text, CHANNELS[options.mode], scope=scope, index=index, generation=generation, embedder=embedder)
    limit = max(options.candidates, options.top_k)
    refills = 0
    while True:
        fused = reciprocal_rank_fusion(recall.search(limit))
        live = live_chunks([entry.id for entry in fused]) if fused else {}
        kept = [entry for entry in fused if entry.id in live and live[entry.id].kb_id == kb_id]
        dropped = len(fused) - len(kept)
        # An exhausted search is repeated once all the same: a version may have gone live since it began.
        if len(kept) >= options.top_k or not dropped or refills >= (1 if recall.is_exhausted(limit) else REFILLS):
            break
        refills += 1
        limit = min(4 * limit, MOST_CANDIDATES)
    return RetrievalRun(
        results=tuple(
            _result(rank, entry, live[entry.id]) for rank, entry in enumerate(kept[: options.top_k], start=1)
        ),
        trace=Trace(
            query=text,
            channels=tuple(recall.traces()),
            candidates=len(fused),
            dropped=dropped,
            refills=refills,
            milliseconds=_milliseconds_since(began),
            notes=(*notes, *recall.notes()),
        ),
    )


class _Recall:
    """The channels of one query. A channel that failed is not asked again; what it found before stays."""

    def __init__(
        self,
        query: str,
        channels: Sequence[str],
        *,
        scope: SearchScope,
        index: VectorIndex,
        generation: CollectionGeneration,
        embedder: Embedder,
    ) -> None:
        self._query = query
        self._scope = scope
        self._index = index
        self._generation = generation
        self._embedder = embedder
        self._channels = channels
        self._vectors: Vectors | None = None
        self._milliseconds = dict.fromkeys(channels, 0.0)
        self._found: dict[str, list[str]] = {}
        self._errors: dict[str, RagPipelineError] = {}

    def search(self, limit: int) -> dict[str, list[str]]:
        """Chunk ids by channel, best first. Raises the first channel's error when no channel ever found anything."""
        working = [channel for channel in self._channels if channel not in self._errors]
        with ThreadPoolExecutor(max_workers=len(self._channels)) as pool:
            for _ in pool.map(lambda channel: self._ask(channel, limit), working):
                pass
        if not self._found:
            raise self._errors[self._channels[0]]
        return {channel: self._found[channel] for channel in self._channels if channel in self._found}

    def is_exhausted(self, limit: int) -> bool:
        """Whether the last search, for `limit` hits per channel, found all there is."""
        return all(len(found) < limit for channel, found in self._found.items() if channel not in self._errors)

    def traces(self) -> Iterator[ChannelTrace]:
        """One per channel."""
        for channel in self._channels:
            error = self._errors.get(channel)
            yield ChannelTrace(
                name=channel,
                milliseconds=self._milliseconds[channel],
                hits=len(self._found.get(channel, ())),
                error=None if error is None else f"{error.code}: {error}",
            )

    def notes(self) -> Iterator[str]:
        """Which channels the results lack."""
        for channel in self._channels:
            if channel in self._errors:
                yield f"{channel} search failed: {self._errors[channel].code}"

    def _ask(self, channel: str, limit: int) -> None:
        began = time.perf_counter()
        try:
            hits = self._dense(limit) if channel == "dense" else self._bm25(limit)
        except RagPipelineError as error:
            self._errors[channel] = error
        else:
            self._found[channel] = [hit.chunk_id for hit in hits]
        self._milliseconds[channel] += _milliseconds_since(began)

    def _dense(self, limit: int) -> list[VectorHit]:
        if self._vectors is None:
            self._vectors = self._embedder.embed_queries([self._query])
        return self._index.search_dense(self._generation, self._vectors[0], scope=self._scope, limit=limit)

    def _bm25(self, limit: int) -> list[VectorHit]:
        return self._index.search_text(self._generation, self._query, scope=self._scope, limit=limit)


def _clean_query(query: str) -> tuple[str, list[str]]:
    """The query as it is searched, and what a person should know about it."""
    text = " ".join(clean_text(query).split())
    if len(text) <= QUERY_CHARACTERS:
        return text, []
    return text[:QUERY_CHARACTERS], [f"the query has {len(text)} characters; the first {QUERY_CHARACTERS} are used"]


def _result(rank: int, entry: Fused, chunk: StoredChunk) -> RetrievalResult:
    return RetrievalResult(
        rank=rank,
        score=entry.score,
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
        channels=entry.ranks,
        metadata=chunk.metadata,
    )


def _milliseconds_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000.0

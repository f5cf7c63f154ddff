"""Finding the passages for a question, in steps of a fixed order.

scope -> rewrite -> recall (dense and BM25 in parallel) -> reciprocal rank fusion -> readiness -> rerank -> expansion.

Vectors only find ids; what is shown comes from PostgreSQL, and only of versions that are live and documents in scope.
Every helper that fails is left out and noted in the trace; only when every recall channel fails, or PostgreSQL does, is
there an error: without the facts nobody knows what may be shown.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from rag_pipeline.core import nearness
from rag_pipeline.core.analysis import words
from rag_pipeline.core.chunk import with_heading_path
from rag_pipeline.core.fusion import HITS_LOOKED_AT, MOST_BM25_WEIGHT, Fused, reciprocal_rank_fusion, share_heard
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.passages import StoredChunk
from rag_pipeline.core.ports import ChatModel, CollectionGeneration, Embedder, Reranker, SearchScope, VectorIndex
from rag_pipeline.errors import RagPipelineError
from rag_pipeline.query.expansion import expand
from rag_pipeline.query.options import CHANNELS, RetrievalOptions
from rag_pipeline.query.recall import Recall, ranking_name
from rag_pipeline.query.reranking import reranked
from rag_pipeline.query.results import (
    Candidate,
    Degradation,
    RetrievalResult,
    RetrievalRun,
    Step,
    StepTrace,
    Trace,
    result_of,
    rounded,
)
from rag_pipeline.query.rewriting import rewritten_query

QUERY_CHARACTERS = 4_000
"""Longer questions are cut; embedders read about 512 tokens."""
MOST_HITS = 4_000
"""Hits asked of a channel, at most, when most of what it finds may not be shown."""
SEARCHES_AT_ONCE = 16
"""Second channels of concurrent queries; more wait."""
REFILLS = 2
"""Searches again, each with four times the hits, when too few of them may be shown."""
PUSHED_DOWN = 1_000
"""Documents that the vector store is told to search in; more are found by searching all and looking at the hits.

Milvus Lite was measured to take 0.55 s for a list of 20,000 ids, so about 30 ms for these.
"""


class PassageSource(Protocol):
    """What the steps ask of the facts; `adapters.postgres.passages.Passages` in the product."""

    def document_ids(self, *, limit: int | None) -> tuple[str, ...] | None:
        """Ids of the documents in scope; None if they are more than `limit`."""

    def live(self, chunk_ids: Sequence[str]) -> Mapping[str, StoredChunk]:
        """Those of the chunks that are in scope and of a live version."""

    def sections(self, found: Sequence[StoredChunk]) -> Mapping[str, Sequence[StoredChunk]]:
        """All chunks of the sections of the given chunks, in order, by section id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngine:
    """What a search works with; the same for every query of a process."""

    index: VectorIndex
    embedder: Embedder
    reranker: Reranker | None = None
    chat: ChatModel | None = None
    """For rewriting."""
    rewrite_timeout_seconds: float = 5.0
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=SEARCHES_AT_ONCE, thread_name_prefix="recall")
    )
    """For recall; started when first needed and kept, because starting one costs more than the rest of a query."""


def retrieve(
    query: str,
    *,
    kb_id: str,
    engine: SearchEngine,
    generation: CollectionGeneration,
    passages: PassageSource,
    options: RetrievalOptions,
    earlier_questions: Sequence[str] = (),
) -> RetrievalRun:
    """Search one knowledge base.

    Args:
        query: the question; white space is collapsed, and it is cut to `QUERY_CHARACTERS`.
        kb_id: the only knowledge base that is searched.
        engine: index, embedder and helpers.
        generation: the collection that answers queries; the embedder is the one it was filled by.
        passages: the facts, for this knowledge base and these options' scope.
        options: how to search.
        earlier_questions: of the same conversation, oldest first, for rewriting.

    Raises:
        RagPipelineError: every channel failed (the error of the first one), or `passages` failed.
    """
    text, notes = _clean_query(query)
    run = _Run(text, kb_id=kb_id, engine=engine, generation=generation, passages=passages, options=options)
    run.notes += notes
    if not text or options.scope.is_nothing:
        run.notes.append("no document to search" if text else "the query is empty")
        return run.finished(())
    return run.finished(run.search(earlier_questions))


@dataclass(slots=True)
class _Run:
    """One query on its way through the steps."""

    query: str
    kb_id: str = field(kw_only=True)
    engine: SearchEngine = field(kw_only=True)
    generation: CollectionGeneration = field(kw_only=True)
    passages: PassageSource = field(kw_only=True)
    options: RetrievalOptions = field(kw_only=True)
    began: float = field(default_factory=time.perf_counter)
    notes: list[str] = field(default_factory=list)
    degradations: list[Degradation] = field(default_factory=list)
    steps: dict[Step, StepTrace] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    recall: Recall | None = None
    candidates: int = 0
    dropped: int = 0
    refills: int = 0
    is_reranked: bool = False
    weights: dict[str, float] = field(default_factory=dict)

    def search(self, earlier_questions: Sequence[str]) -> tuple[RetrievalResult, ...]:
        """The steps in their order."""
        document_ids = self._scope()
        if document_ids == ():
            self.notes.append("no document to search")
            return ()
        self.variants = [self.query, *self._rewritten(earlier_questions)]
        self.recall = Recall(
            self.variants,
            CHANNELS[self.options.mode],
            scope=SearchScope(kb_id=self.kb_id, document_ids=document_ids),
            index=self.engine.index,
            generation=self.generation,
            embedder=self.engine.embedder,
            threads=self.engine.threads,
        )
        candidates = self._usable(self.recall, is_pushed_down=document_ids is not None)
        return self._results(self._reranked(candidates[: self.options.width]))

    def finished(self, results: tuple[RetrievalResult, ...]) -> RetrievalRun:
        """The results with the trace."""
        recall = self.recall
        return RetrievalRun(
            results=results,
            trace=Trace(
                query=self.query,
                variants=tuple(self.variants),
                channels=tuple(recall.traces()) if recall else (),
                steps=tuple(self.steps.values()),
                candidates=self.candidates,
                dropped=self.dropped,
                refills=self.refills,
                weights=self.weights,
                is_reranked=self.is_reranked,
                milliseconds=rounded((time.perf_counter() - self.began) * 1000.0),
                degradations=(*self.degradations, *(recall.degradations() if recall else ())),
                notes=tuple(self.notes),
            ),
        )

    def _scope(self) -> tuple[str, ...] | None:
        """The documents that the index is told to search in; None if all, or too many to tell."""
        if self.options.scope.is_everything:
            return None
        with self._timed("scope") as count:
            found = self.passages.document_ids(limit=PUSHED_DOWN)
            count(len(found or ()))
        return found

    def _rewritten(self, earlier_questions: Sequence[str]) -> tuple[str, ...]:
        """The rewritten form of the query, if there is to be one and the model gives one."""
        if not self.options.rewrite:
            return ()
        if self.engine.chat is None:
            self.notes.append("not rewritten: RAG_CHAT_URL is not set")
            return ()
        variant = None
        with self._timed("rewrite") as count, self._degrading("rewrite"):
            variant = rewritten_query(
                self.query,
                chat=self.engine.chat,
                timeout_seconds=self.engine.rewrite_timeout_seconds,
                earlier_questions=earlier_questions,
            )
            count(1 if variant is None else 2)
        return () if variant is None else (variant,)

    def _usable(self, recall: Recall, *, is_pushed_down: bool) -> list[Candidate]:
        """Recall and readiness, again with more hits while too few of them may be shown."""
        limit = self.options.width
        has_told_all = is_pushed_down or self.options.scope.is_everything
        while True:
            with self._timed("recall") as count:
                rankings = recall.search(limit)
                found = list(dict.fromkeys(hit for ranking in rankings.values() for hit in ranking))
                count(len(found))
            with self._timed("readiness") as count:
                live = self.passages.live(found) if found else {}
                live = {each: chunk for each, chunk in live.items() if chunk.kb_id == self.kb_id}
                count(len(live))
            usable = [
                Candidate(chunk=live[entry.id], score=entry.score, channels=entry.ranks)
                for entry in self._fused(rankings, live)
            ]
            self.candidates, self.dropped = len(found), len(found) - len(usable)
            if len(usable) >= self.options.top_k or not self.dropped:
                return usable
            # An exhausted search is repeated once all the same: a version may have gone live since it began.
            if self.refills < (1 if recall.is_exhausted(limit) else REFILLS):
                limit = min(4 * limit, MOST_HITS)
            elif not has_told_all and not recall.is_exhausted(limit):
                # Few of very many hits are in scope: name all documents, however slow that is.
                recall.restrict(SearchScope(kb_id=self.kb_id, document_ids=self.passages.document_ids(limit=None)))
                has_told_all = True
                limit = self.options.width
            else:
                return usable
            self.refills += 1

    def _fused(self, rankings: Mapping[str, Sequence[str]], live: Mapping[str, StoredChunk]) -> list[Fused]:
        """The live chunks of all rankings in one; where dense and BM25 both found some, nearness is a third ranking.

        Beside dense rankings, which count 1, BM25's count by what they heard of their variant of the query.
        """
        self.weights = {}
        if not any(name.startswith("dense") for name in rankings):
            return _of_live(reciprocal_rank_fusion(rankings), live)
        asked = [frozenset(words(variant)) for variant in self.variants]
        heard = [
            share_heard(asked[place], [self._words(hit, live) for hit in _live_hits(rankings, place, live)])
            for place in range(len(asked))
        ]
        weights = {ranking_name("bm25", place): MOST_BM25_WEIGHT * share for place, share in enumerate(heard)}
        self.weights = {name: round(weight, 3) for name, weight in weights.items() if rankings.get(name)}
        fused = _of_live(reciprocal_rank_fusion(rankings, weights=self.weights), live)
        best = fused[: nearness.CANDIDATES]
        weight = nearness.nearness_weight(asked[0], heard[0], [live[entry.id].document_id for entry in best])
        if not weight:
            return fused
        self.weights["nearness"] = round(weight, 3)
        passages = {entry.id: self._words(entry.id, live) for entry in best}
        near = nearness.nearness_ranking(asked[0], passages)
        found_by = {entry.id: entry.ranks for entry in fused}
        again = reciprocal_rank_fusion({**rankings, "nearness": near}, weights=self.weights)
        return [replace(entry, ranks=found_by[entry.id]) for entry in _of_live(again, live)]

    def _words(self, chunk_id: str, live: Mapping[str, StoredChunk]) -> Sequence[str]:
        """What BM25 counts of a live chunk: from the index, or analysed here where it does not keep that."""
        known = self.recall.words.get(chunk_id) if self.recall else None
        chunk = live[chunk_id]
        return words(with_heading_path(chunk.heading_path, chunk.text)) if known is None else known

    def _reranked(self, candidates: list[Candidate]) -> list[Candidate]:
        reranker = self.engine.reranker
        if self.options.rerank and reranker is None:
            self.notes.append("not reranked: RAG_RERANK_URL is not set")
        if reranker is None or self.options.rerank is False or not candidates:
            return candidates
        with self._timed("rerank") as count, self._degrading("rerank"):
            candidates = reranked(self.query, candidates, reranker)
            count(len(candidates))
            self.is_reranked = True
        return candidates

    def _results(self, candidates: list[Candidate]) -> tuple[RetrievalResult, ...]:
        top_k = self.options.top_k
        if self.options.expand and candidates:
            with self._timed("expansion") as count, self._degrading("expansion"):
                # Some candidates merge into the passages of others, so more than `top_k` may be needed.
                sections = self.passages.sections([each.chunk for each in candidates[: 2 * top_k]])
                expanded = expand(candidates, sections, top_k=top_k, characters=self.options.expanded_characters)
                count(len(expanded))
                return expanded
        return tuple(result_of(rank, candidate) for rank, candidate in enumerate(candidates[:top_k], start=1))

    @contextmanager
    def _degrading(self, step: Step) -> Iterator[None]:
        """Note the failure of a helper and go on. Cancellation and bugs are no errors of ours: they pass through."""
        try:
            yield
        except RagPipelineError as error:
            self.degradations.append(Degradation(step=step, code=error.code, message=str(error)))

    @contextmanager
    def _timed(self, step: Step) -> Iterator["_Count"]:
        """Time a step and count what comes out of it; a step done again adds up its time."""
        count = _Count()
        began = time.perf_counter()
        try:
            yield count
        finally:
            spent = (time.perf_counter() - began) * 1000.0
            earlier = self.steps[step].milliseconds if step in self.steps else 0.0
            self.steps[step] = StepTrace(name=step, milliseconds=rounded(earlier + spent), count=count.value)


def _of_live(fused: Sequence[Fused], live: Mapping[str, StoredChunk]) -> list[Fused]:
    return [entry for entry in fused if entry.id in live]


def _live_hits(rankings: Mapping[str, Sequence[str]], place: int, live: Mapping[str, StoredChunk]) -> list[str]:
    """BM25's best live hits for the variant at that place."""
    return [hit for hit in rankings.get(ranking_name("bm25", place), ()) if hit in live][:HITS_LOOKED_AT]


class _Count:
    """What a step tells about its outcome."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self, value: int) -> None:
        self.value = value


def _clean_query(query: str) -> tuple[str, list[str]]:
    """The query as it is searched, and what a person should know about it."""
    text = " ".join(clean_text(query).split())
    if len(text) <= QUERY_CHARACTERS:
        return text, []
    return text[:QUERY_CHARACTERS], [f"the query has {len(text)} characters; the first {QUERY_CHARACTERS} are used"]

"""Measuring retrieval on a test set: every question is searched as the product searches, in each mode."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.evaluation.dataset import Dataset, texts, write_documents
from rag_pipeline.evaluation.ingest import Ingested, ingest
from rag_pipeline.evaluation.known_queries import KnownQueries
from rag_pipeline.evaluation.measures import (
    hit_at,
    interval,
    judged_units,
    mean,
    percentile,
    ranking_measures,
    visible_text,
)
from rag_pipeline.parsing.registry import parse_file
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline.query.retriever import Retriever
from rag_pipeline.stages.services import Services

EvaluationMode = Literal["dense", "bm25", "hybrid", "rerank"]
WIDTH = 100
"""Candidates of each channel and results, so that recall@100 means something."""
TIMED_QUERIES = 50
"""Searched again as a user would, for the latencies."""
USER_OPTIONS = RetrievalOptions(top_k=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeReport:
    """Figures of one mode."""

    means: Mapping[str, float]
    """Those of `ranking_measures`; also `span_hit@1`, `span_hit@10` or `page_hit@1`, `page_hit@10`."""
    intervals: Mapping[str, tuple[float, float]]
    """95 % bootstrap intervals of the means."""
    p50_milliseconds: float
    """Of a search with ten results, embedding the question included."""
    p95_milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run of the evaluation found."""

    dataset: str
    documents: int
    queries: int
    settings: Mapping[str, object]
    """What decides the figures: embedder, analyzer, chunk sizes."""
    documents_per_second: float | None
    """None: everything was up to date from an earlier run."""
    failures: tuple[str, ...]
    modes: Mapping[str, ModeReport]
    misses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Questions without a right answer among the first ten, by mode."""

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)


def evaluate(
    services: Services,
    client: RagClient,
    dataset: Dataset,
    *,
    scratch: Path,
    modes: Sequence[EvaluationMode],
    progress: Callable[[str, int, int], None],
) -> Report:
    """Ingest the test set and ask its questions.

    Args:
        services: for the stages and the search.
        client: on the same settings.
        dataset: the test set.
        scratch: where the documents are written as files.
        modes: how to search.
        progress: called with what is done, how many of it, and of how many.
    """
    files = write_documents(dataset, scratch / dataset.name)
    ingested = ingest(
        services,
        client,
        knowledge_base=dataset.name,
        files=files,
        progress=partial(progress, "documents"),
    )
    asking = _Asking(services, dataset, ingested, files)
    reports: dict[str, ModeReport] = {}
    misses: dict[str, list[str]] = {}
    for mode in modes:
        reports[mode], misses[mode] = asking.report(mode, partial(progress, mode))
    settings = services.settings
    return Report(
        dataset=dataset.name,
        documents=len(files),
        queries=len(dataset.queries),
        settings={
            "embedder": services.embedder.identity.key,
            "analyzer": settings.analyzer,
            "chunk_tokens": settings.chunk_tokens,
            "chunk_max_tokens": settings.chunk_max_tokens,
            "chunk_overlap_tokens": settings.chunk_overlap_tokens,
        },
        documents_per_second=round(ingested.made_ready / ingested.seconds, 2) if ingested.made_ready else None,
        failures=ingested.failures,
        modes=reports,
        misses=misses,
    )


def differences(before: Mapping[str, object], now: Report) -> list[str]:
    """What changed since an earlier report of the same set (its JSON), one line per mode and measure."""
    lines = []
    modes = before.get("modes", {})
    for mode, report in now.modes.items():
        earlier = modes.get(mode, {}).get("means", {}) if isinstance(modes, dict) else {}
        for name, value in report.means.items():
            if name in earlier:
                lines.append(f"{mode} {name}: {earlier[name]:.4f} -> {value:.4f} ({value - earlier[name]:+.4f})")
    return lines


class _Asking:
    def __init__(self, services: Services, dataset: Dataset, ingested: Ingested, files: Mapping[str, Path]) -> None:
        self._dataset = dataset
        self._ids = ingested.ids
        self._retriever = Retriever.from_settings(
            services.settings, facts=services.facts, index=services.vectors, embedder=services.embedder
        )
        known = KnownQueries(services.embedder, list(dataset.queries.values()))
        engine = replace(self._retriever.engine, embedder=known)
        self._quick = Retriever(facts=services.facts, engine=engine)
        self._answers = _Answers(dataset, files)

    def report(self, mode: EvaluationMode, progress: Callable[[int, int], None]) -> tuple[ModeReport, list[str]]:
        """Figures of the mode, and the questions it did not answer."""
        options = RetrievalOptions(
            top_k=WIDTH, candidates=WIDTH, mode="hybrid" if mode == "rerank" else mode, rerank=mode == "rerank"
        )
        rankings: dict[str, list[str]] = {}
        hits: dict[str, list[bool]] = {}
        for number, (query_id, query) in enumerate(self._dataset.queries.items()):
            progress(number, len(self._dataset.queries))
            results = self._quick.retrieve(self._dataset.name, query, options=options).results
            rankings[query_id] = self._ranking(results)
            if query_id in self._dataset.spans:
                hits[query_id] = [self._answers.covers(query_id, self._ids, each) for each in results[:10]]
        per_query = ranking_measures(rankings, self._dataset.relevant)
        if hits:
            per_query |= {f"span_hit@{n}": [hit_at(flags, n) for flags in hits.values()] for n in (1, 10)}
        if self._dataset.has_pages:
            right = [[item in self._dataset.relevant[each] for item in ids] for each, ids in rankings.items()]
            per_query |= {f"page_hit@{n}": [hit_at(flags, n) for flags in right] for n in (1, 10)}
        times = self._times(options)
        missed = [each for each, ids in rankings.items() if not self._dataset.relevant[each].keys() & set(ids[:10])]
        report = ModeReport(
            means={name: round(mean(values), 4) for name, values in per_query.items()},
            intervals={
                name: (round(low, 4), round(high, 4))
                for name, (low, high) in ((name, interval(values)) for name, values in per_query.items())
            },
            p50_milliseconds=round(percentile(times, 0.5), 1),
            p95_milliseconds=round(percentile(times, 0.95), 1),
        )
        return report, missed

    def _ranking(self, results: Sequence[RetrievalResult]) -> list[str]:
        """Documents, or pages, by their best passage."""
        found: dict[str, None] = {}
        for result in results:
            name = self._ids.get(result.document_id)
            if name is None:
                continue  # an earlier run with a larger corpus left it
            found |= dict.fromkeys(judged_units(name, result, has_pages=self._dataset.has_pages))
        return list(found)

    def _times(self, options: RetrievalOptions) -> list[float]:
        """Milliseconds of searches as a user makes them, after a first one that nobody waits for twice."""
        queries = list(self._dataset.queries.values())[:TIMED_QUERIES]
        wanted = replace(USER_OPTIONS, mode=options.mode, rerank=options.rerank)
        times = []
        for query in [*queries[:1], *queries]:
            began = time.perf_counter()
            self._retriever.retrieve(self._dataset.name, query, options=wanted)
            times.append((time.perf_counter() - began) * 1000.0)
        return times[1:]


class _Answers:
    """Whether a passage holds the whole answer, by position.

    The corpus text and the parsed text may differ in white space and in a heading in front; positions are therefore
    counted in visible characters.
    """

    def __init__(self, dataset: Dataset, files: Mapping[str, Path]) -> None:
        self._spans: dict[str, tuple[str, int, int]] = {}
        self._parsed: dict[str, str] = {}
        wanted = {span.document for span in dataset.spans.values()}
        raw = texts(dataset, list(wanted)) if wanted else {}
        offsets: dict[str, int] = {}
        for name in wanted & raw.keys() & files.keys():
            path = files[name]
            self._parsed[name] = parse_file(ParseRequest(path=path, file_name=path.name)).text
            offsets[name] = visible_text(self._parsed[name]).find(visible_text(raw[name]))
        for query_id, span in dataset.spans.items():
            offset = offsets.get(span.document, -1)
            if offset >= 0:
                start = offset + _visible(raw[span.document], span.start)
                end = offset + _visible(raw[span.document], span.end)
                self._spans[query_id] = (span.document, start, end)

    def covers(self, query_id: str, ids: Mapping[str, str], result: RetrievalResult) -> bool:
        """Whether the passage is of the right document and holds the answer from its first to its last character."""
        name, start, end = self._spans.get(query_id, ("", 0, 0))
        if ids.get(result.document_id) != name or not name:
            return False
        text = self._parsed[name]
        return _visible(text, result.start) <= start and end <= _visible(text, result.end)


def _visible(text: str, end: int) -> int:
    """Visible characters before a position."""
    return len(visible_text(text[:end]))

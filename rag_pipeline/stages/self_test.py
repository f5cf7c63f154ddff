"""Whether BM25 alone finds exact words, Chinese and English: the analysis here and the server's tokenizer may disagree.

Nobody would notice otherwise: the vectors still find something. Two rows in a collection of their own, which is dropped
again; the knowledge is not touched.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_pipeline.core.ports import CollectionGeneration, SearchScope, VectorRow
from rag_pipeline.stages.services import Services

DIMENSIONS = 8
"""Vectors are written and not searched."""
VISIBLE_SECONDS = 5.0
"""Milvus shows a row to queries of bounded staleness after this at the latest."""
_KB = "self-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A passage, and a word in it that the other passages do not have."""

    language: str
    text: str
    term: str


PROBES = (
    Probe(language="Chinese", text="该水泵的叶轮每四千小时保养一次。", term="保养"),
    Probe(language="English", text="The impeller of pump E-4711 is replaced every spring.", term="impeller"),
)


def missed_terms(services: Services, *, probes: Sequence[Probe] = PROBES) -> tuple[Probe, ...]:
    """Probes whose passage BM25 does not find by its word, or does not find alone.

    Raises:
        VectorStoreUnavailableError: Milvus is down.
        ConfigurationError: it does not have the analyzer.
    """
    serving = services.serving()
    generation = CollectionGeneration(
        collection=f"{serving.settings.milvus_collection_prefix}_self_test_{uuid.uuid4().hex[:8]}",
        dimensions=DIMENSIONS,
        analyzer=serving.settings.analyzer,
    )
    vectors = serving.vectors
    vectors.ensure(generation)
    try:
        vectors.upsert(generation, [_row(place, probe) for place, probe in enumerate(probes)])
        vectors.flush(generation)
        deadline = time.monotonic() + VISIBLE_SECONDS
        while True:
            missed = tuple(
                probe for place, probe in enumerate(probes) if _found(services, generation, probe.term) != [place]
            )
            if not missed or time.monotonic() > deadline:
                return missed
            time.sleep(0.2)
    finally:
        vectors.drop(generation)


def told(missed: Sequence[Probe], analyzer: str) -> str:
    """What a person should know about it."""
    if not missed:
        return "BM25 finds exact words, Chinese and English."
    words = ", ".join(f"{probe.term} ({probe.language})" for probe in missed)
    return (
        f"BM25 with the analyzer {analyzer} does not find {words} in a passage that has it: questions in that language "
        "are answered by vectors alone; RAG_NEXT_ANALYZER and `rag-pipeline reindex --next` change the analyzer"
    )


def _row(place: int, probe: Probe) -> VectorRow:
    dense = np.zeros(DIMENSIONS, dtype=np.float32)
    dense[place % DIMENSIONS] = 1.0
    return VectorRow(
        chunk_id=f"{_KB}_{place}",
        kb_id=_KB,
        document_id=_KB,
        version=1,
        chunk_index=place,
        content=probe.text,
        dense=dense,
    )


def _found(services: Services, generation: CollectionGeneration, term: str) -> list[int]:
    hits = services.vectors.search_text(generation, term, scope=SearchScope(kb_id=_KB), limit=len(PROBES) + 1)
    return [int(hit.chunk_id.rpartition("_")[2]) for hit in hits]

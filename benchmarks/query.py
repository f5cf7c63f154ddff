"""Latency of queries on many chunks, and what we add to the bare Milvus calls.

`python -m benchmarks.query --chunks 100000 --documents 10 10000` prints one JSON object: p50 and p95 in milliseconds of
the two Milvus searches alone (in parallel, as a query sends them), of `retrieve` with everything around them, and of
the difference, for each number of READY documents that the same rows of Milvus are shared out to. The CPU time that
this process spends on a whole query beyond a bare one says the same on a machine that is busy otherwise.

Vectors and texts are random, and queries are embedded beforehand, so neither the embedder nor relevance is measured.
Bare and whole calls alternate, so that both see the same state of the machine.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import chunks, document_versions, documents, migrate
from rag_pipeline.core.chunk import chunk_id, parent_id
from rag_pipeline.core.ports import CollectionGeneration, Embedder, EmbedderIdentity, SearchScope, VectorRow, Vectors
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.retrieval import SearchEngine
from rag_pipeline.query.retriever import Retriever
from rag_pipeline.settings import Settings

KB = "bench"
DIMENSIONS = 384
VOCABULARY = 50_000
WORDS = 60
"""Per chunk."""
QUERY_WORDS = 3
ROWS = 2_000
"""Per insert; the collection is flushed after every tenth."""
PATIENCE_SECONDS = 600.0
"""Milvus Lite takes minutes for what it has not indexed yet."""


class PreparedEmbedder(Embedder):
    """Gives the next of a list of vectors, whatever is asked: embedding is not what is measured."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.place = 0

    @property
    def identity(self) -> EmbedderIdentity:
        """That of the collection."""
        return EmbedderIdentity(provider="bench", model="prepared", dimensions=DIMENSIONS)

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """The present vector for each."""
        return np.repeat(self.vectors[self.place : self.place + 1], len(texts), axis=0)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The present vector for each."""
        return self.embed_passages(texts)


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--documents", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--queries", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rag-bench-") as folder, EmbeddedServers() as servers:
        Path(folder).chmod(0o755)
        settings = servers.start(Settings.load(data_dir=Path(folder)))
        migrate(settings.require_postgres())
        result = measure(settings, arguments.chunks, arguments.documents, arguments.queries)
    print(json.dumps(result, indent=2))


def measure(settings: Settings, chunk_count: int, document_counts: Sequence[int], queries: int) -> dict[str, object]:
    """Fill the index once; for each number of documents write the facts anew and ask."""
    rng = np.random.default_rng(7)
    uri, token = settings.require_milvus()
    patience = {"query_seconds": PATIENCE_SECONDS, "write_seconds": PATIENCE_SECONDS}
    vectors = unit_rows(rng, queries)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, VOCABULARY, QUERY_WORDS)) for _ in range(queries)]
    found: dict[str, object] = {"chunks": chunk_count, "queries": queries}
    with Facts.from_settings(settings) as facts, closing(MilvusIndex(uri=uri, token=token, **patience)) as index:
        embedder = PreparedEmbedder(vectors)
        generation = facts.ensure_generation(prefix="bench", embedder=embedder.identity, analyzer=settings.analyzer)
        kb_id = facts.knowledge_bases.create(KB).id
        began = time.perf_counter()
        fill_index(index, generation, kb_id, chunk_count, rng)
        found["fill seconds"] = round(time.perf_counter() - began)
        retriever = Retriever(facts=facts, engine=SearchEngine(index=index, embedder=embedder))
        for document_count in document_counts:
            fill_facts(facts, kb_id, chunk_count, document_count)
            found[f"{document_count} documents"] = ask(retriever, generation, embedder, texts)
            print(json.dumps(found), flush=True)
    index.close()
    return found


def ask(
    retriever: Retriever, generation: CollectionGeneration, embedder: PreparedEmbedder, texts: Sequence[str]
) -> dict[str, object]:
    """Milliseconds of bare and whole queries, alternating; the first few warm everything up."""
    kb_id = retriever.facts.knowledge_bases.active(KB).id
    bare: list[float] = []
    whole: list[float] = []
    added: list[float] = []
    cpu: list[float] = []
    with ThreadPoolExecutor(max_workers=2) as threads:
        for place, text in enumerate(texts):
            embedder.place = place
            bare_cpu = -time.process_time()
            before = bare_milliseconds(retriever, generation, embedder, text, kb_id, threads)
            bare_cpu += time.process_time()
            began, cpu_began = time.perf_counter(), time.process_time()
            run = retriever.retrieve(KB, text, options=RetrievalOptions())
            spent, whole_cpu = (time.perf_counter() - began) * 1000.0, time.process_time() - cpu_began
            assert len(run.results) == RetrievalOptions().top_k, run.trace
            assert not run.trace.degradations
            after = bare_milliseconds(retriever, generation, embedder, text, kb_id, threads)
            if place >= len(texts) // 6:
                bare += [before, after]
                whole.append(spent)
                cpu.append((whole_cpu - bare_cpu) * 1000.0)
                recall = max(channel.milliseconds for channel in run.trace.channels)
                added.append(spent - recall)
    return {
        "bare": percentiles(bare),
        "whole": percentiles(whole),
        "outside the Milvus calls": percentiles(added),
        "CPU of whole minus bare": percentiles(cpu),
        "whole minus bare, p50": round(statistics.median(whole) - statistics.median(bare), 1),
    }


def bare_milliseconds(
    retriever: Retriever,
    generation: CollectionGeneration,
    embedder: PreparedEmbedder,
    text: str,
    kb_id: str,
    threads: ThreadPoolExecutor,
) -> float:
    """The two searches of one query, side by side."""
    index, scope, limit = retriever.engine.index, SearchScope(kb_id=kb_id), RetrievalOptions().width
    began = time.perf_counter()
    futures = [
        threads.submit(index.search_dense, generation, embedder.vectors[embedder.place], scope=scope, limit=limit),
        threads.submit(index.search_text, generation, text, scope=scope, limit=limit),
    ]
    for future in futures:
        future.result()
    return (time.perf_counter() - began) * 1000.0


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50 and p95, milliseconds."""
    return {"p50": round(float(np.percentile(values, 50)), 1), "p95": round(float(np.percentile(values, 95)), 1)}


def unit_rows(rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    """Random directions, shape (count, DIMENSIONS)."""
    rows = rng.standard_normal((count, DIMENSIONS), dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def fill_index(
    index: MilvusIndex, generation: CollectionGeneration, kb_id: str, chunk_count: int, rng: np.random.Generator
) -> None:
    """Write all rows, each as if it were a document of its own."""
    index.ensure(generation)
    for number, first in enumerate(range(0, chunk_count, ROWS)):
        count = min(ROWS, chunk_count - first)
        vectors, words = unit_rows(rng, count), rng.integers(0, VOCABULARY, (count, WORDS))
        rows = [
            VectorRow(
                chunk_id=chunk_id(f"{first + place:032x}", 1, 0),
                kb_id=kb_id,
                document_id=f"{first + place:032x}",
                version=1,
                chunk_index=0,
                content=" ".join(f"w{word}" for word in words[place]),
                dense=vectors[place],
            )
            for place in range(count)
        ]
        index.upsert(generation, rows)
        if number % 10 == 9:
            index.flush(generation)
    index.flush(generation)


def fill_facts(facts: Facts, kb_id: str, chunk_count: int, document_count: int) -> None:
    """Share the chunks out to READY documents."""
    with facts.engine.begin() as connection:
        connection.execute(sa.delete(documents).where(documents.c.kb_id == kb_id))
        connection.execute(sa.insert(documents), [document_row(number, kb_id) for number in range(document_count)])
        connection.execute(sa.insert(document_versions), [version_row(number) for number in range(document_count)])
        for first in range(0, chunk_count, ROWS):
            numbers = range(first, min(first + ROWS, chunk_count))
            connection.execute(sa.insert(chunks), [chunk_row(number, document_count) for number in numbers])
    with facts.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE"))


def document_row(number: int, kb_id: str) -> dict[str, object]:
    """A READY document."""
    return {
        "id": f"{number:032x}",
        "kb_id": kb_id,
        "source_path": f"{number}.txt",
        "file_name": f"{number}.txt",
        "partition_key": f"{KB}.{number}",
        "status": "READY",
        "version": 1,
        "live_version": 1,
    }


def version_row(number: int) -> dict[str, object]:
    """Its version."""
    return {
        "document_id": f"{number:032x}",
        "version": 1,
        "sha256": f"{number:064x}",
        "size_bytes": 1,
        "object_key": f"{number}.txt",
        "metadata": {"number": number},
    }


def chunk_row(number: int, document_count: int) -> dict[str, object]:
    """The facts of a chunk."""
    document_id, position = f"{number % document_count:032x}", number // document_count
    return {
        "id": chunk_id(f"{number:032x}", 1, 0),
        "document_id": document_id,
        "version": 1,
        "chunk_index": position,
        "parent_id": parent_id(document_id, 1, position // 5),
        "content": f"Passage number {number}. " * 20,
        "heading_path": ["Chapter", "Section"],
        "page": 1,
        "page_end": 1,
        "start_offset": position * 400,
        "end_offset": position * 400 + 400,
        "tokens": WORDS,
        "content_hash": "",
        "locator": {"regions": [{"page": 1, "bbox": [72, 72, 500, 100]}], "block_types": ["paragraph"]},
    }


if __name__ == "__main__":
    main()

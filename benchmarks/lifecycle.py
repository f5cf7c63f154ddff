"""What happens to a thousand documents later: retry after an outage, other chunks, a re-index under load, deletion.

`python -m benchmarks.lifecycle retry|chunk-size|reindex|delete` prints one JSON object, on servers and a Dagster of its
own.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from benchmarks import system
from benchmarks.ingest import write_documents
from benchmarks.process_tree import ProcessTree, wait_idle
from benchmarks.system import DIMENSIONS, KB
from rag_pipeline.adapters.postgres.schema import metadata
from rag_pipeline.core.documents import WORKING, Document, Stage, Status
from rag_pipeline.local.dagster import DagsterProcesses
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.contents import contents
from rag_pipeline_tests.embedding_server import POISON, Answer, EmbeddingServer

PATIENCE_SECONDS = 3600.0


@dataclass(kw_only=True)
class Bench:
    """A running system."""

    settings: Settings
    client: RagClient
    dagster: DagsterProcesses
    folder: Path

    def ingest(self, count: int, *, name: str = "documents") -> list[Document]:
        """Documents of 150 words, all READY."""
        source = self.folder / name
        write_documents(source, count, 150)
        return self.settle([each.document for each in self.client.submit_many(KB, [source]) if each.document])

    def settle(self, documents: Sequence[Document]) -> list[Document]:
        """Wait until they are done."""
        return self.client.wait(documents, timeout_seconds=PATIENCE_SECONDS)

    def run_count(self) -> int:
        """Runs that Dagster knows."""
        return int(self.graphql("{ runsOrError { ... on Runs { count } } }")["runsOrError"]["count"])

    def graphql(self, query: str, **variables: object) -> dict[str, Any]:
        """Data of an answer of the webserver."""
        answer = httpx.post(
            f"{self.dagster.webserver_url}/graphql", json={"query": query, "variables": variables}, timeout=120
        ).json()
        assert "errors" not in answer, answer["errors"]
        return dict(answer["data"])


def main() -> None:
    """Run one benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(BENCHMARKS))
    parser.add_argument("--documents", type=int, default=1000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="rag-bench-") as name,
        EmbeddingServer(dimensions=DIMENSIONS, base64_vectors=True) as embedding,
        ProcessTree() as tree,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        result = BENCHMARKS[arguments.what](folder, arguments.documents, embedding, tree)
    print(json.dumps({"benchmark": arguments.what, "documents": arguments.documents, **result}, indent=2))


def retry(folder: Path, documents: int, embedding: EmbeddingServer, _: ProcessTree) -> dict[str, object]:
    """Half of the documents, every second one, fail in an outage; the same number in one row fails as well."""
    half = documents // 2
    with running(folder, embedding) as bench:
        found = {}
        for name, count, step in (("scattered", documents, 2), ("contiguous", half, 1)):
            source = folder / name
            source.mkdir()
            for number in range(count):
                text = f"{name} {number} speaks of pump {number} and its filter. " * 20
                (source / f"{name}-{number:05d}.txt").write_text((f"{POISON} " if number % step == 0 else "") + text)
            submitted = bench.client.submit_many(KB, [source])
            done = bench.settle([each.document for each in submitted if each.document])
            failed = [document for document in done if document.status is Status.FAILED]
            assert len(failed) == half, len(failed)
            found[name] = failed
        embedding.refuses_poison = False
        result: dict[str, object] = {}
        for name, failed in found.items():
            runs, began = bench.run_count(), time.monotonic()
            for document in failed:
                bench.client.retry(document.id)
            done = bench.settle(failed)
            assert {document.status for document in done} == {Status.READY}
            result[name] = {"seconds": round(time.monotonic() - began, 1), "runs": bench.run_count() - runs}
        return {
            "retried": half,
            **result,
            "ratio": round(_seconds(result, "scattered") / _seconds(result, "contiguous"), 2),
        }


def chunk_size(folder: Path, documents: int, embedding: EmbeddingServer, tree: ProcessTree) -> dict[str, object]:
    """Other chunks: what the plan says and what is paid; then the same files again, and again from Dagster's page."""
    with running(folder, embedding, chunk_tokens=320) as bench:
        done = bench.ingest(documents)
        before = {text for each in embedding.received for text in each.texts}
    embedding.received.clear()
    with running(folder, embedding, chunk_tokens=96, chunk_overlap_tokens=0) as again:
        plan = again.client.plan(KB)
        assert again.client.reindex_stale(KB) == len(plan.documents)
        began = time.monotonic()
        again.settle(done)
        seconds = time.monotonic() - began
        paid = [text for each in embedding.received for text in each.texts]
        assert len(paid) == len(set(paid))
        runs = again.run_count()
        again.client.submit_many(KB, [folder / "documents"])
        time.sleep(10)
        assert again.run_count() == runs, "the same files started a run"
        idle = wait_idle(tree, 20.0)
        keys = [document.partition_key for document in done]
        cpu, began = tree.cpu_seconds(), time.monotonic()
        _backfill(again, keys)
        elapsed = time.monotonic() - began
        used = tree.cpu_seconds() - cpu - idle * elapsed
        return {
            "plan": len(plan.documents),
            "tokens_to_embed": plan.tokens_to_embed,
            "reindex_seconds": round(seconds, 1),
            "inputs_before": len(before),
            "inputs_paid": len(paid),
            "inputs_paid_twice": len(before & set(paid)),
            "materialized_again_seconds": round(elapsed, 1),
            "materialized_again_runs": again.run_count() - runs,
            "materialized_again_cpu_ms_per_document": round(used / documents * 1000, 1),
        }


def reindex(folder: Path, documents: int, embedding: EmbeddingServer, _: ProcessTree) -> dict[str, object]:
    """Every document is re-indexed while ten queries a second run; each must find its document, in one version."""
    with running(folder, embedding) as bench:
        done = bench.ingest(documents)
        stop = threading.Event()
        milliseconds: list[float] = []
        wrong: list[tuple[str, list[int]]] = []

        def ask() -> None:
            number = 0
            while not stop.wait(0.1):
                title = done[number % len(done)]
                began = time.monotonic()
                options = RetrievalOptions(top_k=5, document_ids=(title.id,))
                results = bench.client.retrieve(KB, title.file_name, options=options).results
                milliseconds.append((time.monotonic() - began) * 1000)
                if not results or len({each.version for each in results}) != 1:
                    wrong.append((title.file_name, [each.version for each in results]))
                number += 7

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        for document in done:
            bench.client.reindex(document.id, force=True)
        after = bench.settle(done)
        seconds = time.monotonic() - began
        stop.set()
        for thread in threads:
            thread.join()
        assert {(document.status, document.live_version) for document in after} == {(Status.READY, 2)}
        return {
            "seconds": round(seconds, 1),
            "queries": len(milliseconds),
            "queries_per_second": round(len(milliseconds) / seconds, 1),
            "query_milliseconds_median": round(statistics.median(milliseconds), 1),
            "wrong": len(wrong),
            "examples": wrong[:3],
        }


def delete(folder: Path, documents: int, embedding: EmbeddingServer, _: ProcessTree) -> dict[str, object]:
    """The knowledge base is deleted while a fifth of its documents is in flight; what is left then, by store."""
    in_flight = documents // 5
    with running(folder, embedding) as bench:
        bench.ingest(documents - in_flight)
        asked = embedding.requests
        embedding.script(*[Answer(wait_seconds=5)] * in_flight)
        late = folder / "in flight"
        write_documents(late / "late", in_flight, 140)  # other texts: known ones are not sent
        bench.client.submit_many(KB, [late])
        while embedding.requests == asked:
            time.sleep(0.1)
        working = sum(count for status, count in bench.client.count_by_status(KB).items() if status in WORKING)
        began = time.monotonic()
        deletion = bench.client.delete_knowledge_base(KB)
        hidden = time.monotonic() - began
        while deletion.finished_at is None:
            time.sleep(1)
            deletion = bench.client.deletion(deletion.target_id)
        seconds = time.monotonic() - began
        nodes = bench.graphql("{ assetNodes { partitionKeys } }")["assetNodes"]
        with Services.from_settings(bench.settings) as services:
            left = contents(services)
            rows = _rows(services)
        return {
            "in_flight": working,
            "hidden_milliseconds": round(hidden * 1000, 1),
            "seconds": round(seconds, 1),
            "removed": deletion.counts,
            "left": {
                "rows": rows,
                "objects": len(left.objects),
                "vectors": len(left.vectors),
                "snapshots": len(left.snapshots),
                "partitions": len({key for node in nodes for key in node["partitionKeys"]}),
            },
        }


def _rows(services: Services) -> int:
    """Rows about documents, in any table but that of the deletion records."""
    tables = [table for table in metadata.tables.values() if "document_id" in table.c or table.name == "documents"]
    with services.facts.engine.connect() as connection:
        counts = [connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables]
    return sum(counts)


BENCHMARKS = {"retry": retry, "chunk-size": chunk_size, "reindex": reindex, "delete": delete}


@contextmanager
def running(folder: Path, embedding: EmbeddingServer, **changes: object) -> Iterator[Bench]:
    """A system on the folder."""
    with system.running(folder, embedding.url, **changes) as found:
        yield Bench(settings=found.settings, client=found.client, dagster=found.dagster, folder=folder)


def _seconds(result: dict[str, object], name: str) -> float:
    found = result[name]
    assert isinstance(found, dict)
    return float(found["seconds"])


def _backfill(bench: Bench, keys: Sequence[str]) -> None:
    """What "Materialize" over all partitions on Dagster's page does; returns when its runs have ended."""
    launched = bench.graphql(
        "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename "
        "... on LaunchBackfillSuccess { backfillId } } }",
        p={"assetSelection": [{"path": [stage.value]} for stage in Stage], "partitionNames": list(keys)},
    )["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    query = "query($i: String!) { partitionBackfillOrError(backfillId: $i) { ... on PartitionBackfill { status } } }"
    while True:
        status = bench.graphql(query, i=launched["backfillId"])["partitionBackfillOrError"]["status"]
        if status.startswith("COMPLETED"):
            assert status == "COMPLETED_SUCCESS", status
            return
        time.sleep(1)


if __name__ == "__main__":
    main()

"""Ingest many small documents through the sensor and Dagster, and say what that costs.

`python -m benchmarks.ingest --documents 1000` prints one JSON object: documents/min, CPU per document of the whole
process tree with the servers, peak memory, and the counts in PostgreSQL, Milvus and Dagster, which must agree.

The embedding service is a loopback process with hashed vectors, so its cost is near nothing; it is left out of the
sums. The fixed cost of a run is measured by single-document runs first, and the idle cost of the daemon by waiting.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2

from benchmarks.process_tree import ProcessTree, wait_idle
from benchmarks.system import DIMENSIONS, KB, running
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings

IDLE_SECONDS = 20.0
WORDS = """
pump valve motor filter sensor pressure service interval hours oil leak alarm panel tank pipe flange bearing voltage
current fuse relay contact switch manual safety report inspection check replace clean tighten measure record
temperature limit maximum minimum operator shift technician supplier part number
""".split()


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--single-runs", type=int, default=10, help="single uploads, for latency and the fixed cost")
    parser.add_argument("--words", type=int, default=150, help="words per document (150: about 1 kB, one chunk)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rag-bench-") as folder:
        Path(folder).chmod(0o755)
        result = measure(Path(folder), arguments.documents, arguments.single_runs, arguments.words)
    print(json.dumps(result, indent=2))


def measure(folder: Path, documents: int, single_runs: int, words: int) -> dict[str, object]:
    """The whole measurement."""
    source = folder / "documents"
    write_documents(source, documents, words)
    with (
        _embedding_service() as (url, pid),
        ProcessTree(leave_out=frozenset({pid})) as tree,
        running(folder, url) as system,
    ):
        client = system.client
        _single(client, words, "warm-up")
        idle = wait_idle(tree, IDLE_SECONDS)
        latencies, single_cpu = [], []
        for number in range(single_runs):
            before, started = tree.cpu_seconds(), time.monotonic()
            _single(client, words, f"single-{number}")
            latencies.append(time.monotonic() - started)
            single_cpu.append(tree.cpu_seconds() - before - idle * latencies[-1])
        before, started = tree.cpu_seconds(), time.monotonic()
        submitted = client.submit_many(KB, [source])
        submit_seconds = time.monotonic() - started
        done = client.wait(submitted, timeout_seconds=3600)
        seconds = time.monotonic() - started
        cpu = tree.cpu_seconds() - before
        ready = sum(document.status is Status.READY for document in done)
        counts = _counts(system.settings, expected_documents=documents + single_runs + 1)
        runs = counts.pop("runs") - single_runs - 1
        fixed = statistics.median(single_cpu) if single_cpu else 0.0
        return {
            "documents": documents,
            "ready": ready,
            "words_per_document": words,
            "chunks": sum(document.chunk_count or 0 for document in done),
            "runs": runs,
            "seconds": round(seconds, 1),
            "submit_seconds": round(submit_seconds, 1),
            "documents_per_minute": round(documents / seconds * 60),
            "cpu_ms_per_document": round(cpu / documents * 1000, 1),
            "cpu_ms_per_document_without_idle_and_run_cost": round(
                (cpu - idle * seconds - fixed * runs) / documents * 1000, 1
            ),
            "idle_cpu_seconds_per_second": round(idle, 3),
            "fixed_cpu_seconds_per_run": round(fixed, 2),
            "single_upload_to_ready_seconds": {
                "median": round(statistics.median(latencies), 1) if latencies else None,
                "all": [round(each, 1) for each in latencies],
            },
            "peak_memory_mb": round(tree.peak_memory_bytes / 1e6),
            "counts": counts,
            "cpu_seconds_by_process": {name: round(each, 1) for name, each in tree.cpu_by_name().items()},
        }


def write_documents(folder: Path, count: int, words: int) -> None:
    """Plain text documents, different from each other and the same on every machine."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"document-{number:05d}.txt").write_text(_text(f"document {number}", words))


def _text(title: str, words: int) -> str:
    chosen = random.Random(title)
    sentences = []
    left = words
    while left > 0:
        length = min(chosen.randint(6, 16), left)
        sentences.append(" ".join(chosen.choice(WORDS) for _ in range(length)).capitalize() + ".")
        left -= length
    paragraphs = [" ".join(sentences[start : start + 5]) for start in range(0, len(sentences), 5)]
    return f"{title}\n\n" + "\n\n".join(paragraphs) + "\n"


def _single(client: RagClient, words: int, name: str) -> None:
    document = client.submit(KB, _text(name, words).encode(), filename=f"{name}.txt")
    done = client.wait([document], timeout_seconds=300)[0]
    assert done.status is Status.READY, done.error


def _counts(settings: Settings, *, expected_documents: int) -> dict[str, int]:
    """Documents, chunk rows, vectors and events; raises if something was lost or doubled."""
    with Facts.from_settings(settings) as facts:
        live = facts.live_generation()
        assert live is not None
        kb = facts.knowledge_bases.active(KB)
        documents = facts.documents.count_by_status(kb.id)
    chunk_rows = _scalar(settings.require_postgres(), "SELECT count(*) FROM chunks")
    with closing(MilvusIndex.from_settings(settings)) as index:
        vectors = index.count(live[0])
    dagster_url = settings.require_dagster_postgres()
    events = {
        asset: (total, different)
        for asset, total, different in _rows(
            dagster_url,
            "SELECT asset_key, count(*), count(DISTINCT partition) FROM event_logs "
            "WHERE dagster_event_type = 'ASSET_MATERIALIZATION' GROUP BY asset_key",
        )
    }
    runs = _scalar(dagster_url, "SELECT count(*) FROM runs")
    assert documents == {Status.READY: expected_documents}, documents
    assert chunk_rows == vectors, (chunk_rows, vectors)
    for stage in Stage:
        assert events[json.dumps([stage.value])] == (expected_documents, expected_documents), (stage, events)
    return {
        "documents": expected_documents,
        "chunk_rows": chunk_rows,
        "vectors": vectors,
        "events": len(Stage) * expected_documents,
        "runs": runs,
    }


def _rows(url: str, statement: str) -> Sequence[tuple[object, ...]]:
    connection = psycopg2.connect(url.replace("+psycopg2", ""))
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    finally:
        connection.close()


def _scalar(url: str, statement: str) -> int:
    return int(str(_rows(url, statement)[0][0]))


@contextmanager
def _embedding_service() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "rag_pipeline_tests.embedding_server", "--dimensions", str(DIMENSIONS), "--base64"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()

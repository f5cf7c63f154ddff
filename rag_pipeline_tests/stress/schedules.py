"""Random schedules of work and faults. A seed decides all but the timing of processes; it is in every message."""

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.errors import (
    DocumentBusyError,
    IllegalTransitionError,
    ResourceNotFoundError,
    TemporaryError,
)
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline.stages.batch import BatchRequest
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline_tests.adapters.postgres.rows import silence
from rag_pipeline_tests.contents import NOTHING, assert_consistent, contents
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.stages.runner import KB, Runner
from rag_pipeline_tests.stress.child import Death, run

LEASE_SECONDS = 60.0
ROUNDS_TO_SETTLE = 12
"""Batches after which everything must have come to an end: "bounded" for a schedule without a clock."""
MOST_DOCUMENTS = 200
"""Beyond these the oldest are deleted."""
LONGEST_RUN_SECONDS = 180.0

WRONG_ANSWERS = (
    Answer(status=429, headers={"Retry-After": "0"}),
    Answer(status=500),
    Answer(status=503),
    Answer(drop_connection=True),
    Answer(wait_seconds=3.0),  # longer than RAG_EMBEDDING_TIMEOUT_SECONDS of the suite
    Answer(leave_out=1),
    Answer(reverse=True),
    Answer(zero=True),
    Answer(dimensions=8),
    Answer(body=b"<html>not JSON</html>"),
)


@dataclass(kw_only=True)
class Laboratory:
    """Servers that may be killed, a runner on them, and what it knows of the documents."""

    runner: Runner
    servers: dict[str, tuple[EmbeddedServers, Settings]]
    """By name: how to start each again."""
    documents: dict[str, Document] = field(default_factory=dict)
    """By source path: those that were submitted and not deleted."""
    texts: dict[str, str] = field(default_factory=dict)
    """By source path: what was submitted last."""

    def restart(self, name: str, *, kill: bool) -> None:
        """End a server, at once or in order, and start it again on the same port and folder."""
        self.end(name, kill=kill)
        self.begin(name)

    def end(self, name: str, *, kill: bool) -> None:
        """End a server."""
        servers, _ = self.servers[name]
        if kill:
            for process in servers.started.values():
                os.kill(process.identity.pid, signal.SIGKILL)
        servers.stop()

    def begin(self, name: str) -> None:
        """Start a server that was ended."""
        servers, settings = self.servers[name]
        servers.start(settings)


class Schedule:
    """One seed's worth of trouble."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self._laboratory = laboratory
        self._runner = laboratory.runner
        self._client = laboratory.runner.system.client
        self._chance = random.Random(seed)
        self._seed = seed
        self._deleted: dict[str, str] = {}
        self._after_start: Callable[[], None] | None = None
        """What happens to a server while the run is at work."""

    def execute(self) -> None:
        """Submit, let things break, recover, and look at every store."""
        self._submit()
        for number in range(self._chance.randint(1, 2)):
            with self._trouble():
                self._run_that_may_die(f"{self._seed}-{number}")
        self._settle()
        self._check()
        self._make_room()

    def _submit(self) -> None:
        """New documents, new bytes for old ones, and the same bytes from two threads at once."""
        fresh = [f"{self._seed}-{number}.txt" for number in range(self._chance.randint(3, 8))]
        changed = self._chance.sample(sorted(self._laboratory.texts), min(2, len(self._laboratory.texts)))
        for path in [*fresh, *changed]:
            paragraphs = self._chance.randint(1, 6)
            text = "\n\n".join(
                f"{word_of(path)} speaks of part {self._chance.randrange(10_000)} and its care. " * 12
                for _ in range(paragraphs)
            )
            found: list[Document] = []

            def submit(path: str = path, text: str = text, found: list[Document] = found) -> None:
                found.append(self._client.submit(KB, text.encode(), filename=path))

            threads = [threading.Thread(target=submit) for _ in range(self._chance.choice((1, 1, 2)))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({document.id for document in found}) == 1, "two documents of one path"
            assert len(found) == len(threads), f"seed {self._seed}: a submit failed"
            self._laboratory.documents[path] = found[0]
            self._laboratory.texts[path] = text

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        """Faults around a run; all of them are over afterwards."""
        embedding = self._runner.system.embedding
        embedding.script(*self._chance.choices(WRONG_ANSWERS, k=self._chance.randint(0, 3)))
        snapshots = self._runner.services.settings.snapshots
        blocked = snapshots.with_name("blocked")
        block = self._chance.random() < 0.05 and snapshots.exists()
        if block:  # as good as a full disk: nothing can be written below a file
            snapshots.rename(blocked)
            snapshots.touch()
        server = self._chance.choice(("milvus", "s3", "postgres")) if self._chance.random() < 0.12 else None
        kill = self._chance.random() < 0.5
        stays_down = server in ("milvus", "s3") and self._chance.random() < 0.5
        if server and stays_down:
            self._laboratory.end(server, kill=kill)
        if server and not stays_down:
            self._after_start = lambda: self._laboratory.restart(server, kill=kill)
        try:
            yield
        finally:
            self._after_start = None
            if server and stays_down:
                self._laboratory.begin(server)
            if block:
                snapshots.unlink()
                blocked.rename(snapshots)
            embedding.forget_script()

    def _run_that_may_die(self, batch_id: str) -> None:
        self._runner.claim(batch_id)
        request = self._runner.request_of(batch_id)
        process = self._start(request)
        if self._after_start:
            time.sleep(self._chance.random())
            self._after_start()
        for _ in range(self._chance.choice((0, 0, 1, 3))):
            time.sleep(self._chance.random() / 4)
            self._interfere()
        if self._chance.random() < 0.3:
            time.sleep(self._chance.random())
            process.kill()
        process.join(LONGEST_RUN_SECONDS)
        assert not process.is_alive(), f"seed {self._seed}: the run hangs"
        if process.exitcode != 0:
            facts = self._runner.services.facts
            silence(facts, batch_id, 2 * LEASE_SECONDS)
            facts.claims.take_back(batch_id, reason="killed by the schedule", lease_seconds=LEASE_SECONDS)

    def _start(self, request: BatchRequest) -> ForkServerProcess:
        death = self._chance.choice(
            (
                Death(),
                Death(after_stage=self._chance.choice(list(Stage))),
                Death(at_vector_write=1),
                Death(after_vector_write=1),
                Death(at_artefact=self._chance.randint(1, 15)),
            )
        )
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rag_pipeline_tests.stress.child"])
        process = context.Process(target=run, args=(self._runner.services.settings, request, death))
        process.start()
        return process

    def _interfere(self) -> None:
        """Cancel or delete something, whatever it is doing."""
        path = self._chance.choice(sorted(self._laboratory.documents))
        document = self._laboratory.documents[path]
        with contextlib.suppress(ResourceNotFoundError, IllegalTransitionError, DocumentBusyError, TemporaryError):
            if self._chance.random() < 0.5:
                self._client.cancel(document.id, reason=f"seed {self._seed}")
            else:
                self._client.delete(document.id)
                self._deleted[path] = document.id
                del self._laboratory.documents[path], self._laboratory.texts[path]

    def _settle(self) -> None:
        """Let recovery do what it does, without faults and without waiting for the clock."""
        for _ in range(ROUNDS_TO_SETTLE):
            self._runner.make_due()
            self._runner.services.facts.waiting.requeue_due(limit=1_000)
            self._runner.run_queued()
            self._runner.remove()
            counts = self._client.count_by_status(KB)
            waiting = self._runner.services.facts.deletions.list(only_unfinished=True, limit=1)
            if not waiting and set(counts) <= {Status.READY, Status.FAILED, Status.CANCELED}:
                break
        for path, document in self._laboratory.documents.items():
            now = self._client.document(document.id)
            if now.status is Status.FAILED:
                assert now.error is not None, f"seed {self._seed}: {path} failed without a reason"
            if now.status in (Status.FAILED, Status.CANCELED):
                self._client.retry(document.id)
        self._runner.run_queued()
        remove_superseded(self._runner.services, limit=1_000, kept_seconds=0)

    def _check(self) -> None:
        where = f"seed {self._seed}"
        documents = {document.id: document for document in self._client.documents(KB, page_size=1000)}
        for path, document in self._laboratory.documents.items():
            assert document.id in documents, f"{where}: {path} is lost"
            now = documents[document.id]
            assert now.status is Status.READY, f"{where}: {path} is {now.status}: {now.error}"
            assert now.live_version == now.version, f"{where}: {path} answers with an old version"
        assert len(documents) == len(self._laboratory.documents), f"{where}: documents that nobody submitted"
        for path, document_id in self._deleted.items():
            left = contents(self._runner.services).of(document_id)
            assert left == NOTHING, f"{where}: {path} was deleted and left {left}"
        assert_consistent(self._runner.services, where=where)
        some = self._chance.sample(sorted(self._laboratory.documents), min(3, len(self._laboratory.documents)))
        for path in some:
            self._check_search(path, documents[self._laboratory.documents[path].id])

    def _check_search(self, path: str, document: Document) -> None:
        options = RetrievalOptions(top_k=50, mode="bm25")
        hits = self._client.retrieve(KB, word_of(path), options=options).results
        mine = [hit for hit in hits if hit.document_id == document.id]
        assert len(mine) == min(document.chunk_count or 0, 50), f"seed {self._seed}: {path}: {len(mine)} hits"
        assert {hit.version for hit in mine} == {document.version}
        assert all(hit.text in self._laboratory.texts[path] for hit in mine), f"seed {self._seed}: stale text"

    def _make_room(self) -> None:
        surplus = len(self._laboratory.documents) - MOST_DOCUMENTS
        for path in sorted(self._laboratory.documents, key=lambda each: self._laboratory.documents[each].created_at):
            if surplus <= 0:
                return
            self._client.delete(self._laboratory.documents[path].id)
            del self._laboratory.documents[path], self._laboratory.texts[path]
            surplus -= 1


def word_of(path: str) -> str:
    """A word that only this document has."""
    name = path.removesuffix(".txt")
    return "unit" + "".join(chr(ord("a") + int(each)) if each.isdigit() else "x" for each in name) + "q"

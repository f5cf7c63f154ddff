"""Batches as a Dagster run would do them, without Dagster."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import documents
from rag_pipeline.core.documents import Document, Stage
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.core.work import OutcomeKind, StageOutcome, WorkItem
from rag_pipeline.settings import Settings
from rag_pipeline.stages.batch import BatchRequest, BatchResult, run_batch
from rag_pipeline.stages.cancel import settle_canceled
from rag_pipeline.stages.delete import Removed, remove_deleted
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.adapters.postgres.rows import one_batch
from rag_pipeline_tests.defs.system import System, running_system

KB = "manuals"
ALL = tuple(Stage)


@dataclass(kw_only=True)
class Runner:
    """Runs batches as a Dagster run would, and keeps what was reported."""

    system: System
    services: Services
    reported: list[StageOutcome] = field(default_factory=list)
    _runs: int = 0

    def submit(self, name: str, text: str) -> Document:
        return self.system.client.submit(KB, text.encode(), filename=name)

    def run(self, *documents: Document, stages: tuple[Stage, ...] = ALL, force: bool = False) -> BatchResult:
        self._runs += 1
        self.reported.clear()
        request = BatchRequest(
            run_id=f"run-{self._runs}",
            partition_keys=tuple(document.partition_key for document in documents),
            stages=stages,
            force=force,
        )
        return run_batch(self.services, request, lambda _, outcomes: self.reported.extend(outcomes))

    def run_queued(self, report: Callable[[Stage, Sequence[StageOutcome]], None] = lambda *_: None) -> BatchResult:
        """What the sensor and its run do: everything that waits, in one batch."""
        batch_id = f"batch-{uuid.uuid4().hex[:8]}"
        self.claim(batch_id)
        return self.run_request(self.request_of(batch_id), report)

    def claim(self, batch_id: str) -> None:
        """Put everything that waits into a batch."""
        self.services.facts.waiting.claim(limit=1_000, plan=one_batch, new_batch_id=lambda: batch_id)

    def run_request(
        self, request: BatchRequest, report: Callable[[Stage, Sequence[StageOutcome]], None] = lambda *_: None
    ) -> BatchResult:
        """Run a batch as Dagster's process would."""
        return run_batch(self.services, request, report)

    def make_due(self) -> None:
        """Let the time pass after which a deletion is tried again."""
        with self.services.facts.engine.begin() as connection:
            connection.execute(sa.update(documents).values(available_at=sa.func.now()))

    def publish_snapshot(self, item: WorkItem) -> None:
        """What a run does just before READY."""
        ref = SnapshotRef(kb_id=item.kb_id, document_id=item.document_id, version=item.version)
        self.services.snapshots.publish(ref)

    def snapshot(self, document: Document) -> Mapping[str, object] | None:
        """The snapshot of the live version."""
        live = self.now(document).live_version or 0
        ref = SnapshotRef(kb_id=document.kb_id, document_id=document.id, version=live)
        return self.services.snapshots.read(ref)

    def request_of(self, batch_id: str) -> BatchRequest:
        """The request of a batch that has been claimed."""
        with self.services.facts.engine.connect() as connection:
            keys = connection.execute(
                sa.select(documents.c.partition_key).where(documents.c.batch_id == batch_id)
            ).scalars()
            return BatchRequest(run_id=f"run-of-{batch_id}", partition_keys=tuple(keys), stages=ALL, batch_id=batch_id)

    def remove(self) -> Removed:
        """What the removal sensor does, with no Dagster to lose partitions in."""
        settle_canceled(self.services)
        return remove_deleted(self.services, lambda keys: dict.fromkeys(keys, True), seconds=60)

    def now(self, document: Document) -> Document:
        return self.system.client.document(document.id)

    def kinds(self, stage: Stage) -> list[OutcomeKind]:
        return [outcome.kind for outcome in self.reported if outcome.stage is stage]


@contextmanager
def running(settings: Settings, **changes: object) -> Iterator[Runner]:
    with running_system(settings, **changes) as system, Services.from_settings(system.settings) as services:
        system.client.create_knowledge_base(KB)
        yield Runner(system=system, services=services)


@contextmanager
def running_system_again(runner: Runner, **changes: object) -> Iterator[Runner]:
    """The same stores under other settings."""
    settings = runner.system.settings.model_copy(update=changes)
    with Services.from_settings(settings) as services:
        yield Runner(system=runner.system, services=services, _runs=100)

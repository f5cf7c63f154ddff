"""Case dag-03: after a change of the chunker every document is reported, done again once, and answers meanwhile."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import documents, stage_artefacts, stage_attempts
from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.parsing.registry import resolve
from rag_pipeline.stages import services as services_module
from rag_pipeline.stages.reindex import plan_reindex, reindex_stale
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.stages.runner import Runner, running_system_again

NAMES = ("d1.txt", "d2.txt", "d3.txt")
OTHER_SIZE = {"chunk_tokens": 96, "chunk_max_tokens": 128, "chunk_overlap_tokens": 0}


def text_of(name: str) -> str:
    return "".join(f"Document {name[1]} sentence {number:03d} about quays. " for number in range(200))


@contextmanager
def other_size(book: Book, _: pytest.MonkeyPatch) -> Iterator[Runner]:
    with running_system_again(book.runner, **OTHER_SIZE) as changed:
        yield changed


@contextmanager
def other_code(book: Book, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    changed = {**services_module.CODE_VERSIONS, Stage.CHUNKS: "another"}
    monkeypatch.setattr(services_module, "CODE_VERSIONS", changed)
    with running_system_again(book.runner) as runner:
        yield runner


Change = Callable[[Book, pytest.MonkeyPatch], AbstractContextManager[Runner]]
CHANGES: dict[str, Change] = {"another chunk size": other_size, "another version of the chunker": other_code}


def ingested(book: Book) -> list[Document]:
    uploads = [book.upload(name, text_of(name)) for name in NAMES]
    book.runner.run_queued()
    return [book.client.document(document.id) for document in uploads]


def attempts(runner: Runner, found: Sequence[Document]) -> dict[str, int]:
    """Runs over each document."""
    with runner.services.facts.engine.connect() as connection:
        rows = connection.execute(
            sa.select(stage_attempts.c.document_id, sa.func.count(sa.distinct(stage_attempts.c.run_id)))
            .where(stage_attempts.c.document_id.in_([document.id for document in found]))
            .group_by(stage_attempts.c.document_id)
        )
        return dict(rows.tuples().all())


def recorded(runner: Runner, document: Document) -> dict[Stage, str]:
    """Fingerprints of the live version: of its input, code version and configuration."""
    with runner.services.facts.engine.connect() as connection:
        rows = connection.execute(
            sa.select(stage_artefacts.c.stage, stage_artefacts.c.fingerprint)
            .join(documents, documents.c.id == stage_artefacts.c.document_id)
            .where(stage_artefacts.c.document_id == document.id, stage_artefacts.c.version == documents.c.live_version)
        )
        return {Stage(stage): fingerprint for stage, fingerprint in rows}


def wanted(runner: Runner, document: Document) -> dict[Stage, str]:
    item = runner.services.facts.reconciliation.live_item(document.id)
    assert item is not None
    return runner.services.fingerprints(item)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_chunker_is_reported_and_done_once_for_each_document(
    book: Book, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    found = ingested(book)
    kb_id = found[0].kb_id
    assert plan_reindex(book.runner.services, kb_id=kb_id).documents == ()
    assert {document.id: recorded(book.runner, document) for document in found} == {
        document.id: wanted(book.runner, document) for document in found
    }
    snapshot = book.runner.snapshot(found[0])
    assert snapshot is not None
    assert snapshot["parser"] == {"name": "text", "version": resolve("d1.txt").version}
    runs = attempts(book.runner, found)
    old = {document.id: [hit.chunk_id for hit in book.hits("sentence quays")] for document in found}
    with change(book, monkeypatch) as changed:
        plan = plan_reindex(changed.services, kb_id=kb_id)
        assert sorted(each.source_path for each in plan.documents) == list(NAMES)
        assert {each.first_stage for each in plan.documents} == {Stage.CHUNKS}
        for document in found:
            assert recorded(changed, document)[Stage.CHUNKS] != wanted(changed, document)[Stage.CHUNKS]

        assert reindex_stale(changed.services, kb_id=kb_id) == len(NAMES)
        seen: list[list[str]] = []

        def look(stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
            if stage is Stage.EMBEDDINGS and outcomes:
                seen.append([hit.chunk_id for hit in book.hits("sentence quays")])

        changed.run_queued(look)
        assert seen, "nobody has looked while the documents were done again"
        assert all(hits == old[found[0].id] for hits in seen), "the old chunks answer until the new ones do"

        for document in found:
            now = changed.now(document)
            assert (now.status, now.version, now.live_version) == (Status.READY, 2, 2)
            assert recorded(changed, document) == wanted(changed, document)
        assert {hit.version for hit in book.hits("sentence quays")} == {2}
        assert attempts(changed, found) == {each: count + 1 for each, count in runs.items()}
        assert plan_reindex(changed.services, kb_id=kb_id).documents == ()

        assert reindex_stale(changed.services, kb_id=kb_id) == 0
        again = book.upload("d3.txt", text_of("d3.txt"))
        assert (again.duplicate, again.status, again.version, again.live_version) == (True, Status.READY, 2, 2)
        assert attempts(changed, found) == {each: count + 1 for each, count in runs.items()}


def test_a_document_that_is_new_already_is_not_done_again(book: Book) -> None:
    found = ingested(book)
    with running_system_again(book.runner, **OTHER_SIZE) as changed:
        book.client.reindex(found[2].id, force=True)
        changed.run_queued()
        runs = attempts(changed, found)
        plan = plan_reindex(changed.services, kb_id=found[0].kb_id)
        assert sorted(each.source_path for each in plan.documents) == ["d1.txt", "d2.txt"]
        assert reindex_stale(changed.services, kb_id=found[0].kb_id) == 2
        changed.run_queued()
        now = attempts(changed, found)
        assert [now[document.id] - runs[document.id] for document in found] == [1, 1, 0]
        assert all(recorded(changed, document) == wanted(changed, document) for document in found)

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.chunk_rows import ImageRow, PaidVector
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.node_log import CLEANUP, node_log
from rag_pipeline.adapters.postgres.schema import document_versions, images, stage_artefacts
from rag_pipeline.adapters.postgres.versions import SupersededVersion
from rag_pipeline.core.documents import SETTLED, Document, KnowledgeBase, Stage, Status
from rag_pipeline.core.partitions import image_id
from rag_pipeline.core.work import WorkItem
from rag_pipeline_tests.adapters.postgres.rows import (
    claim,
    fingerprint_of,
    items,
    make_ready,
    paid,
    register,
    set_status,
    start,
)

KEPT = {Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS, Stage.CHUNKS, Stage.EMBEDDINGS}


@pytest.fixture
def ready(facts: Facts, kb: KnowledgeBase) -> Document:
    return make_ready(facts, register(facts, kb, "a.txt"))


def wanted(item: WorkItem, *stale: Stage) -> dict[Stage, str]:
    """Fingerprints of the present configuration: as they were, except those of the stale stages."""
    return {stage: "changed" if stage in stale else fingerprint_of(item, stage) for stage in Stage}


def open_next(facts: Facts, document: Document, *stale: Stage) -> WorkItem:
    (item,) = items(facts, document)
    facts.claims.open_versions([item], {item.document_id: wanted(item, *stale)})
    return items(facts, document)[0]


@pytest.mark.parametrize(
    ("stale", "kept"),
    [
        pytest.param((Stage.INDEX_WRITES,), KEPT, id="index"),
        pytest.param(
            (Stage.EMBEDDINGS, Stage.INDEX_WRITES),
            {Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS, Stage.CHUNKS},
            id="embedder",
        ),
        pytest.param(
            (Stage.CHUNKS, Stage.CHUNK_SNAPSHOT, Stage.EMBEDDINGS, Stage.INDEX_WRITES),
            {Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS},
            id="chunking",
        ),
        pytest.param(tuple(Stage), set(), id="everything"),
    ],
)
def test_the_next_version_takes_over_unchanged_stages_only(
    facts: Facts, ready: Document, stale: tuple[Stage, ...], kept: set[Stage]
) -> None:
    before = facts.claims.artefacts([ready.id])[ready.id, 1]
    item = open_next(facts, ready, *stale)
    after = facts.claims.artefacts([ready.id])
    assert after.get((ready.id, 2), {}) == {stage: before[stage] for stage in kept}
    assert after[ready.id, 1] == before
    assert (item.version, item.live_version, item.status, item.attempt) == (2, 1, Status.PENDING, 0)
    assert (item.sha256, item.size_bytes) == (ready.sha256, ready.size_bytes)
    found = facts.documents.get(ready.id)
    assert (found.pages, found.warnings) == ((3, ("w",)) if Stage.PARSED_BLOCKS in kept else (None, ()))
    assert (found.chunk_count, found.token_count) == ((2, 7) if Stage.CHUNKS in kept else (None, None))


def test_the_next_version_waits_for_the_sensor(facts: Facts, ready: Document) -> None:
    open_next(facts, ready)
    (batch,) = claim(facts)
    assert (batch.first_partition, batch.document_count) == (ready.partition_key, 1)


@pytest.mark.parametrize("status", sorted(set(Status) - SETTLED))
def test_no_next_version_beside_one_that_is_not_settled(facts: Facts, ready: Document, status: Status) -> None:
    (item,) = items(facts, ready)
    set_status(facts, ready, status)
    facts.claims.open_versions([item], {item.document_id: wanted(item)})
    assert items(facts, ready)[0].version == 1
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(document_versions.c.version)).scalars().all() == [1]


def test_opening_the_same_version_twice_opens_one(facts: Facts, ready: Document) -> None:
    (item,) = items(facts, ready)
    for _ in range(2):
        facts.claims.open_versions([item], {item.document_id: wanted(item)})
    assert facts.documents.get(ready.id).version == 2


def test_images_and_paid_vectors_go_over_with_their_stages(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    (item,) = items(facts, document)
    rows = [
        ImageRow(
            id=image_id(document.id, 1, page, position),
            position=position,
            object_key=f"v1/{position}",
            media_type="image/png",
            width=1,
            height=1,
            page=page,
            bbox=None,
            description="",
        )
        for position, page in enumerate([1, None])
    ]
    facts.chunk_rows.upsert_images(item, rows)
    facts.chunk_rows.add_paid("e5", [paid(item, "v1/vectors", "h0", "h1")])
    make_ready(facts, document)
    open_next(facts, document)
    with facts.engine.connect() as connection:
        copied = connection.execute(
            sa.select(images.c.id, images.c.object_key).where(images.c.version == 2).order_by(images.c.position)
        ).all()
    assert [tuple(row) for row in copied] == [
        (image_id(document.id, 2, 1, 0), "v1/0"),
        (image_id(document.id, 2, None, 1), "v1/1"),
    ]
    facts.chunk_rows.delete_version(document.id, 1)
    assert facts.chunk_rows.find_paid("e5", ["h1"]) == {"h1": PaidVector(artefact_key="v1/vectors", position=1)}
    own, others = facts.versions.object_keys(document.id, 1)
    assert {"v1/0", "v1/1"} <= others
    assert not {"v1/0", "v1/1"} & own


def test_stale_stages_take_no_rows_with_them(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    facts.chunk_rows.add_paid("e5", [paid(items(facts, document)[0], "v1/vectors", "h0")])
    make_ready(facts, document)
    open_next(facts, document, *Stage)
    facts.chunk_rows.delete_version(document.id, 1)
    assert facts.chunk_rows.find_paid("e5", ["h0"]) == {}


def test_a_rebuild_that_embeds_nothing_comes_to_an_end(facts: Facts, ready: Document) -> None:
    """The snapshot carries the version and is always written anew; the embeddings are taken over."""
    open_next(facts, ready, Stage.INDEX_WRITES)
    ledger = facts.ledger(batch_id=start(facts, run_id="second"), run_id="second")
    found = items(facts, ready)
    assert ledger.begin(Stage.CHUNK_SNAPSHOT, found) == {ready.id}
    assert ledger.begin(Stage.INDEX_WRITES, found) == {ready.id}
    assert ledger.publish(found, collection="rag_1") == {ready.id}
    assert facts.documents.get(ready.id).live_version == 2


def test_superseded_versions_are_listed_after_the_grace_period(
    facts: Facts, kb: KnowledgeBase, ready: Document
) -> None:
    open_next(facts, ready)
    assert facts.versions.take_superseded(kept_seconds=0, limit=10) == []
    make_ready(facts, ready)
    assert facts.versions.take_superseded(kept_seconds=60, limit=10) == []
    old = SupersededVersion(kb_id=kb.id, document_id=ready.id, version=1)
    with facts.engine.begin() as connection:
        past = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, 61)
        connection.execute(
            sa.update(document_versions).where(document_versions.c.version == 1).values(superseded_at=past)
        )
    assert facts.versions.take_superseded(kept_seconds=60, limit=10) == [old]
    assert facts.versions.take_superseded(kept_seconds=60, limit=0) == []


def test_forget_removes_the_rows_of_the_version_and_keeps_the_node_log(facts: Facts, ready: Document) -> None:
    open_next(facts, ready, *Stage)
    make_ready(facts, ready)
    log = node_log(facts.engine, ready.id)
    waiting = [entry for entry in log if entry.node == CLEANUP]
    assert [(entry.version, entry.status) for entry in waiting] == [(1, "WAITING")]
    facts.versions.forget(ready.id, 1)
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(document_versions.c.version)).scalars().all() == [2]
        assert set(connection.execute(sa.select(stage_artefacts.c.version)).scalars()) == {2}
    after = node_log(facts.engine, ready.id)
    assert [entry for entry in after if entry.node != CLEANUP] == [entry for entry in log if entry.node != CLEANUP]
    assert [(entry.version, entry.status) for entry in after if entry.node == CLEANUP] == [(1, "SUCCESS")]
    assert {entry.version for entry in log} == {1, 2}
    assert facts.documents.get(ready.id).live_version == 2

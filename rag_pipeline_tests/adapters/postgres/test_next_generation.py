"""The switch against versions that are published and rolled back at the same moment."""

import threading
import time

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.live_generation import hold_live
from rag_pipeline.adapters.postgres.next_generation import FilledVersion
from rag_pipeline.adapters.postgres.schema import documents
from rag_pipeline.core.documents import Document, KnowledgeBase
from rag_pipeline.core.ports import EmbedderIdentity
from rag_pipeline.errors import GenerationSwitchedError
from rag_pipeline_tests.adapters.postgres.rows import items, make_ready, register, run_stages, start

NEXT = EmbedderIdentity(provider="openai", model="next", dimensions=24)


@pytest.fixture
def filling(facts: Facts, kb: KnowledgeBase) -> str:
    """Name of a generation beside that of the knowledge base."""
    facts.next_generations.start(prefix="rag", embedder=NEXT, analyzer="standard")
    found = facts.next_generations.filling()
    assert found is not None
    return found.generation.collection


def fill(facts: Facts, collection: str, document: Document) -> frozenset[str]:
    (item,) = items(facts, document)
    filled = FilledVersion(item=item, artefact_key="k", embeddings_fingerprint="e", index_fingerprint="i")
    return facts.next_generations.add(collection, [filled])


def wait_for_a_lock(facts: Facts) -> None:
    """Until a session of the database waits for another."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with facts.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(waiting).scalar():
            time.sleep(0.02)


def test_a_second_start_changes_nothing(facts: Facts, filling: str) -> None:
    facts.next_generations.start(prefix="rag", embedder=NEXT, analyzer="standard")
    assert [each.collection for each in facts.generations()] == ["rag_1", filling] == ["rag_1", "rag_2"]


def test_the_switch_waits_for_a_version_that_is_being_published_and_misses_it(
    facts: Facts, kb: KnowledgeBase, filling: str
) -> None:
    document = register(facts, kb, "a.txt")
    missing: list[int] = []
    thread = threading.Thread(target=lambda: missing.append(facts.next_generations.switch(filling)))
    with facts.engine.begin() as connection:
        assert hold_live(connection) == "rag_1"
        thread.start()
        wait_for_a_lock(facts)
        connection.execute(sa.update(documents).values(live_version=1))
    thread.join()
    assert missing == [1]
    assert fill(facts, filling, document) == {document.id}
    assert facts.next_generations.switch(filling) == 0


def test_a_version_that_is_published_during_the_switch_is_refused(
    facts: Facts, kb: KnowledgeBase, filling: str
) -> None:
    document = register(facts, kb, "a.txt")
    batch = start(facts)
    found = items(facts, document)
    run_stages(facts, batch, found, publish=False)
    errors: list[Exception] = []

    def publish() -> None:
        try:
            facts.ledger(batch_id=batch, run_id="run").publish(found, collection="rag_1")
        except GenerationSwitchedError as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    with facts.engine.begin() as connection:
        connection.execute(sa.text("SELECT * FROM collections FOR UPDATE"))
        thread.start()
        wait_for_a_lock(facts)
        connection.execute(sa.text("UPDATE collections SET state = 'RETIRED' WHERE name = 'rag_1'"))
        connection.execute(sa.text("UPDATE collections SET state = 'LIVE' WHERE name = 'rag_2'"))
    thread.join()
    assert ["rag_2 answers" in str(error) for error in errors] == [True]
    assert facts.documents.get(document.id).live_version is None


def test_the_switch_takes_over_what_the_stages_of_filled_versions_are(
    facts: Facts, kb: KnowledgeBase, filling: str
) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt"))
    before = facts.claims.artefacts([document.id])[document.id, 1]
    fill(facts, filling, document)
    assert facts.next_generations.switch(filling) == 0
    after = facts.claims.artefacts([document.id])[document.id, 1]
    changed = {stage.value for stage in after if after[stage] != before[stage]}
    assert changed == {"embeddings", "index_writes"}
    by_name = {stage.value: artefact for stage, artefact in after.items()}
    assert (by_name["embeddings"].fingerprint, by_name["embeddings"].artefact_key) == ("e", "k")
    assert by_name["embeddings"].summary["embedder"] == NEXT.key
    assert by_name["index_writes"].fingerprint == "i"
    assert by_name["index_writes"].summary["collection"] == filling


def test_versions_that_do_not_answer_are_not_noted(facts: Facts, kb: KnowledgeBase, filling: str) -> None:
    assert fill(facts, filling, register(facts, kb, "waiting.txt")) == frozenset()


def test_nothing_is_noted_in_an_abandoned_generation(facts: Facts, kb: KnowledgeBase, filling: str) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt"))
    assert facts.next_generations.abandon() == filling
    assert fill(facts, filling, document) == frozenset()
    with pytest.raises(GenerationSwitchedError):
        facts.next_generations.switch(filling)

"""Another embedder or analyzer while queries are answered: the fill, the switch, and what may come between."""

import contextlib
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.errors import ConfigurationError, RagPipelineError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline.stages.cleanup import drop_retired
from rag_pipeline.stages.generation import (
    DOCUMENTS_PER_PAGE,
    GenerationRun,
    SearchableGeneration,
    build_generation,
    plan_generation,
    start_generation,
)
from rag_pipeline.stages.reindex import plan_reindex
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.contents import NOTHING, assert_consistent, contents
from rag_pipeline_tests.defs.system import wait_until
from rag_pipeline_tests.embedding_server import POISON, Answer, EmbeddingServer
from rag_pipeline_tests.stages.runner import KB, Runner, running, running_system_again

OLD, NEW = 16, 24
"""Dimensions."""
LONG = 120.0
"""Seconds: enough for every fill here."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """Stores filled by one embedding service, and another service to move to."""

    runner: Runner
    following: EmbeddingServer

    @property
    def services(self) -> Services:
        return self.runner.services

    def start(self) -> None:
        self.runner.system.client.start_generation()

    def build(self) -> GenerationRun:
        found = build_generation(self.services, seconds=LONG)
        assert found is not None
        return found

    def live(self) -> tuple[str, int, str]:
        """Collection, dimensions and embedder that answer."""
        found = self.services.facts.live_generation()
        assert found is not None
        return found[0].collection.rpartition("_")[2], found[0].dimensions, found[1]

    def sources(self, words: str) -> list[str]:
        """Files with passages that hold the words; nothing may be missing from the search."""
        options = RetrievalOptions(top_k=20, mode="bm25")
        return sorted(
            {hit.source_path for hit in self.runner.system.client.retrieve(KB, words, options=options).results}
        )


@contextmanager
def moving(settings: Settings, **changes: object) -> Iterator[Move]:
    with (
        EmbeddingServer(dimensions=NEW) as following,
        running(
            settings,
            **{
                "next_embedding_url": following.url,
                "next_embedding_model": "following",
                "next_embedding_dimensions": NEW,
                **changes,
            },
        ) as runner,
    ):
        yield Move(runner=runner, following=following)


@pytest.fixture
def move(settings: Settings) -> Iterator[Move]:
    with moving(settings) as found:
        yield found


def ready(move: Move, count: int, name: str = "pump") -> list[Document]:
    documents = [
        move.runner.submit(f"{name} {number}.txt", f"The {name} {number} is serviced.") for number in range(count)
    ]
    assert move.runner.run(*documents).ready == count
    return documents


@dataclass(kw_only=True)
class Asking:
    """Questions all the time, and what went wrong with them."""

    answered: int = 0
    collections: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


@contextmanager
def asking(move: Move) -> Iterator[Asking]:
    result = Asking()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                run = move.runner.system.client.retrieve(KB, "When is the pump serviced?")
            except RagPipelineError as error:
                result.faults.append(str(error))
                continue
            if not run.results or run.trace.degradations:
                result.faults.append(f"{len(run.results)} results, {run.trace.degradations}")
            result.answered += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield result
        enough = result.answered + 3
        wait_until(lambda: result.answered, lambda count: count >= enough or bool(result.faults))
    finally:
        stop.set()
        thread.join()


def test_another_size_of_vectors_without_a_failed_or_empty_query(move: Move) -> None:
    documents = ready(move, 8)
    assert move.live() == ("1", OLD, f"openai/loopback/{OLD}")
    with asking(move) as asked:
        move.start()
        run = move.build()
        wait_until(lambda: move.following.received[-1].texts, lambda texts: texts == ("When is the pump serviced?",))
    assert asked.faults == []
    assert (run.is_switched, run.documents, run.rows, run.left, run.failures) == (True, 8, 8, 0, [])
    assert move.live() == ("2", NEW, f"openai/following/{NEW}")
    assert {move.runner.now(document).live_version for document in documents} == {1}
    assert plan_reindex(move.services).documents == ()
    assert plan_generation(move.services) is None
    assert drop_retired(move.services) == 0  # queries may still be under way in it
    assert drop_retired(move.services, kept_seconds=0.0) == 1
    assert [each.dimensions for each in move.services.facts.generations()] == [NEW]
    assert len(move.sources("pump")) == 8
    assert_consistent(move.services)
    # What comes afterwards is embedded by the new service, and the old vectors are still there.
    asked_before, artefacts = move.runner.system.embedding.requests, contents(move.services).objects
    ready(move, 1, "valve")
    assert move.sources("valve") == ["valve 0.txt"]
    assert move.runner.system.embedding.requests == asked_before
    assert sum("embeddings.a1" in key for key in artefacts) == 8


def test_settings_that_have_moved_over_find_nothing_stale(move: Move) -> None:
    ready(move, 2)
    move.start()
    move.build()
    moved = {
        "embedding_url": move.following.url,
        "embedding_model": "following",
        "embedding_dimensions": NEW,
        "next_embedding_url": None,
        "next_embedding_model": None,
        "next_embedding_dimensions": None,
    }
    with running_system_again(move.runner, **moved) as changed:
        assert plan_reindex(changed.services).documents == ()
        assert plan_reindex(changed.services).next_generation is None
        assert changed.services.generation().dimensions == NEW


def test_document_that_is_deleted_while_its_vectors_are_computed_leaves_nothing(move: Move) -> None:
    documents = ready(move, 4)
    move.start()
    asked = move.following.requests
    move.following.script(Answer(wait_seconds=3.0))
    runs: list[GenerationRun | None] = []
    thread = threading.Thread(target=lambda: runs.append(build_generation(move.services, seconds=LONG)))
    thread.start()
    wait_until(lambda: move.following.requests, lambda count: count > asked)
    move.runner.system.client.delete(documents[0].id)
    move.runner.remove()
    thread.join()
    (run,) = runs
    assert run is not None
    assert (run.is_switched, run.failures) == (True, [])
    assert drop_retired(move.services, kept_seconds=0.0) == 1
    assert contents(move.services).of(documents[0].id) == NOTHING
    assert move.sources("pump") == ["pump 1.txt", "pump 2.txt", "pump 3.txt"]


def test_documents_that_come_and_go_after_the_fill_and_before_the_switch(move: Move) -> None:
    documents = ready(move, 3)
    move.start()

    def interfere(*_: SearchableGeneration) -> None:
        move.runner.system.client.delete(documents[0].id)
        move.runner.remove()
        new_bytes = move.runner.submit("pump 1.txt", "The pump 1 is scrapped.")
        late = move.runner.submit("pump 9.txt", "The pump 9 came late.")
        assert move.runner.run(new_bytes, late).ready == 2
        assert move.live()[0] == "1"

    run = build_generation(move.services, seconds=LONG, may_switch=interfere)
    assert run is not None
    assert (run.is_switched, run.documents) == (True, 5)
    assert drop_retired(move.services, kept_seconds=0.0) == 1
    assert contents(move.services).of(documents[0].id) == NOTHING
    assert move.sources("pump") == ["pump 1.txt", "pump 2.txt", "pump 9.txt"]
    assert move.sources("scrapped") == ["pump 1.txt"]
    assert plan_reindex(move.services).documents == ()


def fill_in_a_process(settings: Settings) -> None:
    with Services.from_settings(settings) as services:
        build_generation(services, seconds=LONG)


def test_fill_that_is_killed_goes_on_where_it_stopped_and_pays_once(move: Move) -> None:
    count = DOCUMENTS_PER_PAGE + 6
    ready(move, count)
    move.start()
    asked, texts = move.following.requests, move.following.texts
    move.following.script(Answer(), Answer(wait_seconds=3600.0))
    process = multiprocessing.get_context("spawn").Process(target=fill_in_a_process, args=(move.services.settings,))
    process.start()
    wait_until(lambda: move.following.requests, lambda requests: requests == asked + 2)
    assert move.services.facts.next_generations.is_being_filled()
    assert build_generation(move.services, seconds=LONG) is None  # one at a time
    process.kill()
    process.join()
    wait_until(move.services.facts.next_generations.is_being_filled, lambda filled: not filled)
    assert move.live()[0] == "1"
    run = move.build()
    assert (run.is_switched, run.documents, run.embedded) == (True, 6, 6)
    assert move.following.texts - texts == count + 6  # those that the killed one had asked for, and never got
    assert len(move.sources("pump")) == 20
    assert_consistent(move.services)


def test_version_that_is_finished_just_after_the_switch_is_done_again(move: Move) -> None:
    ready(move, 2)
    late = move.runner.submit("valve.txt", "The valve is late.")
    move.start()

    def switch_in_between(stage: Stage, outcomes: list[StageOutcome]) -> None:
        if stage is Stage.EMBEDDINGS:
            assert move.build().is_switched

    move.runner.run_queued(lambda stage, outcomes: switch_in_between(stage, list(outcomes)))
    failed = move.runner.now(late)
    assert failed.error is not None
    assert (failed.error.code, failed.error.error_class) == ("generation_switched", "temporary")
    move.runner.make_due()
    assert move.services.facts.waiting.requeue_due(limit=10) == 1
    move.runner.run_queued()
    assert move.runner.now(late).status is Status.READY
    assert move.sources("valve") == ["valve.txt"]
    assert_consistent(move.services)


def test_batches_and_the_switch_at_any_moment(move: Move) -> None:
    """Documents are published all the time while the next collection is filled and answers."""
    ready(move, 4)
    move.start()
    waiting = [move.runner.submit(f"late {number}.txt", f"The pump is late {number}.") for number in range(40)]
    switched = threading.Event()

    def publish() -> None:
        while not switched.is_set():
            for document in waiting[:4]:
                with contextlib.suppress(RagPipelineError):
                    move.runner.system.client.reindex(document.id, force=True)
            move.runner.run_queued()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        while not move.build().is_switched:
            pass
    finally:
        switched.set()
        thread.join()
    move.runner.make_due()
    move.services.facts.waiting.requeue_due(limit=100)
    move.runner.run_queued()
    assert {move.runner.now(document).status for document in waiting} == {Status.READY}
    assert drop_retired(move.services, kept_seconds=0.0) == 1
    assert len(move.sources("late")) == 20
    assert plan_reindex(move.services).documents == ()
    live = contents(move.services).vectors
    for document in waiting:
        assert f"{document.id}_{move.runner.now(document).live_version}_0" in live


def test_another_analyzer_pays_nothing(settings: Settings) -> None:
    changes = dict.fromkeys(("next_embedding_url", "next_embedding_model", "next_embedding_dimensions"))
    with moving(settings, **changes, next_analyzer="multilingual-1") as move:
        ready(move, 3)
        assert move.sources("pumps") == []  # the tokenizer `standard` knows no word forms
        paid = move.runner.system.embedding.texts
        plan = move.runner.system.client.plan().next_generation
        assert plan is not None
        assert (plan.documents, plan.tokens_to_embed, plan.is_started) == (3, 0, False)
        move.start()
        run = move.build()
        assert (run.is_switched, run.embedded) == (True, 0)
        assert move.runner.system.embedding.texts == paid
        assert len(move.sources("pumps")) == 3
        assert plan_reindex(move.services).documents == ()


def test_plan_says_what_the_move_takes_and_how_far_it_is(move: Move) -> None:
    documents = ready(move, 3)
    tokens = sum(move.runner.now(document).token_count or 0 for document in documents)
    plan = move.runner.system.client.plan().next_generation
    assert plan is not None
    assert (plan.documents, plan.tokens_to_embed, plan.is_started) == (3, tokens, False)
    assert plan.embedder == f"openai/following/{NEW}"
    move.start()
    after = move.runner.system.client.plan().next_generation
    assert after is not None
    assert (after.documents, after.is_started) == (3, True)


def test_embedder_that_answers_with_another_size_is_refused_before_anything_is_written(settings: Settings) -> None:
    with moving(settings, next_embedding_dimensions=32) as move:
        ready(move, 1)
        with pytest.raises(ConfigurationError, match=r"RAG_NEXT_EMBEDDING_DIMENSIONS=32.*24"):
            move.start()
        assert move.services.facts.next_generations.filling() is None
        assert len(move.services.facts.generations()) == 1
        assert move.sources("pump") == ["pump 0.txt"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        pytest.param(
            dict.fromkeys(("next_embedding_url", "next_embedding_model", "next_embedding_dimensions")),
            "RAG_NEXT_",
            id="not set",
        ),
        pytest.param(
            {"next_embedding_model": "loopback", "next_embedding_dimensions": OLD}, "already", id="what answers already"
        ),
        pytest.param(
            {
                **dict.fromkeys(("next_embedding_url", "next_embedding_model", "next_embedding_dimensions")),
                "next_embedding_passage_prefix": "passage: ",
            },
            "without NEXT, then `rag-pipeline reindex --stale`",
            id="another passage prefix alone",
        ),
    ],
)
def test_move_to_nowhere_is_refused(settings: Settings, changes: dict[str, object], match: str) -> None:
    with moving(settings, **changes) as move:
        ready(move, 1)
        with pytest.raises(ConfigurationError, match=match):
            move.start()


def test_other_next_settings_than_those_that_fill_are_refused(move: Move) -> None:
    ready(move, 1)
    move.start()
    with running_system_again(move.runner, next_embedding_model="third") as changed:
        for attempt in (
            lambda: start_generation(changed.services),
            lambda: build_generation(changed.services, seconds=1),
        ):
            with pytest.raises(ConfigurationError, match="--abandon"):
                attempt()
    assert move.build().is_switched


def test_abandoned_collection_is_dropped_and_its_vectors_are_not_paid_for_again(move: Move) -> None:
    ready(move, 3)
    move.start()
    refused = build_generation(move.services, seconds=LONG, may_switch=lambda *_: "worse")
    assert refused is not None
    assert move.runner.system.client.abandon_generation()
    assert not move.runner.system.client.abandon_generation()
    assert build_generation(move.services, seconds=LONG) is None
    assert drop_retired(move.services, kept_seconds=0.0) == 1
    assert move.live()[0] == "1"
    assert len(move.sources("pump")) == 3
    move.start()
    run = move.build()
    assert (run.is_switched, run.embedded) == (True, 0)
    assert move.live()[0] == "3"  # a name is never given twice


def test_switch_that_is_refused_waits_until_it_is_started_again(move: Move) -> None:
    ready(move, 2)
    move.start()
    seen: list[tuple[int, int]] = []

    def refuse(old: SearchableGeneration, new: SearchableGeneration) -> str:
        seen.append((old.generation.dimensions, new.generation.dimensions))
        assert move.services.vectors.count(new.generation) == 2
        return "nDCG@10 falls from 0.8 to 0.1"

    run = build_generation(move.services, seconds=LONG, may_switch=refuse)
    assert run is not None
    assert (run.is_switched, run.refusal, seen) == (False, "nDCG@10 falls from 0.8 to 0.1", [(OLD, NEW)])
    filling = move.services.facts.next_generations.filling()
    assert filling is not None
    assert not filling.is_due
    plan = plan_generation(move.services)
    assert plan is not None
    assert plan.refusal == "nDCG@10 falls from 0.8 to 0.1"
    move.start()
    assert move.build().is_switched


def test_text_that_the_next_embedder_refuses_holds_up_only_the_switch(move: Move) -> None:
    move.runner.system.embedding.refuses_poison = False
    documents = ready(move, 3)
    bad = move.runner.submit("bad.txt", f"A {POISON} pump.")
    assert move.runner.run(bad).ready == 1
    move.start()
    run = move.build()
    assert [item.document_id for item, _ in run.failures] == [bad.id]
    assert (run.is_switched, run.documents, run.left) == (False, 3, 1)
    filling = move.services.facts.next_generations.filling()
    assert filling is not None
    assert not filling.is_due  # it rests
    move.runner.system.client.delete(bad.id)
    move.runner.remove()
    assert move.build().is_switched
    assert len(move.sources("pump")) == len(documents)


def test_embedder_that_is_down_leaves_everything_as_it_is(move: Move) -> None:
    ready(move, 2)
    move.start()
    move.following.script(*[Answer(status=503)] * 50)
    run = move.build()
    assert {error.code for _, error in run.failures} == {"embedding_unavailable"}
    assert (run.is_switched, run.documents, move.live()[0]) == (False, 0, "1")
    move.following.forget_script()
    assert move.build().is_switched


def test_document_that_was_rolled_back_keeps_its_version_over_the_switch_and_goes_forward_by_a_new_one(
    settings: Settings,
) -> None:
    with moving(settings, version_retention_seconds=7200.0) as move:
        document = move.runner.submit("edition.txt", "The first edition.")
        move.runner.run(document)
        move.runner.run(move.runner.submit("edition.txt", "The second edition."))
        client = move.runner.system.client
        assert client.rollback(document.id).live_version == 1
        move.start()
        assert move.build().is_switched
        assert move.sources("first") == ["edition.txt"]
        assert client.reindex(document.id).version == 3  # the second is in the former collection only
        move.runner.run_queued()
        assert move.sources("second") == ["edition.txt"]
        assert move.sources("first") == []
        assert client.rollback(document.id).live_version == 1


def test_newest_bytes_submitted_again_after_a_rollback_and_the_switch_are_indexed_anew(settings: Settings) -> None:
    with moving(settings, version_retention_seconds=7200.0) as move:
        document = move.runner.submit("edition.txt", "The first edition.")
        move.runner.run(document)
        move.runner.run(move.runner.submit("edition.txt", "The second edition."))
        move.runner.system.client.rollback(document.id)
        move.start()
        move.build()
        assert move.runner.submit("edition.txt", "The second edition.").version == 3
        move.runner.run_queued()
        assert move.sources("second") == ["edition.txt"]

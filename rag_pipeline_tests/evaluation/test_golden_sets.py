"""Golden sets asked of a live knowledge base, and of the collection that is to answer next."""

import dataclasses
from pathlib import Path

import pytest

from rag_pipeline.errors import ConfigurationError, EmbeddingUnavailableError, VectorStoreUnavailableError
from rag_pipeline.evaluation import golden_sets
from rag_pipeline.evaluation.golden_sets import measure, missing_documents, refusal, standing
from rag_pipeline.settings import Settings
from rag_pipeline.stages.generation import SearchableGeneration, build_generation, start_generation
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.evaluation.questions import WORDS, attached, birds, text_of, write_questions
from rag_pipeline_tests.files import pdf
from rag_pipeline_tests.stages.runner import KB, Runner, running


def test_questions_are_asked_of_the_documents_that_are_there(runner: Runner, tmp_path: Path) -> None:
    golden = birds(runner, tmp_path)
    assert missing_documents(runner.services, golden) == ()
    found = measure(runner.services, golden)
    assert found.newest is not None
    assert found.newest.is_accepted
    assert found.newest == found.accepted
    assert found.newest.figures["bm25"] == {"ndcg@10": 1.0, "recall@10": 1.0, "hit@1": 1.0}
    assert 0.0 < found.newest.figures["dense"]["ndcg@10"] < 0.9, "vectors of the loopback service mean nothing"
    assert list(found.newest.figures) == ["dense", "bm25", "hybrid"]
    assert {tuple(measures) for measures in found.newest.figures.values()} == {("ndcg@10", "recall@10", "hit@1")}
    live = runner.services.facts.live_generation()
    assert live is not None
    assert (found.newest.collection, found.newest.embedder) == (live[0].collection, live[1])


def test_answers_are_looked_for_in_passages_of_the_right_document(runner: Runner, tmp_path: Path) -> None:
    runner.run(
        runner.submit("pump.txt", "The pump is serviced\nevery 4000 hours."), runner.submit("a.txt", "4000 pumps")
    )
    folder = write_questions(
        tmp_path / "answers",
        {"pump serviced hours": "pump.txt", "pump serviced": "pump.txt"},
        answers={
            "pump serviced hours": ("pump.txt", "serviced every 4000  hours"),
            "pump serviced": ("pump.txt", "every 5000 hours"),
        },
    )
    found = measure(runner.services, attached(runner, folder))
    assert found.newest is not None
    assert found.newest.figures["bm25"]["answer_hit@1"] == 0.5
    assert found.newest.figures["bm25"]["hit@1"] == 1.0


def test_pages_are_judged_when_every_judgement_names_one(runner: Runner, tmp_path: Path) -> None:
    client = runner.system.client
    content = pdf(["Nothing to see.", "The pump is serviced every 4000 hours."])
    assert runner.run(client.submit(KB, content, filename="PUMP.pdf")).ready == 1
    golden = attached(
        runner, write_questions(tmp_path / "pages", {"pump serviced": "PUMP#p0002", "nothing to see": "PUMP#p0001"})
    )
    assert golden.has_pages
    found = measure(runner.services, golden)
    assert found.newest is not None
    figures = found.newest.figures["bm25"]
    assert (figures["recall@10"], figures["hit@1"]) == (1.0, 0.5), "the passage stands on both pages"


def test_a_document_that_is_not_there_is_named_and_its_question_not_answered(runner: Runner, tmp_path: Path) -> None:
    runner.run(runner.submit("kestrel.txt", text_of("kestrel")))
    runner.submit("merlin.txt", text_of("merlin"))
    golden = attached(runner, write_questions(tmp_path / "two", {"kestrels": "kestrel", "merlins": "merlin.txt"}))
    assert missing_documents(runner.services, golden) == ("merlin.txt",)
    found = measure(runner.services, golden)
    assert found.newest is not None
    assert found.newest.missing == ("merlin.txt",)
    assert found.newest.figures["bm25"]["recall@10"] == 0.5


def test_nothing_is_measured_while_something_is_down(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = birds(runner, tmp_path)
    runner.system.embedding.script(*[Answer(status=500)] * 8)
    with pytest.raises(EmbeddingUnavailableError):
        measure(runner.services, golden)
    runner.system.embedding.forget_script()

    def fails(*_: object, **__: object) -> list[object]:
        raise VectorStoreUnavailableError("from the test")

    monkeypatch.setattr(runner.services.vectors, "search_text", fails)
    with pytest.raises(VectorStoreUnavailableError):
        measure(runner.services, golden)
    assert standing(runner.services, golden).newest is None


def test_what_cannot_be_attached_is_refused(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_questions(tmp_path / "two", {"kestrel": "kestrel", "merlin": "merlin"})
    with pytest.raises(ConfigurationError, match="nothing has been indexed yet"):
        measure(runner.services, attached(runner, folder))
    monkeypatch.setattr(golden_sets, "MOST_QUESTIONS", 1)
    with pytest.raises(ConfigurationError, match="two has 2 questions; attach at most 1"):
        attached(runner, folder)


def test_a_collection_that_answers_better_gets_to_answer(settings: Settings, tmp_path: Path) -> None:
    with running(settings, analyzer="standard", next_analyzer="multilingual-1") as runner:
        golden = birds(runner, tmp_path, question="{}")
        before = measure(runner.services, golden).newest
        start_generation(runner.services)
        run = build_generation(runner.services, seconds=60, may_switch=refusal)
        assert run is not None
        assert (run.is_switched, run.refusal) == (True, None)
        after = measure(runner.services, golden)
        assert before is not None
        assert after.newest is not None
        assert after.newest.figures["bm25"]["ndcg@10"] > before.figures["bm25"]["ndcg@10"]
        assert after.newest.is_accepted
        assert after.newest.collection != before.collection


def test_a_fall_that_the_setting_allows_is_no_objection(settings: Settings, tmp_path: Path) -> None:
    with running(settings, analyzer="multilingual-1", next_analyzer="standard", golden_max_drop=1.0) as runner:
        birds(runner, tmp_path, question="{}")
        start_generation(runner.services)
        run = build_generation(runner.services, seconds=60, may_switch=refusal)
        assert run is not None
        assert run.is_switched


def test_documents_that_came_after_the_fill_are_no_fault_of_the_next_collection(
    settings: Settings, tmp_path: Path
) -> None:
    with running(settings, analyzer="standard", next_analyzer="jieba") as runner:
        # Each question finds one document by its words: of documents that tie, either collection may name any first.
        birds(runner, tmp_path, question="{}s")
        start_generation(runner.services)
        asked: list[str | None] = []

        def come_late(old: SearchableGeneration, new: SearchableGeneration) -> str | None:
            changed = [runner.submit(f"{word}.txt", text_of(word) + " Twice.") for word in WORDS[:4]]
            assert runner.run(*changed).ready == len(changed)
            asked.append(refusal(old, new))
            return asked[-1]

        run = build_generation(runner.services, seconds=60, may_switch=come_late)
        assert asked == [None]
        assert run is not None
        assert run.is_switched


def test_values_do_not_change_when_they_are_kept(runner: Runner, tmp_path: Path) -> None:
    golden = birds(runner, tmp_path)
    first = measure(runner.services, golden).newest
    again = measure(runner.services, golden).newest
    assert first is not None
    assert again is not None
    assert dataclasses.replace(again, measured_at=first.measured_at) == first

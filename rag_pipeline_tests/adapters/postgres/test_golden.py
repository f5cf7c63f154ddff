import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import documents, golden_results, golden_sets
from rag_pipeline.core.documents import KnowledgeBase, Status
from rag_pipeline.core.golden import GoldenQuestion, GoldenSet
from rag_pipeline.errors import KnowledgeBaseInactiveError, ResourceNotFoundError
from rag_pipeline_tests.adapters.postgres.rows import create_knowledge_base, register

QUESTIONS = (
    GoldenQuestion(
        id="q1", text="How\0 often?", relevant={"docs/pump.pdf": 1, "valve": 2}, answer='every "4000" hours'
    ),
    GoldenQuestion(id="q2", text="多久保养一次？", relevant={"水泵.txt": 1}),
)


@pytest.fixture
def kb(facts: Facts) -> KnowledgeBase:
    return create_knowledge_base(facts, "handbook")


def attached(facts: Facts, *questions: GoldenQuestion, name: str = "machines") -> GoldenSet:
    return facts.golden_sets.attach("handbook", name=name, has_pages=False, questions=questions or QUESTIONS)


def add(facts: Facts, golden: GoldenSet, value: float, *, is_accepted: bool = False) -> None:
    facts.golden_sets.add_result(
        golden,
        figures={"hybrid": {"ndcg@10": value}},
        missing=["水泵.txt"],
        collection="rag_1",
        embedder="openai/loopback/16",
        is_accepted=is_accepted,
    )


def live(facts: Facts, kb: KnowledgeBase, path: str) -> str:
    document = register(facts, kb, path)
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).where(documents.c.id == document.id).values(live_version=1))
    return document.id


def value(facts: Facts, golden: GoldenSet) -> float | None:
    found = facts.golden_sets.newest(golden)
    return None if found is None else found.figures["hybrid"]["ndcg@10"]


def test_a_set_comes_back_with_its_questions(facts: Facts, kb: KnowledgeBase) -> None:
    assert not facts.golden_sets.exists()
    assert facts.golden_sets.of(kb.id) is None
    golden = attached(facts)
    assert (golden.kb_id, golden.kb_name, golden.name, golden.has_pages) == (kb.id, "handbook", "machines", False)
    assert golden.questions[1] == QUESTIONS[1]
    assert golden.questions[0].answer == 'every "4000" hours'
    assert golden.documents == {"docs/pump.pdf", "valve", "水泵.txt"}
    assert facts.golden_sets.exists()
    assert facts.golden_sets.all() == [golden] == [facts.golden_sets.of(kb.id)]


def test_another_set_takes_its_place_and_its_results_are_not_compared(facts: Facts, kb: KnowledgeBase) -> None:
    first = attached(facts)
    add(facts, first, 0.9, is_accepted=True)
    assert attached(facts).fingerprint == first.fingerprint, "the same questions"
    assert value(facts, first) == 0.9
    second = attached(facts, QUESTIONS[0])
    assert second.fingerprint != first.fingerprint
    assert facts.golden_sets.all() == [second]
    assert facts.golden_sets.newest(second) is None
    assert facts.golden_sets.accepted(second) is None
    add(facts, first, 0.1)
    assert value(facts, first) == 0.9, "a result of questions that are not attached any more is not kept"


def test_the_accepted_result_stays_until_another_is_accepted(facts: Facts, kb: KnowledgeBase) -> None:
    golden = attached(facts)
    assert facts.golden_sets.accept(golden) is None
    add(facts, golden, 0.9, is_accepted=True)
    add(facts, golden, 0.7)
    accepted, newest = facts.golden_sets.accepted(golden), facts.golden_sets.newest(golden)
    assert accepted is not None
    assert newest is not None
    assert (accepted.figures, newest.figures) == ({"hybrid": {"ndcg@10": 0.9}}, {"hybrid": {"ndcg@10": 0.7}})
    assert (newest.missing, newest.collection, newest.embedder) == (("水泵.txt",), "rag_1", "openai/loopback/16")
    facts.golden_sets.accept(golden)
    assert facts.golden_sets.accepted(golden) == facts.golden_sets.newest(golden)
    assert value(facts, golden) == 0.7


def test_detaching_forgets_the_results(facts: Facts, kb: KnowledgeBase) -> None:
    golden = attached(facts)
    add(facts, golden, 0.9, is_accepted=True)
    assert facts.golden_sets.detach(kb.id)
    assert not facts.golden_sets.detach(kb.id)
    assert facts.golden_sets.all() == []
    assert facts.golden_sets.newest(attached(facts)) is None


def test_documents_are_found_by_path_then_by_file_name_then_by_stem(facts: Facts, kb: KnowledgeBase) -> None:
    ids = {path: live(facts, kb, path) for path in ("a/pump.pdf", "b/pump.pdf", "pump", "v1.2.txt")}
    hidden = live(facts, kb, "hidden.txt")
    register(facts, kb, "waiting.txt")
    live(facts, facts.knowledge_bases.create("other"), "elsewhere.txt")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).where(documents.c.id == hidden).values(status=Status.DELETING))
    found = facts.golden_sets.document_ids(
        kb.id, ["a/pump.pdf", "pump.pdf", "pump", "v1.2", "hidden", "waiting", "elsewhere", "100%", "o'k", "a\0b"]
    )
    assert found == {
        "a/pump.pdf": (ids["a/pump.pdf"],),
        "pump.pdf": tuple(sorted([ids["a/pump.pdf"], ids["b/pump.pdf"]])),
        "pump": (ids["pump"],),
        "v1.2": (ids["v1.2.txt"],),
    }
    assert facts.golden_sets.document_ids(kb.id, []) == {}


def test_nothing_is_left_of_a_knowledge_base_that_is_deleted(facts: Facts, kb: KnowledgeBase) -> None:
    golden = attached(facts)
    add(facts, golden, 0.9, is_accepted=True)
    facts.deletions.delete_knowledge_base(kb.id, reason=None)
    assert facts.golden_sets.all() == []
    assert not facts.golden_sets.exists()
    with pytest.raises(KnowledgeBaseInactiveError):
        attached(facts)
    facts.deletions.finish_knowledge_base(kb.id, {})
    with facts.engine.connect() as connection:
        for table in (golden_sets, golden_results):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0
    with pytest.raises(ResourceNotFoundError):
        attached(facts)

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.conversations import SOURCE_DELETED, SOURCE_HIDDEN, TITLE_CHARACTERS, Conversations
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import (
    conversation_evidence,
    conversation_turns,
    conversations,
    document_versions,
    knowledge_bases,
)
from rag_pipeline.core.answers import Citation
from rag_pipeline.core.documents import Document, KnowledgeBase
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.passages import StoredImage
from rag_pipeline.core.quotes import Quote
from rag_pipeline.errors import ConfigurationError, KnowledgeBaseInactiveError, ResourceNotFoundError
from rag_pipeline_tests.adapters.postgres.rows import make_ready, register

ANSWER = "400 [source 1]"


@pytest.fixture
def store(facts: Facts, kb: KnowledgeBase) -> Conversations:
    return Conversations(facts.engine)


@pytest.fixture
def document(facts: Facts, kb: KnowledgeBase) -> Document:
    return make_ready(facts, register(facts, kb, "a.pdf"))


def citation(document: Document, number: int = 1) -> Citation:
    """A citation with everything in it."""
    return Citation(
        number=number,
        kb_id=document.kb_id,
        document_id=document.id,
        version=1,
        file_name="a.pdf",
        source_path="a.pdf",
        chunk_id=f"{document.id}_1_0",
        page=2,
        page_end=3,
        heading_path=("Title", "节"),
        location="pages 2-3",
        text="The deposit is 400 euro.",
        start=5,
        end=29,
        is_cited=True,
        images=(StoredImage(id="i", document_id=document.id, position=0, page=2, description="a pump"),),
        quotes=(
            Quote(
                text="deposit is 400",
                number=number,
                is_verified=True,
                page=2,
                bbox=BoundingBox(left=1, top=2.5, right=3, bottom=4),
            ),
        ),
    )


def add(
    store: Conversations, conversation_id: str, *citations: Citation, question: str = "What is the deposit?"
) -> int:
    return store.add(
        conversation_id, question=question, answer=ANSWER, kind="generated", citations=citations, notes=["n"]
    )


def test_a_turn_comes_back_with_its_evidence(store: Conversations, document: Document) -> None:
    conversation = store.create("handbook")
    assert add(store, conversation.id, citation(document), citation(document, 2)) == 0
    assert add(store, conversation.id, question="And\0 then?") == 1
    first, second = store.turns(conversation.id)
    assert first.citations == (citation(document), citation(document, 2))
    assert (first.question, first.answer, first.kind, first.notes) == (
        "What is the deposit?",
        ANSWER,
        "generated",
        ("n",),
    )
    assert (second.position, second.question, second.citations) == (1, "And then?", ())


def test_the_first_question_is_the_title_unless_there_is_one(store: Conversations) -> None:
    without, named = store.create("handbook"), store.create("handbook", title=" My\n title ")
    for each in (without, named):
        add(store, each.id, question="What is\nthe deposit? " + "x" * 500)
        add(store, each.id, question="Another?")
    assert store.get(without.id).title == ("What is the deposit? " + "x" * 500)[:TITLE_CHARACTERS]
    assert store.get(named.id).title == "My title"


def test_the_last_used_comes_first(store: Conversations) -> None:
    first, second = store.create("handbook"), store.create("handbook")
    add(store, first.id)
    assert [each.id for each in store.list("handbook")] == [first.id, second.id]
    assert [each.id for each in store.list("handbook", page=2, page_size=1)] == [second.id]
    assert store.list("other") == []
    with pytest.raises(ConfigurationError):
        store.list("handbook", page=0)


def test_evidence_goes_with_its_document_and_so_do_answers_from_it(
    store: Conversations, facts: Facts, kb: KnowledgeBase, document: Document
) -> None:
    other = make_ready(facts, register(facts, kb, "b.pdf"))
    conversation = store.create("handbook")
    add(store, conversation.id, citation(document), citation(other, 2))
    add(store, conversation.id, citation(other))
    facts.deletions.delete_document(document.id, reason=None)
    hidden, kept = store.turns(conversation.id)
    assert (hidden.answer, hidden.notes, hidden.citations) == ("", (SOURCE_HIDDEN,), (citation(other, 2),))
    assert (kept.answer, kept.notes, kept.citations) == (ANSWER, ("n",), (citation(other),))
    facts.deletions.forget({document.id: {}})
    with facts.engine.connect() as connection:
        turns = connection.execute(sa.select(conversation_turns).order_by(conversation_turns.c.position)).all()
        evidence = connection.execute(sa.select(conversation_evidence.c.document_id)).scalars().all()
    assert [(turn.answer, turn.notes) for turn in turns] == [("", [SOURCE_DELETED]), (ANSWER, ["n"])]
    assert evidence == [other.id, other.id]
    assert [turn.question for turn in store.turns(conversation.id)] == ["What is the deposit?"] * 2


def test_answer_from_a_document_that_was_deleted_meanwhile_is_not_kept(
    store: Conversations, facts: Facts, document: Document
) -> None:
    conversation = store.create("handbook")
    facts.deletions.delete_document(document.id, reason=None)
    facts.deletions.forget({document.id: {}})
    add(store, conversation.id, citation(document))
    (turn,) = store.turns(conversation.id)
    assert (turn.answer, turn.notes, turn.citations) == ("", (SOURCE_DELETED,), ())


def test_answer_that_comes_in_while_its_document_is_removed_is_not_kept(
    store: Conversations, facts: Facts, document: Document
) -> None:
    conversation = store.create("handbook")
    facts.deletions.delete_document(document.id, reason=None)
    with ThreadPoolExecutor(max_workers=1) as pool:
        futures: list[Future[int]] = []

        @sa.event.listens_for(facts.engine, "before_cursor_execute")
        def before(_: object, __: object, statement: str, *___: object) -> None:
            if statement.startswith("DELETE FROM documents") and not futures:
                futures.append(pool.submit(add, store, conversation.id, citation(document)))
                with pytest.raises(TimeoutError):
                    futures[0].result(timeout=0.5)

        facts.deletions.forget({document.id: {}})
        futures[0].result()
    (turn,) = store.turns(conversation.id)
    assert (turn.answer, turn.notes) == ("", (SOURCE_DELETED,))


def test_evidence_is_shown_to_whom_the_document_is_shown(
    store: Conversations, facts: Facts, document: Document
) -> None:
    conversation = store.create("handbook")
    add(store, conversation.id, citation(document))
    with facts.engine.begin() as connection:
        connection.execute(sa.update(document_versions).values(metadata={"allowed_to": ["alice"]}))
    for principals, is_shown in ((["alice"], True), (["bob"], False), (None, True)):
        (turn,) = store.turns(conversation.id, principals=principals)
        assert len(turn.citations) == (1 if is_shown else 0)
        assert (turn.answer, turn.notes) == ((ANSWER, ("n",)) if is_shown else ("", (SOURCE_HIDDEN,)))


def test_evidence_of_another_knowledge_base_is_not_shown(
    store: Conversations, facts: Facts, document: Document
) -> None:
    facts.knowledge_bases.create("other")
    conversation = store.create("other")
    add(store, conversation.id, citation(document))
    assert store.turns(conversation.id)[0].citations == ()


def test_a_deleted_conversation_leaves_nothing(store: Conversations, facts: Facts, document: Document) -> None:
    conversation, kept = store.create("handbook"), store.create("handbook")
    for each in (conversation, kept):
        add(store, each.id, citation(document))
    store.delete(conversation.id)
    with facts.engine.connect() as connection:
        for table in (conversation_turns, conversation_evidence):
            assert set(connection.execute(sa.select(table.c.conversation_id)).scalars()) == {kept.id}
    with pytest.raises(ResourceNotFoundError):
        store.turns(conversation.id)


@pytest.mark.parametrize("conversation_id", ["unknown", "", "a\0b", "' or true--"])
def test_an_unknown_conversation(store: Conversations, document: Document, conversation_id: str) -> None:
    for call in (store.get, store.turns, store.delete):
        with pytest.raises(ResourceNotFoundError, match="no conversation"):
            call(conversation_id)
    with pytest.raises(ResourceNotFoundError):
        add(store, conversation_id)


def test_conversations_of_an_inactive_knowledge_base_are_gone(store: Conversations, facts: Facts) -> None:
    conversation = store.create("handbook")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
    assert store.list("handbook") == []
    with pytest.raises(ResourceNotFoundError):
        store.get(conversation.id)
    with pytest.raises(KnowledgeBaseInactiveError):
        store.create("handbook")
    with pytest.raises(ResourceNotFoundError, match="no knowledge base 'handbok' \\(there is none yet\\)"):
        store.create("handbok")


def test_turns_added_at_once_get_positions_of_their_own(store: Conversations, document: Document) -> None:
    conversation = store.create("handbook")
    with ThreadPoolExecutor(max_workers=4) as pool:
        positions = list(pool.map(lambda _: add(store, conversation.id, citation(document)), range(12)))
    assert sorted(positions) == list(range(12))


def test_odd_text_is_kept(store: Conversations, document: Document) -> None:
    conversation = store.create("handbook")
    odd = replace(citation(document), text="a\\u0000 \"quoted\" '%s' 👩‍👩‍👧 \u2028")
    add(store, conversation.id, odd)
    assert store.turns(conversation.id)[0].citations == (odd,)


def test_conversations_go_with_their_knowledge_base(
    store: Conversations, facts: Facts, kb: KnowledgeBase, document: Document
) -> None:
    facts.knowledge_bases.create("other")
    add(store, store.create("handbook").id, citation(document))
    kept = store.create("other")
    facts.deletions.finish_knowledge_base(kb.id, {})
    with facts.engine.connect() as connection:
        assert list(connection.execute(sa.select(conversations.c.id)).scalars()) == [kept.id]
        assert connection.execute(sa.select(sa.func.count()).select_from(conversation_turns)).scalar() == 0

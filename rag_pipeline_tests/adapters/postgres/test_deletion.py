import pytest

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import SHORTEST_ID, KnowledgeBase
from rag_pipeline.errors import ConfigurationError
from rag_pipeline_tests.adapters.postgres.rows import register


def forgotten(facts: Facts, kb: KnowledgeBase, path: str) -> str:
    """Id of a document that has been deleted and removed."""
    document = register(facts, kb, path)
    facts.deletions.delete_document(document.id, reason=None)
    facts.deletions.forget({document.id: {}})
    return document.id


def test_a_record_is_found_by_name_and_by_as_many_digits_as_a_document(facts: Facts, kb: KnowledgeBase) -> None:
    document_id = forgotten(facts, kb, "docs/a.txt")
    for text in ("docs/a.txt", document_id, document_id[:SHORTEST_ID]):
        found = facts.deletions.find(text, kind="document")
        assert found is not None
        assert found.target_id == document_id
    facts.deletions.delete_knowledge_base(kb.id, reason=None)
    for text in (kb.name, kb.id):
        found = facts.deletions.find(text, kind="knowledge_base")
        assert found is not None
        assert found.target_id == kb.id


@pytest.mark.parametrize("digits", [0, 1, SHORTEST_ID - 1], ids="{} digits".format)
def test_a_few_digits_are_the_name_of_no_deleted_thing(facts: Facts, kb: KnowledgeBase, digits: int) -> None:
    document_id = forgotten(facts, kb, "a.txt")
    facts.deletions.delete_knowledge_base(kb.id, reason=None)
    assert facts.deletions.find(document_id[:digits], kind="document") is None
    assert facts.deletions.find(kb.id[:digits], kind="knowledge_base") is None


def test_a_list_of_records_has_a_length(facts: Facts, kb: KnowledgeBase) -> None:
    forgotten(facts, kb, "a.txt")
    assert len(facts.deletions.list(only_unfinished=False, limit=1)) == 1
    with pytest.raises(ConfigurationError, match="page_size=-1"):
        facts.deletions.list(only_unfinished=False, limit=-1)


def test_what_no_name_holds_finds_no_record(facts: Facts, kb: KnowledgeBase) -> None:
    forgotten(facts, kb, "a.txt")
    for text in ("a.txt\0", "%" * SHORTEST_ID):
        assert facts.deletions.find(text, kind="document") is None

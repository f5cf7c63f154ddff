from collections.abc import Mapping, Sequence

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.chunk_rows import ImageRow
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.passages import Passages
from rag_pipeline.adapters.postgres.schema import knowledge_bases
from rag_pipeline.core.chunk import chunk_id
from rag_pipeline.core.documents import Document, KnowledgeBase, Status
from rag_pipeline.core.filters import DocumentScope, parse_filters
from rag_pipeline.core.passages import StoredImage
from rag_pipeline_tests.adapters.postgres.rows import chunk, items, make_ready, register, set_status
from rag_pipeline_tests.files import ODD_NAMES

EVERYTHING = DocumentScope()
ODD_VALUES = [
    *ODD_NAMES,
    "%s %(name)s :name $1 ?",
]


def passages(facts: Facts, kb: KnowledgeBase, scope: DocumentScope = EVERYTHING) -> Passages:
    return Passages(facts.engine, kb_id=kb.id, scope=scope)


def ready(facts: Facts, kb: KnowledgeBase, path: str, metadata: Mapping[str, object] | None = None) -> Document:
    """A READY document with one chunk."""
    document = make_ready(facts, register(facts, kb, path, metadata=metadata))
    facts.chunk_rows.upsert([(items(facts, document)[0], [chunk(0)])])
    return document


def found(facts: Facts, kb: KnowledgeBase, scope: DocumentScope) -> set[str]:
    """Paths of the documents in scope, which the list of ids and the look at the hits must agree on."""
    source = passages(facts, kb, scope)
    every = facts.documents.list(kb.id, page_size=1000)
    listed = {each.source_path for each in every if each.id in (source.document_ids(limit=None) or ())}
    hits = source.live([chunk_id(each.id, 1, 0) for each in every])
    assert {hit.source_path for hit in hits.values()} == listed
    return listed


def live_ids(facts: Facts, kb: KnowledgeBase, wanted: Sequence[str]) -> set[str]:
    return set(passages(facts, kb).live(wanted))


@pytest.fixture
def served(facts: Facts, kb: KnowledgeBase) -> Document:
    """A document whose version 1 is live and whose version 2 is being built; one chunk each."""
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    facts.chunk_rows.upsert([(items(facts, document)[0], [chunk(0)])])
    register(facts, kb, "a.txt", "two")
    facts.chunk_rows.upsert([(items(facts, document)[0], [chunk(0)])])
    return document


def test_a_chunk_comes_with_the_facts_of_its_document(facts: Facts, kb: KnowledgeBase) -> None:
    document = ready(facts, kb, "docs/a.txt", {"lang": "en"})
    (stored,) = passages(facts, kb).live([chunk_id(document.id, 1, 0)]).values()
    assert (stored.kb_id, stored.document_id, stored.version, stored.index) == (kb.id, document.id, 1, 0)
    assert (stored.file_name, stored.source_path, stored.text) == ("a.txt", "docs/a.txt", "text")
    assert (stored.start, stored.end, stored.page, stored.page_end) == (0, 4, 1, 2)
    assert stored.heading_path == ("Chapter 1", "text")
    assert stored.metadata == {
        "lang": "en",
        "sheet": "text",
        "regions": [{"page": 1, "bbox": [1.5, 2, 3, 4]}, {"page": 2, "bbox": None}],
        "block_types": ["paragraph"],
    }


def test_only_the_live_version_is_found(facts: Facts, kb: KnowledgeBase, served: Document) -> None:
    both = [chunk_id(served.id, version, 0) for version in (1, 2)]
    assert live_ids(facts, kb, both) == {both[0]}
    make_ready(facts, served)
    assert live_ids(facts, kb, both) == {both[1]}


@pytest.mark.parametrize(
    ("status", "is_found"),
    [
        pytest.param(status, status is not Status.DELETING, id=status.value)
        for status in Status
        if status is not Status.NO_CONTENT
    ],
)
def test_what_becomes_of_the_next_version_does_not_touch_the_live_one(
    facts: Facts, kb: KnowledgeBase, served: Document, status: Status, is_found: bool
) -> None:
    set_status(facts, served, status)
    assert bool(live_ids(facts, kb, [chunk_id(served.id, 1, 0)])) is is_found
    assert bool(passages(facts, kb).document_ids(limit=10)) is is_found


def test_access_and_filters_are_those_of_the_live_version(facts: Facts, kb: KnowledgeBase) -> None:
    alice, bob = (DocumentScope(principals=(name,)) for name in ("alice", "bob"))
    document = ready(facts, kb, "a.txt", {"allowed_to": ["alice"], "year": 1})
    register(facts, kb, "a.txt", "two", metadata={"allowed_to": ["bob"], "year": 2})
    set_status(facts, document, Status.FAILED)
    assert (found(facts, kb, alice), found(facts, kb, bob)) == ({"a.txt"}, set())
    assert found(facts, kb, DocumentScope(conditions=parse_filters({"year": 2}))) == set()
    (stored,) = passages(facts, kb).live([chunk_id(document.id, 1, 0)]).values()
    assert stored.metadata["year"] == 1
    set_status(facts, document, Status.PENDING)
    make_ready(facts, document)
    facts.chunk_rows.upsert([(items(facts, document)[0], [chunk(0)])])
    in_list = [passages(facts, kb, scope).document_ids(limit=9) for scope in (alice, bob)]
    assert in_list == [(), (document.id,)]


def test_what_is_taken_from_somebody_by_another_submit_is_gone_at_once(facts: Facts, kb: KnowledgeBase) -> None:
    bob = DocumentScope(principals=("bob",))
    ready(facts, kb, "a.txt")
    assert found(facts, kb, bob) == {"a.txt"}
    register(facts, kb, "a.txt", metadata={"allowed_to": ["alice"]})
    assert found(facts, kb, bob) == set()


def test_another_knowledge_base_finds_nothing(facts: Facts, kb: KnowledgeBase, served: Document) -> None:
    other = passages(facts, facts.knowledge_bases.create("other"), DocumentScope(document_ids=(served.id,)))
    (stored,) = passages(facts, kb).live([chunk_id(served.id, 1, 0)]).values()
    assert other.document_ids(limit=10) == ()
    assert other.live([stored.chunk_id]) == {}
    assert other.sections([stored]) == {}
    assert other.images([served.id]) == {}


def test_an_inactive_knowledge_base_finds_nothing(facts: Facts, kb: KnowledgeBase, served: Document) -> None:
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
    assert live_ids(facts, kb, [chunk_id(served.id, 1, 0)]) == set()
    assert passages(facts, kb).document_ids(limit=10) == ()


def test_a_document_that_was_never_ready_is_not_found(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    facts.chunk_rows.upsert([(items(facts, document)[0], [chunk(0)])])
    assert live_ids(facts, kb, [chunk_id(document.id, 1, 0), "unknown"]) == set()
    assert live_ids(facts, kb, []) == set()
    assert passages(facts, kb).document_ids(limit=10) == ()


def test_more_documents_than_the_limit_are_not_listed(facts: Facts, kb: KnowledgeBase) -> None:
    ids = sorted(ready(facts, kb, f"{number}.txt").id for number in range(3))
    assert passages(facts, kb).document_ids(limit=3) == tuple(ids)
    assert passages(facts, kb).document_ids(limit=2) is None
    assert passages(facts, kb).document_ids(limit=None) == tuple(ids)


def test_a_list_of_ten_thousand_documents(facts: Facts, kb: KnowledgeBase) -> None:
    document = ready(facts, kb, "a.txt")
    scope = DocumentScope(document_ids=(*(f"{number:032x}" for number in range(10_000)), document.id))
    assert found(facts, kb, scope) == {"a.txt"}


DOCUMENTS: Mapping[str, Mapping[str, object]] = {
    "en.txt": {"lang": "en", "year": 2020, "tags": ["a", "b"], "draft": True},
    "de.txt": {"lang": "de", "year": 2024.5, "tags": "a", "draft": False},
    "text.txt": {"lang": ["en"], "year": "2020", "draft": None},
    "none.txt": {},
}
FILTERS: list[tuple[Mapping[str, object], set[str]]] = [
    ({"lang": "en"}, {"en.txt"}),
    ({"lang": ["en", "de"]}, {"en.txt", "de.txt"}),
    ({"lang": []}, set()),
    ({"lang": {"not_in": []}}, set(DOCUMENTS)),
    ({"lang": {"ne": "en"}}, {"de.txt", "text.txt", "none.txt"}),
    ({"lang": {"not_in": ["en", "de"]}}, {"text.txt", "none.txt"}),
    ({"year": 2020}, {"en.txt"}),
    ({"year": 2020.0}, {"en.txt"}),
    ({"year": "2020"}, {"text.txt"}),
    ({"year": {"gte": 2020}}, {"en.txt", "de.txt"}),
    ({"year": {"gt": 2020, "lt": 2024.6}}, {"de.txt"}),
    ({"year": {"lte": "2020"}}, {"text.txt"}),
    ({"tags": {"contains": "a"}}, {"en.txt"}),
    ({"draft": True}, {"en.txt"}),
    ({"draft": 1}, set()),
    ({"draft": {"exists": True}}, {"en.txt", "de.txt", "text.txt"}),
    ({"draft": {"exists": False}}, {"none.txt"}),
    ({"lang": "en", "year": 2024.5}, set()),
    ({"file_name": "en.txt"}, {"en.txt"}),
    ({"source_path": {"gte": "n"}}, {"none.txt", "text.txt"}),
    ({"no such field": "en"}, set()),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS, ids=[str(filters) for filters, _ in FILTERS])
def test_filters_on_metadata(
    facts: Facts, kb: KnowledgeBase, filters: Mapping[str, object], expected: set[str]
) -> None:
    for path, metadata in DOCUMENTS.items():
        ready(facts, kb, path, metadata)
    assert found(facts, kb, DocumentScope(conditions=parse_filters(filters))) == expected


def test_odd_values_mean_themselves(facts: Facts, kb: KnowledgeBase) -> None:
    for number, value in enumerate(ODD_VALUES):
        ready(facts, kb, f"{number}.txt", {"name": value, value: "here", "tags": [value]})
    for number, value in enumerate(ODD_VALUES):
        for filters in ({"name": value}, {"name": [value]}, {value: "here"}, {"tags": {"contains": value}}):
            assert found(facts, kb, DocumentScope(conditions=parse_filters(filters))) == {f"{number}.txt"}


ACCESS: Mapping[str, Mapping[str, object]] = {
    "public.txt": {},
    "alice.txt": {"allowed_to": ["alice"]},
    "both.txt": {"allowed_to": ["bob", "alice"]},
    "bob.txt": {"allowed_to": "bob"},
    "nobody.txt": {"allowed_to": []},
    "null.txt": {"allowed_to": None},
    "object.txt": {"allowed_to": {"alice": True}},
    "number.txt": {"allowed_to": 7},
}


@pytest.mark.parametrize(
    ("principals", "expected"),
    [
        (None, set(ACCESS)),
        ((), {"public.txt"}),
        (("alice",), {"public.txt", "alice.txt", "both.txt"}),
        (("bob", "7"), {"public.txt", "bob.txt", "both.txt"}),
        (("alice' or true--",), {"public.txt"}),
    ],
    ids=["not checked", "nobody", "alice", "bob and 7", "injection"],
)
def test_only_documents_that_the_principals_may_see(
    facts: Facts, kb: KnowledgeBase, principals: tuple[str, ...] | None, expected: set[str]
) -> None:
    for path, metadata in ACCESS.items():
        ready(facts, kb, path, metadata)
    assert found(facts, kb, DocumentScope(principals=principals)) == expected


def test_sections_are_whole_and_in_order(facts: Facts, kb: KnowledgeBase) -> None:
    document, other = ready(facts, kb, "a.txt"), ready(facts, kb, "b.txt")
    for each in (document, other):
        facts.chunk_rows.upsert([(items(facts, each)[0], [chunk(index) for index in range(12)])])
    source = passages(facts, kb)
    hits = source.live([chunk_id(document.id, 1, 11), chunk_id(document.id, 1, 2)])
    sections = source.sections(list(hits.values()))
    assert {name: [each.index for each in members] for name, members in sections.items()} == {
        f"{document.id}_1_s1": [2, 3],
        f"{document.id}_1_s5": [10, 11],
    }


def test_images_of_live_versions(facts: Facts, kb: KnowledgeBase, served: Document) -> None:
    def image(version: int, position: int) -> ImageRow:
        return ImageRow(
            id=f"image {version}.{position}",
            position=position,
            object_key="key",
            media_type="image/png",
            width=1,
            height=1,
            page=position + 1,
            bbox=None,
            description="a pump",
        )

    (item,) = items(facts, served)
    assert item.version == 2
    facts.chunk_rows.upsert_images(item, [image(2, 0)])
    assert passages(facts, kb).images([served.id]) == {}
    make_ready(facts, served)
    facts.chunk_rows.upsert_images(item, [image(2, 0), image(2, 1)])
    expected = [
        StoredImage(
            id=f"image 2.{position}", document_id=served.id, position=position, page=position + 1, description="a pump"
        )
        for position in range(2)
    ]
    assert passages(facts, kb).images([served.id, "unknown"]) == {served.id: expected}
    hidden = DocumentScope(conditions=parse_filters({"file_name": "other"}))
    assert passages(facts, kb, hidden).images([served.id]) == {}

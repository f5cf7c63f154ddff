from dataclasses import replace

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.chunk_rows import ImageRow, PaidVector, content_hash
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import chunks, images, paid_embeddings
from rag_pipeline.core.chunk import PageRegion, chunk_id
from rag_pipeline.core.documents import KnowledgeBase
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.work import WorkItem
from rag_pipeline_tests.adapters.postgres.rows import chunk, items, make_ready, paid, register

ODD_TEXTS = [
    pytest.param('it\'s "quoted" and `ticked`', id="quotes"),
    pytest.param("C:\\temp\\new \\u0041 \\", id="backslashes"),
    pytest.param("👩‍👩‍👧 🎉 𝔘", id="emoji"),
    pytest.param("a\u2028b\u2029c\x85d", id="line separators"),
    pytest.param("%s %(name)s :name {x} $1 ?", id="placeholders"),
    pytest.param("年度报告，终稿。\t\r\n", id="chinese and white space"),
    pytest.param("'; DROP TABLE chunks; --", id="sql"),
]


def image(position: int, *, page: int | None = 1, id: str | None = None) -> ImageRow:
    return ImageRow(
        id=id or f"image {position} on {page}",
        position=position,
        object_key=f"key {position}",
        media_type="image/png",
        width=10,
        height=20,
        page=page,
        bbox={"left": 1.0, "top": 2.0, "right": 3.0, "bottom": 4.0} if page else None,
        description="a 'picture'",
    )


def one(facts: Facts, kb: KnowledgeBase, path: str = "a.txt") -> WorkItem:
    return items(facts, register(facts, kb, path))[0]


def stored_images(facts: Facts, item: WorkItem) -> list[tuple[int, str]]:
    with facts.engine.connect() as connection:
        rows = connection.execute(
            sa.select(images).where(images.c.document_id == item.document_id).order_by(images.c.position)
        )
        return [(row.position, row.id) for row in rows]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_texts_come_back_as_they_were(facts: Facts, kb: KnowledgeBase, text: str) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt"))
    (item,) = items(facts, document)
    facts.chunk_rows.upsert([(item, [chunk(0, text)])])
    with facts.engine.connect() as connection:
        row = connection.execute(sa.select(chunks)).mappings().one()
    assert row["content"] == text
    assert row["heading_path"] == ["Chapter 1", text]
    assert row["content_hash"] == content_hash(text)
    assert row["locator"] == {
        "sheet": text,
        "regions": [{"page": 1, "bbox": [1.5, 2, 3, 4]}, {"page": 2, "bbox": None}],
        "block_types": ["paragraph"],
    }
    assert (row["page"], row["page_end"], row["start_offset"], row["tokens"]) == (1, 2, 0, 3)
    assert row["parent_id"] == f"{item.document_id}_1_s0"


def test_what_postgres_cannot_store_does_not_stop_the_other_documents(facts: Facts, kb: KnowledgeBase) -> None:
    bad, good = one(facts, kb, "bad.txt"), one(facts, kb, "good.txt")
    region = PageRegion(page=1, bbox=BoundingBox(left=float("nan"), top=0, right=float("inf"), bottom=0))
    facts.chunk_rows.upsert([(bad, [replace(chunk(0, "a\0b"), regions=(region,))]), (good, [chunk(0)])])
    assert facts.chunk_rows.counts([bad, good]) == {bad.document_id: 1, good.document_id: 1}


def test_upsert_again_changes_nothing(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    found = [chunk(index) for index in range(3)]
    facts.chunk_rows.upsert([(item, found)])
    with facts.engine.connect() as connection:
        before = connection.execute(sa.select(chunks).order_by(chunks.c.id)).all()
    facts.chunk_rows.upsert([(item, found)])
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(chunks).order_by(chunks.c.id)).all() == before


def test_fewer_chunks_than_before_trim_the_tail_of_that_version_only(facts: Facts, kb: KnowledgeBase) -> None:
    item, neighbour = one(facts, kb, "a.txt"), one(facts, kb, "b.txt")
    next_version = replace(item, version=2)
    for each in (item, next_version, neighbour):
        facts.chunk_rows.upsert([(each, [chunk(index) for index in range(12)])])
    facts.chunk_rows.upsert([(item, [chunk(index, "new") for index in range(10)])])
    assert facts.chunk_rows.ids(item.document_id, 1) == [chunk_id(item.document_id, 1, index) for index in range(10)]
    assert facts.chunk_rows.counts([next_version, neighbour]) == {item.document_id: 12, neighbour.document_id: 12}
    with facts.engine.connect() as connection:
        of_version = sa.and_(chunks.c.document_id == item.document_id, chunks.c.version == 1)
        assert set(connection.execute(sa.select(chunks.c.content).where(of_version)).scalars()) == {"new"}


def test_no_chunks_at_all_empty_the_version(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    facts.chunk_rows.upsert([(item, [chunk(0)])])
    facts.chunk_rows.upsert([(item, [])])
    assert facts.chunk_rows.counts([item]) == {}
    facts.chunk_rows.upsert([])


def test_paid_vectors_are_found_by_embedder_and_input(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    facts.chunk_rows.add_paid("e5", [paid(item, "artefact", "h0", "h1", "h0", "h2")])
    assert facts.chunk_rows.find_paid("e5", ["h0", "h2", "unknown"]) == {
        "h0": PaidVector(artefact_key="artefact", position=0),
        "h2": PaidVector(artefact_key="artefact", position=3),
    }
    assert facts.chunk_rows.find_paid("another", ["h0"]) == {}
    assert facts.chunk_rows.find_paid("e5", []) == {}


def test_paying_again_names_the_newest_artefact(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    facts.chunk_rows.add_paid("e5", [paid(item, "old", "h0", "h1")])
    facts.chunk_rows.add_paid("e5", [paid(item, "new", "h1")])
    facts.chunk_rows.add_paid("e5", [paid(item, "empty")])
    assert facts.chunk_rows.find_paid("e5", ["h0", "h1"]) == {
        "h0": PaidVector(artefact_key="old", position=0),
        "h1": PaidVector(artefact_key="new", position=0),
    }


def test_the_same_input_in_two_documents_is_found_once(facts: Facts, kb: KnowledgeBase) -> None:
    first, second = one(facts, kb, "a.txt"), one(facts, kb, "b.txt")
    facts.chunk_rows.add_paid("e5", [paid(first, "first", "h")])
    facts.chunk_rows.add_paid("e5", [paid(second, "second", "h")])
    assert facts.chunk_rows.find_paid("e5", ["h"])["h"].artefact_key in {"first", "second"}
    facts.chunk_rows.delete_version(first.document_id, 1)
    assert facts.chunk_rows.find_paid("e5", ["h"])["h"].artefact_key == "second"


def test_images_become_exactly_those_given(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    facts.chunk_rows.upsert_images(item, [image(position) for position in range(3)])
    facts.chunk_rows.upsert_images(item, [image(0), image(2, page=None)])
    assert stored_images(facts, item) == [(0, "image 0 on 1"), (2, "image 2 on None")]
    facts.chunk_rows.upsert_images(item, [])
    assert stored_images(facts, item) == []


def test_delete_version_removes_the_rows_of_that_version_only(facts: Facts, kb: KnowledgeBase) -> None:
    item = one(facts, kb)
    next_version = replace(item, version=2)
    for each in (item, next_version):
        facts.chunk_rows.upsert([(each, [chunk(0)])])
        facts.chunk_rows.upsert_images(each, [image(0, id=f"of version {each.version}")])
        facts.chunk_rows.add_paid("e5", [paid(each, f"v{each.version}", "h")])
    facts.chunk_rows.delete_version(item.document_id, 1)
    assert facts.chunk_rows.ids(item.document_id, 1) == []
    assert len(facts.chunk_rows.ids(item.document_id, 2)) == 1
    assert stored_images(facts, item) == [(0, "of version 2")]
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(paid_embeddings.c.version)).scalars().all() == [2]

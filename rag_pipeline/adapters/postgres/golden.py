"""Rows of golden sets and of what asking them has given.

The questions belong to whoever attached them and name documents by path: they outlive a document's versions, and the
document itself. They go when they are detached, and with their knowledge base.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.json_rows import to_json
from rag_pipeline.adapters.postgres.knowledge_bases import active_knowledge_base
from rag_pipeline.adapters.postgres.schema import documents, golden_results, golden_sets, knowledge_bases
from rag_pipeline.core.documents import Status
from rag_pipeline.core.golden import LEGS, MEASURES, Figures, GoldenQuestion, GoldenResult, GoldenSet
from rag_pipeline.core.partitions import has_control_characters

_ACTIVE_SETS = (
    sa.select(golden_sets, knowledge_bases.c.name.label("kb_name"))
    .join(knowledge_bases, knowledge_bases.c.id == golden_sets.c.kb_id)
    .where(knowledge_bases.c.status == "ACTIVE")
)


class GoldenSets:
    """Attach and detach sets, find their documents, keep results. One set for each knowledge base."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def attach(self, kb_name: str, *, name: str, has_pages: bool, questions: Sequence[GoldenQuestion]) -> GoldenSet:
        """Attach questions in the place of those attached before, whose results stay and are not compared any more.

        Raises:
            ResourceNotFoundError: there is no knowledge base of that name.
            KnowledgeBaseInactiveError: it is being deleted.
        """
        content = to_json([{**asdict(each), "relevant": dict(each.relevant)} for each in questions])
        with transaction(self._engine) as connection:
            kb = active_knowledge_base(connection, kb_name, lock=True)
            values = {
                "name": name,
                "has_pages": has_pages,
                "questions": sa.cast(sa.literal(content, sa.Text), JSONB),
                "fingerprint": hashlib.sha256(f"{name}\0{has_pages}\0{content}".encode()).hexdigest(),
                "attached_at": sa.func.now(),
            }
            statement = insert(golden_sets).values(kb_id=kb.id, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["kb_id"], set_=values))
            row = connection.execute(_ACTIVE_SETS.where(golden_sets.c.kb_id == kb.id)).mappings().one()
        return _golden_set(row)

    def detach(self, kb_id: str) -> bool:
        """Forget the set of a knowledge base with its results; False if there is none."""
        with transaction(self._engine) as connection:
            return connection.execute(sa.delete(golden_sets).where(golden_sets.c.kb_id == kb_id)).rowcount > 0

    def all(self) -> list[GoldenSet]:
        """The sets of all active knowledge bases, by the knowledge base's name."""
        with transaction(self._engine) as connection:
            rows = connection.execute(_ACTIVE_SETS.order_by(knowledge_bases.c.name)).mappings()
            return [_golden_set(row) for row in rows]

    def of(self, kb_id: str) -> GoldenSet | None:
        """The set of one active knowledge base."""
        with transaction(self._engine) as connection:
            row = connection.execute(_ACTIVE_SETS.where(golden_sets.c.kb_id == kb_id)).mappings().first()
        return None if row is None else _golden_set(row)

    def exists(self) -> bool:
        """Whether any active knowledge base has one."""
        with transaction(self._engine) as connection:
            return connection.execute(_ACTIVE_SETS.limit(1)).first() is not None

    def document_ids(self, kb_id: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Ids of the live documents by what they are called; names that no document has are left out.

        A name is a source path, else a file name, else a file name without extension; several documents may have it.
        """
        wanted = [name for name in names if not has_control_characters(name)]
        stem = sa.func.regexp_replace(documents.c.file_name, r"\.[^.]*$", "")
        keys = (documents.c.source_path, documents.c.file_name, stem)
        statement = sa.select(documents.c.id, *(key.label(f"key_{place}") for place, key in enumerate(keys))).where(
            documents.c.kb_id == kb_id,
            documents.c.live_version.is_not(None),
            documents.c.status != Status.DELETING,
            sa.or_(*(key == sa.any_(sa.bindparam("names", wanted, sa.ARRAY(sa.Text))) for key in keys)),
        )
        by_key: tuple[dict[str, list[str]], ...] = ({}, {}, {})
        with transaction(self._engine) as connection:
            for document_id, *found in connection.execute(statement.order_by(documents.c.id)):
                for place, key in enumerate(found):
                    by_key[place].setdefault(key, []).append(document_id)
        best = {name: next((ids[name] for ids in by_key if name in ids), []) for name in wanted}
        return {name: tuple(ids) for name, ids in best.items() if ids}

    def add_result(
        self,
        golden: GoldenSet,
        *,
        figures: Figures,
        missing: Sequence[str],
        collection: str,
        embedder: str,
        is_accepted: bool,
    ) -> None:
        """Keep a result; does nothing when the set has been detached or replaced meanwhile."""
        still_there = sa.select(golden_sets.c.kb_id).where(
            golden_sets.c.kb_id == golden.kb_id, golden_sets.c.fingerprint == golden.fingerprint
        )
        values = {
            "fingerprint": golden.fingerprint,
            "figures": {leg: dict(measures) for leg, measures in figures.items()},
            "missing": list(missing),
            "collection": collection,
            "embedder": embedder,
            "is_accepted": is_accepted,
        }
        with transaction(self._engine) as connection:
            if connection.execute(still_there.with_for_update(read=True)).first() is not None:
                connection.execute(sa.insert(golden_results).values(kb_id=golden.kb_id, **values))

    def newest(self, golden: GoldenSet) -> GoldenResult | None:
        """The newest result of these questions."""
        return self._result(golden)

    def accepted(self, golden: GoldenSet) -> GoldenResult | None:
        """The newest result of these questions that is accepted: what later ones are compared with."""
        return self._result(golden, golden_results.c.is_accepted)

    def accept(self, golden: GoldenSet) -> GoldenResult | None:
        """Accept the newest result of these questions, whatever it is; None if there is none."""
        newest = (
            sa.select(golden_results.c.id)
            .where(*_of_questions(golden))
            .order_by(golden_results.c.id.desc())
            .limit(1)
            .scalar_subquery()
        )
        with transaction(self._engine) as connection:
            connection.execute(sa.update(golden_results).where(golden_results.c.id == newest).values(is_accepted=True))
        return self._result(golden)

    def _result(self, golden: GoldenSet, *wanted: sa.ColumnElement[bool]) -> GoldenResult | None:
        statement = (
            sa.select(golden_results)
            .where(*_of_questions(golden), *wanted)
            .order_by(golden_results.c.id.desc())
            .limit(1)
        )
        with transaction(self._engine) as connection:
            row = connection.execute(statement).mappings().first()
        return None if row is None else _golden_result(row)


def _of_questions(golden: GoldenSet) -> tuple[sa.ColumnElement[bool], ...]:
    return (golden_results.c.kb_id == golden.kb_id, golden_results.c.fingerprint == golden.fingerprint)


def _golden_set(row: Mapping[Any, Any]) -> GoldenSet:
    return GoldenSet(
        kb_id=row["kb_id"],
        kb_name=row["kb_name"],
        name=row["name"],
        has_pages=row["has_pages"],
        questions=tuple(GoldenQuestion(**each) for each in row["questions"]),
        fingerprint=row["fingerprint"],
        attached_at=row["attached_at"],
    )


def _golden_result(row: Mapping[Any, Any]) -> GoldenResult:
    figures = row["figures"]  # `jsonb` keeps no order
    return GoldenResult(
        figures={
            leg: {measure: figures[leg][measure] for measure in MEASURES if measure in figures[leg]}
            for leg in LEGS
            if leg in figures
        },
        missing=tuple(row["missing"]),
        collection=row["collection"],
        embedder=row["embedder"],
        is_accepted=row["is_accepted"],
        measured_at=row["measured_at"],
    )

"""Rows of conversations: questions, answers, and the evidence of each answer.

Evidence is kept row by row with its document: it goes when the document goes, and is not shown to whom the document is
not shown. So it is with the answer, which says what its evidence says, whether or not it cites it.
"""

import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.json_rows import to_json
from rag_pipeline.adapters.postgres.knowledge_bases import active_knowledge_base
from rag_pipeline.adapters.postgres.paging import page_of
from rag_pipeline.adapters.postgres.passages import Passages
from rag_pipeline.adapters.postgres.schema import (
    conversation_evidence,
    conversation_turns,
    conversations,
    knowledge_bases,
)
from rag_pipeline.core.answers import AnswerKind, Citation, Conversation, Turn
from rag_pipeline.core.filters import DocumentScope
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.errors import ResourceNotFoundError

TITLE_CHARACTERS = 200
SOURCE_DELETED = "the answer was removed: a document that it was made from has been deleted"
SOURCE_HIDDEN = "the answer is not shown: a document that it was made from is not there to be seen"


class Conversations:
    """Create, read and continue conversations. Those of a knowledge base that is being deleted are gone at once."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def create(self, kb: str, *, title: str = "") -> Conversation:
        """A new conversation about the knowledge base of that name; raises as `KnowledgeBases.active`."""
        with transaction(self._engine) as connection:
            kb_id = active_knowledge_base(connection, kb).id
            row = connection.execute(
                sa.insert(conversations)
                .values(id=uuid.uuid4().hex, kb_id=kb_id, title=_title(title))
                .returning(conversations)
            ).mappings()
            return Conversation(**row.one())

    def get(self, conversation_id: str) -> Conversation:
        """One conversation. Raises `ResourceNotFoundError`."""
        with transaction(self._engine) as connection:
            return self._one(connection, conversation_id)

    def turns(self, conversation_id: str, *, principals: Sequence[str] | None = None) -> list[Turn]:
        """The turns of a conversation, oldest first.

        Args:
            conversation_id: of the conversation.
            principals: who looks at it; evidence of documents that they may not see is left out, and answers with such
                evidence are empty. None: not checked.

        Raises:
            ResourceNotFoundError: no such conversation.
        """
        found = self.get(conversation_id)
        scope = DocumentScope(principals=None if principals is None else tuple(principals))
        visible = Passages(self._engine, kb_id=found.kb_id, scope=scope)
        of_conversation = conversation_turns.c.conversation_id == conversation_id
        with transaction(self._engine) as connection:
            turns = connection.execute(
                sa.select(conversation_turns).where(of_conversation).order_by(conversation_turns.c.position)
            ).mappings()
            rows = [dict(row) for row in turns]
            evidence, withheld = self._evidence(connection, conversation_id, visible.documents_query())
        for row in rows:
            if row["position"] in withheld:
                row |= {"answer": "", "notes": [SOURCE_HIDDEN]}
        return [_turn(row, evidence.get(row["position"], ())) for row in rows]

    def add(
        self,
        conversation_id: str,
        *,
        question: str,
        answer: str,
        kind: AnswerKind,
        citations: Sequence[Citation],
        notes: Sequence[str],
    ) -> int:
        """Append a turn with its evidence and return its position.

        Evidence of documents that have been deleted meanwhile is left out, and the answer with it.

        Raises:
            ResourceNotFoundError: no such conversation.
        """
        with transaction(self._engine) as connection:
            self._one(connection, conversation_id, for_update=True)
            position = connection.execute(
                sa.select(sa.func.count()).where(conversation_turns.c.conversation_id == conversation_id)
            ).scalar_one()
            connection.execute(
                sa.insert(conversation_turns).values(
                    conversation_id=conversation_id,
                    position=position,
                    question=clean_text(question),
                    answer=clean_text(answer),
                    kind=kind,
                    notes=[clean_text(note) for note in notes],
                )
            )
            rows = [
                {
                    "conversation_id": conversation_id,
                    "position": position,
                    "number": citation.number,
                    "document_id": citation.document_id,
                    "citation": _citations().dump_python(citation, mode="json"),
                }
                for citation in citations
            ]
            if connection.execute(_ADD_EVIDENCE, {"rows": to_json(rows)}).rowcount < len(rows):
                _remove_answers(
                    connection,
                    conversation_turns.c.conversation_id == conversation_id,
                    conversation_turns.c.position == position,
                )
            connection.execute(
                sa.update(conversations)
                .where(conversations.c.id == conversation_id)
                .values(
                    updated_at=sa.func.now(),
                    title=sa.case((conversations.c.title == "", _title(question)), else_=conversations.c.title),
                )
            )
            return int(position)

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation with everything in it. Raises `ResourceNotFoundError`."""
        with transaction(self._engine) as connection:
            self._one(connection, conversation_id)
            connection.execute(sa.delete(conversations).where(conversations.c.id == conversation_id))

    def list(self, kb: str, *, page: int = 1, page_size: int = 20) -> list[Conversation]:
        """One page of a knowledge base's conversations, the last used first.

        Raises:
            ConfigurationError: there is no such page.
        """
        statement = _VISIBLE.where(knowledge_bases.c.name == clean_text(kb)).order_by(
            conversations.c.updated_at.desc(), conversations.c.id
        )
        statement = page_of(statement, page=page, page_size=page_size)
        with transaction(self._engine) as connection:
            return [Conversation(**row) for row in connection.execute(statement).mappings()]

    def _one(self, connection: sa.Connection, conversation_id: str, *, for_update: bool = False) -> Conversation:
        statement = _VISIBLE.where(conversations.c.id == clean_text(conversation_id))
        if for_update:
            statement = statement.with_for_update(of=conversations)
        row = connection.execute(statement).mappings().first()
        if row is None:
            raise ResourceNotFoundError(f"there is no conversation {conversation_id!r}")
        return Conversation(**row)

    def _evidence(
        self, connection: sa.Connection, conversation_id: str, visible: sa.Select[Any]
    ) -> tuple[dict[int, tuple[Citation, ...]], set[int]]:
        """The visible evidence by the position of its turn, and the turns that have other evidence besides."""
        statement = (
            sa.select(
                conversation_evidence.c.position,
                conversation_evidence.c.citation,
                conversation_evidence.c.document_id.in_(visible).label("is_visible"),
            )
            .where(conversation_evidence.c.conversation_id == conversation_id)
            .order_by(conversation_evidence.c.position, conversation_evidence.c.number)
        )
        found: dict[int, tuple[Citation, ...]] = {}
        withheld: set[int] = set()
        for row in connection.execute(statement):
            if row.is_visible:
                found[row.position] = (*found.get(row.position, ()), _citations().validate_python(row.citation))
            else:
                withheld.add(row.position)
        return found, withheld


def remove_answers_from(connection: sa.Connection, document_ids: Sequence[str]) -> None:
    """Remove the answers that were made from documents whose rows are deleted in the same transaction.

    It has locked them, so that no answer from them comes in between.
    """
    made_from = sa.select(conversation_evidence.c.conversation_id, conversation_evidence.c.position).where(
        conversation_evidence.c.document_id.in_(document_ids)
    )
    turn = sa.tuple_(conversation_turns.c.conversation_id, conversation_turns.c.position)
    _remove_answers(connection, turn.in_(made_from))


def _remove_answers(connection: sa.Connection, *turns: sa.ColumnElement[bool]) -> None:
    # Notes may quote the answer.
    connection.execute(sa.update(conversation_turns).where(*turns).values(answer="", notes=[SOURCE_DELETED]))


_VISIBLE = (
    sa.select(conversations)
    .join(knowledge_bases, knowledge_bases.c.id == conversations.c.kb_id)
    .where(knowledge_bases.c.status == "ACTIVE")
)

_ADD_EVIDENCE = sa.text(
    """
    INSERT INTO conversation_evidence
    SELECT r.* FROM jsonb_populate_recordset(NULL::conversation_evidence, CAST(:rows AS jsonb)) AS r
    JOIN documents AS d ON d.id = r.document_id
    FOR KEY SHARE OF d
    """
)
"""The lock keeps a document from being deleted between the look and the insert."""


@cache
def _citations() -> TypeAdapter[Citation]:
    """Citations as JSON and back; making it takes some milliseconds, which only those pay who need it."""
    return TypeAdapter(Citation)


def _title(text: str) -> str:
    return " ".join(clean_text(text).split())[:TITLE_CHARACTERS]


def _turn(row: Mapping[str, Any], citations: tuple[Citation, ...]) -> Turn:
    return Turn(
        position=row["position"],
        question=row["question"],
        answer=row["answer"],
        kind=row["kind"],
        citations=citations,
        notes=tuple(row["notes"]),
        created_at=row["created_at"],
    )

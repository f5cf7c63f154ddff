"""Rows of documents as the client sees them: register, list, read. The work on them is claimed in `claims`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.live_generation import hold_live
from rag_pipeline.adapters.postgres.paging import page_of
from rag_pipeline.adapters.postgres.schema import (
    document_versions,
    documents,
    knowledge_bases,
    of_newest_version,
    stage_artefacts,
)
from rag_pipeline.adapters.postgres.versions import is_in, make_live
from rag_pipeline.core.documents import (
    SETTLED,
    SHORTEST_ID,
    Document,
    DocumentError,
    KnowledgeBase,
    Status,
    allowed_from,
)
from rag_pipeline.core.partitions import has_control_characters
from rag_pipeline.errors import (
    AmbiguousNameError,
    DocumentBusyError,
    IllegalTransitionError,
    KnowledgeBaseInactiveError,
    ResourceNotFoundError,
)

NAMESAKES_LISTED = 10
"""Documents of the same path in as many knowledge bases, for the message."""
_RETRIED_BY_SUBMIT = (Status.FAILED, Status.CANCELED)
_ON_THE_WAY_OUT = (Status.CANCELING, Status.DELETING)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """What a submit brings."""

    source_path: str
    file_name: str
    sha256: str
    size_bytes: int
    metadata: Mapping[str, object]
    created_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where the original of a new version goes; handed to the callback that stores it."""

    document_id: str
    partition_key: str
    version: int


class Documents:
    """Register and read documents."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def register(
        self, kb: KnowledgeBase, new: NewVersion, slot: Slot, store_original: Callable[[Slot], str]
    ) -> Document:
        """Find or create the document of a path; `store_original(slot)` is called when there is something to store.

        One advisory lock per (knowledge base, path) is held from the look-up to the commit, so of two racing submits
        the second sees what the first did, and no original is ever overwritten by the loser.

        Args:
            kb: an active knowledge base.
            new: path, hash and size of the bytes.
            slot: id and partition key to use if the document does not exist yet.
            store_original: writes the original and returns its object key.

        Returns:
            The document; `duplicate` is set when the same bytes were there already. Metadata given with them replace
            those of all versions of these bytes; without any, they stay, and a next version takes them over.

        Raises:
            DocumentBusyError: new bytes for a document of which a version is being built, or any bytes for one that is
                being canceled or deleted.
            KnowledgeBaseInactiveError: its deletion has begun meanwhile.
        """
        with transaction(self._engine) as connection:
            connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:path, 0))"),
                {"path": f"{kb.id}/{new.source_path}"},
            )
            row = connection.execute(
                _SELECT.where(documents.c.kb_id == kb.id, documents.c.source_path == new.source_path)
            ).mappings()
            found = [_document(each) for each in row]
            if not found:
                return self._insert(connection, kb, new, slot, store_original)
            existing = found[0]
            if existing.sha256 == new.sha256 and not self._is_out_of_reach(connection, existing):
                return self._duplicate(connection, existing, new)
            self._insert_next_version(connection, kb, existing, new, store_original)
            return self._one(connection, existing.id)

    def get(self, document_id: str) -> Document:
        """One document. Raises `ResourceNotFoundError`; one that is being deleted does not exist any more."""
        with transaction(self._engine) as connection:
            return self._one(connection, document_id)

    def many(self, document_ids: Sequence[str]) -> list[Document]:
        """Those of the documents that exist, in the order given."""
        with transaction(self._engine) as connection:
            rows = connection.execute(_VISIBLE.where(documents.c.id.in_(document_ids))).mappings()
            found = {row["id"]: _document(row) for row in rows}
        return [found[each] for each in document_ids if each in found]

    def originals_in_use(self, object_keys: Sequence[str]) -> frozenset[str]:
        """Those of the keys that a version names as its original."""
        statement = sa.select(document_versions.c.object_key).where(document_versions.c.object_key.in_(object_keys))
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(statement).scalars())

    def find(self, text: str, *, kb_id: str | None = None) -> Document:
        """The document with this id (or its first digits), partition key or source path.

        Args:
            text: what a person knows of it.
            kb_id: only in this knowledge base, in which paths are unique; None: in any.

        Raises:
            ResourceNotFoundError: none.
            AmbiguousNameError: several, none of which has the text as its whole id or partition key.
        """
        statement = _VISIBLE.where(
            sa.or_(
                documents.c.partition_key == text,
                documents.c.source_path == text,
                documents.c.id.startswith(text, autoescape=True) if len(text) >= SHORTEST_ID else sa.false(),
            )
        )
        if kb_id is not None:
            statement = statement.where(documents.c.kb_id == kb_id)
        is_exact = sa.or_(documents.c.id == text, documents.c.partition_key == text)
        statement = statement.order_by(is_exact.desc(), documents.c.created_at, documents.c.id).limit(NAMESAKES_LISTED)
        with transaction(self._engine) as connection:
            # No name holds control characters, and the driver cannot send all of them.
            rows = [] if has_control_characters(text) else connection.execute(statement).mappings().all()
        found = [_document(row) for row in rows]
        if not found:
            raise ResourceNotFoundError(f"there is no document {text!r} (id, partition key or path)")
        if len(found) > 1 and text not in (found[0].id, found[0].partition_key):
            listed = ", ".join(f"{each.id} in {each.kb_name!r}" for each in found)
            raise AmbiguousNameError(f"several documents are {text!r}: give the id of one ({listed})")
        return found[0]

    def list(self, kb_id: str, *, status: Status | None = None, page: int = 1, page_size: int = 20) -> list[Document]:
        """One page of a knowledge base's documents, oldest first. Raises `ConfigurationError` for no such page."""
        statement = _VISIBLE.where(documents.c.kb_id == kb_id)
        if status is not None:
            statement = statement.where(documents.c.status == status)
        statement = statement.order_by(documents.c.created_at, documents.c.id)
        statement = page_of(statement, page=page, page_size=page_size)
        with transaction(self._engine) as connection:
            return [_document(row) for row in connection.execute(statement).mappings()]

    def count_by_status(self, kb_id: str) -> dict[Status, int]:
        """How many documents of a knowledge base are in each status."""
        statement = (
            sa.select(documents.c.status, sa.func.count())
            .where(documents.c.kb_id == kb_id, documents.c.status != Status.DELETING)
            .group_by(documents.c.status)
        )
        with transaction(self._engine) as connection:
            return {Status(status): count for status, count in connection.execute(statement)}

    def next_retry(self, kb_id: str) -> datetime | None:
        """When the first failed document of a knowledge base is tried again by itself; None if none is."""
        statement = sa.select(sa.func.min(documents.c.available_at)).where(documents.c.kb_id == kb_id, TRIED_AGAIN)
        with transaction(self._engine) as connection:
            return connection.execute(statement).scalar()

    def retry(self, document_id: str) -> Document:
        """Hand a FAILED or CANCELED document back to the sensor; finished stages are not done again.

        Raises:
            IllegalTransitionError: it is in another status.
        """
        with transaction(self._engine) as connection:
            document = self._one(connection, document_id)
            if not self._requeue(connection, document_id):
                raise IllegalTransitionError(
                    f"{document.source_path} is {document.status}: only FAILED or CANCELED retry"
                )
            return self._one(connection, document_id)

    def _one(self, connection: sa.Connection, document_id: str) -> Document:
        row = connection.execute(_VISIBLE.where(documents.c.id == document_id)).mappings().first()
        if row is None:
            raise ResourceNotFoundError(f"there is no document {document_id!r}")
        return _document(row)

    def _require_active(self, connection: sa.Connection, kb: KnowledgeBase) -> None:
        """Refuse a knowledge base that is being deleted; the lock keeps it active until the transaction ends."""
        statement = sa.select(knowledge_bases.c.status).where(knowledge_bases.c.id == kb.id).with_for_update(read=True)
        if connection.execute(statement).scalar() != "ACTIVE":
            raise KnowledgeBaseInactiveError(f"the knowledge base {kb.name!r} is being deleted and takes no new work")

    def _duplicate(self, connection: sa.Connection, existing: Document, new: NewVersion) -> Document:
        if existing.status in _ON_THE_WAY_OUT:
            raise DocumentBusyError(f"{existing.source_path} is {existing.status}: submit it again when that is done")
        if existing.status in _RETRIED_BY_SUBMIT:
            self._requeue(connection, existing.id)
            existing = self._one(connection, existing.id)
        elif existing.status is Status.READY and existing.live_version not in (None, existing.version):
            # It was rolled back, and now its newest bytes are wanted again.
            make_live(connection, existing.id, existing.live_version, existing.version)
            existing = self._one(connection, existing.id)
        if new.metadata and dict(new.metadata) != existing.metadata:
            _replace_metadata(connection, existing, new.metadata)
            existing = self._one(connection, existing.id)
        return replace(existing, duplicate=True)

    def _is_out_of_reach(self, connection: sa.Connection, existing: Document) -> bool:
        """Whether the document was rolled back, and its newest version is not in the collection that answers now."""
        return (
            existing.status is Status.READY
            and existing.live_version not in (None, existing.version)
            and not is_in(connection, hold_live(connection), existing.id, existing.version)
        )

    def _requeue(self, connection: sa.Connection, document_id: str) -> bool:
        statement = (
            sa.update(documents)
            .where(documents.c.id == document_id, documents.c.status.in_(_RETRIED_BY_SUBMIT))
            .values(
                status=Status.PENDING,
                batch_id=None,
                cancel_reason=None,
                uncounted_attempts=documents.c.attempt,
                available_at=sa.func.now(),
                updated_at=sa.func.now(),
            )
        )
        return connection.execute(statement).rowcount == 1

    def _insert(
        self,
        connection: sa.Connection,
        kb: KnowledgeBase,
        new: NewVersion,
        slot: Slot,
        store_original: Callable[[Slot], str],
    ) -> Document:
        object_key = store_original(slot)
        self._require_active(connection, kb)
        values: dict[str, Any] = {
            "id": slot.document_id,
            "kb_id": kb.id,
            "source_path": new.source_path,
            "file_name": new.file_name,
            "partition_key": slot.partition_key,
            "status": Status.PENDING,
            "version": 1,
        }
        row = connection.execute(sa.insert(documents).values(**values).returning(*_SET_BY_INSERT)).one()
        self._insert_version(connection, slot.document_id, 1, new, object_key)
        # Reading the row back would be one query more for every new document.
        return Document(
            **values,
            **row._mapping,
            kb_name=kb.name,
            sha256=new.sha256,
            size_bytes=new.size_bytes,
            metadata=dict(new.metadata),
            created_by=new.created_by,
        )

    def _insert_next_version(
        self,
        connection: sa.Connection,
        kb: KnowledgeBase,
        existing: Document,
        new: NewVersion,
        store_original: Callable[[Slot], str],
    ) -> None:
        if existing.status not in SETTLED:
            raise DocumentBusyError(
                f"{existing.source_path} is {existing.status}: wait for version {existing.version}, or cancel it"
            )
        slot = Slot(document_id=existing.id, partition_key=existing.partition_key, version=existing.version + 1)
        object_key = store_original(slot)
        self._require_active(connection, kb)
        changed = connection.execute(
            sa.update(documents)
            .where(
                documents.c.id == existing.id,
                documents.c.version == existing.version,
                documents.c.status.in_(SETTLED & set(allowed_from(Status.PENDING))),
            )
            .values(
                version=slot.version,
                status=Status.PENDING,
                attempt=0,
                uncounted_attempts=0,
                batch_id=None,
                cancel_reason=None,
                file_name=new.file_name,
                available_at=sa.func.now(),
                updated_at=sa.func.now(),
                **NO_ERROR,
            )
        )
        if changed.rowcount != 1:
            raise DocumentBusyError(f"{existing.source_path} has just been taken by a run: wait until it is done")
        described = new if new.metadata else replace(new, metadata=existing.metadata)
        self._insert_version(connection, existing.id, slot.version, described, object_key)

    def _insert_version(
        self, connection: sa.Connection, document_id: str, version: int, new: NewVersion, object_key: str
    ) -> None:
        connection.execute(
            sa.insert(document_versions).values(
                document_id=document_id,
                version=version,
                sha256=new.sha256,
                size_bytes=new.size_bytes,
                object_key=object_key,
                metadata=dict(new.metadata),
                created_by=new.created_by,
            )
        )


def _replace_metadata(connection: sa.Connection, document: Document, metadata: Mapping[str, object]) -> None:
    """Of all versions of the document's newest bytes: queries see it at once, a re-index writes it to the snapshot."""
    connection.execute(
        sa.update(document_versions)
        .where(document_versions.c.document_id == document.id, document_versions.c.sha256 == document.sha256)
        .values(metadata=dict(metadata))
    )
    connection.execute(sa.update(documents).where(documents.c.id == document.id).values(updated_at=sa.func.now()))


NO_ERROR: Mapping[str, None] = {"error_stage": None, "error_code": None, "error_class": None, "error_message": None}

_SELECT = (
    sa.select(
        documents,
        knowledge_bases.c.name.label("kb_name"),
        document_versions.c.sha256,
        document_versions.c.size_bytes,
        document_versions.c.pages,
        document_versions.c.chunk_count,
        document_versions.c.token_count,
        document_versions.c.warnings,
        document_versions.c.metadata,
        document_versions.c.created_by,
        sa.select(sa.func.count()).where(of_newest_version(stage_artefacts)).scalar_subquery().label("stages_done"),
    )
    .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
    .join(document_versions, of_newest_version(document_versions))
)

TRIED_AGAIN = sa.and_(documents.c.status == Status.FAILED, documents.c.error_class == "temporary")
"""What the recovery puts back into the queue when its time has come."""

_SET_BY_INSERT = (documents.c.live_version, documents.c.attempt, documents.c.created_at, documents.c.updated_at)

_VISIBLE = _SELECT.where(documents.c.status != Status.DELETING, knowledge_bases.c.status == "ACTIVE")


def _document(row: Mapping[Any, Any]) -> Document:
    error = None
    if row["error_code"] is not None:
        error = DocumentError(
            stage=row["error_stage"],
            code=row["error_code"],
            error_class=row["error_class"],
            message=row["error_message"],
        )
    return Document(
        id=row["id"],
        kb_id=row["kb_id"],
        kb_name=row["kb_name"],
        source_path=row["source_path"],
        file_name=row["file_name"],
        partition_key=row["partition_key"],
        status=Status(row["status"]),
        version=row["version"],
        live_version=row["live_version"],
        sha256=row["sha256"],
        size_bytes=row["size_bytes"],
        attempt=row["attempt"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        error=error,
        pages=row["pages"],
        chunk_count=row["chunk_count"],
        token_count=row["token_count"],
        metadata=row["metadata"],
        warnings=tuple(row["warnings"]),
        cancel_reason=row["cancel_reason"],
        created_by=row["created_by"],
        retry_at=row["available_at"] if row["status"] == "FAILED" and row["error_class"] == "temporary" else None,
        stages_done=row["stages_done"],
    )

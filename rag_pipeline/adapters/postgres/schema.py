"""The tables of the facts database and their migrations. Nothing here reads or writes a row.

All times are `timestamptz` filled by PostgreSQL's `now()`: clocks of workers never decide anything.
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_NOW = sa.text("now()")
_EMPTY_OBJECT = sa.text("'{}'::jsonb")
_EMPTY_LIST = sa.text("'[]'::jsonb")


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=None if nullable else _NOW)


knowledge_bases = sa.Table(
    "knowledge_bases",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="ACTIVE"),
    _time("created_at"),
    # A deleted knowledge base keeps its row; its name is free again.
    sa.Index("uq_knowledge_bases_name", "name", unique=True, postgresql_where=sa.text("status <> 'DELETED'")),
)

documents = sa.Table(
    "documents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kb_id", sa.Text, sa.ForeignKey("knowledge_bases.id"), nullable=False),
    sa.Column("source_path", sa.Text, nullable=False),
    sa.Column("file_name", sa.Text, nullable=False),
    sa.Column("partition_key", sa.Text, nullable=False, unique=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("live_version", sa.Integer),
    # Runs over this version. It never goes down: it is part of artefact keys, which are never written twice.
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
    # Attempts before the last retry by hand: the limit of automatic attempts begins anew after them.
    sa.Column("uncounted_attempts", sa.Integer, nullable=False, server_default="0"),
    # The live batch that owns the document: set by the claim, cleared when the batch lets go.
    sa.Column("batch_id", sa.Text),
    _time("available_at"),
    sa.Column("error_stage", sa.Text),
    sa.Column("error_code", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    _time("created_at"),
    _time("updated_at"),
    # Why the newest version was canceled.
    sa.Column("cancel_reason", sa.Text),
    sa.UniqueConstraint("kb_id", "source_path"),
    sa.Index("ix_documents_kb_id_status", "kb_id", "status"),
    sa.Index("ix_documents_waiting", "available_at", "created_at", postgresql_where=sa.text("status = 'PENDING'")),
    sa.Index("ix_documents_batch_id", "batch_id", postgresql_where=sa.text("batch_id IS NOT NULL")),
    sa.Index(
        "ix_documents_on_the_way_out",
        "available_at",
        postgresql_where=sa.text("status IN ('CANCELING', 'DELETING')"),
    ),
)

document_versions = sa.Table(
    "document_versions",
    metadata,
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("pages", sa.Integer),
    sa.Column("chunk_count", sa.Integer),
    sa.Column("token_count", sa.Integer),
    sa.Column("collection", sa.Text),
    sa.Column("warnings", JSONB, nullable=False, server_default=_EMPTY_LIST),
    _time("created_at"),
    _time("ready_at", nullable=True),
    # Set when a newer version went live: the cleanup removes what the stores hold of this one after a grace period.
    _time("superseded_at", nullable=True),
    # What came with the bytes: a version that is being built, or fails, changes nothing of the one that answers.
    sa.Column("metadata", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    sa.Column("created_by", sa.Text),
    sa.Index("ix_document_versions_superseded_at", "superseded_at"),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("first_partition", sa.Text),
    sa.Column("last_partition", sa.Text),
    sa.Column("document_count", sa.Integer, nullable=False),
    sa.Column("is_large", sa.Boolean, nullable=False, server_default=sa.false()),
    _time("created_at"),
    _time("heartbeat_at"),
    _time("finished_at", nullable=True),
    sa.Index("ix_batches_live", "state", postgresql_where=sa.text("state <> 'FINISHED'")),
    sa.Index("ix_batches_finished_at", "finished_at", postgresql_where=sa.text("state = 'FINISHED'")),
)

stage_attempts = sa.Table(
    "stage_attempts",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("output_summary", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    sa.Column("error_code", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    _time("started_at"),
    _time("finished_at", nullable=True),
    sa.Column("duration_ms", sa.Integer),
    sa.UniqueConstraint("document_id", "version", "stage", "attempt", "run_id", name="uq_stage_attempts"),
    sa.Index("ix_stage_attempts_running", "run_id", postgresql_where=sa.text("status = 'RUNNING'")),
)

stage_artefacts = sa.Table(
    "stage_artefacts",
    metadata,
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("stage", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("artefact_key", sa.Text),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("summary", JSONB, nullable=False),
    _time("completed_at"),
)

chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("chunk_index", sa.Integer, nullable=False),
    sa.Column("parent_id", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("heading_path", JSONB, nullable=False),
    sa.Column("page", sa.Integer),
    sa.Column("page_end", sa.Integer),
    sa.Column("start_offset", sa.Integer, nullable=False),
    sa.Column("end_offset", sa.Integer, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("locator", JSONB, nullable=False),
    sa.UniqueConstraint("document_id", "version", "chunk_index"),
)

images = sa.Table(
    "images",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("width", sa.Integer, nullable=False),
    sa.Column("height", sa.Integer, nullable=False),
    sa.Column("page", sa.Integer),
    sa.Column("bbox", JSONB),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.UniqueConstraint("document_id", "version", "position"),
)

paid_embeddings = sa.Table(
    "paid_embeddings",
    metadata,
    # Key of the vectors already paid for: what was embedded, by whom, and in which artefact the vector lies.
    sa.Column("embedder", sa.Text, primary_key=True),
    sa.Column("input_hash", sa.Text, primary_key=True),
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("artefact_key", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Index("ix_paid_embeddings_document_id_version", "document_id", "version"),
)

collections = sa.Table(
    "collections",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("embedder", sa.Text, nullable=False),
    sa.Column("dimensions", sa.Integer, nullable=False),
    sa.Column("analyzer", sa.Text, nullable=False),
    # LIVE: answers queries; FILLING: the next one; RETIRED: to be dropped; DROPPED: its name is not given again.
    sa.Column("state", sa.Text, nullable=False),
    _time("created_at"),
    _time("retired_at", nullable=True),
    # Of the FILLING one: when its next run may begin, and why the switch to it was refused.
    _time("due_at"),
    sa.Column("refusal", sa.Text),
    # At most one generation answers queries, and at most one is filled.
    sa.Index("uq_collections_live", "state", unique=True, postgresql_where=sa.text("state = 'LIVE'")),
    sa.Index("uq_collections_filling", "state", unique=True, postgresql_where=sa.text("state = 'FILLING'")),
)

generation_documents = sa.Table(
    "generation_documents",
    metadata,
    # A version whose rows are complete in a collection that does not answer yet, and what its artefacts become then.
    sa.Column("collection", sa.Text, sa.ForeignKey("collections.name"), primary_key=True),
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("artefact_key", sa.Text, nullable=False),
    sa.Column("embeddings_fingerprint", sa.Text, nullable=False),
    sa.Column("index_fingerprint", sa.Text, nullable=False),
    sa.Index("ix_generation_documents_document_id", "document_id"),
)

deletions = sa.Table(
    "deletions",
    metadata,
    # The id of the document or knowledge base; no foreign key, because this row outlives it.
    sa.Column("target_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("kb_id", sa.Text, nullable=False),
    sa.Column("kb_name", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    _time("requested_at"),
    _time("finished_at", nullable=True),
    sa.Column("counts", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    sa.Column("last_error", sa.Text),
    sa.Index("ix_deletions_kb_id", "kb_id"),
    sa.Index("ix_deletions_unfinished", "requested_at", postgresql_where=sa.text("finished_at IS NULL")),
)


conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kb_id", sa.Text, sa.ForeignKey("knowledge_bases.id"), nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    sa.Index("ix_conversations_kb_id_updated_at", "kb_id", "updated_at"),
)

conversation_turns = sa.Table(
    "conversation_turns",
    metadata,
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("notes", JSONB, nullable=False),
    _time("created_at"),
)

conversation_evidence = sa.Table(
    "conversation_evidence",
    metadata,
    sa.Column("conversation_id", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    # The passages of a deleted document go with it.
    sa.Column("document_id", sa.Text, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("citation", JSONB, nullable=False),
    sa.ForeignKeyConstraint(
        ["conversation_id", "position"],
        ["conversation_turns.conversation_id", "conversation_turns.position"],
        ondelete="CASCADE",
        name="fk_conversation_evidence_turn",
    ),
    sa.Index("ix_conversation_evidence_document_id", "document_id"),
)


golden_sets = sa.Table(
    "golden_sets",
    metadata,
    # One set of questions with known answers for each knowledge base, as one document: it is read and replaced whole.
    sa.Column("kb_id", sa.Text, sa.ForeignKey("knowledge_bases.id"), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("has_pages", sa.Boolean, nullable=False),
    sa.Column("questions", JSONB, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    _time("attached_at"),
)

golden_results = sa.Table(
    "golden_results",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("kb_id", sa.Text, sa.ForeignKey("golden_sets.kb_id", ondelete="CASCADE"), nullable=False),
    # Of the questions that were asked: those of the set may be others now.
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("figures", JSONB, nullable=False),
    sa.Column("missing", JSONB, nullable=False),
    sa.Column("collection", sa.Text, nullable=False),
    sa.Column("embedder", sa.Text, nullable=False),
    # Later results are compared with the newest accepted one.
    sa.Column("is_accepted", sa.Boolean, nullable=False),
    _time("measured_at"),
    sa.Index("ix_golden_results_kb_id_fingerprint", "kb_id", "fingerprint"),
)


def of_newest_version(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Rows of the newest version of their document."""
    return sa.and_(table.c.document_id == documents.c.id, table.c.version == documents.c.version)


def of_live_version(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Rows of the version of their document that answers queries."""
    return sa.and_(table.c.document_id == documents.c.id, table.c.version == documents.c.live_version)


def migrate(url: str, *, revision: str = "head") -> None:
    """Bring the database to the newest schema; safe to run at the same time from several processes.

    Args:
        url: a SQLAlchemy or `postgresql://` URL of the facts database.
        revision: an older schema, for tests of a migration.

    Raises:
        FactsUnavailableError: the server cannot be reached.
    """
    from alembic import command
    from alembic.config import Config

    from rag_pipeline.adapters.postgres.engine import create_engine, translate_errors

    if url.startswith("postgresql://"):
        url = "postgresql+psycopg2://" + url.removeprefix("postgresql://")
    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    engine = create_engine(url, pool_size=1)
    try:
        with translate_errors(), engine.begin() as connection:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('rag_pipeline migrations'))"))
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    finally:
        engine.dispose()

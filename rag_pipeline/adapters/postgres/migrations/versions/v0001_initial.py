"""The first schema.

Revision ID: 0001
Revises:
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = """
CREATE TABLE batches (
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    run_id TEXT,
    first_partition TEXT,
    last_partition TEXT,
    document_count INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_batches PRIMARY KEY (id)
);

CREATE INDEX ix_batches_live ON batches (state) WHERE state <> 'FINISHED';

CREATE TABLE collections (
    name TEXT NOT NULL,
    embedder TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    analyzer TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_collections PRIMARY KEY (name)
);

CREATE UNIQUE INDEX uq_collections_live ON collections (state) WHERE state = 'LIVE';

CREATE TABLE knowledge_bases (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT DEFAULT 'ACTIVE' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_knowledge_bases PRIMARY KEY (id)
);

CREATE UNIQUE INDEX uq_knowledge_bases_name ON knowledge_bases (name) WHERE status <> 'DELETED';

CREATE TABLE documents (
    id TEXT NOT NULL,
    kb_id TEXT NOT NULL,
    source_path TEXT NOT NULL,
    file_name TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    status TEXT NOT NULL,
    version INTEGER NOT NULL,
    live_version INTEGER,
    attempt INTEGER DEFAULT '0' NOT NULL,
    batch_id TEXT,
    available_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    error_stage TEXT,
    error_code TEXT,
    error_class TEXT,
    error_message TEXT,
    metadata JSONB DEFAULT '{}'::jsonb NOT NULL,
    created_by TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_documents PRIMARY KEY (id),
    CONSTRAINT uq_documents_kb_id_source_path UNIQUE (kb_id, source_path),
    CONSTRAINT fk_documents_kb_id FOREIGN KEY(kb_id) REFERENCES knowledge_bases (id),
    CONSTRAINT uq_documents_partition_key UNIQUE (partition_key)
);

CREATE INDEX ix_documents_batch_id ON documents (batch_id) WHERE batch_id IS NOT NULL;

CREATE INDEX ix_documents_kb_id_status ON documents (kb_id, status);

CREATE INDEX ix_documents_waiting ON documents (available_at, created_at) WHERE status = 'PENDING';

CREATE TABLE chunks (
    id TEXT NOT NULL,
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    chunk_index INTEGER NOT NULL,
    parent_id TEXT NOT NULL,
    content TEXT NOT NULL,
    heading_path JSONB NOT NULL,
    page INTEGER,
    page_end INTEGER,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    content_hash TEXT NOT NULL,
    locator JSONB NOT NULL,
    CONSTRAINT pk_chunks PRIMARY KEY (id),
    CONSTRAINT uq_chunks_document_id_version_chunk_index UNIQUE (document_id, version, chunk_index),
    CONSTRAINT fk_chunks_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE TABLE document_versions (
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    object_key TEXT NOT NULL,
    pages INTEGER,
    chunk_count INTEGER,
    token_count INTEGER,
    collection TEXT,
    warnings JSONB DEFAULT '[]'::jsonb NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ready_at TIMESTAMP WITH TIME ZONE,
    superseded_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_document_versions PRIMARY KEY (document_id, version),
    CONSTRAINT fk_document_versions_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE INDEX ix_document_versions_superseded_at ON document_versions (superseded_at);

CREATE TABLE images (
    id TEXT NOT NULL,
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    position INTEGER NOT NULL,
    object_key TEXT NOT NULL,
    media_type TEXT NOT NULL,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    page INTEGER,
    bbox JSONB,
    description TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_images PRIMARY KEY (id),
    CONSTRAINT uq_images_document_id_version_position UNIQUE (document_id, version, position),
    CONSTRAINT fk_images_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE TABLE paid_embeddings (
    embedder TEXT NOT NULL,
    input_hash TEXT NOT NULL,
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    artefact_key TEXT NOT NULL,
    position INTEGER NOT NULL,
    CONSTRAINT pk_paid_embeddings PRIMARY KEY (embedder, input_hash, document_id, version),
    CONSTRAINT fk_paid_embeddings_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE INDEX ix_paid_embeddings_document_id_version ON paid_embeddings (document_id, version);

CREATE TABLE stage_artefacts (
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    stage TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    artefact_key TEXT,
    attempt INTEGER NOT NULL,
    summary JSONB NOT NULL,
    completed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_stage_artefacts PRIMARY KEY (document_id, version, stage),
    CONSTRAINT fk_stage_artefacts_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE TABLE stage_attempts (
    id BIGINT GENERATED BY DEFAULT AS IDENTITY,
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    stage TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT NOT NULL,
    output_summary JSONB DEFAULT '{}'::jsonb NOT NULL,
    error_code TEXT,
    error_class TEXT,
    error_message TEXT,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    duration_ms INTEGER,
    CONSTRAINT pk_stage_attempts PRIMARY KEY (id),
    CONSTRAINT uq_stage_attempts UNIQUE (document_id, version, stage, attempt, run_id),
    CONSTRAINT fk_stage_attempts_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    """Create every table and index."""
    op.execute(STATEMENTS)

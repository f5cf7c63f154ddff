"""The next generation beside the one that answers: its state, and the documents that are complete in it.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = """
ALTER TABLE collections ADD COLUMN retired_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE collections ADD COLUMN due_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL;
ALTER TABLE collections ADD COLUMN refusal TEXT;

CREATE UNIQUE INDEX uq_collections_filling ON collections (state) WHERE state = 'FILLING';

CREATE TABLE generation_documents (
    collection TEXT NOT NULL,
    document_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    artefact_key TEXT NOT NULL,
    embeddings_fingerprint TEXT NOT NULL,
    index_fingerprint TEXT NOT NULL,
    CONSTRAINT pk_generation_documents PRIMARY KEY (collection, document_id, version),
    CONSTRAINT fk_generation_documents_collection FOREIGN KEY(collection) REFERENCES collections (name),
    CONSTRAINT fk_generation_documents_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE INDEX ix_generation_documents_document_id ON generation_documents (document_id);
"""


def upgrade() -> None:
    """Add the columns, the table and the indexes."""
    op.execute(STATEMENTS)

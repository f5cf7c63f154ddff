"""Metadata and submitter belong to the version that they came with.

Revision ID: 0008
Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENTS = """
ALTER TABLE document_versions ADD COLUMN metadata JSONB DEFAULT '{}'::jsonb NOT NULL;
ALTER TABLE document_versions ADD COLUMN created_by TEXT;

UPDATE document_versions AS v
SET metadata = d.metadata, created_by = d.created_by
FROM documents AS d
WHERE d.id = v.document_id;

ALTER TABLE documents DROP COLUMN metadata;
ALTER TABLE documents DROP COLUMN created_by;
"""
# Whoever submitted later versions was not written down: the first submitter stands for them.


def upgrade() -> None:
    """Move the columns."""
    op.execute(STATEMENTS)

"""Why a document was canceled, and what stays of deleted ones.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATEMENTS = """
ALTER TABLE documents ADD COLUMN cancel_reason TEXT;

CREATE INDEX ix_documents_on_the_way_out ON documents (available_at) WHERE status IN ('CANCELING', 'DELETING');

CREATE TABLE deletions (
    target_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    kb_id TEXT NOT NULL,
    kb_name TEXT NOT NULL,
    name TEXT NOT NULL,
    reason TEXT,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    counts JSONB DEFAULT '{}'::jsonb NOT NULL,
    last_error TEXT,
    CONSTRAINT pk_deletions PRIMARY KEY (target_id)
);

CREATE INDEX ix_deletions_kb_id ON deletions (kb_id);

CREATE INDEX ix_deletions_unfinished ON deletions (requested_at) WHERE finished_at IS NULL;
"""


def upgrade() -> None:
    """Add the column, the table and the indexes."""
    op.execute(STATEMENTS)

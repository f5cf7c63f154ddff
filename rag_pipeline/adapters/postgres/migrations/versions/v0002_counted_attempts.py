"""Attempts that do not count any more, and a way to the stages that a dead run left open.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = """
ALTER TABLE documents ADD COLUMN uncounted_attempts INTEGER DEFAULT '0' NOT NULL;

CREATE INDEX ix_stage_attempts_running ON stage_attempts (run_id) WHERE status = 'RUNNING';
"""


def upgrade() -> None:
    """Add the column and the index."""
    op.execute(STATEMENTS)
